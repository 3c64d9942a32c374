"""B[i] max= A[i,j]

    parallel_forall(i, where(B[i] = t, forall(j, t max= A[i,j])))

A: CSR float32, int32 indices
B: dense float32, strides (1)
"""

from math import inf
from numba import prange
from numpy import float32

from numscorch.codegen.intrinsics import pointer
from numscorch.codegen.routines import maximum


def kernel(A2_pos_array, A_vals_array, B_vals_array, cuts_array, blocks, workers, j_size):
    for worker in prange(workers):
        A2_pos = pointer(A2_pos_array)
        A_vals = pointer(A_vals_array)
        B_vals = pointer(B_vals_array)
        cuts = pointer(cuts_array)
        for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
            for i in range(cuts[block], cuts[block + 1]):
                t_seen = 0
                t = float32(-inf)
                for pA2 in range(A2_pos[i], A2_pos[i + 1]):
                    t = maximum(t, A_vals[pA2])
                    t_seen += 1
                if t_seen < j_size:
                    t = maximum(t, float32(0.0))
                B_vals[i] = t
