"""Named kernels: expressions with the operands of their generation."""

from __future__ import annotations

from numscorch.frontend.requests import Operand, row_major
from numscorch.ir.format import BCSR, COO, CSC, CSF, CSR, DIA, NMG, Format, dense


def stored(fmt: Format, shape: tuple[int, ...], *counts: int) -> Operand:
    """A sparse float32 operand with int32 indices."""
    return Operand(fmt, shape, "float32", "int32", counts=counts)


def plain(*shape: int) -> Operand:
    """A contiguous float32 operand."""
    return Operand(dense(len(shape)), shape, "float32", strides=row_major(shape))


MATRIX = (2000, 3000)


CSR_A = stored(CSR, MATRIX, 2000, 60_000)


SHORT = stored(CSR, MATRIX, 2000, 7_000)


COO_A = stored(COO(2), MATRIX, 60_000, 60_000)


CSC_A = stored(CSC, MATRIX, 3000, 60_000)


SQUARE = stored(CSR, (2000, 2000), 2000, 60_000)


LARGE = stored(CSR, (10_000, 10_000), 10_000, 10**6)


WIDE = stored(CSR, (10**6, 10**6), 10**6, 2 * 10**6)


DCSR_A = stored(Format("ss"), (2000, 2000), 1500, 60_000)


COO_S = stored(COO(2), (2000, 2000), 60_000, 60_000)


BLOCK_LIST = stored(
    Format("(i, j) -> (i // 4: dense, j // 4: compressed(unique=False), i % 4: singleton(unique=False), j % 4: singleton)"),
    MATRIX,
    *(500, 60_000, 60_000, 60_000),
)


CSF_A = stored(CSF(3), (500, 400, 300), 480, 9000, 50_000)


KERNELS: dict[str, tuple[str, tuple[Operand, ...]]] = {
    "spmv_csr": ("ij,j->i", (CSR_A, plain(3000))),
    "spmv_csr_short_rows": ("ij,j->i", (SHORT, plain(3000))),
    "spmm_csr": ("ij,jk->ik", (CSR_A, plain(3000, 100))),
    "spmm_csr_narrow": ("ij,jk->ik", (CSR_A, plain(3000, 16))),
    "spmm_tiled": ("ij,jk->ik", (LARGE, plain(10_000, 1000))),
    "spmm_coo": ("ij,jk->ik", (COO_A, plain(3000, 64))),
    "spmm_csc": ("ij,jk->ik", (CSC_A, plain(3000, 64))),
    "spmm_nmg": ("ij,jk->ik", (stored(NMG(2, 3, 8), (900, 240), 300, 72_000, 144_000), plain(240, 96))),
    "spmm_nmg_one": ("ij,jk->ik", (stored(NMG(1, 2, 8), (900, 240), 450, 108_000, 108_000), plain(240, 32))),
    "sddmm_csr": ("ij,ik,jk->ij", (CSR_A, plain(2000, 64), plain(3000, 64))),
    "mttkrp_csf": ("ijk,jl,kl->il", (CSF_A, plain(400, 32), plain(300, 32))),
    "mttkrp_coo": ("ijk,jl,kl->il", (stored(COO(3), (500, 400, 300), 90_000, 90_000, 90_000), plain(400, 32), plain(300, 32))),
    "ttm_csf": ("ijk,kl->ijl", (CSF_A, plain(300, 20))),
    "dense_times_csr": ("ij,jk->ik", (plain(64, 2000), CSR_A)),
    "elementwise_csr_dense": ("ij,ij->ij", (CSR_A, plain(*MATRIX))),
    "intersect_dcsr": ("ij,ij->", (stored(Format("ss"), MATRIX, 1500, 60_000), stored(Format("ss"), MATRIX, 1200, 30_000))),
    "gallop_csr": ("ij,ij->", (stored(CSR, (2000, 50_000), 2000, 6000), stored(CSR, (2000, 50_000), 2000, 2_000_000))),
    "sum_csr": ("ij->", (CSR_A,)),
    "sum_columns": ("ij->j", (CSR_A,)),
    "sum_csf": ("ijk,->", (CSF_A, plain())),
    "trace_csr": ("ii->", (stored(CSR, (2000, 2000), 2000, 60_000),)),
    "spgemm_csr": ("ij,jk->ik", (SQUARE, SQUARE)),
    "spgemm_csr_counted": ("ij,jk->ik", (SQUARE, SQUARE)),
    "spgemm_csr_room": ("ij,jk->ik", (SQUARE, SQUARE)),
    "spgemm_csr_once": ("ij,jk->ik", (SQUARE, SQUARE)),
    "spgemm_hashed": ("ij,jk->ik", (WIDE, WIDE)),
    "spgemm_hashed_bounded": ("ij,jk->ik", (WIDE, WIDE)),
    "spgemm_hashed_counted": ("ij,jk->ik", (WIDE, WIDE)),
    "spgemm_unordered": ("ij,jk->ik", (SQUARE, SQUARE)),
    "add_csr": ("C[i,j] = A[i,j] + B[i,j]", (SQUARE, SQUARE)),
    "add_three_dcsr": ("D[i,j] = A[i,j] + B[i,j] + C[i,j]", (DCSR_A, DCSR_A, DCSR_A)),
    "add_csr_dense": ("C[i,j] = A[i,j] + B[i,j]", (SQUARE, plain(2000, 2000))),
    "add_dcsr_times_dense": ("y[i] = (A[i,j] + B[i,j]) * x[j]", (DCSR_A, DCSR_A, plain(2000))),
    "relu_coo": ("C[i,j] = relu(A[i,j] - B[i,j])", (COO_S, COO_S)),
    "triangles_csr": ("ij,jk,ik->", (SQUARE, SQUARE, SQUARE)),
    "max_csr": ("y[i] max= A[i,j]", (SQUARE,)),
    "copy_csr_to_csc": ("to CSC", (CSR_A,)),
    "copy_csr_to_block_columns": ("to (i, j) -> (j // 4: dense, i: compressed(unique=False), j % 4: singleton)", (CSR_A,)),
    "copy_list_to_bcsr": ("to BCSR(4, 4)", (BLOCK_LIST,)),
    "copy_bcsr_to_csr": ("to CSR", (stored(BCSR(4, 4), (2000, 3002), 500, 9000, 36_000, 144_000),)),
    "copy_nmg_to_csc": ("to CSC", (stored(NMG(2, 3, 8), (900, 240), 300, 72_000, 144_000),)),
    "copy_dia_to_csr": ("to CSR", (stored(DIA, (2000, 2000), 5, 10_000, 10_000),)),
    "copy_csr_to_ell": ("to ELL(40)", (CSR_A,)),
    "copy_csr_to_hash": ("to (i, j) -> (i: dense, j: hash)", (CSR_A,)),
}
