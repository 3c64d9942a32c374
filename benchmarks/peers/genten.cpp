// MTTKRP by Genten, whose Python interface lacks it; benchmarks/peers/genten.py calls these functions. Genten's values are float64.

#include <Genten_DistContext.hpp>
#include <Genten_Ktensor.hpp>
#include <Genten_MixedFormatOps.hpp>
#include <Genten_Sptensor.hpp>
#include <cstdint>
#include <vector>

struct Problem {
  Genten::Sptensor tensor;
  Genten::Ktensor factors;
  Genten::FacMatrix result;
  Genten::AlgParams parameters;
  int64_t mode;
};

extern "C" {

void initialize() {
  if (!Kokkos::is_initialized()) Genten::InitializeGenten();
}

// Coordinates are order x nnz; factors hold ``rank`` columns in row-major order, of the result's mode too, where they aren't read.
Problem* make(int64_t order, const int64_t* sizes, int64_t nnz, const int64_t* coordinates, const double* vals, int64_t rank,
              const double* const* factors, int64_t mode) {
  std::vector<std::vector<ttb_indx>> subscripts(nnz, std::vector<ttb_indx>(order));
  for (int64_t p = 0; p < nnz; p++)
    for (int64_t m = 0; m < order; m++) subscripts[p][m] = coordinates[m * nnz + p];
  const std::vector<ttb_indx> dims(sizes, sizes + order);
  Problem* problem = new Problem;
  problem->tensor = Genten::Sptensor(dims, std::vector<ttb_real>(vals, vals + nnz), subscripts);
  problem->tensor.createPermutation();
  problem->factors = Genten::Ktensor(rank, order, problem->tensor.size());
  problem->factors.setWeights(1.0);
  for (int64_t m = 0; m < order; m++)
    for (int64_t i = 0; i < sizes[m]; i++)
      for (int64_t r = 0; r < rank; r++) problem->factors[m].entry(i, r) = factors[m][i * rank + r];
  problem->result = Genten::FacMatrix(sizes[mode], rank);
  problem->mode = mode;
  problem->parameters.fixup<Genten::DefaultHostExecutionSpace>(std::cerr);
  return problem;
}

void mttkrp(const Problem* problem) {
  Genten::mttkrp(problem->tensor, problem->factors, problem->mode, problem->result, problem->parameters, true);
}

const double* result(const Problem* problem) { return problem->result.view().data(); }

int64_t stride(const Problem* problem) { return problem->result.view().stride(0); }

void release(Problem* problem) { delete problem; }
}
