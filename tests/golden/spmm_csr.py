"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(i, vector_forall<8 x 7, overlapped>(k, where(C[i,k] = t, forall(j, t += A[i,j] * B[j,k]))))

A: CSR float32, int32 indices
B: dense float32, strides (n, 1)
C: dense float32, strides (n, 1)
"""

from numba import prange
from numpy import float32

from numscorch.codegen.intrinsics import fma, load, splat, store


def body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, k_size, B_stride0, C_stride0):
    for i in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        for k_next in range(0, k_size, 56):
            k = min(k_next, k_size - 56)
            t = splat(float32(0.0), 8, 7)
            for pA2 in range(A2_pos[i], A2_pos[i + 1]):
                j = A2_crd[pA2]
                pB = j * B_stride0 + k
                t = fma(A_vals[pA2], load(B_vals, pB, 8, 7), t)
            pC = i * C_stride0 + k
            store(C_vals, pC, t)


def kernel(A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, k_size, B_stride0, C_stride0):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, k_size, B_stride0, C_stride0)
