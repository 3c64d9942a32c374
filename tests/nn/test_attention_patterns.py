"""Patterns of attention against their definitions, entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.nn import patterns
from numscorch.tensors.validate import validate

pytestmark = pytest.mark.usefixtures("interpreted")

LENGTHS = [0, 1, 2, 7, 16, 33]


def dense(n: int, m: int, attends: Callable[[int, int], bool]) -> torch.Tensor:
    return torch.tensor([[float(attends(i, j)) for j in range(m)] for i in range(n)]).reshape(n, m)


def check(pattern: ns.SparseTensor, expected: torch.Tensor) -> None:
    """Checks for a valid, sorted CSR tensor of float32 ones with exactly the expected entries."""
    validate(pattern.pattern)
    assert pattern.format == ns.CSR
    assert pattern.dtype == torch.float32
    assert pattern.nnz == int(expected.sum())
    assert torch.equal(pattern.to_dense(), expected)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("w", [0, 1, 3, 7, 10**30])
def test_sliding_window(n: int, w: int) -> None:
    check(patterns.sliding_window(n, w), dense(n, n, lambda i, j: abs(i - j) <= w))


@pytest.mark.parametrize("n", LENGTHS)
def test_causal(n: int) -> None:
    check(patterns.causal(n), torch.ones(n, n).tril())


@pytest.mark.parametrize("n", LENGTHS)
def test_global_tokens(n: int) -> None:
    check(patterns.global_tokens(n, 3), dense(n, n, lambda i, j: i < 3 or j < 3))
    check(patterns.global_tokens(n, []), torch.zeros(n, n))
    if n > 5:
        check(patterns.global_tokens(n, [5, -1, 5]), dense(n, n, lambda i, j: bool({5, n - 1} & {i, j})))
        check(patterns.global_tokens(n, torch.tensor([5])), patterns.global_tokens(n, [5]).to_dense())


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_random_blocks_are_whole_distinct_and_as_many_as_requested(n: int, count: int) -> None:
    pattern, blocks = patterns.random_blocks(n, 4, count, seed=3), -(-n // 4)
    validate(pattern.pattern)
    whole = torch.zeros(blocks * 4, blocks * 4)
    whole[:n, :n] = pattern.to_dense()
    chosen = whole.reshape(blocks, 4, blocks, 4).amax((1, 3)) if n else torch.zeros(0, 0)
    check(pattern, chosen.repeat_interleave(4, 0).repeat_interleave(4, 1)[:n, :n])
    assert chosen.sum(1).tolist() == [min(count, blocks)] * blocks


def test_random_blocks_depend_on_the_seed() -> None:
    first, second = patterns.random_blocks(64, 4, 2, seed=0), patterns.random_blocks(64, 4, 2, seed=1)
    assert not torch.equal(first.to_dense(), second.to_dense())
    patterns._block_rows.cache_clear()
    assert torch.equal(patterns.random_blocks(64, 4, 2, seed=0).to_dense(), first.to_dense())


def test_random_blocks_are_equally_likely() -> None:
    counts = sum(patterns.random_blocks(4, 1, 2, seed=seed).to_dense() for seed in range(600))
    assert torch.all((counts - 300).abs() < 75), counts  # six standard deviations


@pytest.mark.parametrize("n", [*LENGTHS, 100])
@pytest.mark.parametrize("window", [0, 1, 2, 3, 99])
def test_bigbird_joins_its_window_global_tokens_and_random_blocks(n: int, window: int) -> None:
    pattern = patterns.bigbird(n, block=4, global_=2, random=2, window=window, seed=5)
    before, after = (window + 1) // 2, window // 2
    fixed = dense(n, n, lambda i, j: i < 2 or j < 2 or -before <= j // 4 - i // 4 <= after)
    check(patterns.bigbird(n, block=4, global_=2, random=0, window=window), fixed)
    stored = pattern.to_dense()
    check(pattern, stored)
    assert torch.all(stored >= fixed)
    blocks = -(-n // 4)
    for block in range(1, blocks):  # their rows are not global
        row = stored[block * 4]
        outside = [other for other in range(blocks) if not -before <= other - block <= after]
        whole = [other for other in outside if bool(row[max(other * 4, 2) : other * 4 + 4].all())]
        assert min(2, len(outside)) <= len(whole) + (0 in outside) <= min(2, len(outside)) + 1  # block 0 is partly global


def test_bigbird_as_in_scorchs_evaluation() -> None:
    pattern = patterns.bigbird(512)
    counts = pattern.to_dense().sum(1)
    assert torch.all(counts[:2] == 512)
    assert torch.all(counts[16:-16] >= 3 * 16 + 2 * 16)  # the diagonal block, two blocks of the window, two random blocks
    assert torch.all(counts[16:-16] <= 3 * 16 + 2 * 16 + 2)  # and two global tokens
    check(patterns.bigbird(512, global_=[0, 1]), pattern.to_dense())


@pytest.mark.parametrize("n", LENGTHS)
def test_longformer(n: int) -> None:
    check(patterns.longformer(n, 6, 1), dense(n, n, lambda i, j: abs(i - j) <= 3 or 0 in (i, j)))
    check(patterns.longformer(n, 6), patterns.sliding_window(n, 3).to_dense())


@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (0, 0), (2, 0)], ids=str)
def test_blocks(shape: tuple[int, int]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    expected = mask.float().repeat_interleave(3, 0).repeat_interleave(3, 1)
    check(patterns.block(mask, 3), expected)
    check(patterns.block(mask.numpy(), 3), expected)
    check(patterns.block(mask.long() * 2, 3), expected)


def test_unions_and_intersections() -> None:
    a, b, c = patterns.causal(9), patterns.sliding_window(9, 2), patterns.random_blocks(9, 3, 1)
    da, db, dc = (pattern.to_dense() for pattern in (a, b, c))
    check(patterns.union(a, b, c), ((da + db + dc) > 0).float())
    check(patterns.intersection(a, b, c), da * db * dc)
    check(patterns.union(c), dc)
    check(patterns.intersection(a, db), da * db)  # the nonzeros of a strided tensor
    check(patterns.union(a.to(ns.CSC), db.to_sparse_coo()), ((da + db) > 0).float())
    check(patterns.intersection(patterns.causal(0), patterns.causal(0)), torch.zeros(0, 0))


def test_operators_of_bool_patterns() -> None:
    a, b = patterns.causal(9).to(torch.bool), patterns.sliding_window(9, 2).to(torch.bool)
    assert torch.equal((a | b).to_dense().float(), patterns.union(a, b).to_dense())
    assert torch.equal((a & b).to_dense().float(), patterns.intersection(a, b).to_dense())


SHARED: dict[str, Callable[[], ns.SparseTensor]] = {
    "sliding_window": lambda: patterns.sliding_window(20, 2),
    "causal": lambda: patterns.causal(20),
    "global_tokens": lambda: patterns.global_tokens(20, [3, 1]),
    "random_blocks": lambda: patterns.random_blocks(20, 4, 1),
    "bigbird": lambda: patterns.bigbird(20, 4),
    "longformer": lambda: patterns.longformer(20, 4, 1),
    "block": lambda: patterns.block([[1, 0], [0, 1]], 10),
}


@pytest.mark.parametrize("name", SHARED)
def test_equal_arguments_share_a_pattern_but_no_values(name: str) -> None:
    first = SHARED[name]()
    first.values.zero_()
    second = SHARED[name]()
    assert first.pattern is second.pattern
    assert bool((second.values == 1).all())


def test_memory_of_a_long_sequence_is_proportional_to_its_entries() -> None:
    n = 40_000  # a mask of one byte per entry would take 1.6 GB
    pattern = patterns.bigbird(n, block=16, global_=[7])
    counts = np.diff(pattern.pattern.level_arrays(1)[0])
    assert pattern.nnz < n * 84
    assert counts[7] == n


def test_columns_increase_in_every_row() -> None:
    pos, crd = patterns.bigbird(70, 4).pattern.level_arrays(1)
    assert all((np.diff(crd[start:stop]) > 0).all() for start, stop in pairwise(pos))


BAD: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "a negative length": (lambda: patterns.causal(-1), ns.SizeError, "causal: n=-1 is less than 0"),
    "a negative window": (lambda: patterns.sliding_window(4, -2), ns.SizeError, "sliding_window: w=-2 is less than 0"),
    "half a token": (lambda: patterns.sliding_window(4, 1.5), ns.SizeError, "w=1.5 is not an integer"),
    "a token that isn't there": (lambda: patterns.global_tokens(4, [4]), IndexError, "global token 4 of a sequence of length 4"),
    "fewer than no tokens": (lambda: patterns.global_tokens(4, -1), ns.SizeError, "tokens=-1 is less than 0"),
    "empty blocks": (lambda: patterns.bigbird(4, block=0), ns.SizeError, "bigbird: block=0 is less than 1"),
    "fewer than no blocks": (lambda: patterns.random_blocks(4, 2, -1), ns.SizeError, "count=-1 is less than 0"),
    "a list of blocks": (lambda: patterns.block([True], 2), ns.SizeError, r"shape \(1,\): a mask of blocks has two dimensions"),
    "two shapes": (lambda: patterns.union(patterns.causal(2), patterns.causal(3)), ns.SizeError, r"union .* \(2, 2\), \(3, 3\)"),
    "nothing": (lambda: patterns.intersection(), ns.SizeError, "give one or more matrices"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors(name: str) -> None:
    call, kind, text = BAD[name]
    with pytest.raises(kind, match=text) as error:
        call()
    assert isinstance(error.value, ns.NumscorchError)
