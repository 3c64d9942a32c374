"""D += A[i,j] * B[j,k] * C[i,k]

    where(D = t, parallel_forall(i, where(forall(j, where(t += u, forall(k, u += A[i,j] * B[j,k] * C_row[k]))), forall(k, C_row[k] = C[i,k]))))

A: CSR float32, int32 indices
B: CSR float32, int32 indices
C: CSR float32, int32 indices
D: dense float32
C_row: marked float32
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import at_most, masked, pointer, shifted


def kernel(A2_pos_array, A2_crd_array, A_vals_array, B2_pos_array, B2_crd_array, B_vals_array, C2_pos_array, C2_crd_array, C_vals_array, D_vals_array, C_row_mark_array, C_row_vals_array, C_row_size, partial_vals_array, cuts_array, blocks, workers):
    for worker in prange(workers):
        A2_crd = pointer(A2_crd_array)
        A2_pos = pointer(A2_pos_array)
        A_vals = pointer(A_vals_array)
        B2_crd = pointer(B2_crd_array)
        B2_pos = pointer(B2_pos_array)
        B_vals = pointer(B_vals_array)
        C2_crd = pointer(C2_crd_array)
        C2_pos = pointer(C2_pos_array)
        C_row_mark = shifted(pointer(C_row_mark_array), worker * C_row_size)
        C_row_vals = shifted(pointer(C_row_vals_array), worker * C_row_size)
        C_vals = pointer(C_vals_array)
        cuts = pointer(cuts_array)
        partial_vals = pointer(partial_vals_array)
        C_row_stamp = 0
        for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
            t = float32(0.0)
            pC2_start = int64(C2_pos[cuts[block]])
            for i in range(cuts[block], cuts[block + 1]):
                pC2_end = int64(C2_pos[i + 1])
                C_row_stamp += 1
                for pC2 in range(pC2_start, pC2_end):
                    k = C2_crd[pC2]
                    C_row_vals[k] = C_vals[pC2]
                    C_row_mark[k] = C_row_stamp
                for pA2 in range(A2_pos[i], A2_pos[i + 1]):
                    j = A2_crd[pA2]
                    u = float32(0.0)
                    for pB2 in range(B2_pos[j], B2_pos[j + 1]):
                        k = B2_crd[pB2]
                        u += masked(A_vals[pA2] * B_vals[pB2] * C_row_vals[k], at_most(C_row_stamp, C_row_mark[k]))
                    t += u
                pC2_start = pC2_end
            partial_vals[block] = t
    D_vals = pointer(D_vals_array)
    partial_vals = pointer(partial_vals_array)
    total = float32(0.0)
    for block in range(blocks):
        total += partial_vals[block]
    D_vals[0] = total
