"""C[i] += A[i,j] * B[j]

    parallel_forall(i, where(C[i] = t, position_forall<4>(j, t += A[i,j] * B[j])))

A: CSR float32, int32 indices
B: dense float32, strides (1)
C: dense float32, strides (1)
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import first_lanes, fma, gather, hsum, load, rolled, splat


def body(worker, A2_pos, A2_crd, A_vals, A_entries, B_vals, C_vals, cuts, blocks, workers):
    pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
    for i in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2_end = int64(A2_pos[i + 1])
        t_lanes = splat(float32(0.0), 4)
        pA2 = pA2_start
        while pA2 < pA2_end - 4:
            t_lanes = fma(load(A_vals, pA2, 4), gather(B_vals, 0, 1, A2_crd, pA2, 4), t_lanes)
            pA2 += 4
        pA2_split = pA2
        if pA2 <= A_entries - 4:
            t_lanes = first_lanes(fma(load(A_vals, pA2, 4), gather(B_vals, 0, 1, A2_crd, pA2, 4), t_lanes), t_lanes, pA2_end - pA2)
            pA2_split = pA2_end
        t = hsum(t_lanes)
        for pA2 in range(pA2_split, pA2_end):
            j = rolled(A2_crd[pA2])
            t += A_vals[pA2] * B_vals[j]
        C_vals[i] = t
        pA2_start = pA2_end


def kernel(A2_pos, A2_crd, A_vals, A_entries, B_vals, C_vals, cuts, blocks, workers):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, A_entries, B_vals, C_vals, cuts, blocks, workers)
