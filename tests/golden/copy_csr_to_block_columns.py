"""B[i1_by4,i0,i1_of4] = A[i0,i1] * Q1[i1,i1_by4,i1_of4]

    parallel_forall(i0, forall(i1, forall(i1_by4, forall(i1_of4, B[i1_by4,i0,i1_of4] = A[i0,i1] * Q1[i1,i1_by4,i1_of4]))))

A: CSR float32, int32 indices
Q1: (i, j, k) -> (i: dense, j: quotient(4), k: quotient(1, 4)) relation, int64 indices
B: doo float32, int32 indices
"""

from numba import prange
from numpy import int64

from numscorch.codegen.intrinsics import pointer, shifted


def kernel(A2_pos_array, A2_crd_array, A_vals_array, B2_crd_array, B3_crd_array, B_vals_array, B_heads_array, B_parents, cuts_array, blocks, workers):
    for worker in prange(workers):
        A2_crd = pointer(A2_crd_array)
        A2_pos = pointer(A2_pos_array)
        A_vals = pointer(A_vals_array)
        B2_crd = pointer(B2_crd_array)
        B3_crd = pointer(B3_crd_array)
        B_heads = shifted(pointer(B_heads_array), worker * B_parents)
        B_vals = pointer(B_vals_array)
        cuts = pointer(cuts_array)
        pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
        for i0 in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
            pA2_end = int64(A2_pos[i0 + 1])
            for pA2 in range(pA2_start, pA2_end):
                i1 = A2_crd[pA2]
                i1_by4 = i1 // 4
                i1_of4 = i1 % 4
                pB3 = B_heads[i1_by4]
                B_vals[pB3] = A_vals[pA2]
                B2_crd[pB3] = i0
                B3_crd[pB3] = i1_of4
                B_heads[i1_by4] = pB3 + 1
            pA2_start = pA2_end
