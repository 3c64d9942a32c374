"""C += A[i,j,k] * B

    where(C = t, entry_forall<8 x 8>(i, forall(j, forall(k, t += B * A[i,j,k]))))

A: CSF(3) float32, int32 indices
B: dense float32
C: dense float32
"""

from numba import prange
from numpy import float32

from numscorch.codegen.intrinsics import fma, hsum, load, splat


def body(worker, A_vals, A_entries, B_vals, partial_vals, blocks, workers):
    A_steps = A_entries // 64
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        t_lanes = splat(float32(0.0), 8, 8)
        for pA3 in range(A_steps * block // blocks * 64, A_steps * (block + 1) // blocks * 64, 64):
            t_lanes = fma(B_vals[0], load(A_vals, pA3, 8, 8), t_lanes)
        t = hsum(t_lanes)
        partial_vals[block] = t


def finish(A_vals, A_entries, B_vals, C_vals, partial_vals, blocks):
    A_steps = A_entries // 64
    total = float32(0.0)
    for block in range(blocks):
        total += partial_vals[block]
    pA3_split = A_steps * 64
    for pA3 in range(pA3_split, A_entries):
        total += B_vals[0] * A_vals[pA3]
    C_vals[0] = total


def kernel(A_vals, A_entries, B_vals, C_vals, partial_vals, blocks, workers):
    for worker in prange(workers):
        body(worker, A_vals, A_entries, B_vals, partial_vals, blocks, workers)
    finish(A_vals, A_entries, B_vals, C_vals, partial_vals, blocks)
