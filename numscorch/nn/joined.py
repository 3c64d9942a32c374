"""Operations on attention patterns: union, intersection, lower triangle, and conversion of tensors to patterns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..convert.construct import from_torch
from ..errors import SizeError, UnsupportedError
from ..ir.format import CSR
from ..machine.memory import check_entries
from ..programs.native import wrap
from ..tensors.parameter import unwrapped
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .rows import NUMBER, WAY_OUT, keys_of, lower, of_keys, ones_at


def union(*patterns: SparseTensor | torch.Tensor) -> SparseTensor:
    """Return the union of patterns: the entries that any of them stores.

    Args:
        patterns: matrices of one shape, SparseTensors or torch tensors; the pattern of a strided tensor is its nonzeros.

    Raises:
        SizeError: no patterns are given, or their shapes differ.

    >>> from numscorch.nn.patterns import causal, global_tokens
    >>> union(causal(3), global_tokens(3, 1)).to_dense()
    tensor([[1., 1., 1.],
            [1., 1., 0.],
            [1., 1., 1.]])
    """
    return ones_at(union_of(_checked_patterns("union", patterns)))


def intersection(*patterns: SparseTensor | torch.Tensor) -> SparseTensor:
    """Return the intersection of patterns: the entries that all of them store. See :func:`union`.

    >>> from numscorch.nn.patterns import causal, sliding_window
    >>> intersection(causal(3), sliding_window(3, 1)).to_dense()
    tensor([[1., 0., 0.],
            [1., 1., 0.],
            [0., 1., 1.]])
    """
    return ones_at(intersection_of(_checked_patterns("intersection", patterns)))


def as_pattern(pattern: object) -> SparseTensor:
    """Convert a pattern to CSR; the pattern of a strided tensor is its nonzeros.

    Raises:
        SizeError: the pattern is not a matrix.
        UnsupportedError: the pattern is not a tensor.
    """
    pattern = unwrapped(pattern)
    if isinstance(pattern, torch.Tensor):
        pattern = from_torch(pattern != 0, copy=False) if pattern.layout is torch.strided else wrap(pattern)
    if not isinstance(pattern, SparseTensor):
        raise UnsupportedError(f"a pattern is a SparseTensor or a tensor of torch, not {type(pattern).__name__}: see ns.nn.patterns")
    if pattern.ndim != 2:
        raise SizeError(f"pattern has shape {tuple(pattern.shape)}: give one matrix (L, S) for all batches and heads")
    return pattern if pattern.format == CSR else pattern.to(CSR)


def lower_part(pattern: SparseTensor) -> SparseTensor:
    """Return the entries on and below the diagonal of a CSR matrix; cached with its pattern."""
    return ones_at(pattern.pattern.remember("lower part", lambda: lower(pattern.pattern)))


def union_of(patterns: tuple[Pattern, ...]) -> Pattern:
    """Return the union of CSR patterns."""
    return of_keys(np.unique(_keys(patterns)), patterns[0].shape)


def intersection_of(patterns: tuple[Pattern, ...]) -> Pattern:
    """Return the intersection of CSR patterns."""
    keys, counts = np.unique(_keys(patterns), return_counts=True)
    return of_keys(keys[counts == len(patterns)], patterns[0].shape)


def _keys(patterns: tuple[Pattern, ...]) -> np.ndarray:
    """Return the concatenated entry keys of all CSR patterns (:func:`keys_of`).

    Raises:
        SizeError: the keys exceed the memory limit.
    """
    check_entries(sum(pattern.nnz for pattern in patterns), 2, NUMBER, f"{len(patterns)} joined patterns", "ns.nn.patterns", WAY_OUT)
    return np.concatenate([keys_of(pattern) for pattern in patterns])


def _checked_patterns(name: str, patterns: Sequence[SparseTensor | torch.Tensor]) -> tuple[Pattern, ...]:
    """Convert matrices to CSR patterns.

    Raises:
        SizeError: no patterns are given, or their shapes differ.
        UnsupportedError: a pattern is not a tensor.
    """
    shapes = [tuple(getattr(pattern, "shape", ())) for pattern in patterns]
    if len(set(shapes)) != 1 or len(shapes[0]) != 2:
        raise SizeError(f"{name} of patterns with shapes {', '.join(map(str, shapes)) or '()'}: give one or more matrices of one shape")
    return tuple(as_pattern(pattern).pattern for pattern in patterns)
