"""B[i0,i1] = A[i0_by4,i1_by4,i0_of4,i1_of4] * J0[i0_by4,i0_of4,i0] * J1[i1_by4,i1_of4,i1]

    parallel_forall(i0_by4, forall(i1_by4, forall(i0_of4, forall(i0, forall(i1_of4, forall(i1, B[i0,i1] = A[i0_by4,i1_by4,i0_of4,i1_of4] * J0[i0_by4,i0_of4,i0] * J1[i1_by4,i1_of4,i1]))))))

A: (i, j, k, l) -> (i: dense, j: compressed, k: dense(4), l: dense(4)) float32, int32 indices
J0: (i, j, k) -> (i: dense, j: dense, k: joined((4,))) relation, int64 indices
J1: (i, j, k) -> (i: dense, j: dense, k: joined((4,), uneven=True)) relation, int64 indices
B: CSR float32, int32 indices
"""

from numba import prange
from numpy import int64

from numscorch.codegen.intrinsics import shifted


def body(worker, A2_pos, A2_crd, A_vals, B2_crd, B_vals, B_next, B_parents, cuts, blocks, workers, i1_size):
    B_next = shifted(B_next, worker * B_parents)
    pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
    for i0_by4 in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2_end = int64(A2_pos[i0_by4 + 1])
        for pA2 in range(pA2_start, pA2_end):
            i1_by4 = A2_crd[pA2]
            for i0_of4 in range(4):
                i0 = i0_by4 * 4 + i0_of4
                for i1_of4 in range(4):
                    if i1_by4 * 4 + i1_of4 < i1_size:
                        i1 = i1_by4 * 4 + i1_of4
                        pB2 = B_next[i0]
                        B_vals[pB2] = A_vals[(pA2 * 4 + i0_of4) * 4 + i1_of4]
                        B2_crd[pB2] = i1
                        B_next[i0] = pB2 + 1
        pA2_start = pA2_end


def kernel(A2_pos, A2_crd, A_vals, B2_crd, B_vals, B_next, B_parents, cuts, blocks, workers, i1_size):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B2_crd, B_vals, B_next, B_parents, cuts, blocks, workers, i1_size)
