"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(k, vector_forall<8 x 8, once>(i, where(C[i,k] = t, forall(j, t += A[i,j] * B[j,k]))))

A: dense float32, strides (1, n)
B: CSC float32, int32 indices
C: dense float32, strides (1, n)
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import fma, load, splat, store


def body(worker, A_vals, B2_pos, B2_crd, B_vals, C_vals, cuts, blocks, workers, A_stride1, C_stride1):
    pB2_start = int64(B2_pos[cuts[blocks * worker // workers]])
    for k in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pB2_end = int64(B2_pos[k + 1])
        t0 = splat(float32(0.0), 8)
        t1 = splat(float32(0.0), 8)
        t2 = splat(float32(0.0), 8)
        t3 = splat(float32(0.0), 8)
        t4 = splat(float32(0.0), 8)
        t5 = splat(float32(0.0), 8)
        t6 = splat(float32(0.0), 8)
        t7 = splat(float32(0.0), 8)
        for pB2 in range(pB2_start, pB2_end):
            j = B2_crd[pB2]
            pA = j * A_stride1
            factor = splat(B_vals[pB2], 8)
            t0 = fma(factor, load(A_vals, pA, 8), t0)
            t1 = fma(factor, load(A_vals, pA + 8, 8), t1)
            t2 = fma(factor, load(A_vals, pA + 16, 8), t2)
            t3 = fma(factor, load(A_vals, pA + 24, 8), t3)
            t4 = fma(factor, load(A_vals, pA + 32, 8), t4)
            t5 = fma(factor, load(A_vals, pA + 40, 8), t5)
            t6 = fma(factor, load(A_vals, pA + 48, 8), t6)
            t7 = fma(factor, load(A_vals, pA + 56, 8), t7)
        pC = k * C_stride1
        store(C_vals, pC, t0)
        store(C_vals, pC + 8, t1)
        store(C_vals, pC + 16, t2)
        store(C_vals, pC + 24, t3)
        store(C_vals, pC + 32, t4)
        store(C_vals, pC + 40, t5)
        store(C_vals, pC + 48, t6)
        store(C_vals, pC + 56, t7)
        pB2_start = pB2_end


def kernel(A_vals, B2_pos, B2_crd, B_vals, C_vals, cuts, blocks, workers, A_stride1, C_stride1):
    for worker in prange(workers):
        body(worker, A_vals, B2_pos, B2_crd, B_vals, C_vals, cuts, blocks, workers, A_stride1, C_stride1)
