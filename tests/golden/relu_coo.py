"""C[i,j] = relu(A[i,j] - B[i,j])

    parallel_forall(i, forall(j, C[i,j] = relu(A[i,j] - B[i,j])))

A: COO(2) float32, int32 indices
B: COO(2) float32, int32 indices
C: COO(2) float32, int32 indices
"""

from numba import prange
from numpy import float32

from numscorch.codegen.routines import relu, seek


def body(worker, A1_pos, A1_crd, A2_crd, A_vals, B1_pos, B1_crd, B2_crd, B_vals, C1_crd, C2_crd, C_vals, cuts, starts, blocks, workers):
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        pC2 = starts[block]
        pA1 = seek(A1_crd, A1_pos[0], A1_pos[1], cuts[block])
        pA1_end = seek(A1_crd, pA1, A1_pos[1], cuts[block + 1])
        pB1 = seek(B1_crd, B1_pos[0], B1_pos[1], cuts[block])
        pB1_end = seek(B1_crd, pB1, B1_pos[1], cuts[block + 1])
        while pA1 < pA1_end and pB1 < pB1_end:
            iA = A1_crd[pA1]
            iB = B1_crd[pB1]
            i = min(iA, iB)
            pA1_stop = pA1 + 1
            while pA1_stop < pA1_end and A1_crd[pA1_stop] == A1_crd[pA1]:
                pA1_stop = pA1_stop + 1
            pB1_stop = pB1 + 1
            while pB1_stop < pB1_end and B1_crd[pB1_stop] == B1_crd[pB1]:
                pB1_stop = pB1_stop + 1
            if iA == i and iB == i:
                pA2 = pA1
                pA2_end = pA1_stop
                pB2 = pB1
                pB2_end = pB1_stop
                while pA2 < pA2_end and pB2 < pB2_end:
                    jA = A2_crd[pA2]
                    jB = B2_crd[pB2]
                    j = min(jA, jB)
                    if jA == j and jB == j:
                        C_vals[pC2] = relu(A_vals[pA2] - B_vals[pB2])
                        C1_crd[pC2] = i
                        C2_crd[pC2] = j
                        pC2 += 1
                    elif jA == j:
                        C_vals[pC2] = relu(A_vals[pA2])
                        C1_crd[pC2] = i
                        C2_crd[pC2] = j
                        pC2 += 1
                    elif jB == j:
                        C_vals[pC2] = relu(float32(0.0) - B_vals[pB2])
                        C1_crd[pC2] = i
                        C2_crd[pC2] = j
                        pC2 += 1
                    if jA == j:
                        pA2 += 1
                    if jB == j:
                        pB2 += 1
                for pA2 in range(pA2, pA2_end):
                    j = A2_crd[pA2]
                    C_vals[pC2] = relu(A_vals[pA2])
                    C1_crd[pC2] = i
                    C2_crd[pC2] = j
                    pC2 += 1
                for pB2 in range(pB2, pB2_end):
                    j = B2_crd[pB2]
                    C_vals[pC2] = relu(float32(0.0) - B_vals[pB2])
                    C1_crd[pC2] = i
                    C2_crd[pC2] = j
                    pC2 += 1
            elif iA == i:
                for pA2 in range(pA1, pA1_stop):
                    j = A2_crd[pA2]
                    C_vals[pC2] = relu(A_vals[pA2])
                    C1_crd[pC2] = i
                    C2_crd[pC2] = j
                    pC2 += 1
            elif iB == i:
                for pB2 in range(pB1, pB1_stop):
                    j = B2_crd[pB2]
                    C_vals[pC2] = relu(float32(0.0) - B_vals[pB2])
                    C1_crd[pC2] = i
                    C2_crd[pC2] = j
                    pC2 += 1
            if iA == i:
                pA1 = pA1_stop
            if iB == i:
                pB1 = pB1_stop
        while pA1 < pA1_end:
            iA = A1_crd[pA1]
            i = iA
            pA1_stop = pA1 + 1
            while pA1_stop < pA1_end and A1_crd[pA1_stop] == A1_crd[pA1]:
                pA1_stop = pA1_stop + 1
            for pA2 in range(pA1, pA1_stop):
                j = A2_crd[pA2]
                C_vals[pC2] = relu(A_vals[pA2])
                C1_crd[pC2] = i
                C2_crd[pC2] = j
                pC2 += 1
            pA1 = pA1_stop
        while pB1 < pB1_end:
            iB = B1_crd[pB1]
            i = iB
            pB1_stop = pB1 + 1
            while pB1_stop < pB1_end and B1_crd[pB1_stop] == B1_crd[pB1]:
                pB1_stop = pB1_stop + 1
            for pB2 in range(pB1, pB1_stop):
                j = B2_crd[pB2]
                C_vals[pC2] = relu(float32(0.0) - B_vals[pB2])
                C1_crd[pC2] = i
                C2_crd[pC2] = j
                pC2 += 1
            pB1 = pB1_stop


def kernel(A1_pos, A1_crd, A2_crd, A_vals, B1_pos, B1_crd, B2_crd, B_vals, C1_crd, C2_crd, C_vals, cuts, starts, blocks, workers):
    for worker in prange(workers):
        body(worker, A1_pos, A1_crd, A2_crd, A_vals, B1_pos, B1_crd, B2_crd, B_vals, C1_crd, C2_crd, C_vals, cuts, starts, blocks, workers)
