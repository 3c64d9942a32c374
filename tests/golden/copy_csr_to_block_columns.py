"""B[i1_by4,i0,i1_of4] = A[i0,i1] * Q1[i1,i1_by4,i1_of4]

    parallel_forall(i0, forall(i1, forall(i1_by4, forall(i1_of4, B[i1_by4,i0,i1_of4] = A[i0,i1] * Q1[i1,i1_by4,i1_of4]))))

A: CSR float32, int32 indices
Q1: (i, j, k) -> (i: dense, j: quotient(4), k: quotient(1, 4)) relation, int64 indices
B: doo float32, int32 indices
"""

from numba import prange
from numpy import int64

from numscorch.codegen.intrinsics import shifted


def body(worker, A2_pos, A2_crd, A_vals, B2_crd, B3_crd, B_vals, B_next, B_parents, cuts, blocks, workers):
    B_next = shifted(B_next, worker * B_parents)
    pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
    for i0 in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2_end = int64(A2_pos[i0 + 1])
        for pA2 in range(pA2_start, pA2_end):
            i1 = A2_crd[pA2]
            i1_by4 = i1 // 4
            i1_of4 = i1 % 4
            pB3 = B_next[i1_by4]
            B_vals[pB3] = A_vals[pA2]
            B2_crd[pB3] = i0
            B3_crd[pB3] = i1_of4
            B_next[i1_by4] = pB3 + 1
        pA2_start = pA2_end


def kernel(A2_pos, A2_crd, A_vals, B2_crd, B3_crd, B_vals, B_next, B_parents, cuts, blocks, workers):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B2_crd, B3_crd, B_vals, B_next, B_parents, cuts, blocks, workers)
