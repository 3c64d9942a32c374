"""Results larger than the memory limit are refused before they are made, by a SizeError that says how large they are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.sparse import dia_array

import numscorch as ns
from numscorch.nn import patterns
from numscorch.packing import coordinates
from numscorch.pattern import Pattern

MOST = 100_000_000  # bytes that a refusal may take on the way
EYE = ns.eye(100, format=ns.CSR)
LARGE = ns.eye(10**5, format=ns.CSR)
LONG = ns.from_coo([[5], [7]], [1.0], (10**6, 10**6))
CAUSAL = Pattern(ns.Format("(i, j) -> (i: dense, j: causal)"), (40_000, 40_000), ((), ()))

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "kron": (lambda: torch.kron(EYE, torch.ones(3000, 3000)), "the result of shape (300000, 300000), of 900000000 entries, takes"),
    "expand": (lambda: EYE.expand(10**7, 100, 100), "of 1000000000 entries, takes"),
    "expand of long dimensions": (lambda: ns.eye(1, format=ns.CSR).expand(10**10, 10**10), "of 100000000000000000000 entries, takes"),
    "repeat": (lambda: EYE.repeat(10**5, 10**5), "of 1000000000000 entries, takes"),
    "tile": (lambda: torch.tile(EYE, (10**4, 10**4)), "of 10000000000 entries, takes"),
    "cat": (lambda: torch.cat([LARGE] * 10**3), "of 100000000 entries, takes"),
    "stack": (lambda: torch.stack([LARGE] * 10**3), "of 100000000 entries, takes"),
    "indices that repeat": (lambda: EYE.expand(1000, 100, 100)[:, torch.zeros(10**6, dtype=torch.int64)], "entries, takes"),
    "lists that broadcast": (lambda: EYE[torch.zeros(10**5, 1, dtype=torch.int64), torch.zeros(10**5, dtype=torch.int64)], "takes"),
    "gather": (lambda: EYE.gather(0, torch.zeros(1, 1, dtype=torch.int64).expand(10**9, 100)), "of 100000000000 entries, takes"),
    "topk": (lambda: LONG.topk(500, 1), "of 500000000 entries, takes"),
    "any": (lambda: ns.zeros(10**6, 10**6, 0, format=ns.COO(3)).any(2), "takes 931 GiB"),
    "coordinates": (lambda: coordinates(CAUSAL), "a list of coordinates, of 1600000000 entries, takes"),
    "diagonals": (lambda: ns.from_scipy(dia_array(([[1.0]], [0]), shape=(10**10, 1))), "1 diagonals, of 10000000000 entries, takes"),
    "causal": (lambda: patterns.causal(200_000), "the pattern with 200000 rows, of 20000100000 entries, takes"),
    "causal rows": (lambda: patterns.causal(10**12), "the pattern with 1000000000000 rows takes"),
    "sliding_window": (lambda: patterns.sliding_window(10**6, 10**4), "of 19900990000 entries, takes"),
    "global_tokens": (lambda: patterns.global_tokens(10**6, 10**3), "entries, takes"),
    "random_blocks": (lambda: patterns.random_blocks(10**6, 10**3, 10**3), "entries, takes"),
    "choices": (lambda: patterns.random_blocks(10**6, 1, 10**6), "the choice for 1000000 rows, of 1000000000000 entries, takes"),
    "bigbird": (lambda: patterns.bigbird(10**6, 10**4), "entries, takes"),
    "longformer": (lambda: patterns.longformer(10**6, 10**4), "entries, takes"),
    "block": (lambda: patterns.block([[True]], 10**6), "of 1000000000000 entries, takes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_results_beyond_the_limit_are_refused_before_they_are_made(name: str, plain: pytest.MonkeyPatch) -> None:
    plain.setenv("NUMSCORCH_MEMORY_LIMIT", "1G")
    call, text = REFUSED[name]
    tracemalloc.start()
    try:
        with pytest.raises(ns.SizeError) as error:
            call()
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()
    assert text in str(error.value) and "the limit is 1 GiB: NUMSCORCH_MEMORY_LIMIT sets another" in str(error.value)


def test_joined_patterns_beyond_the_limit_are_refused(plain: pytest.MonkeyPatch) -> None:
    given = patterns.sliding_window(100, 1), patterns.causal(100)
    plain.setattr("numscorch.runtime.memory.ASK_FROM", 1000)
    plain.setenv("NUMSCORCH_MEMORY_LIMIT", "100K")
    for join in (patterns.union, patterns.intersection):
        with pytest.raises(ns.SizeError, match="2 joined patterns, of 5348 entries, takes"):
            join(*given)


def test_repeated_entries_below_the_limit_are_made(plain: pytest.MonkeyPatch) -> None:
    made = EYE.expand(50, 100, 100)
    assert made.nnz == 5000 and torch.equal(made.to_dense(), EYE.to_dense().expand(50, 100, 100))
    assert torch.equal(EYE.repeat(2, 1, 3).to_dense(), EYE.to_dense().repeat(2, 1, 3))
