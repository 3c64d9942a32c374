"""Results larger than the memory limit are refused before they are allocated, with a SizeError that states their size."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases import as_operand, random_format
from scale import scaled
from scipy.sparse import dia_array

import numscorch as ns
from numscorch.nn import patterns
from numscorch.runtime.result_arrays import ResultLayout
from numscorch.tensors.packing import coordinates, entry_count
from numscorch.tensors.pattern import Pattern

MOST = 100_000_000  # bytes that may be allocated before a refusal
EYE = ns.eye(100, format=ns.CSR)
LARGE = ns.eye(10**5, format=ns.CSR)
LONG = ns.from_coo([[5], [7]], [1.0], (10**6, 10**6))
COLUMN = ns.from_coo([list(range(30_000)), [0] * 30_000], torch.ones(30_000, dtype=torch.float64), (30_000, 1), format=ns.CSR)
BATCH = ns.from_coo([[3] * 20_000, list(range(20_000)), [1] * 20_000], torch.ones(20_000), (5, 20_000, 2))
LONG_ROW = torch.ones(10**5, 1)
CAUSAL = Pattern(ns.Format("(i, j) -> (i: dense, j: causal)"), (40_000, 40_000), ((), ()))

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "column times row": (lambda: COLUMN @ COLUMN.t(), "the result, of 900000000 entries or more, takes 6.71 GiB"),
    "lists of entries": (lambda: ns.einsum("ik,jk->ij", COLUMN, COLUMN, format=ns.COO(2)), "of 900000000 entries or more, takes 6.71 GiB"),
    "outer product": (lambda: ns.einsum("ik,jl->ijkl", COLUMN, COLUMN, format=ns.CSF(4)), "of 900000000 entries or more, takes 6.71 GiB"),
    "batch of products": (lambda: ns.einsum("bik,bjk->bij", BATCH, BATCH, reduce="max"), "of 400000000 entries or more, takes 2.98 GiB"),
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
    "dense product within a statement": (
        lambda: ns.evaluate("y[i] = A[i,j] * exp(q[i,k] * k[j,k])", A=LARGE, q=LONG_ROW, k=LONG_ROW),
        "the dense intermediate tensor 100000x100000 takes",
    ),
    "dense values that are reduced": (
        lambda: ns.evaluate("y[i] max= q[i,k] * k[j,k]", q=LONG_ROW, k=LONG_ROW),
        "the dense intermediate tensor 100000x1x100000 takes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_results_beyond_the_limit_are_refused_before_they_are_allocated(name: str, plain: pytest.MonkeyPatch) -> None:
    plain.setenv("NUMSCORCH_MEMORY_LIMIT", "1G")
    call, text = REFUSED[name]
    tracemalloc.start()
    try:
        with pytest.raises(ns.SizeError) as error:
            call()
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()
    assert text in str(error.value) and "the limit is 1 GiB: set NUMSCORCH_MEMORY_LIMIT to change it" in str(error.value)


def test_the_mask_that_the_error_of_a_large_window_suggests_works(plain: pytest.MonkeyPatch) -> None:
    plain.setattr("numscorch.machine.memory.ASK_FROM", 1000)
    plain.setenv("NUMSCORCH_MEMORY_LIMIT", "1000")
    with pytest.raises(ns.SizeError) as error:
        patterns.sliding_window(30, 3)
    plain.delenv("NUMSCORCH_MEMORY_LIMIT")
    mask = eval(str(error.value).partition("as mask= of an einsum, ")[2].partition(" stores")[0])
    q, k = torch.randn(30, 2), torch.randn(30, 2)
    assert torch.allclose(
        ns.einsum("ik,jk->ij", q, k, mask=mask).to_dense(), q @ k.T * patterns.sliding_window(30, 3).to_dense(), atol=1e-6
    )


def test_a_band_of_200000_rows_masks(fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setenv("NUMSCORCH_MEMORY_LIMIT", "100M")
    n = 200_000
    band = ns.zeros(n, n, format="(i, j) -> (i: dense, j: band(1, 1))")
    q, k = torch.randn(n, 4), torch.randn(n, 4)
    scores = ns.einsum("id,jd->ij", q, k, mask=band)
    assert (scores.format, scores.nnz) == (band.format, 3 * n - 2)
    assert torch.allclose(ns.einsum("ij->i", scores)[1:-1], (q[1:-1] * (k[:-2] + k[1:-1] + k[2:])).sum(1), atol=1e-5)
    assert torch.allclose(ns.einsum("ij,jd->id", scores, torch.ones(n, 1))[:, 0], ns.einsum("ij->i", scores), atol=1e-5)


def test_joined_patterns_beyond_the_limit_are_refused(plain: pytest.MonkeyPatch) -> None:
    joined = patterns.sliding_window(100, 1), patterns.causal(100)
    plain.setattr("numscorch.machine.memory.ASK_FROM", 1000)
    plain.setenv("NUMSCORCH_MEMORY_LIMIT", "100K")
    for join in (patterns.union, patterns.intersection):
        with pytest.raises(ns.SizeError, match="2 joined patterns, of 5348 entries, takes"):
            join(*joined)


def test_repeated_entries_below_the_limit_are_allocated(plain: pytest.MonkeyPatch) -> None:
    expanded = EYE.expand(50, 100, 100)
    assert expanded.nnz == 5000 and torch.equal(expanded.to_dense(), EYE.to_dense().expand(50, 100, 100))
    assert torch.equal(EYE.repeat(2, 1, 3).to_dense(), EYE.to_dense().repeat(2, 1, 3))


PRODUCTS = ("ik,kj->ij", "bik,bkj->ijb", "ikl,kj->ij", "ik,jl->ijkl", "ik,kjl->ij", "ik,kj,m->imj", "kli,klj->ij", "bi,bj->bij")


@pytest.mark.parametrize("block", range(scaled(10)))
def test_entry_counts_of_products_have_lower_and_upper_bounds(block: int, plain: pytest.MonkeyPatch) -> None:
    plain.setattr("numscorch.machine.memory.ASK_FROM", -1)
    checked = sum(_is_bounded(seed, plain) for seed in range(20 * block, 20 * (block + 1)))
    assert checked >= 8, "of 20 products"


def _is_bounded(seed: int, plain: pytest.MonkeyPatch) -> bool:
    """Check the entry count of a random product against its bounds; False if its kernel has none."""
    rng, most, least = random.Random(seed), list[int](), list[int]()
    plain.setattr(ResultLayout, "fits", lambda layout, entries: bool(most.append(entries)))
    plain.setattr(ResultLayout, "check_least", lambda layout, entries: least.append(entries))
    expr = rng.choice(PRODUCTS)
    sizes = {name: rng.randint(1, 9) for name in "bijklm"}
    terms = expr.partition("->")[0].split(",")
    arrays = [np.random.default_rng(seed + at).random([sizes[name] for name in term]) for at, term in enumerate(terms)]
    share = rng.choice((0.1, 0.3, 0.9))
    sparse = [as_operand(array * (array < share), random_format(rng, array.ndim)) for array in arrays[:2]]
    reduce = rng.choice(("sum", "max", "min_plus") if len(terms) == 2 else ("max", "min_plus"))  # sums of three are computed in pairs
    result = ns.einsum(expr, *sparse, *map(torch.from_numpy, arrays[2:]), reduce=reduce)
    if not least:
        return False
    assert isinstance(result, ns.SparseTensor)
    assert least[0] <= entry_count(result.pattern) <= min(most), (expr, sparse)
    return True


def test_partial_sums_of_scattered_blocks_are_within_the_limit(fresh_plans: pytest.MonkeyPatch) -> None:
    """Long sums that are scattered into a large dense result need several partial sums for each of its places."""
    A = ns.from_torch(torch.ones(20_000, 4), ns.CSR)
    assert A.sum(0).tolist() == [20_000.0] * 4
    fresh_plans.setattr("numscorch.machine.memory.ASK_FROM", 16)
    fresh_plans.setenv("NUMSCORCH_MEMORY_LIMIT", "32")
    with pytest.raises(ns.SizeError, match=r"partial sums for each thread takes .*\n.*request a sparse result, as with format"):
        ns.einsum("ij,i->j", A, torch.ones(20_000))
