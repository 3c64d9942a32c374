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
            t = splat(float32(0.0), 8, 7)
            for pA2 in range(A2_pos[i], A2_pos[i + 1]):
                j = A2_crd[pA2]
                pB = j * B_stride0 + k
                t = fma(A_vals[pA2], load(B_vals, pB, 8, 7), t)
            C_value = t
            pC2 = appended(C_vals, C2_crd, pC2, k, C_value, largest(C_value, 2, 4))
        k = k_size // 56 * 56
        left = k_size - k - 40
        t = splat(float32(0.0), 8, 6)
        for pA2 in range(pA2_start, pA2_end):
            j = A2_crd[pA2]
            pB = j * B_stride0 + k
            t = fma(A_vals[pA2], load_first(B_vals, pB, left, 8, 6), t)
        C_value = t
        pC2 = appended_first(C_vals, C2_crd, pC2, k, C_value, largest_first(C_value, 2, 4, left), left)
        C2_pos[i + 1] = pC2
        pA2_start = pA2_end
    starts[worker] = pC2


def kernel(A2_pos, A2_crd, A_vals, B_vals, C2_pos, C2_crd, C_vals, cuts, starts, blocks, workers, k_size, B_stride0):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B_vals, C2_pos, C2_crd, C_vals, cuts, starts, blocks, workers, k_size, B_stride0)
