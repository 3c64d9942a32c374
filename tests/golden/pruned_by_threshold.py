"""D[i,k] = where(abs(A[i,j] * B[j,k]) <= C, 0, A[i,j] * B[j,k])

    parallel_forall(i, vector_forall<8 x 7, rest 6, masked>(k, where(D[i,k] = where(abs(t) <= C, 0, t), forall(j, t += A[i,j] * B[j,k]))))

A: CSR float32, int32 indices
B: dense float32, strides (n, 1)
C: dense float32
D: CSR float32, int32 indices
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.appending import appended, appended_first
from numscorch.codegen.intrinsics import fma, load, load_first, splat
from numscorch.codegen.register_functions import eq, le, magnitudes


def body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, D2_pos, D2_crd, D_vals, cuts, starts, blocks, workers, k_size, B_stride0):
    pD2 = starts[worker]
    pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
    for i in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2_end = int64(A2_pos[i + 1])
        for k in range(0, k_size // 56 * 56, 56):
            t0 = splat(float32(0.0), 8)
            t1 = splat(float32(0.0), 8)
            t2 = splat(float32(0.0), 8)
            t3 = splat(float32(0.0), 8)
            t4 = splat(float32(0.0), 8)
            t5 = splat(float32(0.0), 8)
            t6 = splat(float32(0.0), 8)
            for pA2 in range(A2_pos[i], A2_pos[i + 1]):
                j = A2_crd[pA2]
                pB = j * B_stride0 + k
                factor = splat(A_vals[pA2], 8)
                t0 = fma(factor, load(B_vals, pB, 8), t0)
                t1 = fma(factor, load(B_vals, pB + 8, 8), t1)
                t2 = fma(factor, load(B_vals, pB + 16, 8), t2)
                t3 = fma(factor, load(B_vals, pB + 24, 8), t3)
                t4 = fma(factor, load(B_vals, pB + 32, 8), t4)
                t5 = fma(factor, load(B_vals, pB + 40, 8), t5)
                t6 = fma(factor, load(B_vals, pB + 48, 8), t6)
            D_value0 = t0
            pD2 = appended(D_vals, D2_crd, pD2, k, D_value0, eq(le(magnitudes(t0), splat(C_vals[0], 8)), splat(float32(0.0), 8)))
            D_value1 = t1
            pD2 = appended(D_vals, D2_crd, pD2, k + 8, D_value1, eq(le(magnitudes(t1), splat(C_vals[0], 8)), splat(float32(0.0), 8)))
            D_value2 = t2
            pD2 = appended(D_vals, D2_crd, pD2, k + 16, D_value2, eq(le(magnitudes(t2), splat(C_vals[0], 8)), splat(float32(0.0), 8)))
            D_value3 = t3
            pD2 = appended(D_vals, D2_crd, pD2, k + 24, D_value3, eq(le(magnitudes(t3), splat(C_vals[0], 8)), splat(float32(0.0), 8)))
            D_value4 = t4
            pD2 = appended(D_vals, D2_crd, pD2, k + 32, D_value4, eq(le(magnitudes(t4), splat(C_vals[0], 8)), splat(float32(0.0), 8)))
            D_value5 = t5
            pD2 = appended(D_vals, D2_crd, pD2, k + 40, D_value5, eq(le(magnitudes(t5), splat(C_vals[0], 8)), splat(float32(0.0), 8)))
            D_value6 = t6
            pD2 = appended(D_vals, D2_crd, pD2, k + 48, D_value6, eq(le(magnitudes(t6), splat(C_vals[0], 8)), splat(float32(0.0), 8)))
        k = k_size // 56 * 56
        left = k_size - k - 40
        t0 = splat(float32(0.0), 8)
        t1 = splat(float32(0.0), 8)
        t2 = splat(float32(0.0), 8)
        t3 = splat(float32(0.0), 8)
        t4 = splat(float32(0.0), 8)
        t5 = splat(float32(0.0), 8)
        for pA2 in range(pA2_start, pA2_end):
            j = A2_crd[pA2]
            pB = j * B_stride0 + k
            factor = splat(A_vals[pA2], 8)
            t0 = fma(factor, load(B_vals, pB, 8), t0)
            t1 = fma(factor, load(B_vals, pB + 8, 8), t1)
            t2 = fma(factor, load(B_vals, pB + 16, 8), t2)
            t3 = fma(factor, load(B_vals, pB + 24, 8), t3)
            t4 = fma(factor, load(B_vals, pB + 32, 8), t4)
            t5 = fma(factor, load_first(B_vals, pB + 40, left, 8), t5)
        D_value0 = t0
        pD2 = appended(D_vals, D2_crd, pD2, k, D_value0, eq(le(magnitudes(t0), splat(C_vals[0], 8)), splat(float32(0.0), 8)))
        D_value1 = t1
        pD2 = appended(D_vals, D2_crd, pD2, k + 8, D_value1, eq(le(magnitudes(t1), splat(C_vals[0], 8)), splat(float32(0.0), 8)))
        D_value2 = t2
        pD2 = appended(D_vals, D2_crd, pD2, k + 16, D_value2, eq(le(magnitudes(t2), splat(C_vals[0], 8)), splat(float32(0.0), 8)))
        D_value3 = t3
        pD2 = appended(D_vals, D2_crd, pD2, k + 24, D_value3, eq(le(magnitudes(t3), splat(C_vals[0], 8)), splat(float32(0.0), 8)))
        D_value4 = t4
        pD2 = appended(D_vals, D2_crd, pD2, k + 32, D_value4, eq(le(magnitudes(t4), splat(C_vals[0], 8)), splat(float32(0.0), 8)))
        D_value5 = t5
        pD2 = appended_first(D_vals, D2_crd, pD2, k + 40, D_value5, eq(le(magnitudes(t5), splat(C_vals[0], 8)), splat(float32(0.0), 8)), left)
        D2_pos[i + 1] = pD2
        pA2_start = pA2_end
    starts[worker] = pD2


def kernel(A2_pos, A2_crd, A_vals, B_vals, C_vals, D2_pos, D2_crd, D_vals, cuts, starts, blocks, workers, k_size, B_stride0):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, D2_pos, D2_crd, D_vals, cuts, starts, blocks, workers, k_size, B_stride0)
