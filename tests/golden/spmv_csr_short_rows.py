"""C[i] += A[i,j] * B[j]

    parallel_forall(i, where(C[i] = t, unroll_forall<4>(j, t += A[i,j] * B[j])))

A: CSR float32, int32 indices
B: dense float32, strides (1)
C: dense float32, strides (1)
"""

from numba import prange
from numpy import float32, int64


def body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers):
    pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
    for i in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2_end = int64(A2_pos[i + 1])
        t = float32(0.0)
        pA2_split = pA2_start + (pA2_end - pA2_start) // 4 * 4
        t_1 = float32(0.0)
        t_2 = float32(0.0)
        t_3 = float32(0.0)
        for pA2 in range(pA2_start, pA2_split, 4):
            j = A2_crd[pA2]
            t += A_vals[pA2] * B_vals[j]
            j = A2_crd[pA2 + 1]
            t_1 += A_vals[pA2 + 1] * B_vals[j]
            j = A2_crd[pA2 + 2]
            t_2 += A_vals[pA2 + 2] * B_vals[j]
            j = A2_crd[pA2 + 3]
            t_3 += A_vals[pA2 + 3] * B_vals[j]
        if pA2_split < pA2_end:
            j = A2_crd[pA2_split]
            t += A_vals[pA2_split] * B_vals[j]
        if pA2_split + 1 < pA2_end:
            j = A2_crd[pA2_split + 1]
            t_1 += A_vals[pA2_split + 1] * B_vals[j]
        if pA2_split + 2 < pA2_end:
            j = A2_crd[pA2_split + 2]
            t_2 += A_vals[pA2_split + 2] * B_vals[j]
        t = t + t_1
        t_2 = t_2 + t_3
        t = t + t_2
        C_vals[i] = t
        pA2_start = pA2_end


def kernel(A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers)
