"""D[i,j] += A[i,j] * B[i,k] * C[j,k]

    parallel_forall(i, forall(j, where(D[i,j] = A[i,j] * t, vector_forall<8 x 8, once>(k, t += B[i,k] * C[j,k]))))

A: CSR float32, int32 indices
B: dense float32, strides (n, 1)
C: dense float32, strides (n, 1)
D: CSR float32, int32 indices, the pattern of A
"""

from numba import prange
from numpy import float32

from numscorch.codegen.intrinsics import fma, hsum, load, pointer, splat


def kernel(A2_pos_array, A2_crd_array, A_vals_array, B_vals_array, C_vals_array, D_vals_array, cuts_array, blocks, workers, B_stride0, C_stride0):
    for worker in prange(workers):
        A2_crd = pointer(A2_crd_array)
        A2_pos = pointer(A2_pos_array)
        A_vals = pointer(A_vals_array)
        B_vals = pointer(B_vals_array)
        C_vals = pointer(C_vals_array)
        D_vals = pointer(D_vals_array)
        cuts = pointer(cuts_array)
        for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
            for i in range(cuts[block], cuts[block + 1]):
                B0 = load(B_vals, i * B_stride0, 8)
                B1 = load(B_vals, i * B_stride0 + 8, 8)
                B2 = load(B_vals, i * B_stride0 + 16, 8)
                B3 = load(B_vals, i * B_stride0 + 24, 8)
                B4 = load(B_vals, i * B_stride0 + 32, 8)
                B5 = load(B_vals, i * B_stride0 + 40, 8)
                B6 = load(B_vals, i * B_stride0 + 48, 8)
                B7 = load(B_vals, i * B_stride0 + 56, 8)
                for pA2 in range(A2_pos[i], A2_pos[i + 1]):
                    j = A2_crd[pA2]
                    t_lanes = splat(float32(0.0), 8)
                    pC = j * C_stride0
                    t_lanes = fma(B0, load(C_vals, pC, 8), t_lanes)
                    t_lanes = fma(B1, load(C_vals, pC + 8, 8), t_lanes)
                    t_lanes = fma(B2, load(C_vals, pC + 16, 8), t_lanes)
                    t_lanes = fma(B3, load(C_vals, pC + 24, 8), t_lanes)
                    t_lanes = fma(B4, load(C_vals, pC + 32, 8), t_lanes)
                    t_lanes = fma(B5, load(C_vals, pC + 40, 8), t_lanes)
                    t_lanes = fma(B6, load(C_vals, pC + 48, 8), t_lanes)
                    t_lanes = fma(B7, load(C_vals, pC + 56, 8), t_lanes)
                    t = hsum(t_lanes)
                    D_vals[pA2] = A_vals[pA2] * t
