"""C[i,j] = A[i,j] + B[i,j]

    parallel_forall(i, blend_forall<ahead>(j, C[i,j] = A[i,j] + B[i,j]))

A: CSR float32, int32 indices
B: CSR float32, int32 indices
C: CSR float32, int32 indices
"""

from numba import prange

from numscorch.codegen.intrinsics import at_most, masked


def body(worker, A2_pos, A2_crd, A_vals, B2_pos, B2_crd, B_vals, C2_pos, C2_crd, C_vals, cuts, starts, blocks, workers):
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        pC2 = starts[block]
        for i in range(cuts[block], cuts[block + 1]):
            pA2 = A2_pos[i]
            pA2_end = A2_pos[i + 1]
            pB2 = B2_pos[i]
            pB2_end = B2_pos[i + 1]
            if pA2 < pA2_end and pB2 < pB2_end:
                while pA2 < pA2_end and pB2 < pB2_end and A2_crd[pA2] == B2_crd[pB2]:
                    j = A2_crd[pA2]
                    C_vals[pC2] = A_vals[pA2] + B_vals[pB2]
                    C2_crd[pC2] = j
                    pC2 += 1
                    pA2 += 1
                    pB2 += 1
                if pA2 < pA2_end - 1 and pB2 < pB2_end - 1:
                    jA = A2_crd[pA2]
                    jB = B2_crd[pB2]
                    while pA2 < pA2_end - 1 and pB2 < pB2_end - 1:
                        jA_next = A2_crd[pA2 + 1]
                        jB_next = B2_crd[pB2 + 1]
                        j = min(jA, jB)
                        A_here = at_most(jA, jB)
                        B_here = at_most(jB, jA)
                        C_vals[pC2] = masked(A_vals[pA2], A_here) + masked(B_vals[pB2], B_here)
                        C2_crd[pC2] = j
                        pC2 += 1
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
                    C_vals[pC2] = masked(A_vals[pA2], A_here) + masked(B_vals[pB2], B_here)
                    C2_crd[pC2] = j
                    pC2 += 1
                    pA2 = pA2 - A_here
                    pB2 = pB2 - B_here
            for pA2 in range(pA2, pA2_end):
                j = A2_crd[pA2]
                C_vals[pC2] = A_vals[pA2]
                C2_crd[pC2] = j
                pC2 += 1
            for pB2 in range(pB2, pB2_end):
                j = B2_crd[pB2]
                C_vals[pC2] = B_vals[pB2]
                C2_crd[pC2] = j
                pC2 += 1
            C2_pos[i + 1] = pC2
        starts[block] = pC2


def kernel(A2_pos, A2_crd, A_vals, B2_pos, B2_crd, B_vals, C2_pos, C2_crd, C_vals, cuts, starts, blocks, workers):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B2_pos, B2_crd, B_vals, C2_pos, C2_crd, C_vals, cuts, starts, blocks, workers)
