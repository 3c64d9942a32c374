"""autotune: schedules are timed, the fastest is kept on disk, and einsum uses it from then on."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import numscorch as ns
from numscorch.compute import autotuning
from numscorch.frontend.requests import einsum_request
from numscorch.ir.index import loops_of
from numscorch.runtime import plans as dispatch, tuned


@pytest.fixture
def cache(plain: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    plain.setenv("NUMSCORCH_CACHE_DIR", str(tmp_path))
    return tmp_path / tuned.FILE


def numbers(*shape: int) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape))).float()


def matrix(rows: int, columns: int) -> ns.SparseTensor:
    kept = torch.rand(rows, columns, generator=torch.Generator().manual_seed(1)) < 0.3
    return ns.from_torch(numbers(rows, columns) * kept, ns.CSR)


def last_order() -> str:
    """The loops of the newest plan."""
    return "".join(loop.var.name for loop in loops_of(list(dispatch._plans.values())[-1].steps[-1].stmt))


def prefer(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    """Times in which the wanted schedule is the fastest."""
    monkeypatch.setattr(autotuning, "_timed", lambda runs, stop: {text: 1.0 if text == wanted else 2.0 for text in runs})


def test_what_was_kept_is_used(cache: Path, plain: pytest.MonkeyPatch) -> None:
    A, X = matrix(9, 12), numbers(12, 5)
    before = ns.einsum("ij,jk->ik", A, X)
    prefer(plain, "reorder(j, i, k)")
    found = ns.autotune("ij,jk->ik", A, X)
    assert found.schedule == "reorder(j, i, k)"
    assert "is kept" in str(found)
    assert torch.equal(ns.einsum("ij,jk->ik", A, X), before)
    assert last_order() == "jik"
    assert "reorder" in json.loads(cache.read_text())[next(iter(json.loads(cache.read_text())))]
    assert "forall(j, forall(i" in str(ns.explain("ij,jk->ik", A, X))
    assert last_order_of_other_sizes() != "jik"


def last_order_of_other_sizes() -> str:
    ns.einsum("ij,jk->ik", matrix(70, 90), numbers(90, 5))
    return last_order()


def test_another_process_finds_it(cache: Path, plain: pytest.MonkeyPatch) -> None:
    A, X = matrix(9, 12), numbers(12, 5)
    prefer(plain, "reorder(j, i, k)")
    ns.autotune("ij,jk->ik", A, X)
    plain.setattr(tuned, "_read", {})
    dispatch.forget(einsum_request("ij,jk->ik", (2, 2)))
    ns.einsum("ij,jk->ik", A, X)
    assert last_order() == "jik"


def test_a_damaged_file_is_none(cache: Path, plain: pytest.MonkeyPatch) -> None:
    cache.write_text("{")
    plain.setattr(tuned, "_read", {})
    A, X = matrix(9, 12), numbers(12, 5)
    ns.einsum("ij,jk->ik", A, X)
    assert last_order() != "jik"
    prefer(plain, "reorder(j, i, k)")
    ns.autotune("ij,jk->ik", A, X)
    assert list(json.loads(cache.read_text()).values()) == ["reorder(j, i, k)"]


def test_schedules_are_timed(cache: Path, plain: pytest.MonkeyPatch) -> None:
    """For real: results agree, and each time is one."""
    A = matrix(30, 30)
    cases = (("ij,jk->ik", (A,)), ("ij,jk->ik", (numbers(30, 8),)), ("ij,j->i", (numbers(30),)), ("ij,ik,jk->ij", (numbers(30, 4),) * 2))
    for expr, others in cases:
        found = ns.autotune(expr, A, *others, seconds=5)
        assert "" in found.times
        assert len(found.times) > 1
        assert all(seconds > 0 for seconds in found.times.values())


def test_what_has_no_schedule(cache: Path) -> None:
    with pytest.raises(ns.UnsupportedError, match="no operand"):
        ns.autotune("ij,jk->ik", numbers(3, 3), numbers(3, 3))
    A = matrix(200, 200)
    with pytest.raises(ns.UnsupportedError, match="in pairs: autotune"):
        ns.autotune("ij,jk,kl->il", A, A, numbers(200, 2))


def test_nothing_is_tuned_by_itself(cache: Path) -> None:
    ns.einsum("ij,jk->ik", matrix(9, 12), numbers(12, 5))
    assert not cache.exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True])
def test_any_values_are_compared(value: float, cache: Path) -> None:
    x = torch.tensor([[value], [1.0]])
    A = ns.from_torch(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    A, x = (A.to(torch.bool), x.bool()) if value is True else (A, x)
    assert "" in ns.autotune("ij,jk->ik", A, x, seconds=0.1).times
    wrong = autotuning._is_close(torch.tensor([5.0, float("inf")]), torch.tensor([1.0, float("inf")]))
    assert not wrong


def test_a_kept_schedule_that_is_none_any_more_is_left_out(cache: Path) -> None:
    A, x = ns.from_torch(torch.eye(70)), torch.ones(70, 3)
    described = [dispatch.describe(A), dispatch.describe(x)]
    for text in ("prefetch(k)", "workspace(hash)"):
        tuned.remember(tuned.key_of("ij,jk->ik", described, None), text)
        dispatch.forget(einsum_request("ij,jk -> ik", (2, 2)))
        assert torch.equal(ns.einsum("ij,jk->ik", A, x), x)
        assert "forall" in str(ns.explain("ij,jk->ik", A, x))


def test_threads_that_keep_schedules_at_once_lose_none(cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: tuned.remember(f"key {n}", "tile()"), range(40)))
    assert len(json.loads(cache.read_text())) == 40
