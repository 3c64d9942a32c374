"""Choose a contraction order for three or more operands: one loop nest, or a sequence of pairs.

Costs are estimated from the number of stored values. A chain such as ``ij,jk,kl->il`` with a thin dense matrix at
its end avoids the large product of the two sparse matrices. A sampled product (``ij,ik,jk->ij``) stays one nest,
because each of its pairs is larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations
from math import prod
from operator import itemgetter
from typing import TypeVar

from ..schedule import tuning
from ..schedule.facts import rounded
from .parser import Subscripts

T = TypeVar("T")
Path = tuple[tuple[int, int], ...]
PRICED_OPERANDS = 7  # most operands for which all paths are searched; more are contracted in one nest
MOST_INDICES = 52  # most indices of torch.einsum, which contracts pairs of dense operands


@dataclass(frozen=True, slots=True)
class Term:
    """An operand or a temporary: its indices, its estimated number of stored values, and whether it is sparse."""

    indices: frozenset[str]
    stored: float
    is_sparse: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """One contraction: the positions of its two inputs, and its index names. Earlier results have the positions after the operands."""

    left: int
    right: int
    subscripts: Subscripts


@lru_cache(maxsize=1024)
def pairs_of(subscripts: Subscripts, shapes: tuple[tuple[int, ...], ...], stored: tuple[int | None, ...]) -> tuple[Pair, ...]:
    """The pairs to contract in sequence; empty if one nest is cheaper. Operands of similar sizes share a path.

    Args:
        subscripts: the index names of operands and result.
        shapes: the operands' shapes.
        stored: number of stored values of each sparse operand, None for a dense operand.

    >>> from .parser import parse_einsum
    >>> chain = parse_einsum("ij,jk,kl->il", (2, 2, 2))
    >>> [str(pair.subscripts) for pair in pairs_of(chain, ((9000, 9000), (9000, 9000), (9000, 8)), (90_000, 90_000, None))]
    ['jk,kl->jl', 'ij,jl->il']
    >>> pairs_of(parse_einsum("ij,ik,jk->ij", (2, 2, 2)), ((9000, 9000), (9000, 64), (9000, 64)), (90_000, None, None))
    ()
    """
    if not 3 <= len(shapes) <= PRICED_OPERANDS or not any(n is not None for n in stored):
        return ()
    extents = subscripts.sizes(shapes)
    is_broadcast = any(tuple(extents[name] for name in names) != shape for names, shape in zip(subscripts.operands, shapes, strict=True))
    if is_broadcast or 0 in extents.values() or len(extents) > MOST_INDICES:
        return ()
    counts = tuple([None if n is None else rounded(n) for n in stored])
    return searched(subscripts, tuple(map(rounded, extents.values())), counts)


@lru_cache(maxsize=1024)
def searched(subscripts: Subscripts, sizes: tuple[int, ...], stored: tuple[int | None, ...]) -> tuple[Pair, ...]:
    """The pairs of the cheapest path. ``sizes`` are rounded, in the order in which indices first occur; ``stored`` is rounded too."""
    extents = dict(zip(dict.fromkeys(name for names in subscripts.operands for name in names), sizes, strict=True))
    terms = [
        Term(frozenset(names), float(prod(extents[name] for name in names) if n is None else n), n is not None)
        for names, n in zip(subscripts.operands, stored, strict=True)
    ]
    search = _Search(extents, frozenset(subscripts.result))
    search.most = tuning.PATH_GAIN * search.nest(terms)
    _, path = search.best(tuple(terms))
    return _pairs(subscripts, path)


class _Search:
    """Exhaustive search for a pairwise contraction order that costs less than ``most``; results are memoized by remaining terms."""

    def __init__(self, extents: dict[str, int], result: frozenset[str]):
        self.extents, self.result, self.most = extents, result, float("inf")
        self.best = cache(self._best)

    def size(self, indices: frozenset[str]) -> float:
        """The number of coordinates that these indices span."""
        return float(prod(self.extents[name] for name in indices))

    def nest(self, terms: Sequence[Term]) -> float:
        """Estimated iterations of one nest over all indices: coordinates at which every sparse operand stores a value."""
        shares = [term.stored / self.size(term.indices) for term in terms if term.is_sparse]
        return self.size(frozenset().union(*(term.indices for term in terms))) * prod(shares)

    def _best(self, terms: tuple[Term, ...]) -> tuple[float, Path]:
        """The least cost and its path; ``(most, ())`` if no path costs less than ``most``. Tries each pair first."""
        if len(terms) == 1:
            return 0.0, ()
        cheapest: tuple[float, Path] = (self.most, ())
        for left, right in combinations(range(len(terms)), 2):
            remaining = without(terms, left, right)
            steps, product = self.join(terms[left], terms[right], remaining)
            if steps < cheapest[0]:
                remaining_cost, path = self.best((*remaining[:left], product, *remaining[left:]))
                cheapest = min(cheapest, (steps + remaining_cost, ((left, right), *path)), key=itemgetter(0))
        return cheapest

    def join(self, left: Term, right: Term, remaining: Sequence[Term]) -> tuple[float, Term]:
        """The cost of contracting a pair, and the resulting term."""
        needed = self.result.union(*(term.indices for term in remaining))
        indices = (left.indices | right.indices) & needed
        steps = self.nest((left, right))
        sparse = [term for term in (left, right) if term.is_sparse]
        unreduced = [term for term in sparse if term.indices == indices]
        if len(unreduced) == 1:
            stored, is_sparse = unreduced[0].stored, True
        elif len(sparse) == 2:
            stored, is_sparse = min(steps, self.size(indices)), True
        else:
            stored, is_sparse = self.size(indices), False
        return steps + tuning.COST_STORED * stored * bool(remaining), Term(indices, stored, is_sparse)


def without(terms: Sequence[T], left: int, right: int) -> tuple[T, ...]:
    """The terms except the two at positions ``left`` and ``right``."""
    return (*terms[:left], *terms[left + 1 : right], *terms[right + 1 :])


def _pairs(subscripts: Subscripts, path: Path) -> tuple[Pair, ...]:
    """The pairs of a path; the last one has the result's indices in their order."""
    terms = list(subscripts.operands)
    positions, pairs = tuple(range(len(terms))), []
    for left, right in path:
        first, second, remaining = positions[left], positions[right], without(positions, left, right)
        needed = set(subscripts.result).union(*(terms[at] for at in remaining))
        shared = dict.fromkeys(terms[first] + terms[second])
        product = tuple(name for name in shared if name in needed) if remaining else subscripts.result
        pairs.append(Pair(first, second, Subscripts((terms[first], terms[second]), product)))
        positions = (*remaining[:left], len(terms), *remaining[left:])
        terms.append(product)
    return tuple(pairs)
