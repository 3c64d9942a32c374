"""D[i,j] = A[i,j] + B[i,j] + C[i,j]

    parallel_forall(i, blend_forall(j, D[i,j] = A[i,j] + B[i,j] + C[i,j]))

A: DCSR float32, int32 indices
B: DCSR float32, int32 indices
C: DCSR float32, int32 indices
D: DCSR float32, int32 indices
"""

from numba import prange

from numscorch.codegen.intrinsics import at_most, masked
from numscorch.codegen.routines import seek


def body(worker, A1_pos, A1_crd, A2_pos, A2_crd, A_vals, B1_pos, B1_crd, B2_pos, B2_crd, B_vals, C1_pos, C1_crd, C2_pos, C2_crd, C_vals, D1_crd, D2_pos, D2_crd, D_vals, cuts, starts, blocks, workers, i_size):
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        pD1 = starts[block * 2]
        pD2 = starts[block * 2 + 1]
        pA1 = seek(A1_crd, A1_pos[0], A1_pos[1], cuts[block])
        pA1_end = seek(A1_crd, pA1, A1_pos[1], cuts[block + 1])
        pB1 = seek(B1_crd, B1_pos[0], B1_pos[1], cuts[block])
        pB1_end = seek(B1_crd, pB1, B1_pos[1], cuts[block + 1])
        pC1 = seek(C1_crd, C1_pos[0], C1_pos[1], cuts[block])
        pC1_end = seek(C1_crd, pC1, C1_pos[1], cuts[block + 1])
        while pA1 < pA1_end or pB1 < pB1_end or pC1 < pC1_end:
            iA = A1_crd[pA1] if pA1 < pA1_end else i_size
            iB = B1_crd[pB1] if pB1 < pB1_end else i_size
            iC = C1_crd[pC1] if pC1 < pC1_end else i_size
            i = min(iA, iB, iC)
            pD2_first = pD2
            pA2 = A2_pos[pA1] if iA == i else 0
            pA2_end = A2_pos[pA1 + 1] if iA == i else 0
            pB2 = B2_pos[pB1] if iB == i else 0
            pB2_end = B2_pos[pB1 + 1] if iB == i else 0
            pC2 = C2_pos[pC1] if iC == i else 0
            pC2_end = C2_pos[pC1 + 1] if iC == i else 0
            while pA2 < pA2_end and pB2 < pB2_end and pC2 < pC2_end:
                jA = A2_crd[pA2]
                jB = B2_crd[pB2]
                jC = C2_crd[pC2]
                j = min(jA, jB, jC)
                A_here = at_most(jA, j)
                B_here = at_most(jB, j)
                C_here = at_most(jC, j)
                D_vals[pD2] = masked(A_vals[pA2], A_here) + masked(B_vals[pB2], B_here) + masked(C_vals[pC2], C_here)
                D2_crd[pD2] = j
                pD2 += 1
                pA2 = pA2 - A_here
                pB2 = pB2 - B_here
                pC2 = pC2 - C_here
            while pA2 < pA2_end and pB2 < pB2_end:
                jA = A2_crd[pA2]
                jB = B2_crd[pB2]
                j = min(jA, jB)
                A_here = at_most(jA, jB)
                B_here = at_most(jB, jA)
                D_vals[pD2] = masked(A_vals[pA2], A_here) + masked(B_vals[pB2], B_here)
                D2_crd[pD2] = j
                pD2 += 1
                pA2 = pA2 - A_here
                pB2 = pB2 - B_here
            while pA2 < pA2_end and pC2 < pC2_end:
                jA = A2_crd[pA2]
                jC = C2_crd[pC2]
                j = min(jA, jC)
                A_here = at_most(jA, jC)
                C_here = at_most(jC, jA)
                D_vals[pD2] = masked(A_vals[pA2], A_here) + masked(C_vals[pC2], C_here)
                D2_crd[pD2] = j
                pD2 += 1
                pA2 = pA2 - A_here
                pC2 = pC2 - C_here
            while pB2 < pB2_end and pC2 < pC2_end:
                jB = B2_crd[pB2]
                jC = C2_crd[pC2]
                j = min(jB, jC)
                B_here = at_most(jB, jC)
                C_here = at_most(jC, jB)
                D_vals[pD2] = masked(B_vals[pB2], B_here) + masked(C_vals[pC2], C_here)
                D2_crd[pD2] = j
                pD2 += 1
                pB2 = pB2 - B_here
                pC2 = pC2 - C_here
            for pA2 in range(pA2, pA2_end):
                j = A2_crd[pA2]
                D_vals[pD2] = A_vals[pA2]
                D2_crd[pD2] = j
                pD2 += 1
            for pB2 in range(pB2, pB2_end):
                j = B2_crd[pB2]
                D_vals[pD2] = B_vals[pB2]
                D2_crd[pD2] = j
                pD2 += 1
            for pC2 in range(pC2, pC2_end):
                j = C2_crd[pC2]
                D_vals[pD2] = C_vals[pC2]
                D2_crd[pD2] = j
                pD2 += 1
            if pD2_first < pD2:
                D2_pos[pD1 + 1] = pD2
                D1_crd[pD1] = i
                pD1 += 1
            if iA == i:
                pA1 += 1
            if iB == i:
                pB1 += 1
            if iC == i:
                pC1 += 1


def kernel(A1_pos, A1_crd, A2_pos, A2_crd, A_vals, B1_pos, B1_crd, B2_pos, B2_crd, B_vals, C1_pos, C1_crd, C2_pos, C2_crd, C_vals, D1_crd, D2_pos, D2_crd, D_vals, cuts, starts, blocks, workers, i_size):
    for worker in prange(workers):
        body(worker, A1_pos, A1_crd, A2_pos, A2_crd, A_vals, B1_pos, B1_crd, B2_pos, B2_crd, B_vals, C1_pos, C1_crd, C2_pos, C2_crd, C_vals, D1_crd, D2_pos, D2_crd, D_vals, cuts, starts, blocks, workers, i_size)
