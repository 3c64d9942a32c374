"""C[i,k] += A[i,j] * B[j,k]

    parallel_forall(i, where(forall(k, C[i,k] = w[k]), forall(j, forall(k, w[k] += A[i,j] * B[j,k]))))

A: CSR float32, int32 indices
B: CSR float32, int32 indices
C: CSR float32, int32 indices
w: listed float32

This kernel finds how much may be inserted in all; the next one appends the result's entries where there is room for that.
"""

from numba import prange

from numscorch.codegen.intrinsics import pointer


def kernel(A2_pos_array, A2_crd_array, B2_pos_array, cuts_array, bounds_array, blocks, workers):
    for worker in prange(workers):
        A2_crd = pointer(A2_crd_array)
        A2_pos = pointer(A2_pos_array)
        B2_pos = pointer(B2_pos_array)
        bounds = pointer(bounds_array)
        cuts = pointer(cuts_array)
        for block in range(blocks * worker // workers, blocks * (worker + 1) // workers):
            most = 0
            for pA2 in range(A2_pos[cuts[block]], A2_pos[cuts[block + 1]]):
                j = A2_crd[pA2]
                for pB2 in range(B2_pos[j], B2_pos[j + 1]):
                    most += 1
            bounds[block] = most
