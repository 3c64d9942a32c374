// Products and sums of Eigen's sparse matrices over existing arrays; benchmarks/peers/eigen.py calls these functions.

#include <Eigen/Sparse>
#include <cstdint>
#include <cstring>

using Eigen::ColMajor;
using Eigen::Dynamic;
using Eigen::Map;
using Eigen::RowMajor;

template <int Order>
using Stored = Map<const Eigen::SparseMatrix<float, Order, int>>;
template <int Order>
using Dense = Eigen::Matrix<float, Dynamic, Dynamic, Order>;
using Vector = Eigen::VectorXf;
using Result = Eigen::SparseMatrix<float, RowMajor, int>;

template <int Order>
static Stored<Order> stored(int64_t rows, int64_t columns, const int* pos, const int* crd, const float* vals) {
  return Stored<Order>(rows, columns, pos[Order == RowMajor ? rows : columns], pos, crd, vals);
}

extern "C" {

void set_threads(int64_t threads) { Eigen::setNbThreads(int(threads)); }

void spmv_csr(int64_t rows, int64_t columns, const int* pos, const int* crd, const float* vals, const float* x, float* y) {
  Map<Vector>(y, rows).noalias() = stored<RowMajor>(rows, columns, pos, crd, vals) * Map<const Vector>(x, columns);
}

void spmv_csc(int64_t rows, int64_t columns, const int* pos, const int* crd, const float* vals, const float* x, float* y) {
  Map<Vector>(y, rows).noalias() = stored<ColMajor>(rows, columns, pos, crd, vals) * Map<const Vector>(x, columns);
}

void spmm_csr(int64_t rows, int64_t columns, const int* pos, const int* crd, const float* vals, const float* B, float* C, int64_t k) {
  Map<Dense<RowMajor>>(C, rows, k).noalias() =
      stored<RowMajor>(rows, columns, pos, crd, vals) * Map<const Dense<RowMajor>>(B, columns, k);
}

void spmm_csc(int64_t rows, int64_t columns, const int* pos, const int* crd, const float* vals, const float* B, float* C, int64_t k) {
  Map<Dense<RowMajor>>(C, rows, k).noalias() =
      stored<ColMajor>(rows, columns, pos, crd, vals) * Map<const Dense<RowMajor>>(B, columns, k);
}

// Row-major x and y are their transposes in the order of columns.
void linear(int64_t rows, int64_t columns, const int* pos, const int* crd, const float* vals, const float* x, float* y, int64_t batch) {
  Map<Dense<ColMajor>>(y, rows, batch).noalias() =
      stored<RowMajor>(rows, columns, pos, crd, vals) * Map<const Dense<ColMajor>>(x, columns, batch);
}

Result* spgemm(int64_t rows, int64_t inner, const int* pos, const int* crd, const float* vals, int64_t columns, const int* B_pos,
               const int* B_crd, const float* B_vals) {
  return new Result(stored<RowMajor>(rows, inner, pos, crd, vals) * stored<RowMajor>(inner, columns, B_pos, B_crd, B_vals));
}

Result* add(int64_t rows, int64_t columns, const int* pos, const int* crd, const float* vals, const int* B_pos, const int* B_crd,
            const float* B_vals) {
  return new Result(stored<RowMajor>(rows, columns, pos, crd, vals) + stored<RowMajor>(rows, columns, B_pos, B_crd, B_vals));
}

Result* multiply(int64_t rows, int64_t columns, const int* pos, const int* crd, const float* vals, const int* B_pos, const int* B_crd,
                 const float* B_vals) {
  return new Result(
      stored<RowMajor>(rows, columns, pos, crd, vals).cwiseProduct(stored<RowMajor>(rows, columns, B_pos, B_crd, B_vals)));
}

int64_t count(const Result* C) { return C->nonZeros(); }

void copy(const Result* C, int* pos, int* crd, float* vals) {
  std::memcpy(pos, C->outerIndexPtr(), sizeof(int) * (C->rows() + 1));
  std::memcpy(crd, C->innerIndexPtr(), sizeof(int) * C->nonZeros());
  std::memcpy(vals, C->valuePtr(), sizeof(float) * C->nonZeros());
}

void release(Result* C) { delete C; }
}
