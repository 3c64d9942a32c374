"""B[i0,i1] = A[i0,i1]

    parallel_forall(i0, forall(i1, B[i0,i1] = A[i0,i1]))

A: CSR float32, int32 indices
B: CSC float32, int32 indices
"""

from numba import prange
from numpy import int64

from numscorch.codegen.intrinsics import shifted


def body(worker, A2_pos, A2_crd, A_vals, B2_crd, B_vals, B_next, B_parents, cuts, blocks, workers):
    B_next = shifted(B_next, worker * B_parents)
    pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
    for i0 in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2_end = int64(A2_pos[i0 + 1])
        for pA2 in range(pA2_start, pA2_end):
            i1 = A2_crd[pA2]
            pB2 = B_next[i1]
            B_vals[pB2] = A_vals[pA2]
            B2_crd[pB2] = i0
            B_next[i1] = pB2 + 1
        pA2_start = pA2_end


def kernel(A2_pos, A2_crd, A_vals, B2_crd, B_vals, B_next, B_parents, cuts, blocks, workers):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B2_crd, B_vals, B_next, B_parents, cuts, blocks, workers)
