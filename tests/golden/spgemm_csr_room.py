"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(i, where(forall(k, C[i,k] = w[k]), ahead_forall<8>(j, forall(k, w[k] += A[i,j] * B[j,k]))))

A: CSR float32, int32 indices
B: CSR float32, int32 indices
C: CSR float32, int32 indices
w: listed float64

This kernel counts all insertions; the next one appends the result's entries to arrays with room for that many.
"""

from numba import prange


def body(worker, A2_pos, A2_crd, B2_pos, cuts, bounds, blocks, workers):
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        most = 0
        for pA2 in range(A2_pos[cuts[block]], A2_pos[cuts[block + 1]]):
            j = A2_crd[pA2]
            for pB2 in range(B2_pos[j], B2_pos[j + 1]):
                most += 1
        bounds[block] = most


def kernel(A2_pos, A2_crd, B2_pos, cuts, bounds, blocks, workers):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, B2_pos, cuts, bounds, blocks, workers)
