"""B += A[i,i_1] * I0A[i,i_1]

    where(B = t, forall(i, forall(i_1, t += A[i,i_1] * I0A[i,i_1])))

A: CSR float32, int32 indices
I0A: (i, j) -> (i: dense, j: identity) pattern, int64 indices
B: dense float32
"""

from numpy import float32

from numscorch.codegen.intrinsics import pointer


def kernel(A2_pos_array, A2_crd_array, A_vals_array, B_vals_array, i_size):
    A2_crd = pointer(A2_crd_array)
    A2_pos = pointer(A2_pos_array)
    A_vals = pointer(A_vals_array)
    B_vals = pointer(B_vals_array)
    t = float32(0.0)
    for i in range(i_size):
        pA2 = A2_pos[i]
        pA2_end = A2_pos[i + 1]
        pI0A2 = i
        pI0A2_end = i + 1
        while pA2 < pA2_end and pI0A2 < pI0A2_end:
            i_1A = A2_crd[pA2]
            i_1I0A = i
            i_1 = min(i_1A, i_1I0A)
            if i_1A == i_1 and i_1I0A == i_1:
                t += A_vals[pA2]
            if i_1A == i_1:
                pA2 += 1
            if i_1I0A == i_1:
                pI0A2 += 1
    B_vals[0] = t
