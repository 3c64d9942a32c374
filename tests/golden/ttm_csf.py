"""C[i,j,l] += A[i,j,k] * B[k,l]

    parallel_forall(i, forall(j, vector_forall<8 x 3, once, masked>(l, where(C[i,j,l] = t, forall(k, t += A[i,j,k] * B[k,l])))))

A: CSF(3) float32, int32 indices
B: dense float32, strides (n, 1)
C: dense float32, strides (n, n, 1)
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import fma, load, splat, store


def body(worker, A1_crd, A2_pos, A2_crd, A3_pos, A3_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, l_size, B_stride0, C_stride0, C_stride1):
    pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
    for pA1 in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2_end = int64(A2_pos[pA1 + 1])
        i = A1_crd[pA1]
        pA3_start = int64(A3_pos[A2_pos[pA1]])
        for pA2 in range(pA2_start, pA2_end):
            pA3_end = int64(A3_pos[pA2 + 1])
            j = A2_crd[pA2]
            left = l_size - 16
            t = splat(float32(0.0), 8, 3)
            for pA3 in range(pA3_start, pA3_end):
                k = A3_crd[pA3]
                pB = k * B_stride0
                t = fma(A_vals[pA3], load(B_vals, pB, 8, 3, left), t)
            pC = i * C_stride0 + j * C_stride1
            store(C_vals, pC, t, left)
            pA3_start = pA3_end
        pA2_start = pA2_end


def kernel(A1_crd, A2_pos, A2_crd, A3_pos, A3_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, l_size, B_stride0, C_stride0, C_stride1):
    for worker in prange(workers):
        body(worker, A1_crd, A2_pos, A2_crd, A3_pos, A3_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, l_size, B_stride0, C_stride0, C_stride1)
