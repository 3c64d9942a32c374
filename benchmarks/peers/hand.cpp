// Plain loops in C++, one for each family: a programmer's work of an hour for one format, data type and operation.
//
// Values are float32, indices int32, coordinates within a row sorted. Blocks of rows with about equally many entries run in parallel.
// Loops over columns hold their sums in vector registers. benchmarks/peers/hand.py calls these functions.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr int LANES = 8;
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4)));

inline const Lanes& load(const float* from) { return *reinterpret_cast<const Lanes*>(from); }
inline Lanes& at(float* to) { return *reinterpret_cast<Lanes*>(to); }
inline float sum_of(Lanes x) { return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7])); }

struct Csr {
  int64_t rows;
  const int *pos, *crd;
  const float* vals;
};

// Calls work(first, last, thread) for blocks of rows with about equally many entries, one for each thread.
template <class Work>
void in_blocks(int64_t rows, const int* pos, int threads, Work work) {
  auto start = [&](int block) {
    if (block == threads) return rows;
    return static_cast<int64_t>(std::lower_bound(pos, pos + rows, int(int64_t(pos[rows]) * block / threads)) - pos);
  };
  if (threads == 1) return work(int64_t(0), rows, 0);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int block = 0; block < threads; block++) work(block ? start(block) : 0, start(block + 1), block);
}

// A row of a matrix with 8 * W columns, summed in W registers; ``Apart`` entries are summed apart, which hides latencies.
template <int W, int Apart>
inline void sum_row(int p, int end, const int* crd, const float* vals, const float* B, int64_t k, float* c) {
  Lanes sums[Apart][W] = {};
  for (; p + Apart <= end; p += Apart)
    for (int u = 0; u < Apart; u++)
      for (int w = 0; w < W; w++) sums[u][w] += vals[p + u] * load(B + crd[p + u] * k + LANES * w);
  for (; p < end; p++)
    for (int w = 0; w < W; w++) sums[0][w] += vals[p] * load(B + crd[p] * k + LANES * w);
  for (int w = 0; w < W; w++) {
    Lanes sum = sums[0][w];
    for (int u = 1; u < Apart; u++) sum += sums[u][w];
    at(c + LANES * w) = sum;
  }
}

template <int W, int Apart>
void sum_rows(Csr A, int64_t first, int64_t last, const float* B, int64_t k, int64_t column, float* C) {
  for (int64_t i = first; i < last; i++) sum_row<W, Apart>(A.pos[i], A.pos[i + 1], A.crd, A.vals, B + column, k, C + i * k + column);
}

// All columns of a block of rows, the widest tiles first. Few rows at a time keep their entries in the cache for the next tile.
void multiply_rows(Csr A, int64_t first, int64_t last, const float* B, int64_t k, float* C) {
  const int64_t step = k > 64 ? 64 : last - first + 1;
  for (int64_t i = first; i < last; i += step) {
    const int64_t end = std::min(i + step, last);
    int64_t j = 0;
    for (; j + 64 <= k; j += 64) sum_rows<8, 1>(A, i, end, B, k, j, C);
    if (j + 32 <= k) sum_rows<4, 2>(A, i, end, B, k, j, C), j += 32;
    if (j + 16 <= k) sum_rows<2, 4>(A, i, end, B, k, j, C), j += 16;
    if (j + 8 <= k) sum_rows<1, 4>(A, i, end, B, k, j, C), j += 8;
    for (; j < k; j++)
      for (int64_t row = i; row < end; row++) {
        float sum = 0;
        for (int p = A.pos[row]; p < A.pos[row + 1]; p++) sum += A.vals[p] * B[A.crd[p] * k + j];
        C[row * k + j] = sum;
      }
  }
}

// B = the transpose of A, which has ``rows`` rows of ``columns`` entries; in square tiles, which stay in the cache.
void transpose(const float* A, float* B, int64_t rows, int64_t columns) {
  constexpr int64_t TILE = 16;
  for (int64_t i = 0; i < rows; i += TILE)
    for (int64_t j = 0; j < columns; j += TILE)
      for (int64_t y = i; y < std::min(i + TILE, rows); y++)
        for (int64_t x = j; x < std::min(j + TILE, columns); x++) B[x * rows + y] = A[y * columns + x];
}

// Dot products of rows of 8 * W columns at the stored entries.
template <int W>
void sample_rows(Csr S, int64_t first, int64_t last, const float* X, const float* Y, float* out) {
  constexpr int64_t k = LANES * W;
  for (int64_t i = first; i < last; i++) {
    Lanes x[W];
    for (int w = 0; w < W; w++) x[w] = load(X + i * k + LANES * w);
    for (int p = S.pos[i]; p < S.pos[i + 1]; p++) {
      Lanes sum = {};
      for (int w = 0; w < W; w++) sum += x[w] * load(Y + S.crd[p] * k + LANES * w);
      out[p] = S.vals[p] * sum_of(sum);
    }
  }
}

