"""Merge lattices: the sets of operands that can have entries together while a variable is co-iterated.

A lattice has a point for each set of operands for which the expression is nonzero; the operands outside the set are
exhausted or absent (Kjolstad, Kamil, Chou, Lugato, Amarasinghe, "The Tensor Algebra Compiler", OOPSLA 2017, section 5).
The points are found by substituting 0 for the absent operands, which works for all operators. A product has one point,
and a sum has a point for each set of its terms. If the value is nonzero when all operands are absent, the loop visits
every coordinate. A set with the same value as a smaller set needs no point.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations

from ..errors import UnsupportedError
from .functions import is_zero, simplified
from .index import Expr, IndexVar, accesses_in

MOST_MERGED = 8  # maximum number of operands that a loop co-iterates; the lattice tests 2**8 sets


@dataclass(frozen=True, slots=True)
class Lattice:
    """Sets of operands, larger sets first. ``whole``: the value may be nonzero at every coordinate."""

    points: tuple[frozenset[str], ...]
    whole: bool = False

    @property
    def iterated(self) -> frozenset[str]:
        """All operands of all points."""
        return frozenset().union(*self.points)

    @property
    def least(self) -> list[frozenset[str]]:
        """The minimal points: those that contain no other point."""
        return [p for p in self.points if not any(q < p for q in self.points)]

    def below(self, point: frozenset[str]) -> list[frozenset[str]]:
        """The points that are subsets of a point, the point itself first."""
        return [p for p in self.points if p <= point]

    def __str__(self) -> str:
        return " > ".join("{" + ", ".join([*sorted(p), *(["all"] if self.whole else [])]) + "}" for p in self.points)


def make_lattice(var: IndexVar, expr: Expr) -> Lattice:
    """The merge lattice of an expression at one variable.

    Raises:
        UnsupportedError: more than ``MOST_MERGED`` operands are co-iterated.

    >>> from ..ir.format import CSR
    >>> from ..ir.index import TensorVar
    >>> from ..ir.notation import parse_expr
    >>> tensors = {name: TensorVar(name, CSR) for name in "ABC"}
    >>> print(make_lattice(IndexVar("j"), parse_expr("(A[i,j] + B[i,j]) * C[i,j]", tensors)))
    {A, B, C} > {A, C} > {B, C}
    """
    names = list(dict.fromkeys(a.tensor.name for a in accesses_in(expr) if a.sparse_levels(var)))
    if len(names) > MOST_MERGED:
        raise UnsupportedError(f"{len(names)} sparse operands share {var}, but at most {MOST_MERGED} are supported: split the expression")
    values: dict[frozenset[str], Expr] = {}
    for chosen in (frozenset(c) for size in range(len(names) + 1) for c in combinations(names, size)):
        value = simplified(expr, set(names) - chosen)
        if not is_zero(value) and not any(value == values[smaller] for smaller in values if smaller < chosen):
            values[chosen] = value
    return Lattice(tuple(sorted(values, key=len, reverse=True)), frozenset() in values)


def least_sets(expr: Expr, names: Collection[str]) -> list[frozenset[str]]:
    """The minimal sets of operands that make the expression nonzero if all other operands are absent.

    >>> from ..ir.notation import parse_expr
    >>> [sorted(chosen) for chosen in least_sets(parse_expr("A[i] * B[i] + C[i] * x[i]"), "ABC")]
    [['C'], ['A', 'B']]
    """
    used = sorted({a.tensor.name for a in accesses_in(expr)} & set(names))
    least: list[frozenset[str]] = []
    for chosen in (frozenset(c) for size in range(len(used) + 1) for c in combinations(used, size)):
        if not any(smaller <= chosen for smaller in least) and not is_zero(simplified(expr, set(used) - chosen)):
            least.append(chosen)
    return least
