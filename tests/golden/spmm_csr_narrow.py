"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(i, vector_forall<8 x 2, once>(k, where(C[i,k] = t, unroll_forall<4>(j, t += A[i,j] * B[j,k]))))

A: CSR float32, int32 indices
B: dense float32, strides (n, 1)
C: dense float32, strides (n, 1)
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import add, fma, load, splat, store


def body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, B_stride0, C_stride0):
    pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
    for i in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2_end = int64(A2_pos[i + 1])
        t = splat(float32(0.0), 8, 2)
        pA2_split = pA2_start + (pA2_end - pA2_start) // 4 * 4
        t_1 = splat(float32(0.0), 8, 2)
        t_2 = splat(float32(0.0), 8, 2)
        t_3 = splat(float32(0.0), 8, 2)
        for pA2 in range(pA2_start, pA2_split, 4):
            j = A2_crd[pA2]
            pB = j * B_stride0
            t = fma(A_vals[pA2], load(B_vals, pB, 8, 2), t)
            j = A2_crd[pA2 + 1]
            pB = j * B_stride0
            t_1 = fma(A_vals[pA2 + 1], load(B_vals, pB, 8, 2), t_1)
            j = A2_crd[pA2 + 2]
            pB = j * B_stride0
            t_2 = fma(A_vals[pA2 + 2], load(B_vals, pB, 8, 2), t_2)
            j = A2_crd[pA2 + 3]
            pB = j * B_stride0
            t_3 = fma(A_vals[pA2 + 3], load(B_vals, pB, 8, 2), t_3)
        if pA2_split < pA2_end:
            j = A2_crd[pA2_split]
            pB = j * B_stride0
            t = fma(A_vals[pA2_split], load(B_vals, pB, 8, 2), t)
        if pA2_split + 1 < pA2_end:
            j = A2_crd[pA2_split + 1]
            pB = j * B_stride0
            t_1 = fma(A_vals[pA2_split + 1], load(B_vals, pB, 8, 2), t_1)
        if pA2_split + 2 < pA2_end:
            j = A2_crd[pA2_split + 2]
            pB = j * B_stride0
            t_2 = fma(A_vals[pA2_split + 2], load(B_vals, pB, 8, 2), t_2)
        t = add(t, t_1)
        t_2 = add(t_2, t_3)
        t = add(t, t_2)
        pC = i * C_stride0
        store(C_vals, pC, t)
        pA2_start = pA2_end


def kernel(A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, B_stride0, C_stride0):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, B_stride0, C_stride0)
