"""Patterns of sparse attention, as CSR matrices of ones: rows are queries, columns are the keys they attend to.

Columns are sorted and unique. Time and memory are linear in the number of entries, except that unions and intersections sort.
Patterns that exceed the memory limit raise SizeError.

Calls with equal arguments share one cached pattern, so derived data such as its transpose is computed once. ``union`` and
``intersection`` make a new pattern at each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import index

import numpy as np
import torch

from ..errors import RangeError, SizeError
from ..tensors.graph_breaks import graph_break
from ..tensors.packing import of_rows
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .csr_patterns import (
    check_rows,
    expand_blocks,
    intersection,
    ones_at,
    pattern_of_ranges,
    random_choices,
    runs,
    union,
    union_of,
)

__all__ = ["bigbird", "block", "causal", "global_tokens", "intersection", "longformer", "random_blocks", "sliding_window", "union"]

MAX_PATTERNS = 32  # cache capacity of each function, in patterns
BAND = "(i, j) -> (i: dense, j: band"


@graph_break
def sliding_window(n: int, w: int) -> SparseTensor:
    """Make a sliding window: each token attends to itself and to ``w`` tokens on each side, cut at the ends of the sequence.

    Args:
        n: length of the sequence.
        w: number of tokens on each side.

    Returns:
        A CSR matrix of float32 ones of shape (n, n).

    Raises:
        SizeError: an argument is negative, or the entries exceed the memory limit.

    Source: Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer", 2020, section 3.1.

    >>> sliding_window(4, 1).to_dense()
    tensor([[1., 1., 0., 0.],
            [1., 1., 1., 0.],
            [0., 1., 1., 1.],
            [0., 0., 1., 1.]])
    """
    return ones_at(_sliding_window(_length("sliding_window", n), _checked_int("sliding_window", "w", w)))


@graph_break
def causal(n: int) -> SparseTensor:
    """Make the causal pattern (n, n): each token attends to itself and to earlier tokens, n (n + 1) / 2 entries.

    All entries are stored, because attention reads patterns as CSR. A ``causal`` level stores no coordinates, but n² values.

    Args:
        n: length of the sequence.

    Returns:
        A CSR matrix of float32 ones of shape (n, n).

    Raises:
        SizeError: n is negative, or the entries exceed the memory limit.

    Source: Vaswani and others, "Attention Is All You Need", 2017, section 3.2.3.

    >>> causal(3).to_dense()
    tensor([[1., 0., 0.],
            [1., 1., 0.],
            [1., 1., 1.]])
    """
    return ones_at(_causal(_length("causal", n)))


@graph_break
def global_tokens(n: int, tokens: int | Iterable[int]) -> SparseTensor:
    """Make the pattern of global tokens: they attend to all tokens, and all tokens attend to them.

    Args:
        n: length of the sequence.
        tokens: number of global tokens at the start of the sequence, or their positions; negative positions count from the end.

    Returns:
        A CSR matrix of float32 ones of shape (n, n).

    Raises:
        RangeError: a position is outside the sequence.
        SizeError: the count or the length is negative.

    Source: Longformer, section 3.1; BigBird (see :func:`bigbird`), section 2.

    >>> global_tokens(4, [1]).to_dense()
    tensor([[0., 1., 0., 0.],
            [1., 1., 1., 1.],
            [0., 1., 0., 0.],
            [0., 1., 0., 0.]])
    """
    return ones_at(_global_tokens(_length("global_tokens", n), _positions(n, tokens)))


@graph_break
def random_blocks(n: int, block: int, count: int, seed: int = 0) -> SparseTensor:
    """Make a pattern of random blocks: each block of queries attends to ``count`` distinct random blocks of keys, or to all if fewer.

    Args:
        n: length of the sequence; its last block may be shorter.
        block: number of tokens per block.
        count: number of key blocks per query block.
        seed: random seed; equal arguments give equal patterns.

    Returns:
        A CSR matrix of float32 ones of shape (n, n).

    Raises:
        SizeError: an argument is negative, or ``block`` is 0.

    Source: BigBird (see :func:`bigbird`), section 2 and appendix D.

    >>> random_blocks(6, 2, 1).nnz
    12
    """
    name = "random_blocks"
    sizes = _length(name, n), _checked_int(name, "block", block, 1), _checked_int(name, "count", count)
    return ones_at(_block_rows(*sizes, None, int(seed)))


@graph_break
def bigbird(n: int, block: int = 16, global_: int | Iterable[int] = 2, random: int = 2, window: int = 2, seed: int = 0) -> SparseTensor:
    """Make BigBird's pattern: global tokens, a sliding window of blocks, and random blocks. The defaults are those of Scorch's evaluation.

    Args:
        n: length of the sequence; its last block may be shorter.
        block: number of tokens per block.
        global_: global tokens (not blocks): their number at the start of the sequence, or their positions.
        random: number of random key blocks outside the window per query block, or all if fewer.
        window: number of neighbouring blocks in the window besides the block itself, half on each side; if odd, one more in front. 2
            corresponds to BigBird's window of three blocks.
        seed: random seed of the random blocks.

    Returns:
        A CSR matrix of float32 ones of shape (n, n).

    Raises:
        RangeError, SizeError: as :func:`global_tokens` and :func:`random_blocks`.

    Source: Zaheer and others, "Big Bird: Transformers for Longer Sequences", 2020, section 2; Scorch, appendix E.4: "a block size of
    16, 2 global tokens, 2 random blocks, and 2 sliding blocks".

    >>> bigbird(512)
    SparseTensor(CSR, shape=(512, 512), nnz=42080, density=0.161, float32, int32 indices)
    """
    name = "bigbird"
    counts = _checked_int(name, "random", random), _checked_int(name, "window", window)
    length, size = _length(name, n), _checked_int(name, "block", block, 1)
    return ones_at(_union((_block_rows(length, size, *counts, int(seed)), _global_tokens(length, _positions(length, global_)))))


@graph_break
def longformer(n: int, window: int, global_: int | Iterable[int] = 0) -> SparseTensor:
    """Make Longformer's pattern: a sliding window of ``window`` tokens, half of them on each side, and global tokens.

    Args:
        n: length of the sequence.
        window: number of tokens on both sides together, as in the paper: each token attends to ``window // 2`` on each side.
        global_: number of global tokens at the start of the sequence, or their positions.

    Returns:
        A CSR matrix of float32 ones of shape (n, n).

    Raises:
        RangeError, SizeError: as :func:`sliding_window` and :func:`global_tokens`.

    Source: Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer", 2020, section 3.1.

    >>> longformer(4, 2, global_=1).to_dense()
    tensor([[1., 1., 1., 1.],
            [1., 1., 1., 0.],
            [1., 1., 1., 1.],
            [1., 0., 1., 1.]])
    """
    length, width = _length("longformer", n), _checked_int("longformer", "window", window) // 2
    return ones_at(_union((_sliding_window(length, width), _global_tokens(length, _positions(length, global_)))))


@graph_break
def block(mask: torch.Tensor | np.ndarray | Sequence[Sequence[bool]], size: int) -> SparseTensor:
    """Expand a mask of blocks: each nonzero entry becomes a full block of size x size.

    Args:
        mask: booleans or numbers of shape (rows, columns).
        size: number of rows and columns per block.

    Returns:
        A CSR matrix of float32 ones of shape (rows * size, columns * size).

    Raises:
        SizeError: the mask does not have two dimensions, or the size is less than 1.

    Source: Child and others, "Generating Long Sequences with Sparse Transformers", 2019, section 5.

    >>> block([[True, False], [True, True]], 2).to_dense()
    tensor([[1., 1., 0., 0.],
            [1., 1., 0., 0.],
            [1., 1., 1., 1.],
            [1., 1., 1., 1.]])
    """
    blocks = np.asarray(mask, dtype=np.bool_)
    if blocks.ndim != 2:
        raise SizeError(f"block of a mask with shape {blocks.shape}: a mask of blocks has two dimensions, (rows, columns)")
    return ones_at(_blocks(blocks.tobytes(), blocks.shape, _checked_int("block", "size", size, 1)))


# ---- cached constructors of patterns


_union = lru_cache(2 * MAX_PATTERNS)(union_of)  # unions of BigBird's and Longformer's parts, which are cached, too


@lru_cache(MAX_PATTERNS)
def _sliding_window(n: int, w: int) -> Pattern:
    rows, w = np.arange(n), min(w, n)
    suggestion = f"choose a smaller window; as mask= of an einsum, ns.zeros({n}, {n}, format={f'{BAND}({w}, {w}))'!r}) stores no indices"
    return pattern_of_ranges(np.maximum(rows - w, 0), np.minimum(rows + w + 1, n), n, suggestion)


@lru_cache(4)  # smaller capacity: these patterns are large
def _causal(n: int) -> Pattern:
    suggestion = "torch.nn.functional.scaled_dot_product_attention(is_causal=True) stores no pattern"
    return pattern_of_ranges(np.zeros(n, np.int64), np.arange(1, n + 1), n, suggestion)


@lru_cache(MAX_PATTERNS)
def _global_tokens(n: int, tokens: tuple[int, ...]) -> Pattern:
    """Make the pattern of global tokens: their rows store all columns, other rows the global tokens; ``choices`` has both lists."""
    is_global = np.zeros(n, np.bool_)
    is_global[list(tokens)] = True
    choices = np.concatenate([np.array(tokens, np.int64), np.arange(n)])
    starts, counts = np.where(is_global, len(tokens), 0), np.where(is_global, n, len(tokens))
    return of_rows(counts, choices[runs(starts, counts)], (n, n))


@lru_cache(MAX_PATTERNS)
def _block_rows(n: int, size: int, count: int, window: int | None, seed: int) -> Pattern:
    """Make random blocks; with a window, also make the window's blocks, and place the random blocks outside of it."""
    blocks = -(-n // size)
    diagonal = np.arange(blocks)
    before, after = (0, 0) if window is None else (min((window + 1) // 2, blocks), min(window // 2, blocks) + 1)
    low, high = np.maximum(diagonal - before, 0), np.minimum(diagonal + after, blocks)
    random = random_choices(blocks - (high - low), count, np.random.default_rng(seed))
    random = np.where(random >= low[:, None], random + (high - low)[:, None], random)  # skip the window
    rows = np.concatenate([np.repeat(diagonal, high - low), np.repeat(diagonal, random.shape[1])])
    columns = np.concatenate([runs(low, high - low), random.ravel()])
    keys = np.sort((rows * blocks + columns)[(columns >= 0) & (columns < blocks)])
    return expand_blocks(keys // max(blocks, 1), keys % max(blocks, 1), (blocks, blocks), size, (n, n))


@lru_cache(MAX_PATTERNS)
def _blocks(mask: bytes, shape: tuple[int, int], size: int) -> Pattern:
    rows, columns = np.frombuffer(mask, np.bool_).reshape(shape).nonzero()
    return expand_blocks(rows, columns, shape, size, (shape[0] * size, shape[1] * size))


def _checked_int(function: str, name: str, value: int, minimum: int = 0) -> int:
    """Check that an argument is an integer of at least ``minimum``, and return it as an int.

    Raises:
        SizeError: the argument is not an integer, or is smaller.
    """
    try:
        number = index(value)
    except TypeError as error:
        raise SizeError(f"{function}: {name}={value!r} is not an integer") from error
    if number < minimum:
        raise SizeError(f"{function}: {name}={number} is less than {minimum}")
    return number


def _length(function: str, n: int) -> int:
    """Check the length of a sequence.

    Raises:
        SizeError: the length is negative or not an integer, or a pattern with n rows exceeds the memory limit.
    """
    number = _checked_int(function, "n", n)
    check_rows(number)
    return number


def _positions(n: int, tokens: int | Iterable[int]) -> tuple[int, ...]:
    """Return increasing positions of tokens, given as the number of leading tokens or as positions.

    Raises:
        RangeError: a position is outside the sequence.
    """
    if not isinstance(tokens, Iterable) or (isinstance(tokens, torch.Tensor) and not tokens.ndim):
        return tuple(range(min(_checked_int("global tokens", "tokens", tokens), n)))  # type: ignore[arg-type]
    positions = [index(token) for token in tokens]
    if outside := [position for position in positions if not -n <= position < n]:
        raise RangeError(f"global token {outside[0]} of a sequence of length {n}: positions go from {-n} to {n - 1}")
    return tuple(sorted({position % n for position in positions}))
