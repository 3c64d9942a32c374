"""Names in recorded runs, and the text that tables print for them. Recorded names identify cases across runs, so they cannot change."""

from __future__ import annotations

REPLACED = (
    ("ours, einsum", "numscorch, einsum"),
    ("ours in CSR", "numscorch, CSR"),
    (", beside einsum", ", compared with einsum"),
    ("python-graphblas, transposed before", "python-graphblas, operand transposed in advance"),
    ("share of the lower roof", "share of the roofline limit"),
    ("spmm: memory beyond operands and result, of the result", "SpMM: memory beyond operands and result, relative to the result"),
    ("sddmm: memory beyond operands and result, of the result", "SDDMM: memory beyond operands and result, relative to the result"),
    ("busy share of 2 cores, of what 2 triads reach", "parallel efficiency on 2 cores, relative to that of 2 triads"),
    ("CPU seconds above Numba's start", "CPU time without Numba's startup"),
    ("warm call on 16 x 16", "warm call, 16 x 16"),
    ("call of a plan on 16 x 16", "call of a plan, 16 x 16"),
    (" on 16 x 16, compared", ", 16 x 16, compared"),
)

OPERATIONS = {
    "spmv": "SpMV: a CSR, CSC or COO matrix times a vector",
    "banded": "SpMV with banded matrices of four times the size of the last-level cache",
    "spmm": "SpMM: a CSR matrix times a dense matrix of k columns",
    "formats": "SpMM with COO, CSC, DCSR, BCSR and ELL matrices",
    "linear": "Linear layers: dense inputs times an unstructured sparse weight",
    "blocks": "Linear layers with weights pruned in blocks of 16 x 1, compared with dense layers",
    "n:m, 16 rows": "Linear layers with n:m weights whose pattern is shared by 16 rows, compared with dense layers",
    "n:m:g": "Linear layers with n:m:g weights, compared with dense layers",
    "sddmm": "SDDMM: a dense product, computed at the pattern of a CSR matrix",
    "spgemm": "SpGEMM: the product of two sparse matrices",
    "spgemm, reduced": "SpGEMM over booleans and semirings",
    "masked": "SpGEMM with a mask",
    "triangles": "Triangle counting",
    "sums": "Sums and element-wise products of sparse matrices",
    "tensors": "MTTKRP, TTM and TTV with sparse tensors of order 3 to 5",
    "rows": "Softmax, maximum and sum of the rows of a CSR matrix",
    "convert": "Conversions between formats, sorting and coalescing, with a new pattern at each call",
    "models": "Inference: GCN, pruned MLP, sparse attention, mixture of experts",
    "training": "Training: steps of a pruned network, epochs of a GCN",
    "overhead": "Overhead of calls with 16 x 16 matrices",
}
"""What each kernel of the suite computes, in the order of the tables."""


def worded(text: str) -> str:
    """The text that tables print for a recorded name.

    >>> worded("warm A @ X on 16 x 16, beside einsum")
    'warm A @ X, 16 x 16, compared with einsum'
    """
    for recorded, printed in REPLACED:
        text = text.replace(recorded, printed)
    return text
