"""D += A[i,j] * B[j,k] * C[i,k]

    where(D = t, parallel_forall(i: sums<64>, where(ahead_forall<8>(j: sums, where(t += u, position_forall<8>(k, u += A[i,j] * B[j,k] * C_row[k]))), forall(k, C_row[k] = C[i,k]))))

A: CSR float32, int32 indices
B: CSR float32, int32 indices
C: CSR float32, int32 indices
D: dense float32
C_row: scattered float32
"""

from numba import prange
from numpy import float32, int64

from numscorch.codegen.intrinsics import add, first_lanes, gather, hsum, load, mul, prefetch, shifted, splat, stored_product


def body(worker, A2_pos, A2_crd, A_vals, A_entries, B2_pos, B2_crd, B_vals, B_entries, C2_pos, C2_crd, C_vals, C_row_vals, C_row_size, partial_vals, cuts, blocks, workers):
    C_row_vals = shifted(C_row_vals, worker * C_row_size)
    for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        t = float32(0.0)
        pC2_start = int64(C2_pos[cuts[block]])
        if cuts[block] + 256 < cuts[block + 1]:
            for i_block1 in range(cuts[block], cuts[block + 1], 64):
                t_part1 = float32(0.0)
                for i in range(i_block1, min(i_block1 + 64, cuts[block + 1])):
                    pC2_end = int64(C2_pos[i + 1])
                    for pC2 in range(pC2_start, pC2_end):
                        k = C2_crd[pC2]
                        C_row_vals[k] = float32(-1.0) * (float32(0.0) - C_vals[pC2])
                    t_apart = float32(0.0)
                    for pA2 in range(A2_pos[i], A2_pos[i + 1]):
                        j = A2_crd[pA2]
                        j_ahead = A2_crd[min(pA2 + 8, A_entries - 1)]
                        pB2_ahead = B2_pos[j_ahead]
                        prefetch(B2_crd, pB2_ahead)
                        prefetch(B_vals, pB2_ahead)
                        pB2_start = B2_pos[j]
                        pB2_end = B2_pos[j + 1]
                        u_lanes = splat(float32(0.0), 8)
                        pB2 = pB2_start
                        while pB2 < pB2_end - 8:
                            u_lanes = add(u_lanes, stored_product(gather(C_row_vals, 0, 1, B2_crd, pB2, 8), mul(A_vals[pA2], load(B_vals, pB2, 8))))
                            pB2 += 8
                        pB2_split = pB2
                        if pB2 <= B_entries - 8:
                            u_lanes = first_lanes(add(u_lanes, stored_product(gather(C_row_vals, 0, 1, B2_crd, pB2, 8), mul(A_vals[pA2], load(B_vals, pB2, 8)))), u_lanes, pB2_end - pB2)
                            pB2_split = pB2_end
                        u = hsum(u_lanes)
                        for pB2 in range(pB2_split, pB2_end):
                            k = B2_crd[pB2]
                            u += stored_product(C_row_vals[k], A_vals[pA2] * B_vals[pB2])
                        t_apart += u
                    t_part1 += t_apart
                    for pC2 in range(pC2_start, pC2_end):
                        k = C2_crd[pC2]
                        C_row_vals[k] = float32(0.0)
                    pC2_start = pC2_end
                t += t_part1
        else:
            for i in range(cuts[block], cuts[block + 1]):
                pC2_end = int64(C2_pos[i + 1])
                for pC2 in range(pC2_start, pC2_end):
                    k = C2_crd[pC2]
                    C_row_vals[k] = float32(-1.0) * (float32(0.0) - C_vals[pC2])
                t_apart = float32(0.0)
                for pA2 in range(A2_pos[i], A2_pos[i + 1]):
                    j = A2_crd[pA2]
                    j_ahead = A2_crd[min(pA2 + 8, A_entries - 1)]
                    pB2_ahead = B2_pos[j_ahead]
                    prefetch(B2_crd, pB2_ahead)
                    prefetch(B_vals, pB2_ahead)
                    pB2_start = B2_pos[j]
                    pB2_end = B2_pos[j + 1]
                    u_lanes = splat(float32(0.0), 8)
                    pB2 = pB2_start
                    while pB2 < pB2_end - 8:
                        u_lanes = add(u_lanes, stored_product(gather(C_row_vals, 0, 1, B2_crd, pB2, 8), mul(A_vals[pA2], load(B_vals, pB2, 8))))
                        pB2 += 8
                    pB2_split = pB2
                    if pB2 <= B_entries - 8:
                        u_lanes = first_lanes(add(u_lanes, stored_product(gather(C_row_vals, 0, 1, B2_crd, pB2, 8), mul(A_vals[pA2], load(B_vals, pB2, 8)))), u_lanes, pB2_end - pB2)
                        pB2_split = pB2_end
                    u = hsum(u_lanes)
                    for pB2 in range(pB2_split, pB2_end):
                        k = B2_crd[pB2]
                        u += stored_product(C_row_vals[k], A_vals[pA2] * B_vals[pB2])
                    t_apart += u
                t += t_apart
                for pC2 in range(pC2_start, pC2_end):
                    k = C2_crd[pC2]
                    C_row_vals[k] = float32(0.0)
                pC2_start = pC2_end
        partial_vals[block] = t


def finish(D_vals, partial_vals, blocks):
    total = float32(0.0)
    for block in range(blocks):
        total += partial_vals[block]
    D_vals[0] = total


def kernel(A2_pos, A2_crd, A_vals, A_entries, B2_pos, B2_crd, B_vals, B_entries, C2_pos, C2_crd, C_vals, D_vals, C_row_vals, C_row_size, partial_vals, cuts, blocks, workers):
    for worker in prange(workers):
        body(worker, A2_pos, A2_crd, A_vals, A_entries, B2_pos, B2_crd, B_vals, B_entries, C2_pos, C2_crd, C_vals, C_row_vals, C_row_size, partial_vals, cuts, blocks, workers)
    finish(D_vals, partial_vals, blocks)
