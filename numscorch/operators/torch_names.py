"""What code written for torch's sparse tensors asks of one: its layout, its index arrays, and conversions to layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ..convert.dense import to_format
from ..errors import UnsupportedError
from ..ir.format import sorted_format
from ..tensors.sparse_tensor import PROPERTIES, SparseTensor
from ..tensors.torch_layouts import BY_ROWS, COMPRESSED, TorchLayout, compressed_arrays, format_of, layout_of
from ..tensors.validate import disorder


def to_sparse(
    input: SparseTensor,
    sparse_dim: int | None = None,
    *,
    layout: torch.layout | None = None,
    blocksize: Sequence[int] | None = None,
    dense_dim: int | None = None,
) -> SparseTensor:
    """The same entries as a SparseTensor in the format of one of torch's layouts, COO by default; itself if that is its own.

    Args:
        sparse_dim: how many dimensions of COO have coordinates; the others are stored in full.
        layout: ``torch.sparse_coo``, ``sparse_csr``, ``sparse_csc``, ``sparse_bsr`` or ``sparse_bsc``.
        blocksize: of the last two, (rows, columns).
        dense_dim: how many of the last dimensions are stored in full.

    >>> import numscorch as ns
    >>> ns.from_torch(torch.eye(4)).to_sparse(layout=torch.sparse_bsr, blocksize=(2, 2)).format.name
    'BCSR(2, 2)'
    """
    layout = torch.sparse_coo if layout is None else layout
    if sparse_dim is not None and (layout is not torch.sparse_coo or dense_dim is not None):
        raise UnsupportedError("to_sparse(sparse_dim) is of COO alone: of other layouts, give dense_dim=")
    dense = input.ndim - sparse_dim if sparse_dim is not None else dense_dim or 0
    return to_format(input, format_of(layout, input.ndim, blocksize, dense))


def _to_layout(layout: torch.layout) -> Callable[..., SparseTensor]:
    def convert(input: SparseTensor, dense_dim: int | None = None) -> SparseTensor:
        return to_sparse(input, layout=layout, dense_dim=dense_dim)

    return convert


def _to_blocks(layout: torch.layout) -> Callable[..., SparseTensor]:
    def convert(input: SparseTensor, blocksize: Sequence[int], dense_dim: int | None = None) -> SparseTensor:
        return to_sparse(input, layout=layout, blocksize=blocksize, dense_dim=dense_dim)

    return convert


TO_LAYOUTS: dict[str, Callable[..., Any]] = {
    "to_sparse": to_sparse,
    "to_sparse_coo": lambda input: to_sparse(input),
    "to_sparse_csr": _to_layout(torch.sparse_csr),
    "to_sparse_csc": _to_layout(torch.sparse_csc),
    "to_sparse_bsr": _to_blocks(torch.sparse_bsr),
    "to_sparse_bsc": _to_blocks(torch.sparse_bsc),
}


def own_layout(A: SparseTensor) -> TorchLayout | None:
    """The layout of torch that stores what the tensor's format does, in whatever order rows have; None where there is none."""
    return A.pattern.remember("torch layout", lambda: layout_of(sorted_format(A.format)))


def layout(A: SparseTensor) -> torch.layout:
    """torch's layout of this format: ``torch.strided`` of a dense one.

    Raises:
        AttributeError: torch has none, so that ``hasattr`` says so.

    >>> import numscorch as ns
    >>> ns.from_torch(torch.eye(2)).layout, hasattr(ns.from_torch(torch.eye(2), ns.DCSR), "layout")
    (torch.sparse_csr, False)
    """
    if A.format.is_dense:
        return torch.strided
    if (stored_layout := own_layout(A)) is None:
        way_out = "A.format says how it is stored, and .to_sparse() and .to_sparse_csr() convert it"
        raise AttributeError(f"torch has no layout for {A.format.name}: {way_out}", name="layout", obj=A)
    return stored_layout.layout


def _has_layout(wanted: torch.layout) -> Callable[[SparseTensor], bool]:
    return lambda A: (stored_layout := own_layout(A)) is not None and stored_layout.layout is wanted and not A.format.is_dense


def _dimensions(A: SparseTensor, what: str) -> TorchLayout:
    """The layout, which knows how many dimensions are sparse or dense."""
    if (stored_layout := own_layout(A)) is None:
        raise UnsupportedError(f"{what} of {A.format.name}, for which torch has no layout: A.format says how each dimension is stored")
    return stored_layout


def _array(name: str, by_rows: bool, at: int) -> Callable[[SparseTensor], torch.Tensor]:
    """An index array of compressed layouts."""

    def array(input: SparseTensor) -> torch.Tensor:
        stored_layout = own_layout(input)
        if stored_layout is None or stored_layout.layout not in COMPRESSED or (stored_layout.layout in BY_ROWS) != by_rows:
            kind = "CSR or BSR" if by_rows else "CSC or BSC"
            way_out = ".to_sparse_csr()" if by_rows else ".to_sparse_csc()"
            raise UnsupportedError(f"{name} of {input.format.name}, which is not {kind}: convert it with {way_out}, or use .indices()")
        return compressed_arrays(input.pattern, stored_layout)[at].clone()

    array.__name__ = array.__qualname__ = name
    array.__doc__ = f"A copy of torch's {name}, in the order of the values. O(nnz)."
    return array


def stored(A: SparseTensor) -> int:
    """torch's ``_nnz``: how many coordinates are stored, of blocks or of dense dimensions once, and in each matrix of a batch."""
    stored_layout = own_layout(A)
    if stored_layout is None or A.format.is_dense:
        return A.nnz
    if stored_layout.layout is torch.sparse_coo:
        return A.pattern.counts[stored_layout.sparse - 1]
    return compressed_arrays(A.pattern, stored_layout)[1].shape[-1]


def _is_coalesced(A: SparseTensor) -> bool:
    """Whether coordinates are in order, each once."""
    return A.format.is_ordered and A.pattern.remember("disorder", lambda: disorder(A.pattern)) is None


INDEX_ARRAYS: dict[str, Callable[..., Any]] = {
    "crow_indices": _array("crow_indices", True, 0),
    "col_indices": _array("col_indices", True, 1),
    "ccol_indices": _array("ccol_indices", False, 0),
    "row_indices": _array("row_indices", False, 1),
    "sparse_dim": lambda input: _dimensions(input, "sparse_dim").sparse,
    "dense_dim": lambda input: _dimensions(input, "dense_dim").dense,
    "is_coalesced": _is_coalesced,
}
PROPERTIES.update(
    {
        "layout": layout,
        "is_sparse": _has_layout(torch.sparse_coo),
        "is_sparse_csr": _has_layout(torch.sparse_csr),
        "_nnz": lambda A: partial(stored, A),
    }
)
