"""C[i_out,k,i_in] += A[i_out,j,i_in] * B[j,k]

    tile_forall<192>(j, parallel_forall(i_out, vector_forall<8 x 4, once>(k, specialize_forall<tiles>(j, where(specialize_forall<coordinates>(i_in, C[i_out,k,i_in] += t[i_in]), specialize_forall<kinds>(j, specialize_forall<coordinates>(i_in, t[i_in] += A[i_out,j,i_in] * B[j,k])))))))

A: (i, j, k) -> (i: dense, j: grouped(1, 2, 8), k: combination(1, 2, 8)) float32, int32 indices
B: dense float32, strides (n, 1)
C: dense float32, strides (n, 1, n)
"""

from numba import prange
from numpy import float32

from numscorch.codegen.intrinsics import add, fma, load, prefetch, splat, store


def body(worker, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, j_size, B_stride0, C_stride0, C_stride2):
    for j_tile in range(0, j_size, 192):
        j_end = min(j_tile + 192, j_size)
        for i_out in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
            t_0_ = splat(float32(0.0), 8, 4)
            for j_chunk in range(j_tile // 16, j_end // 16):
                prefetch(A2_crd, i_out * j_size + j_chunk * 16 + j_size)
                prefetch(A_vals, i_out * j_size + j_chunk * 16 + j_size)
                for pA2 in range(i_out * j_size + j_chunk * 16, i_out * j_size + j_chunk * 16 + 8):
                    j = A2_crd[pA2]
                    pB = j * B_stride0
                    B_shared = load(B_vals, pB, 8, 4)
                    t_0_ = fma(A_vals[pA2], B_shared, t_0_)
            for j_chunk in range(j_end // 16, (j_end + 15) // 16):
                j_first = i_out * j_size + j_chunk * 16
                j_stop = i_out * j_size + j_chunk * 16 + min(16, j_size - j_chunk * 16) // 2
                for pA2 in range(j_first, j_stop):
                    j = A2_crd[pA2]
                    pB = j * B_stride0
                    B_shared = load(B_vals, pB, 8, 4)
                    t_0_ = fma(A_vals[pA2], B_shared, t_0_)
            if j_tile == 0:
                pC_0 = i_out * C_stride0
                store(C_vals, pC_0, t_0_)
            else:
                pC_0 = i_out * C_stride0
                store(C_vals, pC_0, add(load(C_vals, pC_0, 8, 4), t_0_))
            t_1_ = splat(float32(0.0), 8, 4)
            for j_chunk in range(j_tile // 16, j_end // 16):
                prefetch(A2_crd, i_out * j_size + j_chunk * 16 + 8 + j_size)
                prefetch(A_vals, i_out * j_size + j_chunk * 16 + 8 + j_size)
                for pA2 in range(i_out * j_size + j_chunk * 16 + 8, i_out * j_size + j_chunk * 16 + 16):
                    j = A2_crd[pA2]
                    pB = j * B_stride0
                    B_shared = load(B_vals, pB, 8, 4)
                    t_1_ = fma(A_vals[pA2], B_shared, t_1_)
            for j_chunk in range(j_end // 16, (j_end + 15) // 16):
                j_first = i_out * j_size + j_chunk * 16 + min(16, j_size - j_chunk * 16) // 2
                j_stop = i_out * j_size + j_chunk * 16 + min(16, j_size - j_chunk * 16)
                for pA2 in range(j_first, j_stop):
                    j = A2_crd[pA2]
                    pB = j * B_stride0
                    B_shared = load(B_vals, pB, 8, 4)
                    t_1_ = fma(A_vals[pA2], B_shared, t_1_)
            if j_tile == 0:
                pC_0 = i_out * C_stride0 + C_stride2
                store(C_vals, pC_0, t_1_)
            else:
                pC_0 = i_out * C_stride0 + C_stride2
                store(C_vals, pC_0, add(load(C_vals, pC_0, 8, 4), t_1_))


def kernel(A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, j_size, B_stride0, C_stride0, C_stride2):
    for worker in prange(workers):
        body(worker, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, j_size, B_stride0, C_stride0, C_stride2)
