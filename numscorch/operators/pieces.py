"""Concatenation and splitting of SparseTensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..convert.construct import from_torch
from ..errors import SizeError
from ..ir.format import COO
from ..tensors.sparse_tensor import SparseTensor
from .indexing import narrow, select
from .moves import MOVES
from .naming import with_name
from .rearranging import cat, join_entries, normalize_dim
from .stacking import common_format


def _concatenation(name: str, form: Callable[[Any], Any], dim: int) -> Callable[..., Any]:
    """An operator that brings each tensor in a form, and concatenates along a dimension, or the last one if there are fewer."""

    def concatenation(tensors: Sequence[Any]) -> Any:
        parts = [form(t) for t in tensors]
        return cat(parts, min(dim, parts[0].ndim - 1))

    return with_name(concatenation, name, f"torch's {name} of tensors, one of which is sparse.")


def block_diag(*tensors: Any) -> SparseTensor:
    """A matrix with the tensors along its diagonal, in the format of the first sparse one; vectors and numbers are rows.

    Raises:
        SizeError: a tensor has more than two dimensions.

    >>> import numscorch as ns
    >>> block_diag(ns.from_torch(torch.ones(1, 2)), torch.full((1, 1), 5.0)).to_dense()
    tensor([[1., 1., 0.],
            [0., 0., 5.]])
    """
    matrices = [_matrix(tensor) for tensor in tensors]
    sizes = np.array([matrix.shape for matrix in matrices])
    shape = tuple(map(sum, zip(*sizes.tolist(), strict=True)))
    first = next(tensor for tensor in tensors if isinstance(tensor, SparseTensor))
    return join_entries(matrices, sizes.cumsum(0) - sizes, shape, common_format(first.format) if first.ndim == 2 else COO(2))


def _matrix(tensor: Any) -> SparseTensor:
    """Convert a tensor of at most two dimensions to a sparse matrix."""
    if tensor.ndim > 2:
        raise SizeError(f"block_diag of a {tensor.ndim}-dimensional tensor: it takes matrices, vectors and numbers")
    if tensor.ndim < 2:
        tensor = tensor.reshape(1, -1)
    return tensor if isinstance(tensor, SparseTensor) else from_torch(tensor, copy=False)


def _split(name: str, input: SparseTensor, sections: Any, dim: int) -> tuple[Any, ...]:
    """Split a dimension where torch would; torch splits a vector without memory.

    Raises:
        SizeError: torch refuses the sizes or the number of parts.
    """
    at = normalize_dim(dim, input.ndim)
    try:
        parts = getattr(torch, name)(torch.empty(input.shape[at], device="meta"), sections)
    except RuntimeError as error:
        raise SizeError(f"{name} along dim {dim}, of size {input.shape[at]}: {error}") from error
    return tuple(narrow(input, at, part.storage_offset(), len(part)) for part in parts)


def split(tensor: SparseTensor, split_size_or_sections: Any = None, dim: int = 0, *, split_size: Any = None) -> tuple[Any, ...]:
    """Split a dimension into parts of one size, with a smaller last part, or into the listed sizes.

    Raises:
        SizeError: the sizes do not sum to the dimension's size, or a size is not positive.

    >>> import numscorch as ns
    >>> [part.shape[0] for part in split(ns.from_torch(torch.eye(5)), 2)]
    [2, 2, 1]
    """
    return _split("split", tensor, split_size if split_size_or_sections is None else split_size_or_sections, dim)


def tensor_split(input: SparseTensor, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None, sections: Any = None) -> Any:
    """Split a dimension into parts whose sizes differ by at most 1, or at the given indices."""
    given = next(bound for bound in (indices_or_sections, indices, sections) if bound is not None)
    return _split("tensor_split", input, given.tolist() if isinstance(given, torch.Tensor) else given, dim)


def unbind(input: SparseTensor, dim: int = 0) -> tuple[Any, ...]:
    """The slices along a dimension; the dimension is removed."""
    at = normalize_dim(dim, input.ndim)
    return tuple(select(input, at, number) for number in range(input.shape[at]))


PIECES: dict[str, Callable[..., Any]] = {
    "block_diag": block_diag,
    "chunk": lambda input, chunks, dim=0: _split("chunk", input, chunks, dim),
    "column_stack": _concatenation("column_stack", lambda t: t.reshape(t.numel(), 1) if t.ndim < 2 else t, 1),
    "concatenate": cat,
    "dstack": _concatenation("dstack", MOVES["atleast_3d"], 2),
    "hsplit": lambda input, indices_or_sections: _split("hsplit", input, indices_or_sections, 1 if input.ndim > 1 else 0),
    "hstack": _concatenation("hstack", MOVES["atleast_1d"], 1),
    "row_stack": _concatenation("vstack", MOVES["atleast_2d"], 0),
    "split": split,
    "split_with_sizes": split,
    "tensor_split": tensor_split,
    "unbind": unbind,
    "vsplit": lambda input, indices_or_sections: _split("hsplit", input, indices_or_sections, 0),  # torch.vsplit refuses vectors
    "vstack": _concatenation("vstack", MOVES["atleast_2d"], 0),
}
