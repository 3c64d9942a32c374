"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(i, where(forall(k, C[i,k] = w[k]), ahead_forall<8>(j, forall(k, w[k] += A[i,j] * B[j,k]))))

A: CSR float32, int32 indices
B: CSR float32, int32 indices
C: CSR float32, int32 indices
w: hashed float64

This kernel counts the most insertions into one row; the next ones count the result's entries and write them.
"""

from numba import prange
from numpy import int64


def body(worker, A2_pos, A2_crd, B2_pos, cuts, bounds, blocks, workers):
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        most = 0
        pA2_start = int64(A2_pos[cuts[block]])
        for i in range(cuts[block], cuts[block + 1]):
            pA2_end = int64(A2_pos[i + 1])
            w_bound = 0
            for pA2 in range(pA2_start, pA2_end):
                j = A2_crd[pA2]
                for pB2 in range(B2_pos[j], B2_pos[j + 1]):
                    w_bound += 1
            most = max(most, w_bound)
            pA2_start = pA2_end
        bounds[block] = most


def kernel(A2_pos, A2_crd, B2_pos, cuts, bounds, blocks, workers):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, B2_pos, cuts, bounds, blocks, workers)
