"""B[i0,i1] = A[i1_i0,i0,i1]

    parallel_forall(i1_i0, forall(i0, forall(i1, B[i0,i1] = A[i1_i0,i0,i1])))

A: (i, j, k) -> (i: compressed, j: range, k: offset) float32, int32 indices
B: CSR float32, int32 indices
"""

from numba import prange

from numscorch.codegen.intrinsics import shifted


def body(worker, A1_crd, A_vals, B2_crd, B_vals, B_next, B_parents, cuts, blocks, workers, i0_size, i1_size):
    B_next = shifted(B_next, worker * B_parents)
    for pA1 in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        i1_i0 = A1_crd[pA1]
        for pA2 in range(pA1 * i0_size + max(0, i0_size - i1_i0 - 1), pA1 * i0_size + min(i0_size, i1_size + i0_size - i1_i0 - 1)):
            i0 = pA2 - pA1 * i0_size
            i1 = i0 + i1_i0 - (i0_size - 1)
            pB2 = B_next[i0]
            B_vals[pB2] = A_vals[pA2]
            B2_crd[pB2] = i1
            B_next[i0] = pB2 + 1


def kernel(A1_crd, A_vals, B2_crd, B_vals, B_next, B_parents, cuts, blocks, workers, i0_size, i1_size):
    for worker in prange(workers):
        body(worker, A1_crd, A_vals, B2_crd, B_vals, B_next, B_parents, cuts, blocks, workers, i0_size, i1_size)
