"""Patterns made of others: unions, intersections, lower triangles, and tensors of any layout as patterns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..compute.native import wrap
from ..convert.construct import from_torch
from ..errors import SizeError, UnsupportedError
from ..ir.format import CSR
from ..machine.memory import check_entries
from ..tensors.parameter import unwrapped
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .rows import NUMBER, WAY_OUT, keys_of, lower, of_keys, ones_at


def union(*patterns: SparseTensor | torch.Tensor) -> SparseTensor:
    """The entries that any of these patterns stores.

    Args:
        patterns: matrices of one shape; torch's tensors too, of which strided ones store their nonzeros.

    Raises:
        SizeError: no patterns, or of several shapes.

    >>> from numscorch.nn.patterns import causal, global_tokens
    >>> union(causal(3), global_tokens(3, 1)).to_dense()
    tensor([[1., 1., 1.],
            [1., 1., 0.],
            [1., 1., 1.]])
    """
    given = _of_one_shape("union", patterns)
    return ones_at(union_of(given))


def intersection(*patterns: SparseTensor | torch.Tensor) -> SparseTensor:
    """The entries that all of these patterns store; as :func:`union`.

    >>> from numscorch.nn.patterns import causal, sliding_window
    >>> intersection(causal(3), sliding_window(3, 1)).to_dense()
    tensor([[1., 0., 0.],
            [1., 1., 0.],
            [0., 1., 1.]])
    """
    given = _of_one_shape("intersection", patterns)
    return ones_at(intersection_of(given))


def as_pattern(given: object) -> SparseTensor:
    """A matrix whose stored entries are the pattern, in CSR; of a strided tensor, its nonzeros.

    Raises:
        SizeError: it is no matrix.
        UnsupportedError: it is no tensor.
    """
    given = unwrapped(given)
    if isinstance(given, torch.Tensor):
        given = from_torch(given != 0) if given.layout is torch.strided else wrap(given)
    if not isinstance(given, SparseTensor):
        raise UnsupportedError(f"a pattern is a SparseTensor or a tensor of torch, not {type(given).__name__}: see ns.nn.patterns")
    if given.ndim != 2:
        raise SizeError(f"pattern has shape {tuple(given.shape)}: a pattern is a matrix (L, S), which every batch and head shares")
    return given if given.format == CSR else given.to(CSR)


def lower_part(pattern: SparseTensor) -> SparseTensor:
    """The entries on and below the diagonal of a CSR matrix; remembered with its pattern."""
    return ones_at(pattern.pattern.remember("lower part", lambda: lower(pattern.pattern)))


def union_of(patterns: tuple[Pattern, ...]) -> Pattern:
    """The entries that any CSR pattern stores."""
    return of_keys(np.unique(_keys(patterns)), patterns[0].shape)


def intersection_of(patterns: tuple[Pattern, ...]) -> Pattern:
    """The entries that all CSR patterns store."""
    keys, counts = np.unique(_keys(patterns), return_counts=True)
    return of_keys(keys[counts == len(patterns)], patterns[0].shape)


def _keys(patterns: tuple[Pattern, ...]) -> np.ndarray:
    """The entries of all CSR patterns as numbers.

    Raises:
        SizeError: they are larger than the memory limit.
    """
    check_entries(sum(pattern.nnz for pattern in patterns), 2, NUMBER, f"{len(patterns)} joined patterns", "ns.nn.patterns", WAY_OUT)
    return np.concatenate([keys_of(pattern) for pattern in patterns])


def _of_one_shape(name: str, patterns: Sequence[SparseTensor | torch.Tensor]) -> tuple[Pattern, ...]:
    """The CSR patterns of matrices.

    Raises:
        SizeError: none are given, or of several shapes.
        UnsupportedError: something else was given.
    """
    shapes = [tuple(getattr(pattern, "shape", ())) for pattern in patterns]
    if len(set(shapes)) != 1 or len(shapes[0]) != 2:
        raise SizeError(f"{name} of patterns with shapes {', '.join(map(str, shapes)) or '()'}: give one or more matrices of one shape")
    return tuple(as_pattern(pattern).pattern for pattern in patterns)
