"""Levels with repeated coordinates: short runs are not found, each position is a step of the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.errors import ScheduleError
from numscorch.ir.format import COO
from numscorch.ir.index import Each, TensorVar, loops_of
from numscorch.ir.notation import parse_stmt
from numscorch.ir.verify import verify
from numscorch.schedule import tuning


def tensor(order: int, size: int, count: int, seed: int, dtype: torch.dtype = torch.float64, index: torch.dtype = torch.int64) -> Any:
    """A COO tensor in which the coordinates of all levels but the last repeat."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(0, size, (order, count), generator=generator)
    values = torch.randint(1, 5, (count,), generator=generator).to(dtype)
    return ns.coalesce(ns.from_coo(indices.to(index), values, (size,) * order)).to(ns.COO(order))


def visited(explanation: ns.Explanation) -> list[str]:
    return [loop.var.name for loop in loops_of(explanation.steps[-1].stmt) if isinstance(loop.tag, Each)]


@pytest.mark.parametrize(("order", "width"), [(3, 1), (3, 5), (4, 5), (5, 2)])
@pytest.mark.parametrize("longest", [0.5, 1e9])
def test_sums_over_all_modes(order: int, width: int, longest: float, plain: pytest.MonkeyPatch) -> None:
    plain.setattr(tuning, "SHORT_RUN", longest)
    plain.setattr(tuning, "PARALLEL_STEPS", 0)
    plain.setattr(tuning, "BLOCKS", 3)
    letters = "ijklm"[:order]
    for count in (0, 40):
        A = tensor(order, 4, count, order)
        factors = [torch.randint(-3, 4, (4, width)).double() for _ in letters]
        for mode in letters:
            others = [letter for letter in letters if letter != mode]
            text = ",".join([letters, *(f"{letter}r" for letter in others)]) + f"->{mode}r"
            operands = [factors[letters.index(letter)] for letter in others]
            assert torch.equal(ns.einsum(text, A, *operands), torch.einsum(text, A.to_dense(), *operands))


def test_short_runs_are_visited_by_position() -> None:
    x = torch.ones(50, 8, dtype=torch.float64)
    assert visited(ns.explain("ijk,jr,kr->ir", tensor(3, 50, 400, 0), x, x)) == ["j"]
    assert visited(ns.explain("ijkl,jr,kr,lr->ir", tensor(4, 50, 400, 0), x, x, x)) == ["j", "k"]
    few = torch.ones(10, 8, dtype=torch.float64)
    assert visited(ns.explain("ijk,jr,kr->ir", tensor(3, 10, 3000, 0), few, few)) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.complex64])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_types(dtype: torch.dtype, index: torch.dtype, plain: pytest.MonkeyPatch) -> None:
    A = tensor(3, 9, 60, 1, dtype, index)
    B, C = (torch.randint(-3, 4, (9, 6)).to(dtype) for _ in range(2))
    wide = [t.to(torch.complex128 if dtype.is_complex else torch.float64) for t in (A.to_dense(), B, C)]
    assert torch.equal(ns.einsum("ijk,jr,kr->ir", A, B, C), torch.einsum("ijk,jr,kr->ir", *wide).to(dtype))
    assert torch.equal(ns.einsum("ijk,j->i", A, B[:, 0]), torch.einsum("ijk,j->i", wide[0], wide[1][:, 0]).to(dtype))
    assert torch.equal(ns.einsum("ijk,jr,kr->", A, B, C), torch.einsum("ijk,jr,kr->", *wide).to(dtype))


def test_functions_of_entries(plain: pytest.MonkeyPatch) -> None:
    """Each entry is one term, whatever the function of its value is."""
    A, x = tensor(3, 9, 60, 2), torch.rand(9, dtype=torch.float64)
    result = ns.evaluate("y[i] = exp(A[i,j,k]) * x[j] * (A[i,j,k] != 0)", A=A, x=x)
    dense = A.to_dense()
    torch.testing.assert_close(result, torch.einsum("ijk,j->i", torch.exp(dense) * (dense != 0), x))


def test_gradients() -> None:
    A = tensor(3, 30, 200, 3)
    values, B, C = (t.clone().requires_grad_() for t in (A.values, torch.rand(30, 6).double(), torch.rand(30, 6).double()))
    assert torch.autograd.gradcheck(lambda v, b, c: ns.einsum("ijk,jr,kr->ir", A.with_values(v), b, c), (values, B, C), fast_mode=True)


def test_compiled(fresh_plans: pytest.MonkeyPatch, scale: Callable[[int], int]) -> None:
    for seed in range(scale(20)):
        A = tensor(4, 7 + seed, 300, seed)
        factors = [torch.randint(-3, 4, (7 + seed, 16)).double() for _ in range(3)]
        for text in ("ijkl,jr,kr,lr->ir", "jikl,jr,kr,lr->ir", "jkli,jr,kr,lr->ir"):
            assert torch.equal(ns.einsum(text, A, *factors), torch.einsum(text, A.to_dense(), *factors))


@pytest.mark.parametrize(
    "text",
    [
        "forall(i, each_forall(j, forall(k, Y[i,j] += A[i,j,k])))",  # the result needs whole runs
        "each_forall(i, forall(j, forall(k, y[j] += A[i,j,k])))",  # blocks of the first level are cut between runs
        "forall(i, forall(j, each_forall(k, y[i] += A[i,j,k])))",  # coordinates of the last level do not repeat
        "forall(i, each_forall(j, forall(k, y[i] max= A[i,j,k])))",
    ],
)
def test_other_loops_find_runs(text: str) -> None:
    with pytest.raises(ScheduleError, match="visit each position"):
        verify(parse_stmt(text, {"A": TensorVar("A", COO(3))}))
