"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(i, where(forall(k, C[i,k] = w[k]), ahead_forall<8>(j, forall(k, w[k] += A[i,j] * B[j,k]))))

A: CSR float32, int32 indices
B: CSR float32, int32 indices
C: CSR float32, int32 indices
w: listed float64

This kernel counts the entries of the result; a second one writes them.
"""

from numba import prange
from numpy import int64

from numscorch.codegen.intrinsics import prefetch, shifted


def body(worker, A2_pos, A2_crd, A_entries, B2_pos, B2_crd, w_mark, w_size, cuts, starts, blocks, workers):
    w_mark = shifted(w_mark, worker * w_size)
    w_stamp = 0
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        pC2 = 0
        pA2_start = int64(A2_pos[cuts[block]])
        for i in range(cuts[block], cuts[block + 1]):
            pA2_end = int64(A2_pos[i + 1])
            w_stamp += 1
            w_count = 0
            for pA2 in range(pA2_start, pA2_end):
                j = A2_crd[pA2]
                j_ahead = A2_crd[min(pA2 + 8, A_entries - 1)]
                pB2_ahead = B2_pos[j_ahead]
                prefetch(B2_crd, pB2_ahead)
                for pB2 in range(B2_pos[j], B2_pos[j + 1]):
                    k = B2_crd[pB2]
                    if w_mark[k] != w_stamp:
                        w_mark[k] = w_stamp
                        w_count += 1
            pC2 += w_count
            pA2_start = pA2_end
        starts[block] = pC2


def kernel(A2_pos, A2_crd, A_entries, B2_pos, B2_crd, w_mark, w_size, cuts, starts, blocks, workers):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_entries, B2_pos, B2_crd, w_mark, w_size, cuts, starts, blocks, workers)
