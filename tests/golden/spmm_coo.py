"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(i, vector_forall<8 x 8, once>(k, where(C[i,k] = t, forall(j, t += A[i,j] * B[j,k]))))

A: COO(2) float32, int32 indices
B: dense float32, strides (n, 1)
C: dense float32, strides (n, 1)
"""

from numba import prange
from numpy import float32

from numscorch.codegen.intrinsics import fma, load, splat, store


def body(worker, A1_crd, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, B_stride0, C_stride0):
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        pA1 = cuts[block]
        pA1_end = cuts[block + 1]
        while pA1 < pA1_end:
            i = A1_crd[pA1]
            t = splat(float32(0.0), 8, 8)
            pA2 = pA1
            while pA2 < pA1_end and A1_crd[pA2] == i:
                j = A2_crd[pA2]
                pB = j * B_stride0
                t = fma(A_vals[pA2], load(B_vals, pB, 8, 8), t)
                pA2 += 1
            pC = i * C_stride0
            store(C_vals, pC, t)
            pA1 = pA2


def kernel(A1_crd, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, B_stride0, C_stride0):
    for worker in prange(workers):
        body(worker, A1_crd, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, B_stride0, C_stride0)
