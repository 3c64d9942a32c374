"""Which keys each query attends to: patterns of sparse attention, as CSR matrices of ones.

A row is a query, a column a key. Columns are sorted and stored once; every function takes time and memory in proportion to the
entries, but for sorting where patterns are joined, and raises SizeError where they would be larger than the memory limit.
The same arguments share one pattern, so that what is derived from it (its transpose, say) is computed once; ``union`` and
``intersection`` make a new one each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import index

import numpy as np
import torch

from ..errors import RangeError, SizeError
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .joined import intersection, union, union_of
from .rows import check_rows, expand_blocks, of_rows, ones_at, pattern_of_ranges, random_choices, runs

__all__ = ["bigbird", "block", "causal", "global_tokens", "intersection", "longformer", "random_blocks", "sliding_window", "union"]

MAX_PATTERNS = 32  # patterns that each function remembers
BAND = "(i, j) -> (i: dense, j: band"


def sliding_window(n: int, w: int) -> SparseTensor:
    """Each token attends to itself and to ``w`` tokens on each side; a window beyond the sequence is all of it.

    Args:
        n: length of the sequence.
        w: tokens to each side.

    Shape:
        (n, n).

    Raises:
        SizeError: a negative argument, or entries larger than the memory limit.

    Source: Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer", 2020, section 3.1.

    >>> sliding_window(4, 1).to_dense()
    tensor([[1., 1., 0., 0.],
            [1., 1., 1., 0.],
            [0., 1., 1., 1.],
            [0., 0., 1., 1.]])
    """
    return ones_at(_sliding_window(_length("sliding_window", n), _whole("sliding_window", "w", w)))


def causal(n: int) -> SparseTensor:
    """Each token attends to itself and to those before it: (n, n), with n (n + 1) / 2 entries.

    The entries are stored, since attention reads any pattern as CSR: a ``causal`` level stores no coordinates, but n² values.

    Raises:
        SizeError: n is negative, or the entries are larger than the memory limit.

    Source: Vaswani and others, "Attention Is All You Need", 2017, section 3.2.3.

    >>> causal(3).to_dense()
    tensor([[1., 0., 0.],
            [1., 1., 0.],
            [1., 1., 1.]])
    """
    return ones_at(_causal(_length("causal", n)))


def global_tokens(n: int, tokens: int | Iterable[int]) -> SparseTensor:
    """Some tokens attend to all, and all attend to them: rows and columns.

    Args:
        n: length of the sequence.
        tokens: how many, from the first on (of a shorter sequence, all), or their positions, negative ones from the end.

    Shape:
        (n, n).

    Raises:
        RangeError: a position that the sequence hasn't.
        SizeError: a negative count or length.

    Source: Longformer, section 3.1; BigBird (see :func:`bigbird`), section 2.

    >>> global_tokens(4, [1]).to_dense()
    tensor([[0., 1., 0., 0.],
            [1., 1., 1., 1.],
            [0., 1., 0., 0.],
            [0., 1., 0., 0.]])
    """
    return ones_at(_global_tokens(_length("global_tokens", n), _positions(n, tokens)))


def random_blocks(n: int, block: int, count: int, seed: int = 0) -> SparseTensor:
    """Each block of queries attends to ``count`` blocks of keys, different ones at random places (all, where there are fewer).

    Args:
        n: length of the sequence; its last block may be shorter.
        block: tokens in a block.
        count: blocks of keys for each block of queries.
        seed: of the places, which depend on the arguments alone.

    Shape:
        (n, n).

    Raises:
        SizeError: a negative argument, or a block of no tokens.

    Source: BigBird (see :func:`bigbird`), section 2 and appendix D.

    >>> random_blocks(6, 2, 1).nnz
    12
    """
    name = "random_blocks"
    sizes = _length(name, n), _whole(name, "block", block, 1), _whole(name, "count", count)
    return ones_at(_block_rows(*sizes, None, int(seed)))


def bigbird(n: int, block: int = 16, global_: int | Iterable[int] = 2, random: int = 2, window: int = 2, seed: int = 0) -> SparseTensor:
    """BigBird's pattern: global tokens, a sliding window of blocks, and random blocks, by default as in Scorch's evaluation.

    Args:
        n: length of the sequence, any; its last block may be shorter.
        block: tokens in a block.
        global_: tokens, not blocks, that attend to all and that all attend to: a count of first ones, or positions.
        random: blocks of keys at random places outside of the window, for each block of queries (all, where there are fewer).
        window: sliding blocks: those beside a block's own, half of them on each side, an odd one before it. 2 is what BigBird
            calls a window of three blocks.
        seed: of the random places.

    Shape:
        (n, n).

    Raises:
        RangeError, SizeError: as :func:`global_tokens` and :func:`random_blocks`.

    Source: Zaheer and others, "Big Bird: Transformers for Longer Sequences", 2020, section 2; Scorch, appendix E.4: "a block size of
    16, 2 global tokens, 2 random blocks, and 2 sliding blocks".

    >>> bigbird(512)
    SparseTensor(CSR, shape=(512, 512), nnz=42080, density=0.161, float32, int32 indices)
    """
    name = "bigbird"
    sizes = _length(name, n), _whole(name, "block", block, 1), _whole(name, "random", random), _whole(name, "window", window)
    return ones_at(_bigbird(*sizes, _positions(n, global_), int(seed)))


def longformer(n: int, window: int, global_: int | Iterable[int] = 0) -> SparseTensor:
    """Longformer's pattern: a sliding window of ``window`` tokens, half of them on each side, and global tokens.

    Args:
        n: length of the sequence.
        window: as in the paper the tokens on both sides together, so that each one attends to ``window // 2`` on each side.
        global_: a count of first tokens, or positions.

    Shape:
        (n, n).

    Raises:
        RangeError, SizeError: as :func:`sliding_window` and :func:`global_tokens`.

    Source: Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer", 2020, section 3.1.

    >>> longformer(4, 2, global_=1).to_dense()
    tensor([[1., 1., 1., 1.],
            [1., 1., 1., 0.],
            [1., 1., 1., 1.],
            [1., 0., 1., 1.]])
    """
    return ones_at(_longformer(_length("longformer", n), _whole("longformer", "window", window), _positions(n, global_)))


def block(mask: torch.Tensor | np.ndarray | Sequence[Sequence[bool]], size: int) -> SparseTensor:
    """A small mask whose every entry stands for a block of size x size.

    Args:
        mask: of bool, shape (rows, columns); of numbers, those that aren't 0 count.
        size: of a block.

    Shape:
        (rows * size, columns * size).

    Raises:
        SizeError: the mask has no two dimensions, or the size is less than 1.

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
    return ones_at(_blocks(blocks.tobytes(), blocks.shape, _whole("block", "size", size, 1)))


