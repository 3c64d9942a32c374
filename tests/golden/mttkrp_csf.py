"""D[i,l] += A[i,j,k] * B[j,l] * C[k,l]

    parallel_forall(i, vector_forall<8 x 4, once>(l, where(D[i,l] = t, forall(j, where(t += B[j,l] * u, forall(k, u += A[i,j,k] * C[k,l]))))))

A: CSF(3) float32, int32 indices
B: dense float32, strides (n, 1)
C: dense float32, strides (n, 1)
D: dense float32, strides (n, 1)
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import fma, load, splat, store


def body(worker, A1_crd, A2_pos, A2_crd, A3_pos, A3_crd, A_vals, B_vals, C_vals, D_vals, cuts, blocks, workers, B_stride0, C_stride0, D_stride0):
    pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
    for pA1 in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2_end = int64(A2_pos[pA1 + 1])
        i = A1_crd[pA1]
        t = splat(float32(0.0), 8, 4)
        pA3_start = int64(A3_pos[A2_pos[pA1]])
        for pA2 in range(pA2_start, pA2_end):
            pA3_end = int64(A3_pos[pA2 + 1])
            j = A2_crd[pA2]
            u = splat(float32(0.0), 8, 4)
            for pA3 in range(pA3_start, pA3_end):
                k = A3_crd[pA3]
                pC = k * C_stride0
                u = fma(A_vals[pA3], load(C_vals, pC, 8, 4), u)
            pB = j * B_stride0
            t = fma(load(B_vals, pB, 8, 4), u, t)
            pA3_start = pA3_end
        pD = i * D_stride0
        store(D_vals, pD, t)
        pA2_start = pA2_end


def kernel(A1_crd, A2_pos, A2_crd, A3_pos, A3_crd, A_vals, B_vals, C_vals, D_vals, cuts, blocks, workers, B_stride0, C_stride0, D_stride0):
    for worker in prange(workers):
        body(worker, A1_crd, A2_pos, A2_crd, A3_pos, A3_crd, A_vals, B_vals, C_vals, D_vals, cuts, blocks, workers, B_stride0, C_stride0, D_stride0)