// A matrix that a function returns: hand.py copies or frees it.
struct Result {
  int64_t rows;
  int* pos;
  int* crd;
  float* vals;
};

template <class T>
T* allocate(int64_t count) {
  return static_cast<T*>(std::malloc(sizeof(T) * std::max<int64_t>(count, 1)));
}

// Union (a sum) or intersection (a product) of sorted rows. Each block is merged to where it could start at the latest, then moved.
template <bool IsSum>
Result* merge(Csr A, Csr B, int threads) {
  const int64_t rows = A.rows, room = IsSum ? int64_t(A.pos[rows]) + B.pos[rows] : A.pos[rows];
  Result* C = new Result{rows, allocate<int>(rows + 1), allocate<int>(room), allocate<float>(room)};
  std::vector<int64_t> starts(threads), firsts(threads, rows), lengths(threads);
  in_blocks(rows, A.pos, threads, [&](int64_t first, int64_t last, int thread) {
    const int64_t start = A.pos[first] + (IsSum ? B.pos[first] : 0);
    int64_t k = start;
    int* crd = C->crd;
    float* vals = C->vals;
    for (int64_t i = first; i < last; i++) {
      C->pos[i] = int(k - start);
      int p = A.pos[i], q = B.pos[i];
      const int p_end = A.pos[i + 1], q_end = B.pos[i + 1];
      while (p < p_end && q < q_end) {
        const int x = A.crd[p], y = B.crd[q];
        const bool left = x <= y, right = y <= x;
        if (IsSum) {
          crd[k] = left ? x : y;
          vals[k] = (left ? A.vals[p] : 0.0f) + (right ? B.vals[q] : 0.0f);
          k++;
        } else if (left && right) {
          crd[k] = x;
          vals[k++] = A.vals[p] * B.vals[q];
        }
        p += left, q += right;
      }
      if (IsSum) {
        for (; p < p_end; p++) crd[k] = A.crd[p], vals[k++] = A.vals[p];
        for (; q < q_end; q++) crd[k] = B.crd[q], vals[k++] = B.vals[q];
      }
    }
    starts[thread] = start, firsts[thread] = first, lengths[thread] = k - start;
  });
  int64_t total = 0;
  for (int t = 0; t < threads; t++) {
    if (starts[t] != total) {
      std::memmove(C->crd + total, C->crd + starts[t], sizeof(int) * lengths[t]);
      std::memmove(C->vals + total, C->vals + starts[t], sizeof(float) * lengths[t]);
    }
    const int64_t last = t + 1 < threads ? firsts[t + 1] : rows;
    for (int64_t i = firsts[t]; i < last && total; i++) C->pos[i] += int(total);
    total += lengths[t];
  }
  C->pos[rows] = int(total);
  return C;
}

// Sum below a node of a tree of compressed levels (CSF), times the factors' rows; two registers hold rows of 16 columns.
constexpr int64_t RANK = 16;
struct Row {
  Lanes low, high;
};

template <int Below>
inline Row sum_below(int first, int last, const int* const* pos, const int* const* crd, const float* vals, const float* const* factors) {
  Row sum = {};
  for (int p = first; p < last; p++) {
    const float* factor = factors[0] + crd[0][p] * RANK;
    Row inner;
    if constexpr (Below == 1) {
      inner = Row{vals[p] * load(factor), vals[p] * load(factor + LANES)};
    } else {
      inner = sum_below<Below - 1>(pos[1][p], pos[1][p + 1], pos + 1, crd + 1, vals, factors + 1);
      inner = Row{inner.low * load(factor), inner.high * load(factor + LANES)};
    }
    sum.low += inner.low, sum.high += inner.high;
  }
  return sum;
}

}  // namespace

extern "C" {

void spmv_csr(int64_t rows, const int* pos, const int* crd, const float* vals, const float* x, float* y, int64_t threads) {
  in_blocks(rows, pos, threads, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; i++) {
      int p = pos[i];
      const int end = pos[i + 1];
      float a = 0, b = 0, c = 0, d = 0;
      for (; p + 4 <= end; p += 4) {
        a += vals[p] * x[crd[p]];
        b += vals[p + 1] * x[crd[p + 1]];
        c += vals[p + 2] * x[crd[p + 2]];
        d += vals[p + 3] * x[crd[p + 3]];
      }
      for (; p < end; p++) a += vals[p] * x[crd[p]];
      y[i] = (a + b) + (c + d);
    }
  });
}

