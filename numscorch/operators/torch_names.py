"""The interface of torch's sparse tensors for SparseTensors: layout, index arrays, and conversions between layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ..convert.conversions import to_format
from ..errors import UnsupportedError
from ..ir.format import sorted_format
from ..tensors.sparse_tensor import PROPERTIES, SparseTensor
from ..tensors.torch_layouts import BY_ROWS, COMPRESSED, TorchLayout, compressed_arrays, format_of, layout_of
from ..tensors.validate import disorder
from .naming import with_name


def to_sparse(
    input: SparseTensor,
    sparse_dim: int | None = None,
    *,
    layout: torch.layout | None = None,
    blocksize: Sequence[int] | None = None,
    dense_dim: int | None = None,
) -> SparseTensor:
    """Convert to the format of one of torch's layouts, COO by default; returns the input if it has that format.

    Args:
        sparse_dim: the number of COO's sparse dimensions; the others are dense.
        layout: ``torch.sparse_coo``, ``sparse_csr``, ``sparse_csc``, ``sparse_bsr`` or ``sparse_bsc``.
        blocksize: (rows, columns) of blocks in ``sparse_bsr`` and ``sparse_bsc``.
        dense_dim: the number of trailing dense dimensions.

    >>> import numscorch as ns
    >>> ns.from_torch(torch.eye(4)).to_sparse(layout=torch.sparse_bsr, blocksize=(2, 2)).format.name
    'BCSR(2, 2)'
    """
    layout = torch.sparse_coo if layout is None else layout
    if sparse_dim is not None and (layout is not torch.sparse_coo or dense_dim is not None):
        raise UnsupportedError("to_sparse(sparse_dim) applies to COO only: give dense_dim= for other layouts")
    dense = input.ndim - sparse_dim if sparse_dim is not None else dense_dim or 0
    return to_format(input, format_of(layout, input.ndim, blocksize, dense))


TO_LAYOUTS: dict[str, Callable[..., Any]] = {
    "to_sparse": to_sparse,
    "to_sparse_coo": lambda input: to_sparse(input),
    "to_sparse_csr": lambda input, dense_dim=None: to_sparse(input, layout=torch.sparse_csr, dense_dim=dense_dim),
    "to_sparse_csc": lambda input, dense_dim=None: to_sparse(input, layout=torch.sparse_csc, dense_dim=dense_dim),
    "to_sparse_bsr": lambda input, blocksize, dense_dim=None: to_sparse(
        input, layout=torch.sparse_bsr, blocksize=blocksize, dense_dim=dense_dim
    ),
    "to_sparse_bsc": lambda input, blocksize, dense_dim=None: to_sparse(
        input, layout=torch.sparse_bsc, blocksize=blocksize, dense_dim=dense_dim
    ),
}


def own_layout(A: SparseTensor) -> TorchLayout | None:
    """The torch layout that stores the same arrays as the tensor's format, or None; rows may be unordered, without free slots."""
    return A.pattern.remember("torch layout", lambda: None if A.format.has_gaps else layout_of(sorted_format(A.format)))


def layout(A: SparseTensor) -> torch.layout:
    """torch's layout for this format; ``torch.strided`` for dense formats.

    Raises:
        AttributeError: torch has no such layout; ``hasattr`` is False.

    >>> import numscorch as ns
    >>> ns.from_torch(torch.eye(2)).layout, hasattr(ns.from_torch(torch.eye(2), ns.DCSR), "layout")
    (torch.sparse_csr, False)
    """
    if A.format.is_dense:
        return torch.strided
    if (stored_layout := own_layout(A)) is None:
        suggestion = "A.format says how it is stored, and .to_sparse() and .to_sparse_csr() convert it"
        raise AttributeError(f"torch has no layout for {A.format.name}: {suggestion}", name="layout", obj=A)
    return stored_layout.layout


def _has_layout(wanted: torch.layout) -> Callable[[SparseTensor], bool]:
    return lambda A: (stored_layout := own_layout(A)) is not None and stored_layout.layout is wanted and not A.format.is_dense


def _dimensions(A: SparseTensor, what: str) -> TorchLayout:
    """The layout, which has the numbers of sparse and dense dimensions."""
    if (stored_layout := own_layout(A)) is None:
        raise UnsupportedError(f"{what} of {A.format.name}, for which torch has no layout: A.format says how each dimension is stored")
    return stored_layout


def _array(name: str, by_rows: bool, at: int) -> Callable[[SparseTensor], torch.Tensor]:
    """An accessor for an index array of compressed layouts."""

    def array(input: SparseTensor) -> torch.Tensor:
        stored_layout = own_layout(input)
        if stored_layout is None or stored_layout.layout not in COMPRESSED or (stored_layout.layout in BY_ROWS) != by_rows:
            kind = "CSR or BSR" if by_rows else "CSC or BSC"
            suggestion = ".to_sparse_csr()" if by_rows else ".to_sparse_csc()"
            raise UnsupportedError(f"{name} of {input.format.name}, which is not {kind}: convert it with {suggestion}, or use .indices()")
        return compressed_arrays(input.pattern, stored_layout)[at].clone()

    return with_name(array, name, f"A copy of torch's {name} in the order of the values. O(nnz).")


def stored(A: SparseTensor) -> int:
    """torch's ``_nnz``: the number of stored coordinates; a block or a dense slice counts once, a batch per matrix."""
    stored_layout = own_layout(A)
    if stored_layout is None or A.format.is_dense:
        return A.nnz
    if stored_layout.layout is torch.sparse_coo:
        return A.pattern.counts[stored_layout.sparse - 1]
    return compressed_arrays(A.pattern, stored_layout)[1].shape[-1]


INDEX_ARRAYS: dict[str, Callable[..., Any]] = {
    "crow_indices": _array("crow_indices", True, 0),
    "col_indices": _array("col_indices", True, 1),
    "ccol_indices": _array("ccol_indices", False, 0),
    "row_indices": _array("row_indices", False, 1),
    "sparse_dim": lambda input: _dimensions(input, "sparse_dim").sparse,
    "dense_dim": lambda input: _dimensions(input, "dense_dim").dense,
    "is_coalesced": lambda input: input.format.is_ordered and input.pattern.remember("disorder", lambda: disorder(input.pattern)) is None,
}
PROPERTIES.update(
    {
        "layout": layout,
        "is_sparse": _has_layout(torch.sparse_coo),
        "is_sparse_csr": _has_layout(torch.sparse_csr),
        "_nnz": lambda A: partial(stored, A),
    }
)
