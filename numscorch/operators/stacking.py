"""Stacking: tensors of one format and shape as one tensor, whose patterns may differ from matrix to matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..convert.construct import assemble, from_torch
from ..errors import RangeError, SizeError, UnsupportedError
from ..ir.format import COO, Format
from ..ir.implicit import Band, Causal, Identity, Offset, Range
from ..ir.level import Level
from ..ir.levels import Compressed, Dense, Singleton
from ..ir.padded import Bitmap, Fixed
from ..ir.parts import Part
from ..tensors.packing import coordinates, index_dtype_for, of_entries
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.torch_layouts import COMPRESSED
from .rearranging import check_copies

# their arrays lie one after the other below a dense level, but for pos, which counts on
JOINED = (Dense, Compressed, Singleton, Fixed, Bitmap, Band, Causal, Identity, Offset, Range)


ANY_ENTRIES = (Dense, Compressed, Singleton)


def stack(tensors: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    """Tensors of one shape side by side, along a new dimension; torch.stack where all are strided or COO tensors.

    The result's format has a dense level for the new dimension in front of the tensors' levels, so that each
    keeps a pattern and a number of values of its own.  Of torch's CSR, CSC, BSR and BSC tensors alone, which torch
    doesn't stack, it is a COO tensor.  Different data types are promoted, as by torch.stack.  Gradients flow to the
    values.  Tensors in different formats are converted to the first one's first.  O(stored values).

    Args:
        tensors: SparseTensors, or torch's sparse tensors beside them; rows of ELL may differ in width.
        dim: where the new dimension is.
        out: for torch.stack only.

    Raises:
        SizeError: they have different shapes, or there is no such dimension.
        UnsupportedError: one of them is dense, or out was given.

    >>> import numscorch as ns
    >>> graphs = [ns.from_torch(torch.eye(3)), ns.from_torch(torch.ones(3, 3))]
    >>> ns.stack(graphs)
    SparseTensor(dds, shape=(2, 3, 3), nnz=12, density=0.667, float32, int32 indices)
    >>> ns.einsum("bij,bj->bi", ns.stack(graphs), torch.ones(2, 3))
    tensor([[1., 1., 1.],
            [3., 3., 3.]])
    """
    tensors = list(tensors)
    ours = any(isinstance(tensor, SparseTensor) for tensor in tensors)
    if not ours and not any(isinstance(tensor, torch.Tensor) and tensor.layout in COMPRESSED for tensor in tensors):
        return torch.stack(tensors, dim) if out is None else torch.stack(tensors, dim, out=out)
    if out is not None:
        raise UnsupportedError("out can't hold stacked sparse tensors, whose pattern is made from theirs: use what is returned")
    given = [_sparse(tensor, at) for at, tensor in enumerate(tensors)]
    _check_shapes(given)
    order = given[0].ndim + 1
    if not -order <= dim < order:
        raise RangeError(f"dim={dim} of a stack of {order - 1}-dimensional tensors: it is one of {-order} to {order - 1}")
    stacked = _stacked(_of_one_format(given), dim % order)
    return stacked if ours else stacked.to(COO(order)).to_torch()


def _sparse(tensor: Any, at: int) -> SparseTensor:
    if isinstance(tensor, SparseTensor):
        return tensor
    if not isinstance(tensor, torch.Tensor) or tensor.layout is torch.strided:
        kind = "a dense tensor" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise UnsupportedError(f"tensor {at} of the stack is {kind} beside sparse ones: make it one with ns.from_torch(tensor, format)")
    return from_torch(tensor)


def _check_shapes(tensors: Sequence[SparseTensor]) -> None:
    for at, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape:
            raise SizeError(
                f"tensor {at} of the stack has shape {tuple(tensor.shape)}, but tensor 0 has {tuple(tensors[0].shape)}: stack equal ones"
            )


def _of_one_format(tensors: Sequence[SparseTensor]) -> Sequence[SparseTensor]:
    """The tensors in one format: the first one's where it can hold any entries, else COO; levels of fixed width as wide as the widest."""
    formats = [tensor.format for tensor in tensors]
    if any(_of_any_width(format) != _of_any_width(formats[0]) for format in formats):
        return [tensor.to(common_format(formats[0])) for tensor in tensors]
    levels = zip(*(format.levels for format in formats), strict=True)
    widest = Format([max(alike, key=_width) for alike in levels], formats[0].parts)
    return [tensor.to(widest) for tensor in tensors]


def common_format(format: Format) -> Format:
    """The format, or COO where its levels can't hold any entries there may be."""
    return format if all(isinstance(level, ANY_ENTRIES) for level in format.levels) else COO(format.order)


def _of_any_width(format: Format) -> Format:
    return Format([replace(level, width=None) if isinstance(level, Fixed) else level for level in format.levels], format.parts)


def _width(level: Level) -> int:
    return (level.width or 0) if isinstance(level, Fixed) else 0


def _stacked(tensors: Sequence[SparseTensor], dim: int) -> SparseTensor:
    inner = tensors[0].format
    places = [d + (d >= dim) for d in range(inner.order)]
    format = Format([Dense(), *inner.levels], [Part(dim), *(part.moved(places) for part in inner.parts)])
    shape = (*tensors[0].shape[:dim], len(tensors), *tensors[0].shape[dim:])
    check_copies(sum(tensor.nnz for tensor in tensors), shape, tensors[0])
    if not all(isinstance(level, JOINED) for level in inner.levels):
        return _through_coordinates(tensors, dim, format, shape)
    patterns = [tensor.pattern for tensor in tensors]
    count = sum(pattern.nnz for pattern in patterns)
    wide = any(pattern.index_dtype == "int64" for pattern in patterns)
    dtype = torch.int64 if wide or index_dtype_for(format.sizes(shape), count) == np.int64 else torch.int32
    arrays = (_joined_arrays(patterns, at, dtype) for at in range(len(inner.levels)))
    return SparseTensor(Pattern(format, shape, ((), *arrays)), torch.cat([tensor.values for tensor in tensors]))


def _joined_arrays(patterns: Sequence[Pattern], at: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """The arrays of one level of all the tensors, one after the other."""
    level = patterns[0].format.levels[at]
    joined = []
    for number, name in enumerate(level.arrays):
        stored_as = level.array_dtype(name)
        arrays = [pattern.arrays[at][number].to(getattr(torch, stored_as) if stored_as else dtype) for pattern in patterns]
        joined.append(_counted_on(arrays, [pattern.counts[at] for pattern in patterns]) if name == "pos" else torch.cat(arrays))
    return tuple(joined)


def _counted_on(starts: Sequence[torch.Tensor], counts: Sequence[int]) -> torch.Tensor:
    """Each tensor's starts, counted from where the tensor before ends."""
    before = np.cumsum([0, *counts]).tolist()
    return torch.cat([*(pos[:-1] + first for pos, first in zip(starts, before[:-1], strict=True)), starts[0].new_tensor([before[-1]])])


def _through_coordinates(tensors: Sequence[SparseTensor], dim: int, format: Format, shape: tuple[int, ...]) -> SparseTensor:
    """For levels of others, whose arrays nobody here knows how to join."""
    tables, values = [], []
    for at, tensor in enumerate(tensors):
        tables.append(np.insert(coordinates(tensor.pattern).numpy(), dim, at, axis=0))
        values.append(of_entries(tensor.pattern, tensor.values))
    return assemble(np.concatenate(tables, axis=1), torch.cat(values), shape, format)
