"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(i, where(forall(k, C[i,k] = w[k]), ahead_forall<8>(j, forall(k, w[k] += A[i,j] * B[j,k]))))

A: CSR float32, int32 indices
B: CSR float32, int32 indices
C: CSR float32, int32 indices
w: listed float64

This kernel appends the result's entries to arrays with room for all insertions.
"""

from numba import prange
from numpy import float64, int64

from numscorch.codegen.intrinsics import prefetch, shifted
from numscorch.codegen.routines import ordered


def body(worker, A2_pos, A2_crd, A_vals, A_entries, B2_pos, B2_crd, B_vals, C2_pos, C2_crd, C_vals, w_list, w_mark, w_vals, w_size, cuts, starts, blocks, workers, k_size):
    w_list = shifted(w_list, worker * w_size)
    w_mark = shifted(w_mark, worker * w_size)
    w_vals = shifted(w_vals, worker * w_size)
    w_stamp = 0
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        pC2 = starts[block]
        pA2_start = int64(A2_pos[cuts[block]])
        for i in range(cuts[block], cuts[block + 1]):
            pA2_end = int64(A2_pos[i + 1])
            w_stamp = w_stamp - 1
            w_count = 0
            for pA2 in range(pA2_start, pA2_end):
                j = A2_crd[pA2]
                j_ahead = A2_crd[min(pA2 + 8, A_entries - 1)]
                pB2_ahead = B2_pos[j_ahead]
                prefetch(B2_crd, pB2_ahead)
                prefetch(B_vals, pB2_ahead)
                for pB2 in range(B2_pos[j], B2_pos[j + 1]):
                    k = B2_crd[pB2]
                    if w_mark[k] != w_stamp:
                        w_mark[k] = w_stamp
                        w_list[w_count] = k
                        w_vals[k] = float64(0.0)
                        w_count += 1
                    w_vals[k] += A_vals[pA2] * B_vals[pB2]
            if 1 < w_count:
                ordered(w_list, w_mark, w_stamp, w_count, k_size)
            for pw1 in range(w_count):
                k = w_list[pw1]
                C_vals[pC2] = w_vals[k]
                C2_crd[pC2] = k
                pC2 += 1
            C2_pos[i + 1] = pC2
            pA2_start = pA2_end
        starts[block] = pC2


def kernel(A2_pos, A2_crd, A_vals, A_entries, B2_pos, B2_crd, B_vals, C2_pos, C2_crd, C_vals, w_list, w_mark, w_vals, w_size, cuts, starts, blocks, workers, k_size):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, A_entries, B2_pos, B2_crd, B_vals, C2_pos, C2_crd, C_vals, w_list, w_mark, w_vals, w_size, cuts, starts, blocks, workers, k_size)
