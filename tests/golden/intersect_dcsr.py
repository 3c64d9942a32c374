"""C += A[i,j] * B[i,j]

    where(C = t, parallel_forall(i: sums<2, 128>, blend_forall<ahead>(j, t += A[i,j] * B[i,j])))

A: DCSR float32, int32 indices
B: DCSR float32, int32 indices
C: dense float32
"""

from numba import prange
from numpy import float32

from numscorch.codegen.intrinsics import at_most, masked
from numscorch.codegen.routines import seek


def body(worker, A1_pos, A1_crd, A2_pos, A2_crd, A_vals, B1_pos, B1_crd, B2_pos, B2_crd, B_vals, partial_vals, cuts, blocks, workers):
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        t = float32(0.0)
        pA1 = seek(A1_crd, A1_pos[0], A1_pos[1], cuts[block])
        pA1_end = seek(A1_crd, pA1, A1_pos[1], cuts[block + 1])
        pB1 = seek(B1_crd, B1_pos[0], B1_pos[1], cuts[block])
        pB1_end = seek(B1_crd, pB1, B1_pos[1], cuts[block + 1])
        while pA1 < pA1_end and pB1 < pB1_end:
            t_part1 = float32(0.0)
            pA1_last2 = min(pA1 + 128, pA1_end)
            while pA1 < pA1_last2 and pB1 < pB1_end:
                t_part2 = float32(0.0)
                pA1_last1 = min(pA1 + 2, pA1_last2)
                while pA1 < pA1_last1 and pB1 < pB1_end:
                    iA = A1_crd[pA1]
                    iB = B1_crd[pB1]
                    i = min(iA, iB)
                    if iA == i and iB == i:
                        pA2 = A2_pos[pA1]
                        pA2_end = A2_pos[pA1 + 1]
                        pB2 = B2_pos[pB1]
                        pB2_end = B2_pos[pB1 + 1]
                        if pA2 < pA2_end and pB2 < pB2_end:
                            if pA2 < pA2_end - 1 and pB2 < pB2_end - 1:
                                jA = A2_crd[pA2]
                                jB = B2_crd[pB2]
                                while pA2 < pA2_end - 1 and pB2 < pB2_end - 1:
                                    jA_next = A2_crd[pA2 + 1]
                                    jB_next = B2_crd[pB2 + 1]
                                    A_here = at_most(jA, jB)
                                    B_here = at_most(jB, jA)
                                    t_part2 += masked(A_vals[pA2] * B_vals[pB2], A_here & B_here)
                                    pA2 = pA2 - A_here
                                    pB2 = pB2 - B_here
                                    jA = jA + (jA_next - jA & A_here)
                                    jB = jB + (jB_next - jB & B_here)
                            while pA2 < pA2_end and pB2 < pB2_end:
                                jA = A2_crd[pA2]
                                jB = B2_crd[pB2]
                                A_here = at_most(jA, jB)
                                B_here = at_most(jB, jA)
                                t_part2 += masked(A_vals[pA2] * B_vals[pB2], A_here & B_here)
                                pA2 = pA2 - A_here
                                pB2 = pB2 - B_here
                    if iA == i:
                        pA1 += 1
                    if iB == i:
                        pB1 += 1
                t_part1 += t_part2
            t += t_part1
        partial_vals[block] = t


def finish(C_vals, partial_vals, blocks):
    total = float32(0.0)
    for block in range(blocks):
        total += partial_vals[block]
    C_vals[0] = total


def kernel(A1_pos, A1_crd, A2_pos, A2_crd, A_vals, B1_pos, B1_crd, B2_pos, B2_crd, B_vals, C_vals, partial_vals, cuts, blocks, workers):
    for worker in prange(workers):
        body(worker, A1_pos, A1_crd, A2_pos, A2_crd, A_vals, B1_pos, B1_crd, B2_pos, B2_crd, B_vals, partial_vals, cuts, blocks, workers)
    finish(C_vals, partial_vals, blocks)
