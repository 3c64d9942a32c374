"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(i, where(forall(k, C[i,k] = w[k]), forall(j, forall(k, w[k] += A[i,j] * B[j,k]))))

A: CSR float32, int32 indices
B: CSR float32, int32 indices
C: CSR float32, int32 indices
w: hashed float32
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import pointer, shifted
from numscorch.codegen.routines import emptied, insert, ordered_pairs


def kernel(A2_pos_array, A2_crd_array, A_vals_array, B2_pos_array, B2_crd_array, B_vals_array, C2_pos_array, C2_crd_array, C_vals_array, w_list_array, w_table_array, w_vals_array, w_size, cuts_array, starts_array, blocks, workers, k_size):
    for worker in prange(workers):
        A2_crd = pointer(A2_crd_array)
        A2_pos = pointer(A2_pos_array)
        A_vals = pointer(A_vals_array)
        B2_crd = pointer(B2_crd_array)
        B2_pos = pointer(B2_pos_array)
        B_vals = pointer(B_vals_array)
        C2_crd = pointer(C2_crd_array)
        C2_pos = pointer(C2_pos_array)
        C_vals = pointer(C_vals_array)
        cuts = pointer(cuts_array)
        starts = pointer(starts_array)
        w_list = shifted(pointer(w_list_array), worker * w_size)
        w_table = shifted(pointer(w_table_array), worker * w_size)
        w_vals = shifted(pointer(w_vals_array), worker * w_size)
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
                    for pB2 in range(B2_pos[j], B2_pos[j + 1]):
                        k = B2_crd[pB2]
                        pw = insert(w_table, w_list, w_bits, w_count, k)
                        if pw == w_count:
                            w_vals[pw] = float32(0.0)
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
