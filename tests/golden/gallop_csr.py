"""C += A[i,j] * B[i,j]

    where(C = t, parallel_forall(i: sums<21>, gallop_forall<A>(j, t += A[i,j] * B[i,j])))

A: CSR float32, int32 indices
B: CSR float32, int32 indices
C: dense float32
"""

from numba import prange
from numpy import float32

from numscorch.codegen.routines import seek


def body(worker, A2_pos, A2_crd, A_vals, B2_pos, B2_crd, B_vals, partial_vals, cuts, blocks, workers):
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        t = float32(0.0)
        if cuts[block] + 84 < cuts[block + 1]:
            for i_block1 in range(cuts[block], cuts[block + 1], 21):
                t_part1 = float32(0.0)
                for i in range(i_block1, min(i_block1 + 21, cuts[block + 1])):
                    pA2 = A2_pos[i]
                    pA2_end = A2_pos[i + 1]
                    pB2 = B2_pos[i]
                    pB2_end = B2_pos[i + 1]
                    while pA2 < pA2_end and pB2 < pB2_end:
                        j = A2_crd[pA2]
                        pB2 = seek(B2_crd, pB2, pB2_end, j)
                        if pB2 < pB2_end and B2_crd[pB2] == j:
                            t_part1 += A_vals[pA2] * B_vals[pB2]
                        pA2 += 1
                t += t_part1
        else:
            for i in range(cuts[block], cuts[block + 1]):
                pA2 = A2_pos[i]
                pA2_end = A2_pos[i + 1]
                pB2 = B2_pos[i]
                pB2_end = B2_pos[i + 1]
                while pA2 < pA2_end and pB2 < pB2_end:
                    j = A2_crd[pA2]
                    pB2 = seek(B2_crd, pB2, pB2_end, j)
                    if pB2 < pB2_end and B2_crd[pB2] == j:
                        t += A_vals[pA2] * B_vals[pB2]
                    pA2 += 1
        partial_vals[block] = t


def finish(C_vals, partial_vals, blocks):
    total = float32(0.0)
    for block in range(blocks):
        total += partial_vals[block]
    C_vals[0] = total


def kernel(A2_pos, A2_crd, A_vals, B2_pos, B2_crd, B_vals, C_vals, partial_vals, cuts, blocks, workers):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B2_pos, B2_crd, B_vals, partial_vals, cuts, blocks, workers)
    finish(C_vals, partial_vals, blocks)
