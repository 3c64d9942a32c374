"""B[i] max= A[i,j]

    parallel_forall(i, where(B[i] = t, position_forall<8>(j, t max= A[i,j])))

A: CSR float32, int32 indices
B: dense float32, strides (1)
"""

from math import inf
from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import first_lanes, load, splat
from numscorch.codegen.register_functions import hmax, larger
from numscorch.codegen.routines import maximum


def body(worker, A2_pos, A_vals, A_entries, B_vals, cuts, blocks, workers, j_size):
    pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
    for i in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2_end = int64(A2_pos[i + 1])
        t_seen = 0
        t = float32(-inf)
        t_lanes = splat(float32(-inf), 8)
        pA2 = pA2_start
        while pA2 < pA2_end - 8:
            t_lanes = larger(t_lanes, load(A_vals, pA2, 8))
            t_seen += 8
            pA2 += 8
        pA2_split = pA2
        if pA2 <= A_entries - 8:
            t_lanes = first_lanes(larger(t_lanes, load(A_vals, pA2, 8)), t_lanes, pA2_end - pA2)
            t_seen += pA2_end - pA2
            pA2_split = pA2_end
        t = maximum(t, hmax(t_lanes))
        for pA2 in range(pA2_split, pA2_end):
            t = maximum(t, A_vals[pA2])
            t_seen += 1
        if t_seen < j_size:
            t = maximum(t, float32(0.0))
        B_vals[i] = t
        pA2_start = pA2_end


def kernel(A2_pos, A_vals, A_entries, B_vals, cuts, blocks, workers, j_size):
    for worker in prange(workers):
        body(worker, A2_pos, A_vals, A_entries, B_vals, cuts, blocks, workers, j_size)
