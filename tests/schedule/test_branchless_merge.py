"""Merges without branches give the same results as merges with branches, without accesses out of bounds."""

from __future__ import annotations

import pytest
import torch
from dense_values import as_dense

import numscorch as ns
from numscorch.ir.index import Blend, loops_of
from numscorch.runtime import plans
from numscorch.schedule import tuning

SUMS = (
    "R[i,j] = A[i,j] + B[i,j]",
    "R[i,j] = A[i,j] * B[i,j]",
    "R[i,j] = 2 * A[i,j] - B[i,j] * x[j]",
    "R[i,j] = A[i,j] * B[i,j] + C[i,j]",
    "R[i,j] = A[i,j] * (B[i,j] + C[i,j])",
    "R[i,j] = A[i,j] + B[i,j] + C[i,j]",
    "R[i,j] = A[i,j] * B[i,j] * C[i,j]",
    "R[i,j] = A[i,j] * B[i,j] + B[i,j] * C[i,j] + A[i,j] * C[i,j]",
    "R[i,j] = maximum(A[i,j], B[i,j])",
    "y[i] = A[i,j] * B[i,j]",
    "y[i] = A[i,j] * B[i,j] + C[i,j] * x[j]",
    "y[i] = (A[i,j] + B[i,j]) * x[j]",
    "s = A[i,j] * B[i,j] * C[i,j]",
)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def operands(rows: int, columns: int, fmt: ns.Format, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], dict[str, ns.SparseTensor]]:
    """Three matrices with full, half-full and nearly empty rows, as dense and as sparse tensors."""
    dense = {}
    for seed, name in enumerate("ABC"):
        mask = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) < torch.linspace(0, 1, rows)[:, None]
        dense[name] = (numbers(rows, columns, seed=seed) * mask).to(dtype)
    return dense, {name: ns.from_torch(value, fmt) for name, value in dense.items()}


