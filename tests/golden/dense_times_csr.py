"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(i, forall(k, where(C[i,k] = t, position_forall<8>(j, t += A[i,j] * B[j,k]))))

A: dense float32, strides (n, 1)
B: CSC float32, int32 indices
C: dense float32, strides (n, 1)
"""

from numba import prange
from numpy import float32

from numscorch.codegen.intrinsics import fma, gather, hsum, load, pointer, splat


def kernel(A_vals_array, B2_pos_array, B2_crd_array, B_vals_array, C_vals_array, cuts_array, blocks, workers, k_size, A_stride0, C_stride0):
    for worker in prange(workers):
        A_vals = pointer(A_vals_array)
        B2_crd = pointer(B2_crd_array)
        B2_pos = pointer(B2_pos_array)
        B_vals = pointer(B_vals_array)
        C_vals = pointer(C_vals_array)
        cuts = pointer(cuts_array)
        for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
            for i in range(cuts[block], cuts[block + 1]):
                for k in range(k_size):
                    pB2_start = B2_pos[k]
                    pB2_end = B2_pos[k + 1]
                    pB2_split = pB2_start + (pB2_end - pB2_start) // 8 * 8
                    t_lanes = splat(float32(0.0), 8)
                    for pB2 in range(pB2_start, pB2_split, 8):
                        t_lanes = fma(gather(A_vals, i * A_stride0, 1, B2_crd, pB2, 8), load(B_vals, pB2, 8), t_lanes)
                    t = hsum(t_lanes)
                    for pB2 in range(pB2_split, pB2_end):
                        j = B2_crd[pB2]
                        t += A_vals[i * A_stride0 + j] * B_vals[pB2]
                    C_vals[i * C_stride0 + k] = t
