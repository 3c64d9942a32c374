"""rearrange: permute, join, split and repeat dimensions by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from math import prod
from typing import Any

import torch

from ..errors import SizeError
from ..frontend.parser import Names, _place_of, parse_rearrangement, pointed
from ..tensors.arrays import as_shape


def rearrange(tensor: Any, pattern: str, /, **sizes: int) -> Any:
    """Permute, join or split a tensor's dimensions, or repeat the tensor along new ones.

    ``"bd->bnd"`` names dimensions by letters, as einsum does; ``"batch (h w) -> batch h w"`` names them by words with spaces
    between, as einops does. Parentheses join names to one dimension, ``1`` is a dimension of size 1, and ``...`` stands for
    unnamed dimensions. The tensor is repeated along names that occur only on the right.

    Args:
        tensor: a strided tensor, a SparseTensor, or a sparse torch tensor.
        pattern: the names of the dimensions before and after.
        sizes: sizes of new names, and of joined names whose sizes the tensor's shape leaves open.

    Returns:
        A strided tensor, a view if the strides allow it, or a sparse tensor in a suitable format; repeated entries are stored
        individually. O(result) for sparse tensors. Gradients flow to the tensor.

    Raises:
        ExpressionError: the pattern is invalid, does not match the tensor's dimensions, or leaves a size open.
        SizeError: sizes disagree.

    >>> rearrange(torch.tensor([[1, 2, 3]]), "bd->bnd", n=2)
    tensor([[[1, 2, 3],
             [1, 2, 3]]])
    >>> import numscorch as ns
    >>> rearrange(ns.from_torch(torch.eye(4)), "(block row) column -> block row column", block=2)
    SparseTensor(COO(3), shape=(2, 2, 4), nnz=4, density=0.25, float32, int32 indices)
    """
    if torch.compiler.is_compiling():
        from ..programs.torch_compile import dimensions_of  # imported late: it imports torch's compiler

        before, after = dimensions_of(pattern, tensor.ndim, tuple(sizes))
    else:
        before, after = parse_rearrangement(pattern, tensor.ndim, tuple(sizes))
    known = _sizes_of_names(pattern, before, tuple(tensor.shape), sizes)
    first, last = tuple(chain(*before)), tuple(chain(*after))
    result = tensor.reshape([known[name] for name in first])
    result = result.permute([first.index(name) for name in last if name in first])
    if len(last) > len(first):
        full = [known[name] for name in last]
        result = result.reshape([size if name in first else 1 for name, size in zip(last, full, strict=True)]).expand(full)
    return result.reshape([prod([known[name] for name in group]) for group in after])


def _sizes_of_names(text: str, before: Iterable[Names], shape: tuple[int, ...], sizes: Mapping[str, int]) -> dict[str, int]:
    """The size of each name: given, or derived from its dimension."""
    known = dict(zip(sizes, as_shape(tuple(sizes.values())), strict=True))
    for at, (group, size) in enumerate(zip(before, shape, strict=True)):
        unknown, known_product = [name for name in group if name not in known], prod([known[name] for name in group if name in known])
        if len(unknown) == 1 and known_product and size % known_product == 0:
            known[unknown[0]] = size // known_product
        if len(unknown) > 1:
            raise pointed(
                text,
                _place_of(text, unknown[1]),
                f"the parts of dimension {at}, size {size}, are ambiguous: give {unknown[0]}= or {unknown[1]}=",
            )
        if any(name not in known for name in group) or prod([known[name] for name in group]) != size:
            known_sizes = ", ".join(f"{name}={known[name]}" for name in group if name in known) or "1"
            raise SizeError(f"dimension {at} has size {size}, which does not fit {known_sizes}\n  {text}")
    return known
