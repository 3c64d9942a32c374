"""Merge lattices: which operands may still hold values while a variable is co-iterated.

A lattice has a point for each set of operands that may hold values at once, largest first; the
loop of a point runs while all of them do (Kjolstad, Kamil, Chou, Lugato, Amarasinghe, "The
Tensor Algebra Compiler", OOPSLA 2017, section 5).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..ir.index import Access, Binary, Expr, IndexVar, Literal


@dataclass(frozen=True, slots=True)
class Point:
    """The operands that are iterated together, and whether every coordinate is visited."""

    iterated: frozenset[str]
    whole: bool = False

    def __or__(self, other: Point) -> Point:
        return Point(self.iterated | other.iterated, self.whole or other.whole)

    def __str__(self) -> str:
        return "{" + ", ".join([*sorted(self.iterated), *(["all"] if self.whole else [])]) + "}"


@dataclass(frozen=True, slots=True)
class Lattice:
    """Merge points, each before those it contains."""

    points: tuple[Point, ...]

    def __str__(self) -> str:
        return " > ".join(map(str, self.points))


def make_lattice(var: IndexVar, expr: Expr) -> Lattice:
    """The merge lattice of an expression at one variable.

    A product holds a value only where all factors do: its points are pairs.  A sum holds one where
    either does: pairs, and each side alone.  A full factor of a product is located, so it adds
    nothing to the point; a full term of a sum makes the loop visit every coordinate.
    """
    match expr:
        case Access() if _is_iterated(expr, var):
            return Lattice((Point(frozenset({expr.tensor.name})),))
        case Access() | Literal():
            return Lattice((Point(frozenset(), whole=True),))
        case Binary("*", left, right):
            return _sorted(_intersect(p, q) for p in make_lattice(var, left).points for q in make_lattice(var, right).points)
        case Binary(_, left, right):
            ours, theirs = make_lattice(var, left).points, make_lattice(var, right).points
            return _sorted([*(p | q for p in ours for q in theirs), *ours, *theirs])


def _intersect(p: Point, q: Point) -> Point:
    return Point(p.iterated | q.iterated, p.whole and q.whole)


def _sorted(points: Iterable[Point]) -> Lattice:
    """Points without repetition, the largest first; where every coordinate is visited, smaller ones that aren't whole go."""
    unique = sorted(dict.fromkeys(points), key=lambda p: (-len(p.iterated), not p.whole))
    if any(p.whole for p in unique):
        unique = [p for p in unique if p.whole]
    return Lattice(tuple(unique))


def _is_iterated(access: Access, var: IndexVar) -> bool:
    """Whether a loop over the variable iterates a level of this access."""
    if access.tensor.is_dense:
        return False
    return any(v == var and not access.tensor.format.level_of(d).full for d, v in enumerate(access.indices))
