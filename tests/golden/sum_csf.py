"""C += A[i,j,k] * B

    where(C = t, entry_forall<8 x 8>(i, forall(j, forall(k, t += B * A[i,j,k]))))

A: CSF(3) float32, int32 indices
B: dense float32
C: dense float32
"""

from numpy import float32

from numscorch.codegen.intrinsics import fma, hsum, load, splat


def kernel(A_vals, A_entries, B_vals, C_vals):
    pA3_split = A_entries // 64 * 64
    t_lanes = splat(float32(0.0), 8, 8)
    for pA3 in range(0, pA3_split, 64):
        t_lanes = fma(B_vals[0], load(A_vals, pA3, 8, 8), t_lanes)
    t = hsum(t_lanes)
    for pA3 in range(pA3_split, A_entries):
        t += B_vals[0] * A_vals[pA3]
    C_vals[0] = t
