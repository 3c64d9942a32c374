"""C += A[i,j,k] * B

    where(C = t, entry_forall<8 x 8>(i, forall(j, forall(k, t += B * A[i,j,k]))))

A: CSF(3) float32, int32 indices
B: dense float32
C: dense float32
"""

from numpy import float32

from numscorch.codegen.intrinsics import add, fma, hsum, load, splat


def kernel(A_vals, A_entries, B_vals, C_vals):
    pA3_split = A_entries // 64 * 64
    t_lanes0 = splat(float32(0.0), 8)
    t_lanes1 = splat(float32(0.0), 8)
    t_lanes2 = splat(float32(0.0), 8)
    t_lanes3 = splat(float32(0.0), 8)
    t_lanes4 = splat(float32(0.0), 8)
    t_lanes5 = splat(float32(0.0), 8)
    t_lanes6 = splat(float32(0.0), 8)
    t_lanes7 = splat(float32(0.0), 8)
    for pA3 in range(0, pA3_split, 64):
        factor = splat(B_vals[0], 8)
        t_lanes0 = fma(factor, load(A_vals, pA3, 8), t_lanes0)
        t_lanes1 = fma(factor, load(A_vals, pA3 + 8, 8), t_lanes1)
        t_lanes2 = fma(factor, load(A_vals, pA3 + 16, 8), t_lanes2)
        t_lanes3 = fma(factor, load(A_vals, pA3 + 24, 8), t_lanes3)
        t_lanes4 = fma(factor, load(A_vals, pA3 + 32, 8), t_lanes4)
        t_lanes5 = fma(factor, load(A_vals, pA3 + 40, 8), t_lanes5)
        t_lanes6 = fma(factor, load(A_vals, pA3 + 48, 8), t_lanes6)
        t_lanes7 = fma(factor, load(A_vals, pA3 + 56, 8), t_lanes7)
    t_lanes0 = add(t_lanes0, t_lanes1)
    t_lanes2 = add(t_lanes2, t_lanes3)
    t_lanes4 = add(t_lanes4, t_lanes5)
    t_lanes6 = add(t_lanes6, t_lanes7)
    t_lanes0 = add(t_lanes0, t_lanes2)
    t_lanes4 = add(t_lanes4, t_lanes6)
    t_lanes0 = add(t_lanes0, t_lanes4)
    t = hsum(t_lanes0)
    for pA3 in range(pA3_split, A_entries):
        t += B_vals[0] * A_vals[pA3]
    C_vals[0] = t
