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
        t0 = splat(float32(0.0), 8)
        t1 = splat(float32(0.0), 8)
        t2 = splat(float32(0.0), 8)
        t3 = splat(float32(0.0), 8)
        pA3_start = int64(A3_pos[A2_pos[pA1]])
        for pA2 in range(pA2_start, pA2_end):
            pA3_end = int64(A3_pos[pA2 + 1])
            j = A2_crd[pA2]
            u0 = splat(float32(0.0), 8)
            u1 = splat(float32(0.0), 8)
            u2 = splat(float32(0.0), 8)
            u3 = splat(float32(0.0), 8)
            for pA3 in range(pA3_start, pA3_end):
                k = A3_crd[pA3]
                pC = k * C_stride0
                factor = splat(A_vals[pA3], 8)
                u0 = fma(factor, load(C_vals, pC, 8), u0)
                u1 = fma(factor, load(C_vals, pC + 8, 8), u1)
                u2 = fma(factor, load(C_vals, pC + 16, 8), u2)
                u3 = fma(factor, load(C_vals, pC + 24, 8), u3)
            pB = j * B_stride0
            t0 = fma(load(B_vals, pB, 8), u0, t0)
            t1 = fma(load(B_vals, pB + 8, 8), u1, t1)
            t2 = fma(load(B_vals, pB + 16, 8), u2, t2)
            t3 = fma(load(B_vals, pB + 24, 8), u3, t3)
            pA3_start = pA3_end
        pD = i * D_stride0
        store(D_vals, pD, t0)
        store(D_vals, pD + 8, t1)
        store(D_vals, pD + 16, t2)
        store(D_vals, pD + 24, t3)
        pA2_start = pA2_end


def kernel(A1_crd, A2_pos, A2_crd, A3_pos, A3_crd, A_vals, B_vals, C_vals, D_vals, cuts, blocks, workers, B_stride0, C_stride0, D_stride0):
    for worker in prange(workers):
        body(worker, A1_crd, A2_pos, A2_crd, A3_pos, A3_crd, A_vals, B_vals, C_vals, D_vals, cuts, blocks, workers, B_stride0, C_stride0, D_stride0)
