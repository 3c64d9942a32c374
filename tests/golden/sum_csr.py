"""B += A[i,j]

    where(B = t, entry_forall<8 x 8>(i, forall(j, t += A[i,j])))

A: CSR float32, int32 indices
B: dense float32
"""

from numba import prange
from numpy import float32

from numscorch.codegen.intrinsics import add, hsum, load, splat


def body(worker, A_vals, A_entries, partial_vals, blocks, workers):
    A_steps = A_entries // 64
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        t_lanes = splat(float32(0.0), 8, 8)
        for pA2 in range(A_steps * block // blocks * 64, A_steps * (block + 1) // blocks * 64, 64):
            t_lanes = add(t_lanes, load(A_vals, pA2, 8, 8))
        t = hsum(t_lanes)
        partial_vals[block] = t


def finish(A_vals, A_entries, B_vals, partial_vals, blocks):
    A_steps = A_entries // 64
    total = float32(0.0)
    for block in range(blocks):
        total += partial_vals[block]
    pA2_split = A_steps * 64
    for pA2 in range(pA2_split, A_entries):
        total += A_vals[pA2]
    B_vals[0] = total


def kernel(A_vals, A_entries, B_vals, partial_vals, blocks, workers):
    for worker in prange(workers):
        body(worker, A_vals, A_entries, partial_vals, blocks, workers)
    finish(A_vals, A_entries, B_vals, partial_vals, blocks)
