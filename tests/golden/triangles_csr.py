"""D += A[i,j] * B[j,k] * C[i,k]

    where(D = t, parallel_forall(i: sums<64>, where(forall(j: sums, where(t += u, forall(k, u += A[i,j] * B[j,k] * C_row[k]))), forall(k, C_row[k] = C[i,k]))))

A: CSR float32, int32 indices
B: CSR float32, int32 indices
C: CSR float32, int32 indices
D: dense float32
C_row: marked float32
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import at_most, masked, shifted


def body(worker, A2_pos, A2_crd, A_vals, B2_pos, B2_crd, B_vals, C2_pos, C2_crd, C_vals, C_row_mark, C_row_vals, C_row_size, partial_vals, cuts, blocks, workers):
    C_row_mark = shifted(C_row_mark, worker * C_row_size)
    C_row_vals = shifted(C_row_vals, worker * C_row_size)
    C_row_stamp = 0
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        t = float32(0.0)
        pC2_start = int64(C2_pos[cuts[block]])
        if cuts[block] + 256 < cuts[block + 1]:
            for i_block1 in range(cuts[block], cuts[block + 1], 64):
                t_part1 = float32(0.0)
                for i in range(i_block1, min(i_block1 + 64, cuts[block + 1])):
                    pC2_end = int64(C2_pos[i + 1])
                    C_row_stamp += 1
                    for pC2 in range(pC2_start, pC2_end):
                        k = C2_crd[pC2]
                        C_row_vals[k] = C_vals[pC2]
                        C_row_mark[k] = C_row_stamp
                    t_apart = float32(0.0)
                    for pA2 in range(A2_pos[i], A2_pos[i + 1]):
                        j = A2_crd[pA2]
                        u = float32(0.0)
                        for pB2 in range(B2_pos[j], B2_pos[j + 1]):
                            k = B2_crd[pB2]
                            u += masked(A_vals[pA2] * B_vals[pB2] * C_row_vals[k], at_most(C_row_stamp, C_row_mark[k]))
                        t_apart += u
                    t_part1 += t_apart
                    pC2_start = pC2_end
                t += t_part1
        else:
            for i in range(cuts[block], cuts[block + 1]):
                pC2_end = int64(C2_pos[i + 1])
                C_row_stamp += 1
                for pC2 in range(pC2_start, pC2_end):
                    k = C2_crd[pC2]
                    C_row_vals[k] = C_vals[pC2]
                    C_row_mark[k] = C_row_stamp
                t_apart = float32(0.0)
                for pA2 in range(A2_pos[i], A2_pos[i + 1]):
                    j = A2_crd[pA2]
                    u = float32(0.0)
                    for pB2 in range(B2_pos[j], B2_pos[j + 1]):
                        k = B2_crd[pB2]
                        u += masked(A_vals[pA2] * B_vals[pB2] * C_row_vals[k], at_most(C_row_stamp, C_row_mark[k]))
                    t_apart += u
                t += t_apart
                pC2_start = pC2_end
        partial_vals[block] = t


def finish(D_vals, partial_vals, blocks):
    total = float32(0.0)
    for block in range(blocks):
        total += partial_vals[block]
    D_vals[0] = total


def kernel(A2_pos, A2_crd, A_vals, B2_pos, B2_crd, B_vals, C2_pos, C2_crd, C_vals, D_vals, C_row_mark, C_row_vals, C_row_size, partial_vals, cuts, blocks, workers):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, B2_pos, B2_crd, B_vals, C2_pos, C2_crd, C_vals, C_row_mark, C_row_vals, C_row_size, partial_vals, cuts, blocks, workers)
    finish(D_vals, partial_vals, blocks)
