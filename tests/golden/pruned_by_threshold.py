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
            t = splat(float32(0.0), 8, 7)
            for pA2 in range(A2_pos[i], A2_pos[i + 1]):
                j = A2_crd[pA2]
                pB = j * B_stride0 + k
                t = fma(A_vals[pA2], load(B_vals, pB, 8, 7), t)
            D_value = t
            pD2 = appended(D_vals, D2_crd, pD2, k, D_value, eq(le(magnitudes(t), C_vals[0]), float32(0.0)))
        k = k_size // 56 * 56
        left = k_size - k - 40
        t = splat(float32(0.0), 8, 6)
        for pA2 in range(pA2_start, pA2_end):
            j = A2_crd[pA2]
            pB = j * B_stride0 + k
            t = fma(A_vals[pA2], load_first(B_vals, pB, left, 8, 6), t)
        D_value = t
        pD2 = appended_first(D_vals, D2_crd, pD2, k, D_value, eq(le(magnitudes(t), C_vals[0]), float32(0.0)), left)
        D2_pos[i + 1] = pD2
        pA2_start = pA2_end
    starts[worker] = pD2


def kernel(A2_pos, A2_crd, A_vals, B_vals, C_vals, D2_pos, D2_crd, D_vals, cuts, starts, blocks, workers, k_size, B_stride0):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, D2_pos, D2_crd, D_vals, cuts, starts, blocks, workers, k_size, B_stride0)
