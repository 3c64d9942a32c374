"""B[j] += A[i,j]

    where(forall(j, B[j] = w[j]), forall(i, forall(j, w[j] += A[i,j])))

A: CSR float32, int32 indices
B: s float32, int32 indices
w: flagged float32
"""

from numscorch.codegen.intrinsics import pointer


def kernel(A2_pos_array, A2_crd_array, A_vals_array, B1_crd_array, B_vals_array, w_flag_array, w_vals_array, starts_array, j_size, i_size):
    A2_crd = pointer(A2_crd_array)
    A2_pos = pointer(A2_pos_array)
    A_vals = pointer(A_vals_array)
    B1_crd = pointer(B1_crd_array)
    B_vals = pointer(B_vals_array)
    starts = pointer(starts_array)
    w_flag = pointer(w_flag_array)
    w_vals = pointer(w_vals_array)
    pB1 = starts[0]
    for pA2 in range(A2_pos[0], A2_pos[i_size]):
        j = A2_crd[pA2]
        w_flag[j] = 1
        w_vals[j] += A_vals[pA2]
    for pw1 in range(j_size):
        if w_flag[pw1] != 0:
            j = pw1
            B_vals[pB1] = w_vals[j]
            B1_crd[pB1] = j
            pB1 += 1
    starts_array[0] = pB1
