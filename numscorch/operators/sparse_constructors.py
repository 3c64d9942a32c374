"""torch's constructors of sparse tensors from index arrays: with ``format=`` they create SparseTensors, without it they call torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..convert.construct import from_coo, from_torch, owned
from ..convert.conversions import to_format
from ..errors import SizeError
from ..ir.format import Format
from ..tensors.arrays import as_indices, as_shape, as_tensor, check_values
from ..tensors.modes import as_numpy
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
    """torch.sparse_coo_tensor; with ``format=`` a SparseTensor. Gradients flow to the values.

    Args:
        indices: coordinates of shape (sparse_dim, nnz) in any order; values of equal coordinates are summed.
        values: shape (nnz, \\*); further dimensions are the tensor's last dimensions.
        size: the shape; defaults to the smallest shape that contains the coordinates.
        format: the format.
        dtype: the values' data type; defaults to that of ``values``.
        requires_grad: whether the result's values are a new leaf that requires grad.
        check_invariants: ``False`` skips the range check of coordinates.
        is_coalesced: whether coordinates are sorted and unique.

    Raises:
        FormatError: a coordinate is out of range, or ``is_coalesced`` is given for unsorted coordinates.
        SizeError: lengths disagree.

    >>> import numscorch as ns
    >>> ns.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], [1.0, 2.0, 3.0], (2, 3), format=ns.CSR).values
    tensor([1., 5.])
    """
    table, entries = as_indices(indices, "indices"), _values(values, dtype)
    if table.ndim != 2 or not entries.ndim or table.shape[1] != len(entries):
        shapes = f"{tuple(table.shape)}, and values {tuple(entries.shape)}"
        raise SizeError(f"indices has shape {shapes}: pass (sparse_dim, nnz) and (nnz, *)")
    dense_shape = tuple(entries.shape[1:])
    # default: the smallest shape that contains the coordinates, O(nnz)
    shape = as_shape(size) if size is not None else (*(int(row.max()) + 1 if len(row) else 0 for row in table), *dense_shape)
    if tuple(shape[table.shape[0] :]) != dense_shape:
        raise SizeError(f"values has shape {tuple(entries.shape)}, but size is {shape}: its last dimensions must be those of each value")
    full = as_numpy(table)
    if dense_shape:  # the coordinates of all scalar entries
        places = np.indices(dense_shape).reshape(len(dense_shape), -1)
        full = np.concatenate([np.repeat(full, places.shape[1], axis=1), np.tile(places, len(entries))]).astype(full.dtype)
    layout_format = TorchLayout(torch.sparse_coo, sparse=table.shape[0], dense=len(dense_shape)).format
    is_checked = check_invariants is not False
    tensor = from_coo(full, entries.reshape(-1), shape, layout_format, assume_sorted=bool(is_coalesced), check_invariants=is_checked)
    return trained(to_format(tensor, format), requires_grad)


def _values(values: Any, dtype: torch.dtype | None) -> torch.Tensor:
    tensor = check_values(as_tensor(values, "values"))
    return tensor.to(tensor.dtype if dtype is None else dtype, copy=not isinstance(values, torch.Tensor))  # as torch's constructors


def _compressed(torch_constructor: Constructor, first: str = "compressed_indices", second: str = "plain_indices") -> Constructor:
    """A constructor for one of torch's compressed layouts; ``first`` and ``second`` name its index arrays."""

    def construct(
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
        entries, is_checked = _values(values, dtype), check_invariants is not False
        arrays = as_indices(starts, first), as_indices(coordinates, second)
        if not (arrays[0].ndim and arrays[1].ndim and entries.ndim) or (size is not None and len(size) < 2):
            raise SizeError(
                f"{torch_constructor.__name__} takes {first}, {second} and values of at least one dimension each, and a size of two"
            )
        shape = () if size is None else (as_shape(size),)
        native = quietly(lambda: torch_constructor(*arrays, entries.detach(), *shape, check_invariants=False, **layout))
        tensor = from_torch(native, copy=False, check_invariants=is_checked).with_values(entries.reshape(-1))
        return trained(owned(to_format(tensor, format), *arrays), requires_grad)

    def by_name(*args: Any, **kwargs: Any) -> Any:
        return construct(*args, **{{first: "starts", second: "coordinates"}.get(name, name): value for name, value in kwargs.items()})

    by_name.__name__ = by_name.__qualname__ = torch_constructor.__name__
    by_name.__doc__ = f"""torch.{torch_constructor.__name__}; with ``format=`` a SparseTensor. Gradients flow to the values.

    {first}, {second} and values are as torch documents them, including batches and dense dimensions. A tensor of values is not
    copied if the format stores the same array.

    Raises:
        FormatError: the index arrays violate the layout's invariants.
        SizeError: shapes disagree.
    """
    return in_formats(torch_constructor, REFUSED)(by_name)


sparse_compressed_tensor = _compressed(torch.sparse_compressed_tensor)
sparse_csr_tensor = _compressed(torch.sparse_csr_tensor, "crow_indices", "col_indices")
sparse_csc_tensor = _compressed(torch.sparse_csc_tensor, "ccol_indices", "row_indices")
sparse_bsr_tensor = _compressed(torch.sparse_bsr_tensor, "crow_indices", "col_indices")
sparse_bsc_tensor = _compressed(torch.sparse_bsc_tensor, "ccol_indices", "row_indices")
