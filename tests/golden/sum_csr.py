"""B += A[i,j]

    where(B = t, parallel_forall(i, position_forall<8>(j, t += A[i,j])))

A: CSR float32, int32 indices
B: dense float32
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import add, hsum, load, pointer, splat


def kernel(A2_pos_array, A_vals_array, B_vals_array, partial_vals_array, cuts_array, blocks, workers):
    for worker in prange(workers):
        A2_pos = pointer(A2_pos_array)
        A_vals = pointer(A_vals_array)
        cuts = pointer(cuts_array)
        partial_vals = pointer(partial_vals_array)
        for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
            t = float32(0.0)
            pA2_start = int64(A2_pos[cuts[block]])
            for i in range(cuts[block], cuts[block + 1]):
                pA2_end = int64(A2_pos[i + 1])
                pA2_split = pA2_start + (pA2_end - pA2_start) // 8 * 8
                if pA2_start < pA2_split:
                    t_lanes = splat(float32(0.0), 8)
                    for pA2 in range(pA2_start, pA2_split, 8):
                        t_lanes = add(t_lanes, load(A_vals, pA2, 8))
                    t += hsum(t_lanes)
                for pA2 in range(pA2_split, pA2_end):
                    t += A_vals[pA2]
                pA2_start = pA2_end
            partial_vals[block] = t
    B_vals = pointer(B_vals_array)
    partial_vals = pointer(partial_vals_array)
    total = float32(0.0)
    for block in range(blocks):
        total += partial_vals[block]
    B_vals[0] = total
