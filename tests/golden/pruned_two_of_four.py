"""C[i,k] = C_row[k]
    where C_row[k] += A[i,j] * B[j,k]

    parallel_forall(i, where(vector_forall<8 x 7, rest 6, masked>(k, C[i,k] = C_row[k]), vector_forall<8 x 7, overlapped>(k, where(C_row[k] = t, forall(j, t += A[i,j] * B[j,k])))))

A: CSR float32, int32 indices
B: dense float32, strides (n, 1)
C: CSR float32, int32 indices, the 2 largest of every 4
C_row: dense float32
"""

from numba import prange
from numpy import float32

from numscorch.codegen.compress_store import appended, largest
from numscorch.codegen.intrinsics import fma, load, shifted, splat, store


def body(worker, A2_pos, A2_crd, A_vals, B_vals, C2_pos, C2_crd, C_vals, C_row_vals, C_row_size, cuts, starts, blocks, workers, k_size, B_stride0):
    C_row_vals = shifted(C_row_vals, worker * C_row_size)
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        pC2 = starts[block]
        for i in range(cuts[block], cuts[block + 1]):
            for k_next in range(0, k_size, 56):
                k = min(k_next, k_size - 56)
                t = splat(float32(0.0), 8, 7)
                for pA2 in range(A2_pos[i], A2_pos[i + 1]):
                    j = A2_crd[pA2]
                    pB = j * B_stride0 + k
                    t = fma(A_vals[pA2], load(B_vals, pB, 8, 7), t)
                store(C_row_vals, k, t)
            for k in range(0, k_size // 56 * 56, 56):
                C_value = load(C_row_vals, k, 8, 7)
                pC2 = appended(C_vals, C2_crd, pC2, k, C_value, largest(C_value, 2, 4))
            k = k_size // 56 * 56
            left = k_size - k - 40
            C_value = load(C_row_vals, k, 8, 6, left)
            pC2 = appended(C_vals, C2_crd, pC2, k, C_value, largest(C_value, 2, 4, left), left)
            C2_pos[i + 1] = pC2
        starts[block] = pC2


def kernel(A2_pos, A2_crd, A_vals, B_vals, C2_pos, C2_crd, C_vals, C_row_vals, C_row_size, cuts, starts, blocks, workers, k_size, B_stride0):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B_vals, C2_pos, C2_crd, C_vals, C_row_vals, C_row_size, cuts, starts, blocks, workers, k_size, B_stride0)
