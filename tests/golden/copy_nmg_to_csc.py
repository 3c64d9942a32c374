"""B[i0,i1] = A[i0_by3,i1,i0_of3] * J0[i0_by3,i0_of3,i0]

    parallel_forall(i0_by3, forall(i1, forall(i0_of3, forall(i0, B[i0,i1] = A[i0_by3,i1,i0_of3] * J0[i0_by3,i0_of3,i0]))))

A: (i, j, k) -> (i: dense, j: grouped(2, 3, 8), k: combination(2, 3, 8)) float32, int32 indices
J0: (i, j, k) -> (i: dense, j: dense, k: joined((3,))) relation, int64 indices
B: CSC float32, int32 indices
"""

from numba import prange
from numpy import array

from numscorch.codegen.intrinsics import shifted

A3_table = array([0, 1, 0, 2, 1, 2])


def body(worker, A2_crd, A_vals, B2_crd, B_vals, B_next, B_parents, cuts, blocks, workers, i1_size):
    B_next = shifted(B_next, worker * B_parents)
    for i0_by3 in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        for pA2 in range(i0_by3 * i1_size, i0_by3 * i1_size + i1_size):
            i1 = A2_crd[pA2]
            for pA3 in range(pA2 * 2, pA2 * 2 + 2):
                i0_of3 = A3_table[((pA2 % i1_size % 24 + 1) * 3 - 1) // min(24, i1_size - i1 // 24 * 24) * 2 + (pA3 - pA2 * 2)]
                i0 = i0_by3 * 3 + i0_of3
                pB2 = B_next[i1]
                B_vals[pB2] = A_vals[pA3]
                B2_crd[pB2] = i0
                B_next[i1] = pB2 + 1


def kernel(A2_crd, A_vals, B2_crd, B_vals, B_next, B_parents, cuts, blocks, workers, i1_size):
    for worker in prange(workers):
        body(worker, A2_crd, A_vals, B2_crd, B_vals, B_next, B_parents, cuts, blocks, workers, i1_size)
