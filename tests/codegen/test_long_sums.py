"""Sums of many terms are as exact as torch's, for all formats and loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import numscorch as ns
from numscorch.codegen.source import generate
from numscorch.ir.format import dense
from numscorch.ir.index import Access, Assignment, Forall, IndexVar, Stmt, TensorVar, Where, loops_of
from numscorch.ir.loop import For, walk_block
from numscorch.schedule.block_sums import block_sums
from numscorch.schedule.facts import Facts, Target

TERMS = 60_000
EPSILON = 2 * torch.finfo(torch.float32).eps
ROW = torch.full((1, TERMS), 0.1)
ONES = torch.ones(TERMS)
ROUTES: dict[str, Callable[[ns.SparseTensor], torch.Tensor]] = {
    "sum": lambda A: A.sum(),
    "sum(1)": lambda A: A.sum(1),
    "sum(0) of the transpose": lambda A: A.t().sum(0),
    "mean": lambda A: A.mean(1) * TERMS,
    "ij->i": lambda A: ns.einsum("ij->i", A),
    "ij->": lambda A: ns.einsum("ij->", A),
    "ij,j->i": lambda A: ns.einsum("ij,j->i", A, ONES),
    "ij,j->": lambda A: ns.einsum("ij,j->", A, ONES),
    "ij,ij->": lambda A: ns.einsum("ij,ij->", A, ONES[None]),
    "ij,jk->ik": lambda A: ns.einsum("ij,jk->ik", A, ONES[:, None].expand(TERMS, 2)),
}


@pytest.mark.parametrize("format", ["CSR", "COO(2)"])
@pytest.mark.parametrize("route", ROUTES)
def test_long_sums_are_about_as_exact_as_those_of_torch(route: str, format: str, plain: None) -> None:
    exact = TERMS * ROW[0, 0].double()
    allowed = 10 * max(float(abs(ROW.sum().double() - exact) / exact), EPSILON)
    total = ROUTES[route](ns.from_torch(ROW, format))
    assert float((abs(total.double() - exact) / exact).max()) <= allowed


def test_long_columns_of_few_entries_each_are_summed_in_blocks(plain: None) -> None:
    column = ns.from_torch(ROW.t().contiguous(), "ss")
    exact = TERMS * ROW[0, 0].double()
    assert abs(float(ns.einsum("ij,i->", column, ONES).double() / exact) - 1) < 10 * EPSILON


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("kind", ["list", "hash"])
def test_rows_in_workspaces_accumulate_in_wider_types(kind: str, dtype: torch.dtype, plain: None) -> None:
    A, B = ns.from_torch(ROW.to(dtype)), ns.from_torch(ONES[:, None].to(dtype))
    result = ns.einsum("ij,jk->ik", A, B, schedule=f"workspace({kind})")
    assert result.dtype == dtype
    assert abs(result.values.to(torch.complex128).item() / (TERMS * ROW[0, 0].double().item()) - 1) < EPSILON


def test_infinite_terms_stay_infinite(plain: None) -> None:
    values = ROW.clone()
    values[0, TERMS // 2] = torch.inf
    assert ns.einsum("ij,j->i", ns.from_torch(values), ONES).item() == torch.inf


def nest(*sizes: int, dtype: str = "float32") -> Stmt:
    """Nested loops of these lengths that add a term to a register."""
    names = "ijk"[: len(sizes)]
    space, x = TensorVar("t", dense(0), dtype), TensorVar("x", dense(len(sizes)), dtype, strides="n" * len(sizes))
    body: Stmt = Assignment(Access(space, ()), Access(x, tuple(map(IndexVar, names))), "+=")
    for name in reversed(names):
        body = Forall(IndexVar(name), body)
    total = TensorVar("s", dense(0), dtype)
    summed = Where(Assignment(Access(total, ()), Access(space, ())), body)
    return (block_sums(summed, Facts(tuple(zip(map(IndexVar, names), sizes, strict=True)))) or (summed, ""))[0]


def sums_of(stmt: Stmt) -> list[tuple[int, ...] | None]:
    return [None if loop.sums is None else loop.sums.widths for loop in loops_of(stmt)]


def loops_in(stmt: Stmt) -> list[str]:
    """The variables of the loops of the generated code."""
    (function,) = generate(stmt, Target()).program.functions
    return [loop.var.name for loop in walk_block(function.body) if isinstance(loop, For)]


def test_short_sums_and_sums_of_integers_are_not_changed() -> None:
    assert sums_of(nest(100)) == [None]
    assert sums_of(nest(20, 5)) == [None, None]
    assert sums_of(nest(10**6, dtype="int64")) == [None]
    assert loops_in(nest(20, 5)) == ["i", "j"]


def test_long_loops_are_cut_into_blocks() -> None:
    assert sums_of(nest(10**4)) == [(64,)]
    assert sums_of(nest(10**6)) == [(64, 4096)]
    assert sums_of(nest(10**3, 5)) == [(12,), None]
    assert sums_of(nest(5, 10**4)) == [None, (64,)]
    assert sums_of(nest(5, 100)) == [None, ()]
    assert loops_in(nest(10**4)) == ["i_block1", "i"]
    assert loops_in(nest(10**6)) == ["i_block2", "i_block1", "i"]
    assert loops_in(nest(10**3, 5)) == ["i_block1", "i", "j"]
    assert loops_in(nest(5, 10**4)) == ["i", "j_block1", "j"]
    assert loops_in(nest(10**4, 10**4)) == ["i_block1", "i", "j_block1", "j"]


def test_explain_shows_the_partial_sums_and_their_reason(plain: None) -> None:
    text = str(ns.explain("ij,j->i", ns.from_torch(ROW), ONES))
    assert "block_sums        parallel_forall(i, where(C[i] = t, position_forall<" in text
    assert "(j: sums<64" in text and "t takes up to " in text and " terms along j: sums<64" in text


def arrow(size: int) -> torch.Tensor:
    """A full first row and a diagonal, as a native sparse tensor."""
    step = torch.arange(size)
    rows = torch.stack([torch.cat([torch.zeros_like(step), step[1:]]), torch.cat([step, step[1:]])])
    return torch.sparse_coo_tensor(rows, torch.full((2 * size - 1,), 0.1), (size, size), check_invariants=True).coalesce()


@pytest.mark.parametrize("format", ["COO(2)", "CSR", "DCSR"])
@pytest.mark.parametrize("transposed", [False, True])
def test_one_long_row_or_column_among_short_ones(format: str, transposed: bool, fresh_plans: pytest.MonkeyPatch) -> None:
    full = arrow(TERMS)
    A = ns.from_torch(full.t().coalesce() if transposed else full, format)
    exact = TERMS * ROW[0, 0].double()
    product = A.t() if transposed else A
    for total in (A.sum(0 if transposed else 1), product @ ONES, (product @ ONES[:, None].expand(TERMS, 2))[:, 0]):
        assert float(abs(total[0].double() - exact) / exact) <= 10 * EPSILON


def test_peaks_are_those_of_uneven_rows_and_columns() -> None:
    assert ns.from_torch(arrow(TERMS), "CSR").pattern.peaks == (16384, 0)
    assert ns.from_torch(arrow(TERMS), "COO(2)").pattern.peaks == (16384, 0)
    assert ns.from_torch(arrow(TERMS), "CSC").pattern.peaks == (0, 16384)
    assert ns.from_torch(torch.eye(2000), "CSR").pattern.peaks == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("are_together", [False, True])
def test_long_rows_of_scattered_vectors_are_collected_in_a_wider_type(are_together: bool, dtype: torch.dtype) -> None:
    """Blocks of columns would not bound the terms: the entries of a long row may be side by side."""
    wide, rows = 1 << 18, 3000
    generator = torch.Generator().manual_seed(0)
    columns = torch.arange(TERMS) if are_together else torch.randperm(wide, generator=generator)[:TERMS].sort().values
    others = torch.stack([torch.randint(1, rows, (wide,), generator=generator), torch.arange(wide)])
    places = torch.cat([torch.stack([torch.zeros_like(columns), columns]), others], 1)
    A = ns.from_coo(places, torch.full((places.shape[1],), 0.1, dtype=dtype), (rows, wide)).to("CSC")
    x = torch.ones(wide, dtype=dtype)
    assert "w[i] += " in str(ns.explain("ij,j->i", A, x))
    exact = TERMS * ROW[0, 0].double()
    for total in (A @ x, A.sum(1)):
        assert float(abs(total[0].to(torch.complex128).real - exact) / exact) <= 10 * EPSILON


@pytest.mark.parametrize("text", ["ijk,k->j", "ijk,i->j", "ijk->j"])
def test_long_sums_around_a_register_stay_exact(text: str) -> None:
    """The register of the innermost sum is scattered, so that the long one is stored in another order."""
    rows, columns, depth = 20_000, 500, 4
    generator = torch.Generator().manual_seed(0)
    others = torch.stack(
        [torch.randint(0, rows, (20_000,), generator=generator), torch.randint(1, columns, (20_000,), generator=generator)]
    )
    places = torch.cat([torch.stack([torch.arange(rows), torch.zeros(rows, dtype=torch.int64)]), others], 1).repeat_interleave(depth, 1)
    fibres = torch.arange(depth).repeat(places.shape[1] // depth)
    A = ns.from_coo(torch.cat([places, fibres[None]]), torch.full((places.shape[1],), 0.1), (rows, columns, depth)).to("ssd")
    vectors = [torch.ones({"k": depth, "i": rows}[letter]) for letter in text.split("->")[0][4:]]
    total, exact = ns.einsum(text, A, *vectors, format="dense")[0].double(), rows * depth * ROW[0, 0].double()
    assert float(abs(total - exact) / exact) <= 20 * EPSILON
