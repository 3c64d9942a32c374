"""Galloping: when an operand is searched instead of walked, and that the search finds the common entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.codegen import checked_intrinsics
from numscorch.codegen.environment import Env
from numscorch.codegen.lowering import lower
from numscorch.codegen.result_assembly import Assembly
from numscorch.codegen.routines import seek
from numscorch.errors import ScheduleError
from numscorch.ir.format import COO, CSR, DCSR, Format
from numscorch.ir.index import Gallop, TensorVar, loops_of, operands_of, result_of
from numscorch.ir.notation import parse_stmt
from numscorch.schedule import tuning
from numscorch.schedule.facts import Facts, Target
from numscorch.schedule.walks import gallop


def rows_of(rows: Sequence[Sequence[int]], columns: int, fmt: Format = CSR) -> Any:
    """A matrix with values 1, 2, ... at the given columns of each row."""
    dense = torch.zeros(len(rows), columns)
    for at, row in enumerate(rows):
        dense[at, list(row)] = torch.arange(1.0, len(row) + 1)
    return ns.from_torch(dense).to(fmt)


# ---- the search


@pytest.mark.parametrize("length", [0, 1, 2, 3, 8, 9, 33])
def test_seek_finds_the_first_coordinate_that_is_not_less(length: int) -> None:
    crd = np.arange(length, dtype=np.int32) * 2 + 1
    for start in range(length + 1):
        for coordinate in range(-1, 2 * length + 3):
            expected = start + int(np.searchsorted(crd[start:], coordinate))
            assert seek.py_func(crd, start, length, coordinate) == expected
            assert checked_intrinsics.seek(checked_intrinsics.Checked(crd), start, length, coordinate) == expected


def test_seek_stays_within_its_bounds() -> None:
    crd = np.array([5, 1, 3, 0], np.int64)
    assert seek.py_func(crd, 1, 3, 9) == 3
    assert checked_intrinsics.seek(checked_intrinsics.Checked(crd), 3, 3, 9) == 3
    with pytest.raises(IndexError, match="values from 3 on"):
        checked_intrinsics.seek(checked_intrinsics.Checked(crd), 3, 5, 9)
    with pytest.raises(ValueError, match="not in order"):
        checked_intrinsics.seek(checked_intrinsics.Checked(crd), 0, 3, 9)


# ---- the pass


def galloped(text: str, counts: dict[str, tuple[Format, tuple[int, ...]]], extent: int = 100_000) -> tuple[str, str] | None:
    """The statement after the pass, and the reason."""
    stmt = parse_stmt(text, {name: TensorVar(name, fmt) for name, (fmt, _) in counts.items()})
    step = gallop(stmt, Facts.of({loop.var: extent for loop in loops_of(stmt)}, counts, 8, Target(32, 16)))
    return (str(step[0]), step[1]) if step else None


DOT = "forall(i, where(y[i] = t, forall(j, t += A[i,j] * B[i,j])))"
SHORT, LONG = (CSR, (1024, 3072)), (CSR, (1024, 1 << 20))


def test_the_longer_operand_is_searched() -> None:
    text, why = galloped(DOT, {"A": SHORT, "B": LONG}) or ("", "")
    assert text == "forall(i, where(y[i] = t, gallop_forall<A>(j, t += A[i,j] * B[i,j])))"
    assert why == "at j, A has about 3 coordinates and B 1.02e+03: A is walked, and the others are searched"
    assert "gallop_forall<B>" in (galloped(DOT, {"A": LONG, "B": SHORT}) or "")[0]


def test_operands_of_about_one_length_are_walked() -> None:
    text, why = galloped(DOT, {"A": SHORT, "B": (CSR, (1024, 7168))}) or ("", "")
    assert text == DOT
    assert why.endswith("both are walked")
    three = "forall(i, where(y[i] = t, forall(j, t += A[i,j] * B[i,j] * C[i,j])))"
    assert (galloped(three, dict.fromkeys("ABC", SHORT)) or ("", ""))[1] == ("at j, A has about 3 coordinates, B 3 and C 3: all are walked")


@pytest.mark.parametrize("rhs", ["A[i,j] + B[i,j]", "A[i,j]", "A[i,j] * x[j]", "(A[i,j] + 1) * B[i,j]"])
def test_only_intersections_are_searched(rhs: str) -> None:
    counts = {"A": SHORT, "B": LONG}
    assert galloped(f"forall(i, forall(j, C[i,j] = {rhs}))", {name: counts[name] for name in counts if name in rhs}) is None


@pytest.mark.parametrize("fmt", [COO(2), Format("oo")])
def test_levels_with_repeated_coordinates_are_not_searched(fmt: Format) -> None:
    assert "gallop_forall<A>(i" not in str(galloped(DOT, {"A": (fmt, (9, 9)), "B": (Format("ss"), (1024, 1 << 20))}))


def test_every_function_that_is_0_where_an_operand_is_absent_is_searched() -> None:
    text = "forall(i, forall(j, C[i,j] = relu(A[i,j]) * B[i,j] / (B[i,j] + 1)))"
    assert "gallop_forall<A>(j" in str(galloped(text, {"A": SHORT, "B": LONG}))


@pytest.mark.parametrize("rhs", ["A[i,j] + B[i,j]", "A[i,j] * x[j]"])
def test_a_union_cannot_be_searched(rhs: str) -> None:
    stmt = parse_stmt(f"forall(i, gallop_forall<A>(j, C[i,j] = {rhs}))", {name: TensorVar(name, CSR) for name in "AB"})
    sparse = tuple(a for a in operands_of(stmt) if not a.tensor.is_dense)
    env = Env(sparse, Assembly(result_of(stmt), "fill"))
    if len(sparse) == 1:
        assert lower(stmt, env)  # a lone operand is walked
        return
    with pytest.raises(ScheduleError, match=r"gallop_forall<A>\(j"):
        lower(stmt, env)


# ---- the loop


CASES: dict[str, tuple[list[list[int]], list[list[int]]]] = {
    "none": ([[], [], []], [[], [1, 2], []]),
    "empty and full": ([[], list(range(40)), []], [list(range(40)), [], list(range(40))]),
    "one": ([[7], [39], [0]], [list(range(40)), [38, 39], [0, 39]]),
    "all": ([list(range(40))] * 3, [list(range(40))] * 3),
    "apart": ([[0, 1], [38, 39], [5]], [[38, 39], [0, 1], [4, 6]]),
    "interleaved": ([list(range(0, 40, 2))] * 3, [list(range(1, 40, 2)), list(range(0, 40, 4)), [39]]),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("name", CASES)
def test_common_entries_are_found(name: str, compiled: bool, fresh_plans: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    fresh_plans.setattr(tuning, "SEEK", 0.0)
    if not compiled:
        request.getfixturevalue("plain")
    for fmt in (CSR,) if compiled else (CSR, DCSR, COO(2), Format("so")):
        A, B = (rows_of(rows, 40, fmt) for rows in CASES[name])
        a, b = A.to_dense(), B.to_dense()
        assert torch.equal(torch.as_tensor(ns.einsum("ij,ij->i", A, B, format="dense")), (a * b).sum(1))
        C = ns.einsum("ij,ij->ij", A, B)
        assert torch.equal(C.to_dense(), a * b)
        if not compiled:
            assert torch.equal(ns.einsum("ij,ij,ij->ij", A, B, A).to_dense(), a * b * a)


def test_einsum_searches_rows_that_are_far_longer() -> None:
    """``explain`` shows the search for rows of 3 and of 1000 entries."""
    numbers = np.random.default_rng(0)
    A = rows_of([sorted(numbers.choice(4000, 3, replace=False).tolist()) for _ in range(20)], 4000)
    B = rows_of([sorted(numbers.choice(4000, 1000, replace=False).tolist()) for _ in range(20)], 4000)
    text = str(ns.explain("ij,ij->", A, B))
    assert "gallop            where(C = t, forall(i, gallop_forall<A>(j, t += A[i,j] * B[i,j])))" in text
    assert "A has about 3.2 coordinates and B 1.02e+03: A is walked, and the others are searched" in text
    assert torch.equal(ns.einsum("ij,ij->", A, B), (A.to_dense() * B.to_dense()).sum())
    masked = ns.explain("ij,jk,ik->ik", B, rows_of([range(1000)] * 4000, 1000), rows_of([[1, 5, 9]] * 20, 1000))
    assert any(isinstance(loop.tag, Gallop) for loop in loops_of(masked.steps[-1].stmt)), masked


def test_a_loop_over_one_operand_stays_serial() -> None:
    explanation = ns.explain("ij,j->i", rows_of([[1], [2]], 4), torch.ones(4))
    assert not any(step.name == "gallop" for step in explanation.steps)
    assert all(not isinstance(loop.tag, Gallop) for loop in loops_of(explanation.steps[-1].stmt))
