"""Contraction paths: as cheap as an exhaustive search finds, with one evaluation per state, and without large intermediates."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from math import prod

import numpy as np
import pytest
import torch
from dense_values import as_dense

import numscorch as ns
from numscorch.frontend.contraction import Pair, Term, _Search, pairs_of, searched, without
from numscorch.frontend.parser import parse_einsum
from numscorch.runtime import plans

CHAIN = "ab,bc,cd,de,ef,fg,gh->ah"
STAR = "ab,ac,ad,ae,af,ag,ah->a"
BELL = 877  # partitions of seven operands: the states that a search by their sets can reach


def search_of(expr: str, sizes: dict[str, int], stored: Sequence[int | None]) -> tuple[_Search, tuple[Term, ...]]:
    """The search, and its initial terms."""
    left, result = expr.split("->")
    terms = [
        Term(frozenset(term), float(prod(sizes[name] for name in term) if count is None else count), count is not None)
        for term, count in zip(left.split(","), stored, strict=True)
    ]
    return _Search(sizes, frozenset(result)), tuple(terms)


def least_cost(search: _Search, terms: tuple[Term, ...]) -> float:
    """The cost of the best path, by exhaustive search."""
    costs = [0.0] if len(terms) == 1 else []
    for left, right in combinations(range(len(terms)), 2):
        rest = without(terms, left, right)
        steps, joined = search.join(terms[left], terms[right], rest)
        costs.append(steps + least_cost(search, (*rest, joined)))
    return min(costs)


@pytest.mark.parametrize("seed", range(40))
def test_the_path_is_the_best_of_all(seed: int) -> None:
    rng = random.Random(seed)
    sizes = {name: rng.choice((2, 3, 10, 50)) for name in "abcdef"}
    terms = ["".join(rng.sample("abcdef", rng.randint(1, 3))) for _ in range(rng.randint(3, 5))]
    sizes_of_terms = [prod(sizes[name] for name in term) for term in terms]
    stored = [None if rng.random() < 0.5 else rng.randint(1, count) for count in sizes_of_terms]
    result = "".join(name for name in sizes if any(name in term for term in terms) and rng.random() < 0.4)
    search, start = search_of(f"{','.join(terms)}->{result}", sizes, stored)
    assert search.best(start)[0] == pytest.approx(least_cost(search, start))


@pytest.mark.parametrize("expr", [CHAIN, STAR, "ea,fb,abcd,gc,hd,ef,gh->"])
def test_each_state_is_priced_once(expr: str) -> None:
    search, start = search_of(expr, {name: 10 * at + 20 for at, name in enumerate("abcdefgh")}, [40, None] * 3 + [50])
    search.best(start)
    assert search.best.cache_info().currsize < BELL


def contracted_pairs(expr: str, shapes: Sequence[Sequence[int]], stored: Sequence[int | None]) -> list[frozenset[str]]:
    """The operands that each pair contracts, independent of their order and of index names."""
    terms, pairs = expr.split("->")[0].split(","), []
    for step in pairs_of(parse_einsum(expr, tuple(map(len, shapes))), tuple(map(tuple, shapes)), tuple(stored)):
        pairs.append(frozenset((terms[step.left], terms[step.right])))
        terms.append("*".join(sorted(pairs[-1])))
    return pairs


def pairs_of_numpy(expr: str, shapes: Sequence[Sequence[int]]) -> list[frozenset[str]]:
    """The pairs of NumPy's optimal path; each result is appended to the list of operands."""
    path, _ = np.einsum_path(expr, *(np.empty(shape) for shape in shapes), optimize="optimal")
    terms, pairs = expr.split("->")[0].split(","), []
    for left, right in path[1:]:
        pairs.append(frozenset((terms[left], terms[right])))
        terms = [*without(terms, *sorted((left, right))), "*".join(sorted(pairs[-1]))]
    return pairs


@pytest.mark.parametrize(
    ("expr", "sizes"),
    [
        ("ij,jk,kl->il", (40, 30, 20, 2)),
        ("ij,jk,kl->il", (2, 30, 20, 40)),
        ("ij,jk,kl,l->i", (30, 40, 50, 60)),
        ("ij,jk,kl,lm->im", (3, 50, 7, 40, 60)),
        ("ijk,jl,km,lm->i", (12, 40, 30, 20, 5)),
    ],
)
def test_full_operands_are_contracted_as_by_numpy(expr: str, sizes: tuple[int, ...]) -> None:
    extents = dict(zip("ijklm", sizes, strict=False))
    shapes = [[extents[name] for name in term] for term in expr.split("->")[0].split(",")]
    assert contracted_pairs(expr, shapes, [prod(shape) for shape in shapes]) == pairs_of_numpy(expr, shapes)


def test_an_example_of_a_path() -> None:
    """Four small factors of a core tensor: the factor that shrinks it most is contracted first."""
    expr, sizes = "ea,fb,abcd,gc,hd->efgh", {"a": 40, "b": 40, "c": 40, "d": 40, "e": 20, "f": 10, "g": 5, "h": 2}
    shapes = [[sizes[name] for name in term] for term in expr.split("->")[0].split(",")]
    pairs = pairs_of(parse_einsum(expr, (2, 2, 4, 2, 2)), tuple(map(tuple, shapes)), (None, None, 40**4, None, None))
    assert [str(pair.subscripts).split("->")[0] for pair in pairs] == ["abcd,hd", "abch,gc", "fb,abhg", "ea,fahg"]
    assert pairs[0] == Pair(2, 4, parse_einsum("abcd,hd->abch", (4, 2)))


def test_a_chain_with_a_thin_matrix_has_no_large_intermediate(plain: pytest.MonkeyPatch) -> None:
    size = 300
    A = ns.from_coo([range(size), [(7 * at) % size for at in range(size)]], torch.ones(size), (size, size), format=ns.CSR)
    thin = torch.arange(size * 2.0).reshape(size, 2)
    for expr, operands in {"ij,jk,kl->il": (A, A, thin), "li,ij,jk->lk": (thin.T, A, A)}.items():
        expected = torch.einsum(expr, *(as_dense(o) for o in operands))
        torch.testing.assert_close(ns.einsum(expr, *operands), expected)
    assert plans.PROCESS.plans
    assert all(prod(plan.shape) <= thin.numel() for plan in plans.PROCESS.plans.values())


def test_operands_of_about_one_size_share_a_path(plain: pytest.MonkeyPatch) -> None:
    searched.cache_clear()
    for count in (97, 98, 99, 112):
        A = ns.from_coo([range(count), range(count)], torch.ones(count), (2 * count, 2 * count), format=ns.CSR)
        ns.einsum("ij,jk,kl->il", A, A, torch.ones(2 * count, 2))
    assert searched.cache_info().misses == 1


def test_searches_without_gain_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    joined, join = list[object](), _Search.join
    monkeypatch.setattr(_Search, "join", lambda *args: joined.append(args) or join(*args))
    terms = ["acdf", "jbje", "gihb", "hfac", "gfac", "gifabc", "hfac"]
    assert (
        pairs_of(parse_einsum(",".join(terms) + "->", tuple(map(len, terms))), tuple((4,) * len(term) for term in terms), (51,) * 7) == ()
    )
    assert len(joined) < 50
