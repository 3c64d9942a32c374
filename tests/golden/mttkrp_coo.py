"""D[i,l] += A[i,j,k] * B[j,l] * C[k,l]

    parallel_forall(i, vector_forall<8 x 4, once>(l, where(D[i,l] = t, each_forall(j, forall(k, t += A[i,j,k] * B[j,l] * C[k,l])))))

A: COO(3) float32, int32 indices
B: dense float32, strides (n, 1)
C: dense float32, strides (n, 1)
D: dense float32, strides (n, 1)
"""

from numba import prange
from numpy import float32

from numscorch.codegen.intrinsics import fma, load, mul, splat, store


def body(worker, A1_crd, A2_crd, A3_crd, A_vals, B_vals, C_vals, D_vals, cuts, blocks, workers, B_stride0, C_stride0, D_stride0):
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        pA1 = cuts[block]
        pA1_end = cuts[block + 1]
        while pA1 < pA1_end:
            i = A1_crd[pA1]
            t = splat(float32(0.0), 8, 4)
            pA2 = pA1
            while pA2 < pA1_end and A1_crd[pA2] == i:
                j = A2_crd[pA2]
                k = A3_crd[pA2]
                pB = j * B_stride0
                pC = k * C_stride0
                t = fma(mul(A_vals[pA2], load(B_vals, pB, 8, 4)), load(C_vals, pC, 8, 4), t)
                pA2 += 1
            pD = i * D_stride0
            store(D_vals, pD, t)
            pA1 = pA2


def kernel(A1_crd, A2_crd, A3_crd, A_vals, B_vals, C_vals, D_vals, cuts, blocks, workers, B_stride0, C_stride0, D_stride0):
    for worker in prange(workers):
        body(worker, A1_crd, A2_crd, A3_crd, A_vals, B_vals, C_vals, D_vals, cuts, blocks, workers, B_stride0, C_stride0, D_stride0)
