"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(i, where(forall(k, C[i,k] = w[k]), ahead_forall<8>(j, forall(k, w[k] += A[i,j] * B[j,k]))))

A: CSR float32, int32 indices
B: CSR float32, int32 indices
C: CSR float32, int32 indices
w: hashed float64
"""

from numba import prange
from numpy import float64, int64

from numscorch.codegen.intrinsics import prefetch, shifted
from numscorch.codegen.routines import emptied, insert, ordered_pairs


def body(worker, A2_pos, A2_crd, A_vals, A_entries, B2_pos, B2_crd, B_vals, C2_pos, C2_crd, C_vals, w_list, w_table, w_vals, w_size, cuts, starts, blocks, workers, k_size):
    w_list = shifted(w_list, worker * w_size)
    w_table = shifted(w_table, worker * w_size)
    w_vals = shifted(w_vals, worker * w_size)
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        pC2 = starts[block]
        pA2_start = int64(A2_pos[cuts[block]])
        for i in range(cuts[block], cuts[block + 1]):
            pA2_end = int64(A2_pos[i + 1])
            w_bound = 0
            for pA2 in range(pA2_start, pA2_end):
                j = A2_crd[pA2]
                for pB2 in range(B2_pos[j], B2_pos[j + 1]):
                    k = B2_crd[pB2]
                    w_bound += 1
            w_bits = emptied(w_table, min(w_bound, k_size))
            w_count = 0
            for pA2 in range(pA2_start, pA2_end):
                j = A2_crd[pA2]
                j_ahead = A2_crd[min(pA2 + 8, A_entries - 1)]
                pB2_ahead = B2_pos[j_ahead]
                prefetch(B2_crd, pB2_ahead)
                prefetch(B_vals, pB2_ahead)
                for pB2 in range(B2_pos[j], B2_pos[j + 1]):
                    k = B2_crd[pB2]
                    pw = insert(w_table, w_list, w_bits, w_count, k)
                    if pw == w_count:
                        w_vals[pw] = float64(0.0)
                        w_count += 1
                    w_vals[pw] += A_vals[pA2] * B_vals[pB2]
            if 1 < w_count:
                ordered_pairs(w_list, w_vals, w_count)
            for pw1 in range(w_count):
                k = w_list[pw1]
                C_vals[pC2] = w_vals[pw1]
                C2_crd[pC2] = k
                pC2 += 1
            C2_pos[i + 1] = pC2
            pA2_start = pA2_end


def kernel(A2_pos, A2_crd, A_vals, A_entries, B2_pos, B2_crd, B_vals, C2_pos, C2_crd, C_vals, w_list, w_table, w_vals, w_size, cuts, starts, blocks, workers, k_size):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, A_entries, B2_pos, B2_crd, B_vals, C2_pos, C2_crd, C_vals, w_list, w_table, w_vals, w_size, cuts, starts, blocks, workers, k_size)
