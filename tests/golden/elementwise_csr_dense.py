"""C[i,j] = A[i,j] * B[i,j]

    parallel_forall(i, forall(j, C[i,j] = A[i,j] * B[i,j]))

A: CSR float32, int32 indices
B: dense float32, strides (n, 1)
C: CSR float32, int32 indices, the pattern of A
"""

from numba import prange
from numpy import int64


def body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, B_stride0):
    pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
    for i in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2_end = int64(A2_pos[i + 1])
        for pA2 in range(pA2_start, pA2_end):
            j = A2_crd[pA2]
            C_vals[pA2] = A_vals[pA2] * B_vals[i * B_stride0 + j]
        pA2_start = pA2_end


def kernel(A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, B_stride0):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, B_stride0)