// Each thread scatters its columns into a vector of its own, and the vectors are added; spare holds those of all threads but one.
void spmv_csc(int64_t rows, int64_t columns, const int* pos, const int* crd, const float* vals, const float* x, float* y, float* spare,
              int64_t threads) {
  in_blocks(columns, pos, threads, [&](int64_t first, int64_t last, int thread) {
    float* sums = thread ? spare + (thread - 1) * rows : y;
    std::memset(sums, 0, sizeof(float) * rows);
    for (int64_t j = first; j < last; j++)
      for (int p = pos[j]; p < pos[j + 1]; p++) sums[crd[p]] += vals[p] * x[j];
  });
  if (threads == 1) return;
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < rows; i++)
    for (int64_t t = 1; t < threads; t++) y[i] += spare[(t - 1) * rows + i];
}

// Entries sorted by rows; a block of entries ends with a row.
void spmv_coo(int64_t rows, int64_t nnz, const int* row, const int* column, const float* vals, const float* x, float* y, int64_t threads) {
  std::memset(y, 0, sizeof(float) * rows);
  auto start = [&](int64_t block) {
    int64_t p = nnz * block / threads;
    while (p > 0 && p < nnz && row[p] == row[p - 1]) p++;
    return p;
  };
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int64_t block = 0; block < threads; block++)
    for (int64_t p = start(block), end = start(block + 1); p < end;) {
      const int i = row[p];
      float sum = 0;
      for (; p < end && row[p] == i; p++) sum += vals[p] * x[column[p]];
      y[i] = sum;
    }
}

void spmm_csr(int64_t rows, const int* pos, const int* crd, const float* vals, const float* B, float* C, int64_t k, int64_t threads) {
  in_blocks(rows, pos, threads,
            [&](int64_t first, int64_t last, int) { multiply_rows(Csr{rows, pos, crd, vals}, first, last, B, k, C); });
}

// Scatters rows of B; each thread takes some of its columns.
void spmm_csc(int64_t rows, int64_t columns, const int* pos, const int* crd, const float* vals, const float* B, float* C, int64_t k,
              int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int64_t t = 0; t < threads; t++) {
    const int64_t left = k * t / threads, width = k * (t + 1) / threads - left;
    for (int64_t i = 0; i < rows; i++) std::memset(C + i * k + left, 0, sizeof(float) * width);
    for (int64_t j = 0; j < columns; j++)
      for (int p = pos[j]; p < pos[j + 1]; p++) {
        float* c = C + crd[p] * k + left;
        const float *b = B + j * k + left, a = vals[p];
        if (width == LANES) {
          at(c) += a * load(b);
          continue;
        }
#pragma omp simd
        for (int64_t r = 0; r < width; r++) c[r] += a * b[r];
      }
  }
}

// y = x W^T for ``batch`` rows: x is transposed, multiplied by rows of W, and the result transposed back.
void linear(int64_t rows, int64_t columns, const int* pos, const int* crd, const float* vals, const float* x, float* y, float* xt,
            float* yt, int64_t batch, int64_t threads) {
  if (batch == 1) return spmv_csr(rows, pos, crd, vals, x, y, threads);
  transpose(x, xt, batch, columns);
  spmm_csr(rows, pos, crd, vals, xt, yt, batch, threads);
  transpose(yt, y, rows, batch);
}

void sddmm(int64_t rows, const int* pos, const int* crd, const float* vals, const float* X, const float* Y, float* out, int64_t k,
           int64_t threads) {
  const Csr S{rows, pos, crd, vals};
  in_blocks(rows, pos, threads, [&](int64_t first, int64_t last, int) {
    if (k == 16) return sample_rows<2>(S, first, last, X, Y, out);
    if (k == 64) return sample_rows<8>(S, first, last, X, Y, out);
    for (int64_t i = first; i < last; i++)
      for (int p = pos[i]; p < pos[i + 1]; p++) {
        float sum = 0;
        for (int64_t r = 0; r < k; r++) sum += X[i * k + r] * Y[crd[p] * k + r];
        out[p] = vals[p] * sum;
      }
  });
}

