"""C[i,j] = A[i,j] + B[i,j]

    parallel_forall(i, forall(j, C[i,j] = A[i,j] + B[i,j]))

A: CSR float32, int32 indices
B: dense float32, strides (n, 1)
C: dense float32, strides (n, 1)
"""

from numba import prange


def body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, j_size, B_stride0, C_stride0):
    for i in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2 = A2_pos[i]
        pA2_end = A2_pos[i + 1]
        for j in range(j_size):
            if pA2 < pA2_end and A2_crd[pA2] == j:
                C_vals[i * C_stride0 + j] = A_vals[pA2] + B_vals[i * B_stride0 + j]
            else:
                C_vals[i * C_stride0 + j] = B_vals[i * B_stride0 + j]
            if pA2 < pA2_end and A2_crd[pA2] == j:
                pA2 += 1


def kernel(A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, j_size, B_stride0, C_stride0):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, j_size, B_stride0, C_stride0)
