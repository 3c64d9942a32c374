"""Merge lattices: products pair points of factors, sums add points of each side, and full operands visit all coordinates."""

from __future__ import annotations

import pytest

from numscorch.ir.format import COO, CSC, CSR, Format, dense
from numscorch.ir.index import Access, Apply, Binary, Expr, IndexVar, Literal, TensorVar
from numscorch.ir.lattice import Lattice, make_lattice

i, j = IndexVar("i"), IndexVar("j")


DCSR = Format("ss")


def sparse(name: str, fmt: Format = DCSR) -> Access:
    return Access(TensorVar(name, fmt), (i, j)[: fmt.order])


A, B, C = sparse("A"), sparse("B"), sparse("C")
X, Y = (Access(TensorVar(name, dense(2), strides="n1"), (i, j)) for name in "XY")
R = sparse("R", CSR)


def mul(left: Expr, right: Expr) -> Expr:
    return Binary("*", left, right)


def add(left: Expr, right: Expr) -> Expr:
    return Binary("+", left, right)


def points(*sets: str) -> Lattice:
    """Lattice of points given by letters of operands; a star means that all coordinates are visited."""
    return Lattice(tuple(frozenset(s) - {"*"} for s in sets), any("*" in s for s in sets))


CASES = [
    # leaves
    (A, points("A"), "{A}"),
    (X, points("*"), "{all}"),
    (Literal(2.0, "float32"), points("*"), "{all}"),
    # products intersect
    (mul(A, B), points("AB"), "{A, B}"),
    (mul(mul(A, B), C), points("ABC"), "{A, B, C}"),
    (mul(A, A), points("A"), "{A}"),
    (mul(A, Literal(0.0, "float32")), points(), ""),
    (mul(A, X), points("A"), "{A}"),
    (mul(X, A), points("A"), "{A}"),
    (mul(X, Y), points("*"), "{all}"),
    (mul(Literal(2.0, "float32"), A), points("A"), "{A}"),
    # sums unite
    (add(A, B), points("AB", "A", "B"), "{A, B} > {A} > {B}"),
    (add(A, A), points("A"), "{A}"),
    (add(add(A, B), C), points("ABC", "AB", "AC", "BC", "A", "B", "C"), "{A, B, C} > {A, B} > {A, C} > {B, C} > {A} > {B} > {C}"),
    # mixed
    (mul(add(A, B), C), points("ABC", "AC", "BC"), "{A, B, C} > {A, C} > {B, C}"),
    (add(mul(A, B), C), points("ABC", "AB", "C"), "{A, B, C} > {A, B} > {C}"),
    (mul(add(A, B), add(A, B)), points("AB", "A", "B"), "{A, B} > {A} > {B}"),
    (Binary("/", A, B), points("AB", "A"), "{A, B} > {A}"),
    (Binary("-", A, B), points("AB", "A", "B"), "{A, B} > {A} > {B}"),
    # functions, by their values at 0
    (Apply("relu", (A,)), points("A"), "{A}"),
    (Apply("exp", (A,)), points("A*", "*"), "{A, all} > {all}"),
    (Apply("maximum", (A, B)), points("AB", "A", "B"), "{A, B} > {A} > {B}"),
    (mul(Apply("exp", (A,)), B), points("AB", "B"), "{A, B} > {B}"),
    # a full term of a sum visits all coordinates
    (add(A, X), points("A*", "*"), "{A, all} > {all}"),
    (add(X, Y), points("*"), "{all}"),
    (mul(add(A, X), B), points("AB", "B"), "{A, B} > {B}"),
    (mul(add(A, X), Y), points("A*", "*"), "{A, all} > {all}"),
    (add(mul(A, X), B), points("AB", "A", "B"), "{A, B} > {A} > {B}"),
]


@pytest.mark.parametrize(("expr", "lattice", "text"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_lattice_of(expr: Expr, lattice: Lattice, text: str) -> None:
    result = make_lattice(j, expr)
    assert set(result.points) == set(lattice.points)
    assert len(result.points) == len(lattice.points)
    assert result.whole == lattice.whole
    assert set(str(result).split(" > ")) == set(text.split(" > "))


@pytest.mark.parametrize(("expr", "lattice", "text"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_points_come_before_those_they_contain(expr: Expr, lattice: Lattice, text: str) -> None:
    lattice_points = make_lattice(j, expr).points
    for at, point in enumerate(lattice_points):
        assert not any(later > point for later in lattice_points[at:])


@pytest.mark.parametrize("operator", [mul, add])
def test_order_of_operands_does_not_matter(operator: object) -> None:
    assert callable(operator)
    for left, right in ((A, B), (A, X), (mul(A, B), C), (add(A, X), B)):
        assert set(make_lattice(j, operator(left, right)).points) == set(make_lattice(j, operator(right, left)).points)


@pytest.mark.parametrize(
    ("fmt", "var", "iterated"),
    [
        (CSR, i, False),
        (CSR, j, True),
        (CSC, i, True),
        (CSC, j, False),
        (COO(2), i, True),
        (COO(2), j, True),
        (Format("sd"), i, True),
        (Format("sd"), j, False),
        (Format("dd"), i, False),
        (Format("s"), j, False),
    ],
)
def test_only_levels_that_are_not_full_are_iterated(fmt: Format, var: IndexVar, iterated: bool) -> None:
    assert make_lattice(var, sparse("A", fmt)) == (points("A") if iterated else points("*"))


def test_a_product_over_a_located_row_adds_nothing() -> None:
    assert make_lattice(i, mul(R, A)) == points("A")
    assert make_lattice(j, mul(R, A)) == points("AR")


@pytest.mark.parametrize("many", [2, 3, 4, 5])
def test_sizes(many: int) -> None:
    """A product of n sparse operands has one point; a sum has a point for each non-empty subset."""
    operands = [sparse(f"T{n}") for n in range(many)]
    intersection: Expr = operands[0]
    union: Expr = operands[0]
    for operand in operands[1:]:
        intersection, union = mul(intersection, operand), add(union, operand)
    assert len(make_lattice(j, intersection).points) == 1
    assert len(make_lattice(j, union).points) == 2**many - 1


def test_points_below_one() -> None:
    result = make_lattice(j, mul(add(A, B), C))
    assert result.below(frozenset("AC")) == [frozenset("AC")]
    assert result.below(frozenset("ABC")) == list(result.points)
    assert result.iterated == frozenset("ABC")