// Row by row with a dense row of marks: entries are counted, then summed.
Result* spgemm(int64_t rows, int64_t columns, const int* pos, const int* crd, const float* vals, const int* B_pos, const int* B_crd,
               const float* B_vals, int64_t is_sorted, int64_t threads) {
  Result* C = new Result{rows, allocate<int>(rows + 1), nullptr, nullptr};
  C->pos[0] = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<int> mark(columns, -1);
    std::vector<float> sums(columns);
#pragma omp for schedule(dynamic, 128)
    for (int64_t i = 0; i < rows; i++) {
      int count = 0;
      for (int p = pos[i]; p < pos[i + 1]; p++)
        for (int q = B_pos[crd[p]]; q < B_pos[crd[p] + 1]; q++) {
          count += mark[B_crd[q]] != i;
          mark[B_crd[q]] = int(i);
        }
      C->pos[i + 1] = count;
    }
#pragma omp single
    {
      for (int64_t i = 0; i < rows; i++) C->pos[i + 1] += C->pos[i];
      C->crd = allocate<int>(C->pos[rows]);
      C->vals = allocate<float>(C->pos[rows]);
    }
    std::fill(mark.begin(), mark.end(), -1);
#pragma omp for schedule(dynamic, 128)
    for (int64_t i = 0; i < rows; i++) {
      const int start = C->pos[i];
      int k = start;
      for (int p = pos[i]; p < pos[i + 1]; p++) {
        const float a = vals[p];
        for (int q = B_pos[crd[p]]; q < B_pos[crd[p] + 1]; q++) {
          const int j = B_crd[q];
          if (mark[j] == i) {
            sums[j] += a * B_vals[q];
          } else {
            mark[j] = int(i);
            sums[j] = a * B_vals[q];
            C->crd[k++] = j;
          }
        }
      }
      if (is_sorted) std::sort(C->crd + start, C->crd + k);
      for (int q = start; q < k; q++) C->vals[q] = sums[C->crd[q]];
    }
  }
  return C;
}

Result* add(int64_t rows, const int* pos, const int* crd, const float* vals, const int* B_pos, const int* B_crd, const float* B_vals,
            int64_t threads) {
  return merge<true>(Csr{rows, pos, crd, vals}, Csr{rows, B_pos, B_crd, B_vals}, threads);
}

Result* multiply(int64_t rows, const int* pos, const int* crd, const float* vals, const int* B_pos, const int* B_crd, const float* B_vals,
                 int64_t threads) {
  return merge<false>(Csr{rows, pos, crd, vals}, Csr{rows, B_pos, B_crd, B_vals}, threads);
}

// Copies the arrays of a result whose entries were counted by ``count``.
int64_t count(const Result* C) { return C->pos[C->rows]; }

void copy(const Result* C, int* pos, int* crd, float* vals) {
  std::memcpy(pos, C->pos, sizeof(int) * (C->rows + 1));
  std::memcpy(crd, C->crd, sizeof(int) * count(C));
  std::memcpy(vals, C->vals, sizeof(float) * count(C));
}

void release(Result* C) {
  std::free(C->pos);
  std::free(C->crd);
  std::free(C->vals);
  delete C;
}

// Pairs of neighbours of i that are neighbours; L holds the edges below the diagonal.
int64_t triangles(int64_t rows, const int* pos, const int* crd, int64_t threads) {
  int64_t total = 0;
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(+ : total)
  {
    std::vector<int> mark(rows, -1);
#pragma omp for schedule(dynamic, 256)
    for (int64_t i = 0; i < rows; i++) {
      if (pos[i + 1] - pos[i] < 2) continue;
      for (int p = pos[i]; p < pos[i + 1]; p++) mark[crd[p]] = int(i);
      for (int p = pos[i]; p < pos[i + 1]; p++)
        for (int q = pos[crd[p]]; q < pos[crd[p] + 1]; q++) total += mark[crd[q]] == i;
    }
  }
  return total;
}

void row_sums(int64_t rows, const int* pos, const float* vals, float* out, int64_t threads) {
  in_blocks(rows, pos, threads, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; i++) {
      float sum = 0;
      for (int p = pos[i]; p < pos[i + 1]; p++) sum += vals[p];
      out[i] = sum;
    }
  });
}

void softmax(int64_t rows, const int* pos, const float* vals, float* out, int64_t threads) {
  in_blocks(rows, pos, threads, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; i++) {
      const int start = pos[i], end = pos[i + 1];
      float largest = -INFINITY, sum = 0;
      for (int p = start; p < end; p++) largest = std::max(largest, vals[p]);
      for (int p = start; p < end; p++) sum += out[p] = std::exp(vals[p] - largest);
      const float scale = 1 / sum;
      for (int p = start; p < end; p++) out[p] *= scale;
    }
  });
}

// M[i, :] = sum of the entries below i times the rows of the other factors. pos[0] bounds the nodes of the first level below i.
void mttkrp(int64_t order, int64_t roots, const int* root_crd, const int* const* pos, const int* const* crd, const float* vals,
            const float* const* factors, float* M, int64_t rows, int64_t threads) {
  std::memset(M, 0, sizeof(float) * rows * RANK);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16) if (threads > 1)
  for (int64_t root = 0; root < roots; root++) {
    const int first = pos[0][root], last = pos[0][root + 1];
    Row sum;
    if (order == 3)
      sum = sum_below<2>(first, last, pos, crd, vals, factors);
    else if (order == 4)
      sum = sum_below<3>(first, last, pos, crd, vals, factors);
    else
      sum = sum_below<4>(first, last, pos, crd, vals, factors);
    float* row = M + root_crd[root] * RANK;
    at(row) = sum.low, at(row + LANES) = sum.high;
  }
}
}
