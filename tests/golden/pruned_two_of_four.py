"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(i, vector_forall<8 x 7, rest 6, masked>(k, where(C[i,k] = t, forall(j, t += A[i,j] * B[j,k]))))

A: CSR float32, int32 indices
B: dense float32, strides (n, 1)
C: CSR float32, int32 indices, of every 4 the 2 largest
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.appending import appended, appended_first, largest, largest_first
from numscorch.codegen.intrinsics import fma, load, load_first, splat


def body(worker, A2_pos, A2_crd, A_vals, B_vals, C2_pos, C2_crd, C_vals, cuts, starts, blocks, workers, k_size, B_stride0):
    pC2 = starts[worker]
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
            C_value0 = t0
            pC2 = appended(C_vals, C2_crd, pC2, k, C_value0, largest(C_value0, 2, 4))
            C_value1 = t1
            pC2 = appended(C_vals, C2_crd, pC2, k + 8, C_value1, largest(C_value1, 2, 4))
            C_value2 = t2
            pC2 = appended(C_vals, C2_crd, pC2, k + 16, C_value2, largest(C_value2, 2, 4))
            C_value3 = t3
            pC2 = appended(C_vals, C2_crd, pC2, k + 24, C_value3, largest(C_value3, 2, 4))
            C_value4 = t4
            pC2 = appended(C_vals, C2_crd, pC2, k + 32, C_value4, largest(C_value4, 2, 4))
            C_value5 = t5
            pC2 = appended(C_vals, C2_crd, pC2, k + 40, C_value5, largest(C_value5, 2, 4))
            C_value6 = t6
            pC2 = appended(C_vals, C2_crd, pC2, k + 48, C_value6, largest(C_value6, 2, 4))
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
        C_value0 = t0
        pC2 = appended(C_vals, C2_crd, pC2, k, C_value0, largest(C_value0, 2, 4))
        C_value1 = t1
        pC2 = appended(C_vals, C2_crd, pC2, k + 8, C_value1, largest(C_value1, 2, 4))
        C_value2 = t2
        pC2 = appended(C_vals, C2_crd, pC2, k + 16, C_value2, largest(C_value2, 2, 4))
        C_value3 = t3
        pC2 = appended(C_vals, C2_crd, pC2, k + 24, C_value3, largest(C_value3, 2, 4))
        C_value4 = t4
        pC2 = appended(C_vals, C2_crd, pC2, k + 32, C_value4, largest(C_value4, 2, 4))
        C_value5 = t5
        pC2 = appended_first(C_vals, C2_crd, pC2, k + 40, C_value5, largest_first(C_value5, 2, 4, left), left)
        C2_pos[i + 1] = pC2
        pA2_start = pA2_end
    starts[worker] = pC2


def kernel(A2_pos, A2_crd, A_vals, B_vals, C2_pos, C2_crd, C_vals, cuts, starts, blocks, workers, k_size, B_stride0):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B_vals, C2_pos, C2_crd, C_vals, cuts, starts, blocks, workers, k_size, B_stride0)
