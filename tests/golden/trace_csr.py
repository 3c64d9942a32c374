"""B += A[i,i_1] * I0A[i,i_1]

    where(B = t, parallel_forall(i: sums<64>, forall(i_1, t += A[i,i_1] * I0A[i,i_1])))

A: CSR float32, int32 indices
I0A: (i, j) -> (i: dense, j: identity) relation, int64 indices
B: dense float32
"""

from numba import prange
from numpy import float32


def body(worker, A2_pos, A2_crd, A_vals, partial_vals, cuts, blocks, workers):
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        t = float32(0.0)
        if cuts[block] + 256 < cuts[block + 1]:
            for i_block1 in range(cuts[block], cuts[block + 1], 64):
                t_part1 = float32(0.0)
                for i in range(i_block1, min(i_block1 + 64, cuts[block + 1])):
                    pA2 = A2_pos[i]
                    pA2_end = A2_pos[i + 1]
                    pI0A2 = i
                    pI0A2_end = i + 1
                    while pA2 < pA2_end and pI0A2 < pI0A2_end:
                        i_1A = A2_crd[pA2]
                        i_1I0A = i
                        i_1 = min(i_1A, i_1I0A)
                        if i_1A == i_1 and i_1I0A == i_1:
                            t_part1 += A_vals[pA2]
                        if i_1A == i_1:
                            pA2 += 1
                        if i_1I0A == i_1:
                            pI0A2 += 1
                t += t_part1
        else:
            for i in range(cuts[block], cuts[block + 1]):
                pA2 = A2_pos[i]
                pA2_end = A2_pos[i + 1]
                pI0A2 = i
                pI0A2_end = i + 1
                while pA2 < pA2_end and pI0A2 < pI0A2_end:
                    i_1A = A2_crd[pA2]
                    i_1I0A = i
                    i_1 = min(i_1A, i_1I0A)
                    if i_1A == i_1 and i_1I0A == i_1:
                        t += A_vals[pA2]
                    if i_1A == i_1:
                        pA2 += 1
                    if i_1I0A == i_1:
                        pI0A2 += 1
        partial_vals[block] = t


def finish(B_vals, partial_vals, blocks):
    total = float32(0.0)
    for block in range(blocks):
        total += partial_vals[block]
    B_vals[0] = total


def kernel(A2_pos, A2_crd, A_vals, B_vals, partial_vals, cuts, blocks, workers):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, partial_vals, cuts, blocks, workers)
    finish(B_vals, partial_vals, blocks)
