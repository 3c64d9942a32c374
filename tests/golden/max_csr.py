"""B[i] max= A[i,j]

    parallel_forall(i, where(B[i] = t, position_forall<4>(j, t max= A[i,j])))

A: CSR float32, int32 indices
B: dense float32, strides (1)
"""

from math import inf
from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import load, pointer, splat
from numscorch.codegen.register_functions import hmax, larger
from numscorch.codegen.routines import maximum


def kernel(A2_pos_array, A_vals_array, B_vals_array, cuts_array, blocks, workers, j_size):
    for worker in prange(workers):
        A2_pos = pointer(A2_pos_array)
        A_vals = pointer(A_vals_array)
        B_vals = pointer(B_vals_array)
        cuts = pointer(cuts_array)
        pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
        for i in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
            pA2_end = int64(A2_pos[i + 1])
            t_seen = 0
            t = float32(-inf)
            pA2_split = pA2_start + (pA2_end - pA2_start) // 4 * 4
            if pA2_start < pA2_split:
                t_lanes = splat(float32(-inf), 4)
                for pA2 in range(pA2_start, pA2_split, 4):
                    t_lanes = larger(t_lanes, load(A_vals, pA2, 4))
                    t_seen += 4
                t = maximum(t, hmax(t_lanes))
            for pA2 in range(pA2_split, pA2_end):
                t = maximum(t, A_vals[pA2])
                t_seen += 1
            if t_seen < j_size:
                t = maximum(t, float32(0.0))
            B_vals[i] = t
            pA2_start = pA2_end