# What follows works on patterns, and is remembered.


@lru_cache(MAX_PATTERNS)
def _sliding_window(n: int, w: int) -> Pattern:
    rows, w = np.arange(n), min(w, n)
    way_out = f"choose a smaller window; as mask= of an einsum, ns.zeros({n}, {n}, format={f'{BAND}({w}, {w}))'!r}) stores no indices"
    return pattern_of_ranges(np.maximum(rows - w, 0), np.minimum(rows + w + 1, n), n, way_out)


@lru_cache(4)  # large ones
def _causal(n: int) -> Pattern:
    way_out = "torch.nn.functional.scaled_dot_product_attention(is_causal=True) stores no pattern"
    return pattern_of_ranges(np.zeros(n, np.int64), np.arange(1, n + 1), n, way_out)


@lru_cache(MAX_PATTERNS)
def _global_tokens(n: int, tokens: tuple[int, ...]) -> Pattern:
    """A row is the list of tokens, or of all columns, which stand one after the other in ``choices``."""
    everywhere = np.zeros(n, np.bool_)
    everywhere[list(tokens)] = True
    choices = np.concatenate([np.array(tokens, np.int64), np.arange(n)])
    starts, counts = np.where(everywhere, len(tokens), 0), np.where(everywhere, n, len(tokens))
    return of_rows(counts, choices[runs(starts, counts)], (n, n))


@lru_cache(MAX_PATTERNS)
def _block_rows(n: int, size: int, count: int, window: int | None, seed: int) -> Pattern:
    """Random blocks, and with a window its blocks, outside of which the random ones then lie."""
    blocks = -(-n // size)
    diagonal = np.arange(blocks)
    before, after = (0, 0) if window is None else (min((window + 1) // 2, blocks), min(window // 2, blocks) + 1)
    low, high = np.maximum(diagonal - before, 0), np.minimum(diagonal + after, blocks)
    random = random_choices(blocks - (high - low), count, np.random.default_rng(seed))
    random = np.where(random >= low[:, None], random + (high - low)[:, None], random)  # past the window
    rows = np.concatenate([np.repeat(diagonal, high - low), np.repeat(diagonal, random.shape[1])])
    columns = np.concatenate([runs(low, high - low), random.ravel()])
    keys = np.sort((rows * blocks + columns)[(columns >= 0) & (columns < blocks)])
    return expand_blocks(keys // max(blocks, 1), keys % max(blocks, 1), (blocks, blocks), size, (n, n))


@lru_cache(MAX_PATTERNS)
def _bigbird(n: int, size: int, random: int, window: int, tokens: tuple[int, ...], seed: int) -> Pattern:
    return union_of((_block_rows(n, size, random, window, seed), _global_tokens(n, tokens)))


@lru_cache(MAX_PATTERNS)
def _longformer(n: int, window: int, tokens: tuple[int, ...]) -> Pattern:
    return union_of((_sliding_window(n, window // 2), _global_tokens(n, tokens)))


@lru_cache(MAX_PATTERNS)
def _blocks(mask: bytes, shape: tuple[int, int], size: int) -> Pattern:
    rows, columns = np.frombuffer(mask, np.bool_).reshape(shape).nonzero()
    return expand_blocks(rows, columns, shape, size, (shape[0] * size, shape[1] * size))


def _whole(function: str, name: str, value: int, least: int = 0) -> int:
    """A whole number that isn't too small.

    Raises:
        SizeError: it is something else.
    """
    try:
        number = index(value)
    except TypeError as error:
        raise SizeError(f"{function}: {name}={value!r} is no whole number") from error
    if number < least:
        raise SizeError(f"{function}: {name}={number} is less than {least}")
    return number


def _length(function: str, n: int) -> int:
    """The length of a sequence.

    Raises:
        SizeError: it is no whole number, or negative, or a pattern of so many rows is larger than the memory limit.
    """
    number = _whole(function, "n", n)
    check_rows(number)
    return number


def _positions(n: int, tokens: int | Iterable[int]) -> tuple[int, ...]:
    """A count of first tokens, or positions, as increasing positions.

    Raises:
        RangeError: a position that the sequence hasn't.
    """
    if not isinstance(tokens, Iterable) or (isinstance(tokens, torch.Tensor) and not tokens.ndim):
        return tuple(range(min(_whole("global tokens", "tokens", tokens), n)))  # type: ignore[arg-type]
    places = [index(token) for token in tokens]
    for place in places:
        if not -n <= place < n:
            raise RangeError(f"global token {place} of a sequence of length {n}: positions go from {-n} to {n - 1}")
    return tuple(sorted({place % n for place in places}))
