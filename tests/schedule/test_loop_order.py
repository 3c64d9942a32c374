"""The search for a loop order: the cheapest of few orders by the cost model, and a cheap one of many orders with few evaluations."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, permutations
from math import prod

import pytest
from cases import random_format
from corpus import TARGET, as_if_large, corpus
from named_kernels import KERNELS, plain, stored
from scale import scaled

from numscorch.errors import NumscorchError
from numscorch.frontend.parser import parse_einsum
from numscorch.frontend.problem import Problem, make_problem
from numscorch.frontend.requests import Operand
from numscorch.frontend.statements import parse_program
from numscorch.ir.format import COO, CSC, CSF, CSR, DCSR, Format
from numscorch.ir.index import Assignment, loops_of, variables_in
from numscorch.schedule import tuning
from numscorch.schedule.facts import Facts, forget_answers
from numscorch.schedule.loop_order import LoopOrder, Orders, cheapest, order_loops

CASES = scaled(300)
SIZES = (1, 2, 3, 5, 16, 100, 1000, 30_000)


def every_order(stmt: Assignment, facts: Facts) -> list[LoopOrder]:
    """All orders that can be compiled, cheapest first."""
    orders = (tuple(var.name for var in order) for order in permutations(variables_in(stmt.rhs)))
    choices = [choice for order in orders for choice in Orders(stmt, facts, TARGET).cheapest(wanted=order)]
    return sorted(choices, key=lambda choice: choice.cost)


def check_search(problem: Problem, facts: Facts) -> None:
    """Check that the search returns the cheapest orders in the order of an exhaustive search."""
    expected = every_order(problem.stmt, facts)[:4]
    choices = Orders(problem.stmt, facts, TARGET).cheapest()
    assert list(map(str, choices)) == list(map(str, expected)), str(problem.stmt)


def random_operand(rng: random.Random, shape: tuple[int, ...]) -> Operand:
    """A dense operand, or a sparse operand with plausible counts."""
    if not shape or rng.random() < 0.3:
        return plain(*shape)
    order = len(shape)
    common = CSF(order), Format("o" * order), Format("d" + "s" * (order - 1))
    fmt = random_format(rng, order) if rng.random() < 0.5 else rng.choice(common)
    if not fmt.is_plain or fmt.is_dense:
        fmt = CSF(order)
    nnz, counts = max(1, round(prod(shape) * 10 ** -rng.uniform(0, 3))), list[int]()
    for level, size in zip(fmt.levels, fmt.sizes(shape), strict=True):
        positions = (counts[-1] if counts else 1) * size
        counts.append(positions if level.full else min(positions, max(nnz, counts[-1] if counts else 1)))
    return replace(stored(fmt, shape, *counts), spreads=tuple(rng.choice((1, 1, 8)) for _ in counts))


def random_problem(rng: random.Random, names: str, operands: int) -> Problem:
    """A product or sum of random operands over some of the given indices."""
    sizes = {name: rng.choice(SIZES) for name in names}
    terms = ["".join(rng.sample(names, rng.randint(1, min(4, len(names))))) for _ in range(operands)]
    used = sorted(set("".join(terms)))
    result = "".join(rng.sample(used, rng.randint(0, min(3, len(used)))))
    facts = [random_operand(rng, tuple(sizes[name] for name in term)) for term in terms]
    if rng.random() < 0.8:
        return make_problem(parse_einsum(f"{','.join(terms)}->{result}", tuple(map(len, terms))), facts, TARGET)
    right = rng.choice((" + ", " * ")).join(f"{'ABCDEFGH'[at]}[{','.join(term)}]" for at, term in enumerate(terms))
    op = rng.choice(("+=", "max=", "min="))
    (part,) = parse_program(f"Z[{','.join(result)}] {op} {right}")
    return make_problem(part.request, facts, TARGET)


def test_the_search_finds_what_pricing_every_order_finds_on_the_corpus() -> None:
    rng = random.Random(0)
    for problem, _ in corpus():
        check_search(problem, problem.facts)
        check_search(problem, as_if_large(problem.facts, rng))


@pytest.mark.parametrize("name", KERNELS)
def test_the_search_finds_what_pricing_every_order_finds_for_named_kernels(name: str) -> None:
    expr, operands = KERNELS[name]
    if expr.startswith("to "):
        return
    request = parse_program(expr)[0].request if "=" in expr else parse_einsum(expr, tuple(len(o.shape) for o in operands))
    problem = make_problem(request, operands, TARGET)
    check_search(problem, problem.facts)


@pytest.mark.parametrize("seed", range(CASES))
def test_the_search_finds_what_pricing_every_order_finds_for_random_expressions(seed: int) -> None:
    rng = random.Random(seed)
    with suppress(NumscorchError):  # some data types and formats are not supported by kernels
        problem = random_problem(rng, "ijklm"[: rng.randint(2, 5)], rng.randint(1, 4))
        check_search(problem, problem.facts)


MANY = [
    "acdf,jbje,gihb,hfac,gfac,gifabc,hfac->",
    "ab,bc,cd,de,ef,fg,gh,hijkl->al",
    "abc,cde,efg,ghi,ijk,kla,ad,gj->bl",
]


@pytest.mark.parametrize("seed", range(scaled(30)))
def test_the_first_order_is_the_cheapest_of_more_variables(seed: int) -> None:
    rng = random.Random(seed)
    with suppress(NumscorchError):
        problem = random_problem(rng, "ijklmn", rng.randint(2, 6))
        (best,) = every_order(problem.stmt, problem.facts)[:1]
        choices = Orders(problem.stmt, problem.facts, TARGET).cheapest()
        assert str(choices[0]) == str(best), str(problem.stmt)


@pytest.mark.parametrize("expr", MANY)
def test_few_orders_of_many_operands_are_priced(expr: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, priced = random.Random(expr), list[object]()
    price = Orders.price
    monkeypatch.setattr(Orders, "price", lambda self, order: priced.append(order) or price(self, order))
    terms = expr.partition("->")[0].split(",")
    for _ in range(5):
        sizes = {name: rng.choice((4, 100, 3000)) for name in "abcdefghijkl"}
        shapes = [tuple(sizes[name] for name in term) for term in terms]
        operands = [stored(CSF(len(s)), s, *(min(prod(s[: at + 1]), 10 ** (3 + at)) for at in range(len(s)))) for s in shapes]
        problem = make_problem(parse_einsum(expr, tuple(map(len, shapes))), operands, TARGET, "dense")
        priced.clear()
        assert order_loops(problem.stmt, problem.facts, TARGET)
        assert len(priced) < 600


def test_few_orders_are_priced_if_a_relation_forbids_the_first_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The diagonal of the first operand is a relation of its two variables, which appear in the order that cannot walk it."""
    priced = list[object]()
    price = Orders.price
    monkeypatch.setattr(Orders, "price", lambda self, order: priced.append(order) or price(self, order))
    first = Format("(i, j, k, l, m) -> (l: dense, i: compressed, k: dense, j: compressed(unique=False), m: singleton)")
    given = [stored(first, (3, 9, 9, 2, 3), 2, 6, 54, 40, 40), stored(DCSR, (3, 2), 3, 4), stored(CSR, (9, 4), 9, 20)]
    given += [plain(2, 3, 2, 3, 9), stored(CSF(3), (3, 2, 2), 3, 5, 8)]
    problem = make_problem(parse_einsum("gbbij,kd,be,ijlga,jcl->ij", (5, 2, 2, 5, 3)), given, TARGET, "dense")
    assert order_loops(problem.stmt, problem.facts, TARGET)
    assert len(priced) < 1000