def expected(text: str, dense: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    left, right = text.split(" = ")
    value = eval(right.replace("[i,j]", "").replace("[j]", ""), {**dense, "x": x, "maximum": torch.maximum})
    return value if "i,j" in left else value.sum(1) if "i" in left else value.sum()


@pytest.mark.parametrize("fmt", [ns.CSR, ns.DCSR], ids=str)
@pytest.mark.parametrize("text", SUMS)
def test_expressions(text: str, fmt: ns.Format, plain: pytest.MonkeyPatch) -> None:
    for at, (rows, columns) in enumerate(((7, 13), (1, 5), (20, 3), (3, 0))):
        plain.setattr(tuning, "PARALLEL_STEPS", 0 if at % 2 else 1 << 15)
        dense, sparse = operands(rows, columns, fmt, torch.float32)
        x = numbers(columns, seed=9)
        result = ns.evaluate(text, **{name: value for name, value in {**sparse, "x": x}.items() if f"{name}[" in text})
        values = as_dense(result)
        assert torch.equal(values, expected(text, dense, x))
    kept = [plan for plan in plans.PROCESS.plans.values() if isinstance(plan, plans.Plan)]
    tags = [loop.tag for plan in kept for loop in loops_of(plan.steps[-1].stmt)]
    counts_first = fmt == ns.DCSR and "*" in text  # a result whose entries are counted is merged with branches
    assert any(isinstance(tag, Blend) for tag in tags) or counts_first


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_compiled(dtype: torch.dtype, fresh_plans: pytest.MonkeyPatch) -> None:
    dense, sparse = operands(40, 30, ns.CSR, dtype)
    both, either = sparse["A"] * sparse["B"], sparse["A"] + sparse["B"]
    assert torch.equal(both.to_dense(), dense["A"] * dense["B"])
    assert torch.equal(either.to_dense(), dense["A"] + dense["B"])
    assert torch.equal(ns.einsum("ij,ij->i", sparse["A"], sparse["B"]), (dense["A"] * dense["B"]).sum(1))


def test_an_unstored_entry_times_infinity_is_no_term(fresh_plans: pytest.MonkeyPatch) -> None:
    A, B = (ns.from_torch(torch.tensor(row)) for row in ([[1.0, 0, 2, 0]], [[0, 3.0, 4, 0]]))
    x = torch.tensor([float("inf"), 1, 1, float("nan")])
    total = ns.evaluate("y[i] = A[i,j] * B[i,j] * x[j] + B[i,j]", A=A, B=B, x=x)
    assert total.tolist() == [15.0]
    A.values[0] = float("nan")
    assert ns.einsum("ij,ij->i", A, B).tolist() == [8.0]
    assert (A + B).values.isnan().tolist() == [True, False, False]


@pytest.mark.parametrize("crd", [torch.int32, torch.int64])
def test_coordinates_at_the_ends_of_their_type(crd: torch.dtype, fresh_plans: pytest.MonkeyPatch) -> None:
    last = 2**31 - 2 if crd == torch.int32 else 2**62
    A = ns.from_coo(torch.tensor([[0, 0], [0, last]], dtype=crd), torch.tensor([1.0, 2]), (1, last + 1), format=ns.CSR)
    B = ns.from_coo(torch.tensor([[0, 0], [1, last]], dtype=crd), torch.tensor([4.0, 8]), (1, last + 1), format=ns.CSR)
    assert (A + B).values.tolist() == [1.0, 4.0, 10.0]
    assert (A * B).values.tolist() == [16.0]


ALIKE = ("R[i,j] = A[i,j] + B[i,j]", "R[i,j] = A[i,j] * B[i,j]", "R[i,j] = A[i,j] - 2 * B[i,j]", "y[i] = A[i,j] * B[i,j]")


@pytest.mark.parametrize("text", ALIKE)
def test_equal_rows_and_rows_that_differ_in_their_last_entry(text: str, plain: pytest.MonkeyPatch) -> None:
    """The last row of a tensor ends its arrays, so reading ahead of it would raise an error."""
    stored = torch.zeros(6, 16, dtype=torch.bool)
    stored[:, 1::2] = True
    other = stored.clone()
    other[1, 15], other[2, 1], other[3] = False, False, ~stored[3]
    other[4, 14], other[5] = True, stored[5]
    for left, right in ((stored, stored), (stored, other), (other, stored), (other, ~other)):
        dense = {name: (numbers(6, 16, seed=seed) + 5) * mask for seed, (name, mask) in enumerate(zip("AB", (left, right), strict=True))}
        result = ns.evaluate(text, **{name: ns.from_torch(value, ns.CSR) for name, value in dense.items()})
        result = as_dense(result)
        assert torch.equal(result, expected(text, dense, torch.ones(16)))
    assert any(loop.tag == Blend(ahead=True) for plan in plans.PROCESS.plans.values() for loop in loops_of(plan.steps[-1].stmt))


def test_short_rows_are_merged_without_reading_ahead(plain: pytest.MonkeyPatch) -> None:
    A, B = (ns.from_torch(torch.eye(9).roll(by, 1), ns.CSR) for by in (0, 1))
    assert torch.equal((A + B).to_dense(), torch.eye(9) + torch.eye(9).roll(1, 1))
    tags = [loop.tag for plan in plans.PROCESS.plans.values() for loop in loops_of(plan.steps[-1].stmt)]
    assert Blend() in tags
    assert Blend(ahead=True) not in tags


def test_entries_that_depend_on_masks_and_on_operands_of_outer_loops_are_counted(plain: pytest.MonkeyPatch) -> None:
    """B is present at the first j only, and C at each j: one step has a mask, the other the comparison of an outer loop."""
    first = torch.tensor([[1.0], [0.0]]).expand(2, 3)
    full = {"A": torch.zeros(3), "B": first, "C": torch.ones(3), "D": torch.zeros(3, 2), "E": torch.ones(2, 3)}
    formats = {"A": "s", "B": "DCSC", "C": "s", "D": "DCSR", "E": "DCSC"}
    sparse = {name: ns.from_torch(value, formats[name]) for name, value in full.items()}
    result = ns.evaluate("R[i] += (A[i] + 2) * (B[j,i] + C[i]) * (D[i,j] + E[j,i])", **sparse)
    assert torch.equal(result.to_dense(), torch.full((3,), 6.0))
    assert any(isinstance(loop.tag, Blend) for plan in plans.PROCESS.plans.values() for loop in loops_of(plan.steps[-1].stmt))
