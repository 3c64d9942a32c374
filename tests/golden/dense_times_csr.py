"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(k, vector_forall<8 x 8, once>(i, where(C[i,k] = t, forall(j, t += A[i,j] * B[j,k]))))

A: dense float32, strides (1, n)
B: CSC float32, int32 indices, values in another order
C: dense float32, strides (1, n)
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import fma, load, splat, store


def body(worker, A_vals, B2_pos, B2_crd, B_vals, B_order, C_vals, cuts, blocks, workers, A_stride1, C_stride1):
    pB2_start = int64(B2_pos[cuts[blocks * worker // workers]])
    for k in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pB2_end = int64(B2_pos[k + 1])
        t = splat(float32(0.0), 8, 8)
        for pB2 in range(pB2_start, pB2_end):
            j = B2_crd[pB2]
            pA = j * A_stride1
            t = fma(B_vals[B_order[pB2]], load(A_vals, pA, 8, 8), t)
        pC = k * C_stride1
        store(C_vals, pC, t)
        pB2_start = pB2_end


def kernel(A_vals, B2_pos, B2_crd, B_vals, B_order, C_vals, cuts, blocks, workers, A_stride1, C_stride1):
    for worker in prange(workers):
        body(worker, A_vals, B2_pos, B2_crd, B_vals, B_order, C_vals, cuts, blocks, workers, A_stride1, C_stride1)