@pytest.mark.parametrize("seed", range(scaled(30)))
def test_local_searches_find_cheap_orders(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order costs at most ten times as much as the best one."""
    rng = random.Random(seed)
    with suppress(NumscorchError):
        problem = random_problem(rng, "ijklmn", rng.randint(2, 6))
        best = cheapest(problem.stmt, problem.facts, TARGET).cost
        monkeypatch.setattr(tuning, "FEW_LOOPS", 0)
        forget_answers()
        assert best <= cheapest(problem.stmt, problem.facts, TARGET).cost < 10 * best


def test_a_local_search_keeps_the_order_of_a_chain() -> None:
    names = "abcdefghijklmnopqrst"
    operands = [stored(CSR, (9, 9), 9, 20) for _ in names[1:]]
    request = parse_einsum(",".join(map("".join, pairwise(names))) + "->a", (2,) * len(operands))
    problem = make_problem(request, operands, TARGET)
    nest, _ = order_loops(problem.stmt, problem.facts, TARGET)
    assert [loop.var.name for loop in loops_of(nest)] == list(names)


def test_a_local_search_finds_the_only_order_that_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    (part,) = parse_program("D[i,l] = A[i,j] * B[j,k] * C[k,l]")
    problem = make_problem(part.request, [stored(CSR, (9, 9), 9, 20) for _ in range(3)], TARGET)
    orders = [choice.order for choice in every_order(problem.stmt, problem.facts)]
    monkeypatch.setattr(tuning, "FEW_LOOPS", 0)
    for only in orders:
        monkeypatch.setattr(Orders, "can_be_made", lambda self, choice, only=only: choice.order == only)
        assert [choice.order for choice in Orders(problem.stmt, problem.facts, TARGET).cheapest()] == [only]


def best_order(text: str, *operands: Operand) -> str:
    """The chosen order, and the formats in which it reads operands."""
    (part,) = parse_program(text)
    problem = make_problem(part.request, operands, TARGET)
    best = Orders(problem.stmt, problem.facts, TARGET).cheapest()[0]
    return str(best).replace(f": {best.cost:.3g}", "")


def large(fmt: Format, rows: int = 5000) -> Operand:
    """A square matrix with 25,000 entries."""
    return stored(fmt, (rows, rows), {COO(2): 25_000, DCSR: min(rows, 25_000)}.get(fmt, rows), 25_000)


@pytest.mark.parametrize("op", ("+=", "max=", "min=", "*="))
@pytest.mark.parametrize("left", (CSR, COO(2), DCSR))
@pytest.mark.parametrize("right", (COO(2), DCSR))
def test_rows_that_another_sparse_operand_selects_are_located(left: Format, right: Format, op: str) -> None:
    assert best_order(f"C[i,k] {op} A[i,j] * B[j,k]", large(left), large(right)) == "ijk, B stored as CSR"


@pytest.mark.parametrize("fmt", (COO(3), CSF(3)))
def test_slices_of_tensors_that_a_matrix_selects_are_located(fmt: Format) -> None:
    tensor = stored(fmt, (1000, 100, 100), 1000 if fmt == CSF(3) else 20_000, 20_000, 20_000)
    order = best_order("C[i,l] += A[i,j] * B[j,k,l]", stored(COO(2), (5000, 1000), 25_000, 25_000), tensor)
    assert order == "ijkl, B stored as dss"


def test_rows_are_searched_where_most_have_no_entries() -> None:
    order = best_order("C[i,k] += A[i,j] * B[j,k]", large(COO(2), 1_000_000), large(COO(2), 1_000_000))
    assert order == "ijk, B stored as DCSR"


def test_a_level_that_is_walked_once_keeps_its_format() -> None:
    assert best_order("y[i] += A[i,j] * x[j]", large(COO(2)), plain(5000)) == "ij"
    assert best_order("C[i,k] += A[i,j] * B[j,k]", large(COO(2)), plain(5000, 64)) == "ijk"
    assert best_order("C[i,j] = A[i,j] * B[i,j]", large(COO(2)), large(COO(2))) == "ij"


@pytest.mark.parametrize("longest", [0, 4096, 1 << 20])
def test_scattered_vectors_need_no_conversion_for_one_long_sum(longest: int) -> None:
    """One of 100,000 rows of a CSC matrix is longer than the others. Only vectors are collected in a wider type."""
    A = replace(stored(CSC, (100_000, 100_000), 100_000, 2_000_000), peaks=(0, longest))
    assert best_order("y[i] += A[i,j] * x[j]", A, plain(100_000)) == "ji"
    assert best_order("C[i,k] += A[i,j] * B[j,k]", A, plain(100_000, 8)) == ("ijk, A stored as CSR" if longest else "jik")


@pytest.mark.parametrize(("entries", "order"), [(100_000, "ijk, A stored as CSR"), (4_000_000, "jik")])
def test_values_beyond_the_cache_of_a_core_are_not_read_in_another_order(entries: int, order: str) -> None:
    A = stored(CSC, (100_000, 100_000), 100_000, entries)
    assert best_order("C[i,k] += A[i,j] * B[j,k]", A, plain(100_000, 8)) == order
