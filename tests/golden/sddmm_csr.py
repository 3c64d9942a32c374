"""D[i,j] += A[i,j] * B[i,k] * C[j,k]

    parallel_forall(i, unroll_forall<4>(j, where(D[i,j] = A[i,j] * t, vector_forall<8 x 8, once>(k, t += B[i,k] * C[j,k]))))

A: CSR float32, int32 indices
B: dense float32, strides (n, 1)
C: dense float32, strides (n, 1)
D: CSR float32, int32 indices, the pattern of A
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import fma, hsum, hsums, load, mul, splat, store


def body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, D_vals, cuts, blocks, workers, B_stride0, C_stride0):
    pA2_start = int64(A2_pos[cuts[blocks * worker // workers]])
    for i in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
        pA2_end = int64(A2_pos[i + 1])
        if pA2_start < pA2_end:
            pA2_split = pA2_start + (pA2_end - pA2_start) // 4 * 4
            B0 = load(B_vals, i * B_stride0, 8)
            B1 = load(B_vals, i * B_stride0 + 8, 8)
            B2 = load(B_vals, i * B_stride0 + 16, 8)
            B3 = load(B_vals, i * B_stride0 + 24, 8)
            B4 = load(B_vals, i * B_stride0 + 32, 8)
            B5 = load(B_vals, i * B_stride0 + 40, 8)
            B6 = load(B_vals, i * B_stride0 + 48, 8)
            B7 = load(B_vals, i * B_stride0 + 56, 8)
            for pA2 in range(pA2_start, pA2_split, 4):
                j_u0 = A2_crd[pA2]
                j_u1 = A2_crd[pA2 + 1]
                j_u2 = A2_crd[pA2 + 2]
                j_u3 = A2_crd[pA2 + 3]
                t0_lanes = splat(float32(0.0), 8)
                t1_lanes = splat(float32(0.0), 8)
                t2_lanes = splat(float32(0.0), 8)
                t3_lanes = splat(float32(0.0), 8)
                pC_0 = j_u0 * C_stride0
                pC_1 = j_u1 * C_stride0
                pC_2 = j_u2 * C_stride0
                pC_3 = j_u3 * C_stride0
                t0_lanes = fma(B0, load(C_vals, pC_0, 8), t0_lanes)
                t1_lanes = fma(B0, load(C_vals, pC_1, 8), t1_lanes)
                t2_lanes = fma(B0, load(C_vals, pC_2, 8), t2_lanes)
                t3_lanes = fma(B0, load(C_vals, pC_3, 8), t3_lanes)
                t0_lanes = fma(B1, load(C_vals, pC_0 + 8, 8), t0_lanes)
                t1_lanes = fma(B1, load(C_vals, pC_1 + 8, 8), t1_lanes)
                t2_lanes = fma(B1, load(C_vals, pC_2 + 8, 8), t2_lanes)
                t3_lanes = fma(B1, load(C_vals, pC_3 + 8, 8), t3_lanes)
                t0_lanes = fma(B2, load(C_vals, pC_0 + 16, 8), t0_lanes)
                t1_lanes = fma(B2, load(C_vals, pC_1 + 16, 8), t1_lanes)
                t2_lanes = fma(B2, load(C_vals, pC_2 + 16, 8), t2_lanes)
                t3_lanes = fma(B2, load(C_vals, pC_3 + 16, 8), t3_lanes)
                t0_lanes = fma(B3, load(C_vals, pC_0 + 24, 8), t0_lanes)
                t1_lanes = fma(B3, load(C_vals, pC_1 + 24, 8), t1_lanes)
                t2_lanes = fma(B3, load(C_vals, pC_2 + 24, 8), t2_lanes)
                t3_lanes = fma(B3, load(C_vals, pC_3 + 24, 8), t3_lanes)
                t0_lanes = fma(B4, load(C_vals, pC_0 + 32, 8), t0_lanes)
                t1_lanes = fma(B4, load(C_vals, pC_1 + 32, 8), t1_lanes)
                t2_lanes = fma(B4, load(C_vals, pC_2 + 32, 8), t2_lanes)
                t3_lanes = fma(B4, load(C_vals, pC_3 + 32, 8), t3_lanes)
                t0_lanes = fma(B5, load(C_vals, pC_0 + 40, 8), t0_lanes)
                t1_lanes = fma(B5, load(C_vals, pC_1 + 40, 8), t1_lanes)
                t2_lanes = fma(B5, load(C_vals, pC_2 + 40, 8), t2_lanes)
                t3_lanes = fma(B5, load(C_vals, pC_3 + 40, 8), t3_lanes)
                t0_lanes = fma(B6, load(C_vals, pC_0 + 48, 8), t0_lanes)
                t1_lanes = fma(B6, load(C_vals, pC_1 + 48, 8), t1_lanes)
                t2_lanes = fma(B6, load(C_vals, pC_2 + 48, 8), t2_lanes)
                t3_lanes = fma(B6, load(C_vals, pC_3 + 48, 8), t3_lanes)
                t0_lanes = fma(B7, load(C_vals, pC_0 + 56, 8), t0_lanes)
                t1_lanes = fma(B7, load(C_vals, pC_1 + 56, 8), t1_lanes)
                t2_lanes = fma(B7, load(C_vals, pC_2 + 56, 8), t2_lanes)
                t3_lanes = fma(B7, load(C_vals, pC_3 + 56, 8), t3_lanes)
                t = hsums(t0_lanes, t1_lanes, t2_lanes, t3_lanes)
                store(D_vals, pA2, mul(load(A_vals, pA2, 4), t))
            for pA2 in range(pA2_split, pA2_end):
                j = A2_crd[pA2]
                t_lanes = splat(float32(0.0), 8)
                pC = j * C_stride0
                t_lanes = fma(B0, load(C_vals, pC, 8), t_lanes)
                t_lanes = fma(B1, load(C_vals, pC + 8, 8), t_lanes)
                t_lanes = fma(B2, load(C_vals, pC + 16, 8), t_lanes)
                t_lanes = fma(B3, load(C_vals, pC + 24, 8), t_lanes)
                t_lanes = fma(B4, load(C_vals, pC + 32, 8), t_lanes)
                t_lanes = fma(B5, load(C_vals, pC + 40, 8), t_lanes)
                t_lanes = fma(B6, load(C_vals, pC + 48, 8), t_lanes)
                t_lanes = fma(B7, load(C_vals, pC + 56, 8), t_lanes)
                t = hsum(t_lanes)
                D_vals[pA2] = A_vals[pA2] * t
        pA2_start = pA2_end


def kernel(A2_pos, A2_crd, A_vals, B_vals, C_vals, D_vals, cuts, blocks, workers, B_stride0, C_stride0):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B_vals, C_vals, D_vals, cuts, blocks, workers, B_stride0, C_stride0)
