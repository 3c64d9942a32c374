"""D[i] += (A[i,j] + B[i,j]) * C[j]

    parallel_forall(i, where(D[i] = t, blend_forall<ahead>(j, t += (A[i,j] + B[i,j]) * C[j])))

A: DCSR float32, int32 indices
B: DCSR float32, int32 indices
C: dense float32, strides (1)
D: dense float32, strides (1)
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import at_most, masked, rolled
from numscorch.codegen.routines import seek


def body(worker, A1_pos, A1_crd, A2_pos, A2_crd, A_vals, B1_pos, B1_crd, B2_pos, B2_crd, B_vals, C_vals, D_vals, cuts, blocks, workers):
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        pA1 = seek(A1_crd, A1_pos[0], A1_pos[1], cuts[block])
        pA1_end = seek(A1_crd, pA1, A1_pos[1], cuts[block + 1])
        pB1 = seek(B1_crd, B1_pos[0], B1_pos[1], cuts[block])
        pB1_end = seek(B1_crd, pB1, B1_pos[1], cuts[block + 1])
        while pA1 < pA1_end and pB1 < pB1_end:
            iA = A1_crd[pA1]
            iB = B1_crd[pB1]
            i = min(iA, iB)
            if iA == i and iB == i:
                t = float32(0.0)
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
                            j = min(jA, jB)
                            A_here = at_most(jA, jB)
                            B_here = at_most(jB, jA)
                            t += (masked(A_vals[pA2], A_here) + masked(B_vals[pB2], B_here)) * C_vals[j]
                            pA2 = pA2 - A_here
                            pB2 = pB2 - B_here
                            jA = jA + (jA_next - jA & A_here)
                            jB = jB + (jB_next - jB & B_here)
                    while pA2 < pA2_end and pB2 < pB2_end:
                        jA = A2_crd[pA2]
                        jB = B2_crd[pB2]
                        j = min(jA, jB)
                        A_here = at_most(jA, jB)
                        B_here = at_most(jB, jA)
                        t += (masked(A_vals[pA2], A_here) + masked(B_vals[pB2], B_here)) * C_vals[j]
                        pA2 = pA2 - A_here
                        pB2 = pB2 - B_here
                for pA2 in range(pA2, pA2_end):
                    j = A2_crd[pA2]
                    t += A_vals[pA2] * C_vals[j]
                for pB2 in range(pB2, pB2_end):
                    j = B2_crd[pB2]
                    t += B_vals[pB2] * C_vals[j]
                D_vals[i] = t
            elif iA == i:
                t = float32(0.0)
                for pA2 in range(A2_pos[pA1], A2_pos[pA1 + 1]):
                    j = A2_crd[pA2]
                    t += A_vals[pA2] * C_vals[j]
                D_vals[i] = t
            elif iB == i:
                t = float32(0.0)
                for pB2 in range(B2_pos[pB1], B2_pos[pB1 + 1]):
                    j = B2_crd[pB2]
                    t += B_vals[pB2] * C_vals[j]
                D_vals[i] = t
            if iA == i:
                pA1 += 1
            if iB == i:
                pB1 += 1
        pA2_start = int64(A2_pos[pA1])
        for pA1 in range(pA1, pA1_end):
            pA2_end = int64(A2_pos[pA1 + 1])
            i = A1_crd[pA1]
            t = float32(0.0)
            for pA2 in range(pA2_start, pA2_end):
                j = rolled(A2_crd[pA2])
                t += A_vals[pA2] * C_vals[j]
            D_vals[i] = t
            pA2_start = pA2_end
        pB2_start = int64(B2_pos[pB1])
        for pB1 in range(pB1, pB1_end):
            pB2_end = int64(B2_pos[pB1 + 1])
            i = B1_crd[pB1]
            t = float32(0.0)
            for pB2 in range(pB2_start, pB2_end):
                j = rolled(B2_crd[pB2])
                t += B_vals[pB2] * C_vals[j]
            D_vals[i] = t
            pB2_start = pB2_end


def kernel(A1_pos, A1_crd, A2_pos, A2_crd, A_vals, B1_pos, B1_crd, B2_pos, B2_crd, B_vals, C_vals, D_vals, cuts, blocks, workers):
    for worker in prange(workers):
        body(worker, A1_pos, A1_crd, A2_pos, A2_crd, A_vals, B1_pos, B1_crd, B2_pos, B2_crd, B_vals, C_vals, D_vals, cuts, blocks, workers)
