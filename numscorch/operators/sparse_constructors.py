"""torch's constructors of sparse tensors from index arrays: with ``format=``, they make SparseTensors; without, they are torch's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..convert.construct import from_coo, from_torch
from ..convert.conversions import to_format
from ..errors import SizeError
from ..ir.format import Format
from ..tensors.arrays import as_indices, as_shape, as_tensor, check_values
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.torch_layouts import TorchLayout, quietly
from .constructors import Constructor, in_formats, trained

REFUSED = ("pin_memory",)


@in_formats(torch.sparse_coo_tensor, (*REFUSED, "layout"))
def sparse_coo_tensor(
    indices: Any,
    values: Any,
    size: Sequence[int] | None = None,
    *,
    format: Format,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
) -> SparseTensor:
    """torch.sparse_coo_tensor; with ``format=`` a SparseTensor, gradients flowing to the values.

    Args:
        indices: coordinates, shape (sparse_dim, nnz), in any order; values with the same ones are summed.
        values: shape (nnz, \\*), whose further dimensions are the last ones of the tensor.
        size: the shape; by default the smallest that holds the coordinates.
        format: how it is stored.
        dtype: of the values, by default their own.
        requires_grad: whether the result's values are a new leaf that requires grad.
        check_invariants: ``False`` trusts that coordinates are in range.
        is_coalesced: whether they are in order already, each once.

    Raises:
        FormatError: coordinates that are out of range, or out of order though that was promised.
        SizeError: lengths that disagree.

    >>> import numscorch as ns
    >>> ns.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], [1.0, 2.0, 3.0], (2, 3), format=ns.CSR).values
    tensor([1., 5.])
    """
    table, entries = as_indices(indices, "indices"), _values(values, dtype)
    if table.ndim != 2 or not entries.ndim or table.shape[1] != len(entries):
        shapes = f"{tuple(table.shape)}, and values {tuple(entries.shape)}"
        raise SizeError(f"indices has shape {shapes}: pass (sparse_dim, nnz) and (nnz, *)")
    inside = tuple(entries.shape[1:])
    # O(nnz): the least shape that holds the coordinates
    shape = as_shape(size) if size is not None else (*(int(row.max()) + 1 if len(row) else 0 for row in table), *inside)
    if tuple(shape[table.shape[0] :]) != inside:
        raise SizeError(f"values has shape {tuple(entries.shape)}, but size is {shape}: its last dimensions must be those of each value")
    full = table.numpy() if not inside else _repeated(table.numpy(), inside)
    kept = TorchLayout(torch.sparse_coo, sparse=table.shape[0], dense=len(inside)).format
    is_checked = check_invariants is not False
    tensor = from_coo(full, entries.reshape(-1), shape, kept, assume_sorted=bool(is_coalesced), check_invariants=is_checked)
    return trained(to_format(tensor, format), requires_grad)


def _repeated(table: np.ndarray, inside: tuple[int, ...]) -> np.ndarray:
    """The coordinates of all entries of values that have dimensions."""
    places = np.indices(inside).reshape(len(inside), -1)
    each = places.shape[1]
    return np.concatenate([np.repeat(table, each, axis=1), np.tile(places, table.shape[1])]).astype(table.dtype)


def _values(values: Any, dtype: torch.dtype | None) -> torch.Tensor:
    given = check_values(as_tensor(values, "values"))
    return given if dtype is None else given.to(dtype)


def _compressed(theirs: Constructor, first: str = "compressed_indices", second: str = "plain_indices") -> Constructor:
    """A constructor of one of torch's compressed layouts, which names its index arrays so."""

    def ours(
        starts: Any,
        coordinates: Any,
        values: Any,
        size: Sequence[int] | None = None,
        *,
        format: Format,
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
        check_invariants: bool | None = None,
        **layout: Any,
    ) -> SparseTensor:
        entries, checked = _values(values, dtype), check_invariants is not False
        arrays = as_indices(starts, first), as_indices(coordinates, second)
        if not (arrays[0].ndim and arrays[1].ndim and entries.ndim) or (size is not None and len(size) < 2):
            raise SizeError(f"{theirs.__name__} takes {first}, {second} and values of at least one dimension each, and a size of two")
        shape = () if size is None else (as_shape(size),)
        native = quietly(lambda: theirs(*arrays, entries.detach(), *shape, check_invariants=False, **layout))
        tensor = from_torch(native, check_invariants=checked)
        return trained(to_format(tensor.with_values(entries.reshape(-1)), format), requires_grad)

    def by_name(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **{{first: "starts", second: "coordinates"}.get(name, name): value for name, value in kwargs.items()})

    by_name.__name__ = by_name.__qualname__ = theirs.__name__
    by_name.__doc__ = f"""torch.{theirs.__name__}; with ``format=`` a SparseTensor, gradients flowing to the values.

    {first}, {second} and values are as torch documents them, with batches and dimensions of values too, and are taken without a copy where
    the format stores the same.

    Raises:
        FormatError: index arrays that break what the layout promises.
        SizeError: shapes that disagree.
    """
    return in_formats(theirs, REFUSED)(by_name)


sparse_compressed_tensor = _compressed(torch.sparse_compressed_tensor)
sparse_csr_tensor = _compressed(torch.sparse_csr_tensor, "crow_indices", "col_indices")
sparse_csc_tensor = _compressed(torch.sparse_csc_tensor, "ccol_indices", "row_indices")
sparse_bsr_tensor = _compressed(torch.sparse_bsr_tensor, "crow_indices", "col_indices")
sparse_bsc_tensor = _compressed(torch.sparse_bsc_tensor, "ccol_indices", "row_indices")
