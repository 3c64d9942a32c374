"""Dense tensors in other layouts: transposes in registers, and kernels that read and write transposed tensors."""

from __future__ import annotations

from math import prod

import pytest
import torch
from fresh import forget_plans

import numscorch as ns
from numscorch.frontend.parser import parse_einsum
from numscorch.frontend.relayout import moving, slab_starts, spaced_with_last
from numscorch.frontend.requests import einsum_request, plain_request, scheduled
from numscorch.ir.format import Format
from numscorch.ir.index import Transpose, loops_of
from numscorch.machine import threads
from numscorch.machine.memory import aligned
from numscorch.runtime import plans
from numscorch.schedule import tuning
from numscorch.schedule.facts import Target

TARGETS = (Target(16, 16), Target(32, 16), Target(64, 32))
SHAPES = ((1, 1), (8, 16), (7, 70), (33, 50), (64, 9), (2, 9, 17), (5, 1, 40), (3, 33, 2), (2, 3, 20, 35))


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.fixture
def eager(plain: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Even small tensors are copied if that makes a loop contiguous."""
    plain.setattr(tuning, "COST_COPY", 0.0)
    plain.setattr(tuning, "COST_MOVE", 0.01)
    return plain


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_copies(shape: tuple[int, ...], target: Target, plain: pytest.MonkeyPatch) -> None:
    plain.setattr(plans, "host", lambda: target)
    plain.setattr(tuning, "PARALLEL_STEPS", 0)
    plain.setattr(threads, "workers", lambda: 1 if target.registers == 32 else 3)
    for last in range(len(shape) - 1):
        for dtype in (torch.float32, torch.float64):
            x = numbers(*shape, dtype=dtype)
            spaced = spaced_with_last(shape, last)
            moved, back = aligned(prod(spaced), dtype).view(spaced)[..., : shape[last]], torch.empty(shape, dtype=dtype)
            plans._copy_functions(moving(len(shape), last), plans.describe(x))(())(x, moved)
            assert torch.equal(moved, x.movedim(last, -1))
            plans._copy_functions(moving(len(shape), last, back=True), plans.describe(moved))(())(moved, back)
            assert torch.equal(back, x)


def test_transposes_use_registers(plain: pytest.MonkeyPatch) -> None:
    plan = plans.make_plan(moving(2, 0), (numbers(64, 48),), None)
    assert any(isinstance(loop.tag, Transpose) for loop in loops_of(plan.steps[-1].stmt))
    assert "parallel parts of a, with disjoint results" in plan.steps[-1].why


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.ELL, ns.BCSR(4, 2), Format("sd")], ids=str)
def test_products(fmt: Format, eager: pytest.MonkeyPatch) -> None:
    for at, (batch, rows, columns) in enumerate(((64, 30, 20), (9, 17, 33), (2, 40, 8), (1, 8, 8))):
        eager.setattr(tuning, "PARALLEL_STEPS", 0 if at % 2 else 1 << 15)
        dense = numbers(rows, columns) * (torch.rand(rows, columns, generator=torch.Generator().manual_seed(at)) < 0.3)
        W, x, y = ns.from_torch(dense, fmt), numbers(batch, columns), numbers(batch, rows)
        assert torch.equal(ns.einsum("bi,oi->bo", x, W), x @ dense.T)
        assert torch.equal(ns.einsum("bo,oi->bi", y, W), y @ dense)
        assert torch.equal(ns.einsum("abi,oi->abo", x.reshape(1, batch, columns), W), (x @ dense.T)[None])
        assert torch.equal(ns.einsum("ki,oi->ok", x, W), dense @ x.T)
        assert torch.equal(ns.einsum("bi,oi->bo", x.T.contiguous().T, W), x @ dense.T)
        sampled = ns.einsum("oi,bi,bo->oi", W, x, y)
        assert isinstance(sampled, ns.SparseTensor)
        assert torch.equal(sampled.to_dense(), dense * (y.T @ x))


def test_results_are_row_major(eager: pytest.MonkeyPatch) -> None:
    W, x = ns.from_torch(torch.eye(40), ns.CSR), numbers(64, 40)
    assert ns.einsum("bi,oi->bo", x, W).is_contiguous()
    assert plans.make_plan(einsum_request("bi,oi->bo", (2, 2)), (x, W), None).problem.layout is not None


def test_a_schedule_of_the_user_prevents_copies(eager: pytest.MonkeyPatch) -> None:
    W, x = ns.from_torch(torch.eye(40), ns.CSR), numbers(64, 40)
    assert torch.equal(ns.einsum("bi,oi->bo", x, W, schedule="reorder(b, o, i)"), x)
    request = scheduled(plain_request(parse_einsum("bi,oi->bo", (2, 2))), "reorder(b, o, i)")
    assert plans.make_plan(request, (x, W), None).problem.layout is None
    assert "copied with b contiguous" in str(ns.explain("bi,oi->bo", x, W))


def test_explain_shows_the_choice_of_a_layout_and_its_reason(eager: pytest.MonkeyPatch) -> None:
    W, x = ns.from_torch(torch.eye(40), ns.CSR), numbers(64, 40)
    step = ns.explain("bi,oi->bo", x, W).steps[0]
    assert step.name == "choose_layout" and step.why.startswith("copied with b contiguous: ") and "; as stored: " in step.why
    eager.setattr(tuning, "COST_COPY", 1e9)
    forget_plans(eager)
    assert ns.explain("bi,oi->bo", x, W).steps[0].why.startswith("as stored: ")
    assert "choose_layout" not in str(ns.explain("ij,jk->ik", W, x.T.contiguous()))


def test_compiled(fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setattr(tuning, "COST_COPY", 0.0)
    dense = numbers(70, 90) * (torch.rand(70, 90, generator=torch.Generator().manual_seed(0)) < 0.3)
    x = numbers(37, 90)
    assert torch.equal(ns.einsum("bi,oi->bo", x, ns.from_torch(dense, ns.CSR)), x @ dense.T)
    assert plans.make_plan(einsum_request("bi,oi->bo", (2, 2)), (x, ns.from_torch(dense, ns.CSR)), None).problem.layout is not None


def test_long_indices_are_cut_into_slabs_that_fit_the_cache(eager: pytest.MonkeyPatch) -> None:
    eager.setattr(tuning, "SLAB", 16)
    eager.setattr(plans, "host", lambda: Target(16, 16, own_cache=1 << 9))
    dense = numbers(30, 20)
    for fmt in (ns.CSR, ns.NMG(30, 30, 1)):
        W = ns.from_torch(dense, fmt)
        for batch, starts in ((64, (0, 16, 32, 48)), (50, (0, 16, 32, 34)), (31, None)):
            x = numbers(batch, 20)
            slabs = plans.make_plan(einsum_request("bi,oi->bo", (2, 2)), (x, W), None).problem.slabs
            assert fmt != ns.CSR or (slab_starts(slabs.extent, slabs.size) if slabs else None) == starts  # n:m:g has panels
            result = ns.einsum("bi,oi->bo", x, W)
            assert result.is_contiguous()
            assert torch.equal(result, x @ dense.T)
            assert torch.equal(ns.einsum("bi,oi,b->bo", x, W, x[:, 0]), x[:, :1] * (x @ dense.T))
            assert torch.equal(ns.einsum("ki,oi->ok", x, W), dense @ x.T)
    assert "in slabs of 16 along b, one after the other" in str(ns.explain("bi,oi->bo", numbers(64, 20), ns.from_torch(dense, ns.CSR)))


def test_copies_in_slabs_are_listed_once(eager: pytest.MonkeyPatch) -> None:
    eager.setattr(tuning, "SLAB", 16)
    eager.setattr(plans, "host", lambda: Target(16, 16, own_cache=1 << 9))
    W, x = ns.from_torch(numbers(30, 20), ns.CSR), numbers(64, 20)
    with ns.ledger() as led:
        result = x @ W.T
    assert [entry.bytes for entry in led if entry.kind == "copy"] == [x.nbytes, result.nbytes]


@pytest.mark.parametrize("fmt", [ns.NM(2, 4, rows=16), ns.NM(1, 10, rows=16), ns.BCSR(16, 1)], ids=str)
def test_gradients_of_rows_that_share_a_pattern_have_a_contiguous_batch(fmt: ns.Format, eager: pytest.MonkeyPatch) -> None:
    """Otherwise, sums over the 16 rows of a register would need horizontal adds, or load a cache line per term."""
    eager.setattr(plans, "host", lambda: Target(64, 32))
    dense = torch.zeros(32, 40)
    dense[:, [3, 14, 27, 38]] = torch.arange(1.0, 129.0).reshape(32, 4)
    W, g, x = ns.from_torch(dense, fmt), torch.ones(64, 32), torch.arange(64.0)[:, None].expand(64, 40).contiguous() % 5
    assert torch.equal(ns.einsum("bo,oi->bi", g, W), g @ dense)
    assert torch.equal(ns.einsum("bo,bi,oi->oi", g, x, W).to_dense(), (g.T @ x) * dense)
    kept = [plan for plan in plans.PROCESS.plans.values() if isinstance(plan, plans.Plan)]
    assert [plan.problem.layout.index for plan in kept if plan.problem.layout is not None] == ["b", "b"]
