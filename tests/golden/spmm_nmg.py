"""C[i_out,k,i_in] += A[i_out,j,i_in] * B[j,k]

    tile_forall<32>(k, tile_forall<192>(j, parallel_forall(i_out, vector_forall<8 x 4>(k, specialize_forall<tiles>(j, where(specialize_forall<coordinates>(i_in, C[i_out,k,i_in] += t[i_in]), specialize_forall<kinds>(j, specialize_forall<coordinates>(i_in, t[i_in] += A[i_out,j,i_in] * B[j,k]))))))))

A: (i, j, k) -> (i: dense, j: grouped(2, 3, 8), k: combination(2, 3, 8)) float32, int32 indices
B: dense float32, strides (n, 1)
C: dense float32, strides (n, 1, n)
"""

from numba import prange
from numpy import float32

from numscorch.codegen.intrinsics import add, fma, load, prefetch, splat, store


def body(worker, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, k_size, j_size, B_stride0, C_stride0, C_stride2):
    for k_tile in range(0, k_size, 32):
        k_end = min(k_tile + 32, k_size)
        for j_tile in range(0, j_size, 192):
            j_end = min(j_tile + 192, j_size)
            for i_out in range(cuts[blocks * worker // workers], cuts[blocks * (worker + 1) // workers]):
                for k in range(k_tile, k_end, 32):
                    t_0_ = splat(float32(0.0), 8, 4)
                    t_1_ = splat(float32(0.0), 8, 4)
                    for j_chunk in range(j_tile // 24, j_end // 24):
                        prefetch(A2_crd, i_out * j_size + j_chunk * 24 + j_size)
                        prefetch(A_vals, (i_out * j_size + j_chunk * 24 + j_size) * 2)
                        for pA2 in range(i_out * j_size + j_chunk * 24, i_out * j_size + j_chunk * 24 + 8):
                            j = A2_crd[pA2]
                            pB = j * B_stride0 + k
                            B_shared = load(B_vals, pB, 8, 4)
                            t_0_ = fma(A_vals[pA2 * 2], B_shared, t_0_)
                            t_1_ = fma(A_vals[pA2 * 2 + 1], B_shared, t_1_)
                    for j_chunk in range(j_end // 24, (j_end + 23) // 24):
                        j_first = i_out * j_size + j_chunk * 24
                        j_stop = i_out * j_size + j_chunk * 24 + min(24, j_size - j_chunk * 24) // 3
                        for pA2 in range(j_first, j_stop):
                            j = A2_crd[pA2]
                            pB = j * B_stride0 + k
                            B_shared = load(B_vals, pB, 8, 4)
                            t_0_ = fma(A_vals[pA2 * 2], B_shared, t_0_)
                            t_1_ = fma(A_vals[pA2 * 2 + 1], B_shared, t_1_)
                    if j_tile == 0:
                        pC_0 = i_out * C_stride0 + k
                        pC_1 = i_out * C_stride0 + k + C_stride2
                        store(C_vals, pC_0, t_0_)
                        store(C_vals, pC_1, t_1_)
                    else:
                        pC_0 = i_out * C_stride0 + k
                        pC_1 = i_out * C_stride0 + k + C_stride2
                        store(C_vals, pC_0, add(load(C_vals, pC_0, 8, 4), t_0_))
                        store(C_vals, pC_1, add(load(C_vals, pC_1, 8, 4), t_1_))
                    t_0_ = splat(float32(0.0), 8, 4)
                    t_2_ = splat(float32(0.0), 8, 4)
                    for j_chunk in range(j_tile // 24, j_end // 24):
                        prefetch(A2_crd, i_out * j_size + j_chunk * 24 + 8 + j_size)
                        prefetch(A_vals, (i_out * j_size + j_chunk * 24 + 8 + j_size) * 2)
                        for pA2 in range(i_out * j_size + j_chunk * 24 + 8, i_out * j_size + j_chunk * 24 + 16):
                            j = A2_crd[pA2]
                            pB = j * B_stride0 + k
                            B_shared = load(B_vals, pB, 8, 4)
                            t_0_ = fma(A_vals[pA2 * 2], B_shared, t_0_)
                            t_2_ = fma(A_vals[pA2 * 2 + 1], B_shared, t_2_)
                    for j_chunk in range(j_end // 24, (j_end + 23) // 24):
                        j_first = i_out * j_size + j_chunk * 24 + min(24, j_size - j_chunk * 24) // 3
                        j_stop = i_out * j_size + j_chunk * 24 + min(24, j_size - j_chunk * 24) * 2 // 3
                        for pA2 in range(j_first, j_stop):
                            j = A2_crd[pA2]
                            pB = j * B_stride0 + k
                            B_shared = load(B_vals, pB, 8, 4)
                            t_0_ = fma(A_vals[pA2 * 2], B_shared, t_0_)
                            t_2_ = fma(A_vals[pA2 * 2 + 1], B_shared, t_2_)
                    if j_tile == 0:
                        pC_0 = i_out * C_stride0 + k + 2 * C_stride2
                        store(C_vals, pC_0, t_2_)
                    else:
                        pC_0 = i_out * C_stride0 + k + 2 * C_stride2
                        store(C_vals, pC_0, add(load(C_vals, pC_0, 8, 4), t_2_))
                    pC_0 = i_out * C_stride0 + k
                    store(C_vals, pC_0, add(load(C_vals, pC_0, 8, 4), t_0_))
                    t_1_ = splat(float32(0.0), 8, 4)
                    t_2_ = splat(float32(0.0), 8, 4)
                    for j_chunk in range(j_tile // 24, j_end // 24):
                        prefetch(A2_crd, i_out * j_size + j_chunk * 24 + 16 + j_size)
                        prefetch(A_vals, (i_out * j_size + j_chunk * 24 + 16 + j_size) * 2)
                        for pA2 in range(i_out * j_size + j_chunk * 24 + 16, i_out * j_size + j_chunk * 24 + 24):
                            j = A2_crd[pA2]
                            pB = j * B_stride0 + k
                            B_shared = load(B_vals, pB, 8, 4)
                            t_1_ = fma(A_vals[pA2 * 2], B_shared, t_1_)
                            t_2_ = fma(A_vals[pA2 * 2 + 1], B_shared, t_2_)
                    for j_chunk in range(j_end // 24, (j_end + 23) // 24):
                        j_first = i_out * j_size + j_chunk * 24 + min(24, j_size - j_chunk * 24) * 2 // 3
                        j_stop = i_out * j_size + j_chunk * 24 + min(24, j_size - j_chunk * 24)
                        for pA2 in range(j_first, j_stop):
                            j = A2_crd[pA2]
                            pB = j * B_stride0 + k
                            B_shared = load(B_vals, pB, 8, 4)
                            t_1_ = fma(A_vals[pA2 * 2], B_shared, t_1_)
                            t_2_ = fma(A_vals[pA2 * 2 + 1], B_shared, t_2_)
                    pC_0 = i_out * C_stride0 + k + C_stride2
                    pC_1 = i_out * C_stride0 + k + 2 * C_stride2
                    store(C_vals, pC_0, add(load(C_vals, pC_0, 8, 4), t_1_))
                    store(C_vals, pC_1, add(load(C_vals, pC_1, 8, 4), t_2_))


def kernel(A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, k_size, j_size, B_stride0, C_stride0, C_stride2):
    for worker in prange(workers):
        body(worker, A2_crd, A_vals, B_vals, C_vals, cuts, blocks, workers, k_size, j_size, B_stride0, C_stride0, C_stride2)
