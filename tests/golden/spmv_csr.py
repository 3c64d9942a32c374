"""C[i] += A[i,j] * B[j]

    parallel_forall(i, where(C[i] = t, position_forall<8>(j, t += A[i,j] * B[j])))

A: CSR float32, int32 indices
B: dense float32, strides (1)
C: dense float32, strides (1)
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import fma, gather, hsum, load, pointer, rolled, splat


def kernel(A2_pos_array, A2_crd_array, A_vals_array, B_vals_array, C_vals_array, cuts_array, blocks, workers):
    for worker in prange(workers):
        A2_crd = pointer(A2_crd_array)
        A2_pos = pointer(A2_pos_array)
        A_vals = pointer(A_vals_array)
        B_vals = pointer(B_vals_array)
        C_vals = pointer(C_vals_array)
        cuts = pointer(cuts_array)
        pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
        for i in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
            pA2_end = int64(A2_pos[i + 1])
            t = float32(0.0)
            pA2_split = pA2_start + (pA2_end - pA2_start) // 8 * 8
            if pA2_start < pA2_split:
                t_lanes = splat(float32(0.0), 8)
                for pA2 in range(pA2_start, pA2_split, 8):
                    t_lanes = fma(load(A_vals, pA2, 8), gather(B_vals, 0, 1, A2_crd, pA2, 8), t_lanes)
                t += hsum(t_lanes)
            for pA2 in range(pA2_split, pA2_end):
                j = rolled(A2_crd[pA2])
                t += A_vals[pA2] * B_vals[j]
            C_vals[i] = t
            pA2_start = pA2_end
