"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(i, vector_forall<8 x 8, once>(k, where(C[i,k] = t, forall(j, t += A[i,j] * B[j,k]))))

A: CSR float32, int32 indices, values in another order
B: dense float32, strides (n, 1)
C: dense float32, strides (n, 1)
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import fma, load, splat, store


def body(worker, A2_pos, A2_crd, A_vals, A_order, B_vals, C_vals, cuts, blocks, workers, B_stride0, C_stride0):
    pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
    for i in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2_end = int64(A2_pos[i + 1])
        t = splat(float32(0.0), 8, 8)
        for pA2 in range(pA2_start, pA2_end):
            j = A2_crd[pA2]
            pB = j * B_stride0
            t = fma(A_vals[A_order[pA2]], load(B_vals, pB, 8, 8), t)
        pC = i * C_stride0
        store(C_vals, pC, t)
        pA2_start = pA2_end


def kernel(A2_pos, A2_crd, A_vals, A_order, B_vals, C_vals, cuts, blocks, workers, B_stride0, C_stride0):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, A_order, B_vals, C_vals, cuts, blocks, workers, B_stride0, C_stride0)
