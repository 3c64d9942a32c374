"""CSR patterns: constructors from ranges of columns, blocks and sorted keys; union, intersection and conversion of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..convert.construct import from_torch
from ..errors import SizeError, UnsupportedError
from ..ir.format import CSR
from ..ir.level import ranges
from ..machine.memory import check_bytes, check_entries
from ..operators.other import triangle
from ..programs.torch_sparse import wrap
from ..tensors.coordinate_order import are_new
from ..tensors.packing import of_rows
from ..tensors.parameter import unwrapped
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor

NUMBER = 8  # bytes per column index (int64) while rows are built
WAY_OUT = "choose fewer keys for each query, or a shorter sequence"


def check_rows(rows: int) -> None:
    """Check that the row starts of a pattern fit in the memory limit.

    Raises:
        SizeError: they exceed the limit.
    """
    check_bytes(rows * 4 * NUMBER, f"the pattern with {rows} rows", "ns.nn.patterns", WAY_OUT)


def random_choices(among: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """In row i, sample ``count`` distinct numbers below ``among[i]``, all subsets equally likely; -1 pads rows where fewer exist.

    R. W. Floyd's algorithm ("Programming Pearls: A Sample of Brilliance", CACM 1987), vectorized over rows.

    >>> np.sort(random_choices(np.array([3, 2]), 4, np.random.default_rng(0))).tolist()
    [[0, 1, 2], [-1, 0, 1]]
    """
    count = min(count, int(among.max(initial=0)))
    check_entries(len(among) * count, 0, NUMBER, f"the choice for {len(among)} rows", "ns.nn.patterns", WAY_OUT)
    chosen = np.full((len(among), count), -1)
    for step in range(count):
        last = among - count + step
        number = generator.integers(0, np.maximum(last, 0) + 1)
        is_chosen = (chosen[:, :step] == number[:, None]).any(1)
        chosen[:, step] = np.where(last < 0, -1, np.where(is_chosen, last, number))
    return chosen


def runs(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Concatenate ranges of consecutive numbers.

    Raises:
        SizeError: they exceed the memory limit.

    >>> runs(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    _check_columns(int(counts.sum()), len(counts))
    return ranges(starts, counts)


def _check_columns(count: int, rows: int, suggestion: str = WAY_OUT) -> None:
    check_entries(count, 1, NUMBER, f"the pattern with {rows} rows", "ns.nn.patterns", suggestion)


def pattern_of_ranges(low: np.ndarray, high: np.ndarray, n: int, suggestion: str) -> Pattern:
    """Make the CSR pattern (n, n) whose row i stores the columns from ``low[i]`` to ``high[i]``, exclusive.

    Raises:
        SizeError: the columns exceed the memory limit; the error ends with ``suggestion``.
    """
    _check_columns(int((high - low).sum()), n, suggestion)
    return of_rows(high - low, runs(low, high - low), (n, n))


def expand_blocks(rows: np.ndarray, columns: np.ndarray, blocks: tuple[int, int], size: int, shape: tuple[int, int]) -> Pattern:
    """Expand sorted blocks to squares of entries; blocks at the end are cut to the shape.

    Raises:
        SizeError: the entries exceed the memory limit.
    """
    check_rows(shape[0])
    counts = np.bincount(rows, minlength=blocks[0])
    starts, lengths = ((np.cumsum(counts) - counts) * size).repeat(size)[: shape[0]], (counts * size).repeat(size)[: shape[0]]
    _check_columns(int(lengths.sum()), shape[0])
    inner = (columns[:, None] * size + np.arange(size)).ravel()  # columns of one row per block row
    numbers = inner[runs(starts, lengths)]
    inside = numbers < shape[1]
    if inside.all():
        return of_rows(lengths, numbers, shape)
    return of_keys((np.arange(shape[0]).repeat(lengths) * shape[1] + numbers)[inside], shape)


def keys_of(pattern: Pattern) -> np.ndarray:
    """Return the key row * columns + column of each entry of a CSR matrix, in increasing order."""
    pos, crd = pattern.level_arrays(1)
    return np.arange(pattern.shape[0]).repeat(np.diff(pos)) * pattern.shape[1] + crd


def of_keys(keys: np.ndarray, shape: tuple[int, ...]) -> Pattern:
    """Make the CSR pattern of increasing keys (:func:`keys_of`)."""
    rows, columns = np.divmod(keys, max(shape[1], 1))
    return of_rows(np.bincount(rows, minlength=shape[0]), columns, shape)


def ones_at(pattern: Pattern, dtype: torch.dtype | None = None) -> SparseTensor:
    """Make a tensor of ones; it shares the pattern, but not its values."""
    return SparseTensor.trusted(pattern, torch.ones(pattern.nnz, dtype=dtype, device="cpu"))


def union(*patterns: SparseTensor | torch.Tensor) -> SparseTensor:
    """Return the union of patterns: the entries that any of them stores.

    Args:
        patterns: matrices of one shape, SparseTensors or torch tensors; the pattern of a strided tensor is its nonzeros.

    Returns:
        A CSR matrix of float32 ones of their shape.

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
    """Return the intersection of patterns: the entries that all of them store.

    Args:
        patterns: as for :func:`union`.

    Returns:
        A CSR matrix of float32 ones of their shape.

    Raises:
        SizeError: no patterns are given, or their shapes differ.

    >>> from numscorch.nn.patterns import causal, sliding_window
    >>> intersection(causal(3), sliding_window(3, 1)).to_dense()
    tensor([[1., 0., 0.],
            [1., 1., 0.],
            [0., 1., 1.]])
    """
    checked = _checked_patterns("intersection", patterns)
    keys, others = np.sort(_keys(checked)), len(checked) - 1
    is_common = keys[: max(len(keys) - others, 0)] == keys[others:]  # a pattern stores an entry once
    return ones_at(of_keys(keys[: len(is_common)][is_common], checked[0].shape))


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
    return ones_at(pattern.pattern.remember("lower part", lambda: triangle(ones_at(pattern.pattern), 0, lower=True).pattern))


def union_of(patterns: tuple[Pattern, ...]) -> Pattern:
    keys = np.sort(_keys(patterns))
    return of_keys(keys[are_new(keys)], patterns[0].shape)


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
