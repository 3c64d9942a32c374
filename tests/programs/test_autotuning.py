"""autotune times schedules and stores the fastest on disk; einsum uses the stored schedule."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from random_tensors import integers

import numscorch as ns
from numscorch.frontend.requests import einsum_request
from numscorch.ir.index import loops_of
from numscorch.programs import autotuning
from numscorch.runtime import plans, tuned
from numscorch.runtime.candidates import is_close


@pytest.fixture
def cache(plain: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    plain.setenv("NUMSCORCH_CACHE_DIR", str(tmp_path))
    return tmp_path / tuned.FILE


def matrix(rows: int, columns: int) -> ns.SparseTensor:
    mask = torch.rand(rows, columns, generator=torch.Generator().manual_seed(1)) < 0.3
    return ns.from_torch(integers(rows, columns) * mask, ns.CSR)


def last_order() -> str:
    """The loop order of the newest plan."""
    return "".join(loop.var.name for loop in loops_of(list(plans.PROCESS.plans.values())[-1].steps[-1].stmt))


def prefer(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    """Replace timing so that the given schedule is the fastest."""
    monkeypatch.setattr(autotuning, "_timed", lambda runs, stop: {text: 1.0 if text == wanted else 2.0 for text in runs})


def test_a_stored_schedule_is_used(cache: Path, plain: pytest.MonkeyPatch) -> None:
    A, X = matrix(9, 12), integers(12, 5)
    before = ns.einsum("ij,jk->ik", A, X)
    prefer(plain, "reorder(j, i, k)")
    tuning = ns.autotune("ij,jk->ik", A, X)
    assert tuning.schedule == "reorder(j, i, k)"
    assert "is kept" in str(tuning)
    assert torch.equal(ns.einsum("ij,jk->ik", A, X), before)
    assert last_order() == "jik"
    assert "reorder" in json.loads(cache.read_text())[next(iter(json.loads(cache.read_text())))]
    assert "forall(j, forall(i" in str(ns.explain("ij,jk->ik", A, X))
    assert last_order_of_other_sizes() != "jik"


def test_a_stored_choice_is_explained(cache: Path, plain: pytest.MonkeyPatch) -> None:
    A, X = matrix(9, 12), integers(12, 5)
    prefer(plain, "parallelize()")
    plain.setattr(autotuning, "candidates", lambda problem, steps: ["parallelize()"])
    assert ns.autotune("ij,jk->ik", A, X).schedule == "parallelize()"
    assert "chosen by autotune: serial" in str(ns.explain("ij,jk->ik", A, X))
    assert "requested: serial" in str(ns.explain("ij,jk->ik", A, X, schedule="parallelize()"))


def last_order_of_other_sizes() -> str:
    ns.einsum("ij,jk->ik", matrix(70, 90), integers(90, 5))
    return last_order()


def test_another_process_reads_stored_schedules(cache: Path, plain: pytest.MonkeyPatch) -> None:
    A, X = matrix(9, 12), integers(12, 5)
    prefer(plain, "reorder(j, i, k)")
    ns.autotune("ij,jk->ik", A, X)
    plain.setattr(tuned, "_read", {})
    plans.forget(einsum_request("ij,jk->ik", (2, 2)))
    ns.einsum("ij,jk->ik", A, X)
    assert last_order() == "jik"


def test_a_damaged_file_is_ignored(cache: Path, plain: pytest.MonkeyPatch) -> None:
    cache.write_text("{")
    plain.setattr(tuned, "_read", {})
    A, X = matrix(9, 12), integers(12, 5)
    ns.einsum("ij,jk->ik", A, X)
    assert last_order() != "jik"
    prefer(plain, "reorder(j, i, k)")
    ns.autotune("ij,jk->ik", A, X)
    assert list(json.loads(cache.read_text()).values()) == ["reorder(j, i, k)"]


def test_schedules_are_timed(cache: Path, plain: pytest.MonkeyPatch) -> None:
    """Without a replaced timer, results agree and all times are positive."""
    A = matrix(30, 30)
    cases = (
        ("ij,jk->ik", (A,)),
        ("ij,jk->ik", (integers(30, 8),)),
        ("ij,j->i", (integers(30),)),
        ("ij,ik,jk->ij", (integers(30, 4),) * 2),
    )
    for expr, others in cases:
        tuning = ns.autotune(expr, A, *others, seconds=5)
        assert "" in tuning.times
        assert len(tuning.times) > 1
        assert all(seconds > 0 for seconds in tuning.times.values())


@pytest.mark.parametrize("rows", [[[0.0, 1], [1, 0]], [[1.0, 0], [1, 0]]])
def test_products_of_three_small_matrices_are_timed(rows: list[list[float]], cache: Path, plain: pytest.MonkeyPatch) -> None:
    A = ns.from_torch(torch.tensor(rows), ns.CSR)
    assert len(ns.autotune("ij,jk,kl->il", A, A, A, seconds=5).times) > 2


def test_requests_without_schedules_are_refused(cache: Path) -> None:
    with pytest.raises(ns.UnsupportedError, match="no operand"):
        ns.autotune("ij,jk->ik", integers(3, 3), integers(3, 3))
    A = matrix(200, 200)
    with pytest.raises(ns.UnsupportedError, match="in pairs: autotune"):
        ns.autotune("ij,jk,kl->il", A, A, integers(200, 2))


def test_einsum_does_not_tune(cache: Path) -> None:
    ns.einsum("ij,jk->ik", matrix(9, 12), integers(12, 5))
    assert not cache.exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True])
def test_any_values_are_compared(value: float, cache: Path) -> None:
    x = torch.tensor([[value], [1.0]])
    A = ns.from_torch(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    A, x = (A.to(torch.bool), x.bool()) if value is True else (A, x)
    assert "" in ns.autotune("ij,jk->ik", A, x, seconds=0.1).times
    wrong = is_close(torch.tensor([5.0, float("inf")]), torch.tensor([1.0, float("inf")]))
    assert not wrong


def test_stored_schedules_that_are_no_longer_valid_are_ignored(cache: Path) -> None:
    A, x = ns.from_torch(torch.eye(70)), torch.ones(70, 3)
    facts = [plans.describe(A), plans.describe(x)]
    for text in ("prefetch(k)", "workspace(hash)"):
        tuned.remember(tuned.key_of("ij,jk->ik", facts, None), text)
        plans.forget(einsum_request("ij,jk -> ik", (2, 2)))
        assert torch.equal(ns.einsum("ij,jk->ik", A, x), x)
        assert "forall" in str(ns.explain("ij,jk->ik", A, x))


def test_schedules_stored_by_concurrent_threads_are_all_kept(cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: tuned.remember(f"key {n}", "tile()"), range(40)))
    assert len(json.loads(cache.read_text())) == 40
