"""block_diag, rot90 and repeat_interleave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..convert.construct import assemble, from_torch
from ..convert.entries import strided, values_of
from ..errors import SizeError
from ..ir.format import COO
from ..tensors.packing import coordinates
from ..tensors.sparse_tensor import SparseTensor
from .indexing import index_select
from .moves import flip
from .rearranging import check_copies, flatten, place, transpose
from .stacking import common_format


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
    ends = sizes.cumsum(0)
    shape = tuple(map(int, ends[-1]))
    first = next(tensor for tensor in tensors if isinstance(tensor, SparseTensor))
    check_copies(sum(matrix.nnz for matrix in matrices), shape, matrices[0])
    places = [coordinates(matrix.pattern).numpy() + start[:, None] for matrix, start in zip(matrices, ends - sizes, strict=True)]
    values = torch.cat([values_of(matrix) for matrix in matrices])
    return assemble(np.concatenate(places, axis=1), values, shape, common_format(first.format) if first.ndim == 2 else COO(2))


def _matrix(tensor: Any) -> SparseTensor:
    """Convert a tensor of at most two dimensions to a sparse matrix."""
    if tensor.ndim > 2:
        raise SizeError(f"block_diag of a {tensor.ndim}-dimensional tensor: it takes matrices, vectors and numbers")
    if tensor.ndim < 2:
        tensor = tensor.reshape(1, -1)
    return tensor if isinstance(tensor, SparseTensor) else from_torch(tensor)


def rot90(input: SparseTensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    """Rotate the tensor k times by 90 degrees, from the first of two dimensions to the second.

    Raises:
        SizeError: ``dims`` are not two different dimensions.

    >>> import numscorch as ns
    >>> rot90(ns.from_torch(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))).to_dense()
    tensor([[2., 3.],
            [1., 0.]])
    """
    first, second = (place(d, input.ndim) for d in dims) if len(dims) == 2 else (0, 0)
    if first == second:
        raise SizeError(f"rot90 of dims {tuple(dims)}: name two different ones")
    if k % 4 == 0:
        return input.clone()
    if k % 4 == 2:
        return flip(input, first, second)
    return transpose(flip(input, second if k % 4 == 1 else first), first, second)


def repeat_interleave(input: SparseTensor, repeats: Any, dim: int | None = None, *, output_size: int | None = None) -> Any:
    """Repeat each slice of a dimension; without ``dim``, repeat the entries of the flattened tensor.

    Args:
        input: the tensor.
        repeats: the number of repeats, or one number for each slice.
        dim: the dimension.
        output_size: the size of the dimension in the result, if known.

    Raises:
        SizeError: the number of repeats and slices differs, a repeat is negative, or ``output_size`` is wrong.

    >>> import numscorch as ns
    >>> repeat_interleave(ns.from_torch(torch.tensor([[0.0, 2.0]])), 2, 1).to_dense()
    tensor([[0., 0., 2., 2.]])
    """
    repeats = strided(repeats)
    if dim is None:
        return repeat_interleave(flatten(input), repeats, 0)
    size, counts = input.shape[place(dim, input.ndim)], torch.as_tensor(repeats).reshape(-1)
    if len(counts) not in (1, size) or bool((counts < 0).any()):
        raise SizeError(f"repeat_interleave of {size} slices by {counts.tolist()}: give one number, or one for each slice")
    index = torch.repeat_interleave(torch.arange(size), counts.expand(size))
    if output_size not in (None, len(index)):
        raise SizeError(f"repeat_interleave gives {len(index)} slices, but output_size={output_size}: leave it out")
    return index_select(input, dim, index)


TURNS: dict[str, Callable[..., Any]] = {
    "block_diag": block_diag,
    "repeat_interleave": repeat_interleave,
    "rot90": rot90,
}
