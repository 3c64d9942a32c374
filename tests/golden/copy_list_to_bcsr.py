"""B[i0_by4,i1_by4,i0_of4,i1_of4] = A[i0_by4,i1_by4,i0_of4,i1_of4]

    parallel_forall(i0_by4, forall(i1_by4, forall(i0_of4, forall(i1_of4, B[i0_by4,i1_by4,i0_of4,i1_of4] = A[i0_by4,i1_by4,i0_of4,i1_of4]))))

A: dooo float32, int32 indices
B: (i, j, k, l) -> (i: dense, j: compressed, k: dense(4), l: dense(4)) float32, int32 indices
"""

from numba import prange


def body(worker, A2_pos, A2_crd, A3_crd, A4_crd, A_vals, B2_pos, B2_crd, B_vals, cuts, starts, blocks, workers):
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        pB2 = starts[block]
        for i0_by4 in range(cuts[block], cuts[block + 1]):
            pA2 = A2_pos[i0_by4]
            pA2_end = A2_pos[i0_by4 + 1]
            while pA2 < pA2_end:
                pA2_stop = pA2 + 1
                while pA2_stop < pA2_end and A2_crd[pA2_stop] == A2_crd[pA2]:
                    pA2_stop = pA2_stop + 1
                i1_by4 = A2_crd[pA2]
                pA3 = pA2
                pA3_end = pA2_stop
                while pA3 < pA3_end:
                    i0_of4 = A3_crd[pA3]
                    pA4 = pA3
                    while pA4 < pA3_end and A3_crd[pA4] == i0_of4:
                        i1_of4 = A4_crd[pA4]
                        B_vals[(pB2 * 4 + i0_of4) * 4 + i1_of4] = A_vals[pA4]
                        pA4 += 1
                    pA3 = pA4
                B2_crd[pB2] = i1_by4
                pB2 += 1
                pA2 = pA2_stop
            B2_pos[i0_by4 + 1] = pB2


def kernel(A2_pos, A2_crd, A3_crd, A4_crd, A_vals, B2_pos, B2_crd, B_vals, cuts, starts, blocks, workers):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A3_crd, A4_crd, A_vals, B2_pos, B2_crd, B_vals, cuts, starts, blocks, workers)
