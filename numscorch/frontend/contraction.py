"""The order in which many operands are contracted: all in one nest, or in pairs, whichever takes less.

Costs are estimated from what is stored: a chain such as ``ij,jk,kl->il`` with a thin dense matrix at
its end never makes the large product of the sparse ones, and a sampled product (``ij,ik,jk->ij``)
stays one nest, since any pair of it is larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import TypeVar

from ..schedule import tuning
from .parser import Subscripts

T = TypeVar("T")
Path = tuple[tuple[int, int], ...]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
PRICED_OPERANDS = 7  # operands up to which every path is priced; more are contracted in one nest


@dataclass(frozen=True, slots=True)
class Term:
    """An operand or a temporary: its indices, about how many values it stores, and whether it is sparse."""

    indices: frozenset[str]
    stored: float
    is_sparse: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """Contract the operands at two places by an einsum; the result takes the left one's place."""

    left: int
    right: int
    expr: str


@lru_cache(maxsize=1024)
def pairs_of(subscripts: Subscripts, shapes: tuple[tuple[int, ...], ...], stored: tuple[int | None, ...]) -> tuple[Pair, ...]:
    """:func:`split`, remembered."""
    return split(subscripts, shapes, stored)


def split(subscripts: Subscripts, shapes: Sequence[Sequence[int]], stored: Sequence[int | None]) -> tuple[Pair, ...]:
    """The pairs to contract, one after the other; none where one nest is better.

    Args:
        subscripts: the index names of operands and result.
        shapes: the operands' shapes.
        stored: how many values each sparse operand stores, None for a dense one.

    >>> from .parser import parse_einsum
    >>> chain = parse_einsum("ij,jk,kl->il", (2, 2, 2))
    >>> [pair.expr for pair in split(chain, [(9000, 9000), (9000, 9000), (9000, 8)], [90_000, 90_000, None])]
    ['bc,cd->bd', 'ab,bd->ad']
    >>> split(parse_einsum("ij,ik,jk->ij", (2, 2, 2)), [(9000, 9000), (9000, 64), (9000, 64)], [90_000, None, None])
    ()
    """
    if not 3 <= len(shapes) <= PRICED_OPERANDS or not any(n is not None for n in stored):
        return ()
    extents: dict[str, int] = {}
    for names, shape in zip(subscripts.operands, shapes, strict=True):
        for name, size in zip(names, shape, strict=True):
            if extents.setdefault(name, size) != size or size == 0:
                return ()  # a broadcast dimension, or nothing to do
    if len(extents) > len(LETTERS):
        return ()
    terms = [
        Term(frozenset(names), float(prod(shape) if n is None else n), n is not None)
        for names, shape, n in zip(subscripts.operands, shapes, stored, strict=True)
    ]
    search = _Search(extents, frozenset(subscripts.result))
    search.most = tuning.PATH_GAIN * search.nest(terms)
    _, path = search.best(tuple(terms))
    return _pairs(subscripts, path, extents)


class _Search:
    """Prices every way to contract terms in pairs that takes less than ``most``; terms that are reached in several ways are priced once."""

    def __init__(self, extents: dict[str, int], result: frozenset[str]):
        self.extents, self.result, self.most = extents, result, float("inf")
        self.known: dict[tuple[Term, ...], tuple[float, Path]] = {}

    def size(self, indices: frozenset[str]) -> float:
        """Coordinates of these indices."""
        return float(prod(self.extents[name] for name in indices))

    def nest(self, terms: Sequence[Term]) -> float:
        """Steps of one nest over all indices: those at which every sparse operand stores a value."""
        steps = self.size(frozenset().union(*(term.indices for term in terms)))
        for term in terms:
            if term.is_sparse:
                steps *= term.stored / self.size(term.indices)
        return steps

    def best(self, terms: tuple[Term, ...]) -> tuple[float, Path]:
        """The least cost, and the places of the pairs that have it; ``most``, and none, where no way takes less."""
        if terms not in self.known:
            self.known[terms] = self.priced(terms)
        return self.known[terms]

    def priced(self, terms: tuple[Term, ...]) -> tuple[float, Path]:
        """:meth:`best`, from what is left after each pair."""
        if len(terms) == 1:
            return 0.0, ()
        cheapest: tuple[float, Path] = (self.most, ())
        for left, right in combinations(range(len(terms)), 2):
            rest = without(terms, left, right)
            steps, joined = self.join(terms[left], terms[right], rest)
            if steps >= cheapest[0]:
                continue
            further, path = self.best((*rest[:left], joined, *rest[left:]))
            if steps + further < cheapest[0]:
                cheapest = (steps + further, ((left, right), *path))
        return cheapest

    def join(self, left: Term, right: Term, rest: Sequence[Term]) -> tuple[float, Term]:
        """What contracting a pair costs, and what comes of it."""
        needed = self.result.union(*(term.indices for term in rest))
        indices = (left.indices | right.indices) & needed
        steps = self.nest((left, right))
        sparse = [term for term in (left, right) if term.is_sparse]
        kept = [term for term in sparse if term.indices == indices]
        if len(kept) == 1:
            stored, is_sparse = kept[0].stored, True
        elif len(sparse) == 2:
            stored, is_sparse = min(steps, self.size(indices)), True
        else:
            stored, is_sparse = self.size(indices), False
        return steps + tuning.COST_STORED * stored * bool(rest), Term(indices, stored, is_sparse)


def without(terms: Sequence[T], left: int, right: int) -> tuple[T, ...]:
    """The terms but those at two places."""
    return (*terms[:left], *terms[left + 1 : right], *terms[right + 1 :])


def _pairs(subscripts: Subscripts, path: Path, extents: dict[str, int]) -> tuple[Pair, ...]:
    """The path as einsums; the last one has the result's indices in their order."""
    letters = {name: LETTERS[at] for at, name in enumerate(extents)}
    terms: tuple[str, ...] = tuple("".join(letters[name] for name in names) for names in subscripts.operands)
    result = "".join(letters[name] for name in subscripts.result)
    pairs = []
    for left, right in path:
        a, b, rest = terms[left], terms[right], without(terms, left, right)
        needed = set(result).union(*rest)
        joined = "".join(letter for letter in dict.fromkeys(a + b) if letter in needed) if rest else result
        pairs.append(Pair(left, right, f"{a},{b}->{joined}"))
        terms = (*rest[:left], joined, *rest[left:])
    return tuple(pairs)
