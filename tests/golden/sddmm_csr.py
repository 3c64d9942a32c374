"""D[i,j] += A[i,j] * B[i,k] * C[j,k]

    parallel_forall(i, unroll_forall<4>(j, where(D[i,j] = A[i,j] * t, vector_forall<8 x 8, once>(k, t += B[i,k] * C[j,k]))))

A: CSR float32, int32 indices
B: dense float32, strides (n, 1)
C: dense float32, strides (n, 1)
D: CSR float32, int32 indices, the pattern of A
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import dot, dots, hsum, hsums, load, mul, splat, store


def body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, D_vals, cuts, blocks, workers, B_stride0, C_stride0):
    pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
    for i in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2_end = int64(A2_pos[i + 1])
        if pA2_start < pA2_end:
            pA2_split = pA2_start + (pA2_end - pA2_start) // 4 * 4
            B0 = load(B_vals, i * B_stride0, 8, 8)
            for pA2 in range(pA2_start, pA2_split, 4):
                j_u0 = A2_crd[pA2]
                j_u1 = A2_crd[pA2 + 1]
                j_u2 = A2_crd[pA2 + 2]
                j_u3 = A2_crd[pA2 + 3]
                t_sums = splat(float32(0.0), 8, 4)
                pB = i * B_stride0
                pC_0 = j_u0 * C_stride0
                pC_1 = j_u1 * C_stride0
                pC_2 = j_u2 * C_stride0
                pC_3 = j_u3 * C_stride0
                t_sums = dots(B0, load(C_vals, pC_0, 8, 8), load(C_vals, pC_1, 8, 8), load(C_vals, pC_2, 8, 8), load(C_vals, pC_3, 8, 8), t_sums)
                t = hsums(t_sums)
                store(D_vals, pA2, mul(load(A_vals, pA2, 4), t))
            if pA2_split < pA2_end:
                j = A2_crd[pA2_split]
                t_lanes = splat(float32(0.0), 8)
                pB = i * B_stride0
                pC = j * C_stride0
                t_lanes = dot(load(B_vals, pB, 8, 8), load(C_vals, pC, 8, 8), t_lanes)
                t = hsum(t_lanes)
                D_vals[pA2_split] = A_vals[pA2_split] * t
            if pA2_split + 1 < pA2_end:
                j = A2_crd[pA2_split + 1]
                t_lanes = splat(float32(0.0), 8)
                pB = i * B_stride0
                pC = j * C_stride0
                t_lanes = dot(load(B_vals, pB, 8, 8), load(C_vals, pC, 8, 8), t_lanes)
                t = hsum(t_lanes)
                D_vals[pA2_split + 1] = A_vals[pA2_split + 1] * t
            if pA2_split + 2 < pA2_end:
                j = A2_crd[pA2_split + 2]
                t_lanes = splat(float32(0.0), 8)
                pB = i * B_stride0
                pC = j * C_stride0
                t_lanes = dot(load(B_vals, pB, 8, 8), load(C_vals, pC, 8, 8), t_lanes)
                t = hsum(t_lanes)
                D_vals[pA2_split + 2] = A_vals[pA2_split + 2] * t
        pA2_start = pA2_end


def kernel(A2_pos, A2_crd, A_vals, B_vals, C_vals, D_vals, cuts, blocks, workers, B_stride0, C_stride0):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, D_vals, cuts, blocks, workers, B_stride0, C_stride0)
