"""B[j] += A[i,j]

    where(forall(j, B[j] = w[j]), forall(i, forall(j, w[j] += A[i,j])))

A: CSR float32, int32 indices
B: s float32, int32 indices
w: flagged float32
"""




def kernel(A2_pos, A2_crd, A_vals, B1_crd, B_vals, w_flag, w_vals, starts, j_size, i_size):
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
    starts[0] = pB1
