"""Picks of the cost model are confirmed: faster schedules replace them while calls go on, and steady calls keep them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from random_tensors import integers

import numscorch as ns
from numscorch.frontend.requests import einsum_request
from numscorch.machine import compile_log
from numscorch.runtime import confirming, plans, tuned
from numscorch.runtime.confirming import Trial

SPMM = "ij,jk->ik"


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trials of all products, as soon as the first calls have ended, whose outcome is decided by ``prefer``."""
    for name, value in {"TERMS": 0, "LONG": 0.0, "CALLS": 2, "SHARE": 1e9, "_outcomes": {}}.items():
        monkeypatch.setattr(confirming, name, value)
    plans.forget(einsum_request(SPMM, (2, 2)))
    yield
    plans.forget(einsum_request(SPMM, (2, 2)))


def prefer(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    """Let trials find that a schedule takes half of the time, and others twice as long."""
    ratio = Trial.ratio
    last = []
    scheduled = Trial.scheduled

    def compiled(self: Trial, schedule: str, operands: Any) -> Any:
        last.append(schedule)
        return scheduled(self, schedule, operands)

    def timed(self: Trial, run: Callable[..., Any], operands: Any, result: Any) -> float:
        ratio(self, run, operands, result)
        return 0.5 if last[-1] == wanted else 2.0

    monkeypatch.setattr(Trial, "scheduled", compiled)
    monkeypatch.setattr(Trial, "ratio", timed)


def operands(columns: int = 200) -> tuple[ns.SparseTensor, torch.Tensor]:
    mask = torch.rand(60, 80, generator=torch.Generator().manual_seed(1)) < 0.3
    return ns.from_torch(integers(60, 80) * mask, ns.CSR), integers(80, columns)


def trial_of(A: ns.SparseTensor, x: torch.Tensor | ns.SparseTensor, format: ns.Format | None = None) -> Any:
    """The trial of a product's plan, or None."""
    request = einsum_request(SPMM, (2, 2))
    plan = plans.known_plan(request, format, plans.signatures_of([A, x]))
    return getattr(plan.run, "__self__", None)


def test_a_faster_schedule_replaces_the_pick(monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, "tile(k, 32)")
    A, x = operands()
    expected = ns.einsum(SPMM, A, x)
    with ns.ledger() as led:
        for _ in range(20):
            assert torch.equal(ns.einsum(SPMM, A, x), expected)
    trial = trial_of(A, x)
    assert trial.is_done
    assert trial.schedule == "tile(k, 32)"
    assert trial.pick is not trial.default
    (entry,) = led.of("schedule")
    assert entry.what == f"{SPMM} runs with schedule='tile(k, 32)' from now on, which took 0.50 of the time"
    assert len(led) == 1


def test_similar_operands_try_the_known_schedule_only(monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, "tile(k, 32)")
    A, x = operands()
    for _ in range(20):
        ns.einsum(SPMM, A, x)
    other = A.with_values(A.values).to(ns.COO(2)).to(ns.CSR)
    plans.forget(einsum_request(SPMM, (2, 2)))
    listed: list[list[str]] = []
    list_candidates = Trial.list_candidates
    monkeypatch.setattr(Trial, "list_candidates", lambda *given: listed.append(list_candidates(*given)) or list(listed[-1]))
    for _ in range(5):
        ns.einsum(SPMM, other, x)
    assert listed == [["tile(k, 32)"]]
    assert trial_of(other, x).schedule == "tile(k, 32)"


def test_the_pick_stays_if_nothing_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, "none")
    A, x = operands()
    with ns.ledger() as led:
        for _ in range(20):
            ns.einsum(SPMM, A, x)
    assert trial_of(A, x).is_done
    assert trial_of(A, x).pick is trial_of(A, x).default
    assert not led


def test_eight_threads_share_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread at a time tries candidates; the others go on, with either schedule. Values are rounded."""
    prefer(monkeypatch, "tile(k, 128)")
    A, x = operands()
    A = A.with_values(torch.rand(A.nnz, generator=torch.Generator().manual_seed(2)))
    expected, inside, most = ns.einsum(SPMM, A, x), [0], [0]
    compare = Trial.compare

    def counted(self: Trial, given: Any, result: Any) -> str:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        try:
            return compare(self, given, result)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(Trial, "compare", counted)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(100):  # trials wait until calls have taken long enough
            for result in pool.map(lambda _: ns.einsum(SPMM, A, x), range(200)):
                torch.testing.assert_close(result, expected)
            if trial_of(A, x).is_done:
                break
    assert trial_of(A, x).schedule == "tile(k, 128)"
    assert most == [1]


@pytest.mark.parametrize("method", ["list_candidates", "scheduled", "ratio"])
@pytest.mark.parametrize("error", [ns.SizeError, MemoryError, ZeroDivisionError])
def test_a_trial_that_fails_ends(
    method: str, error: type[Exception], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*given: Any) -> Any:
        raise error("no room")

    monkeypatch.setattr(Trial, method, failing)
    A, x = operands()
    expected = A.to_dense() @ x
    for _ in range(20):
        assert torch.equal(ns.einsum(SPMM, A, x), expected)
    trial = trial_of(A, x)
    assert trial.is_done
    assert trial.cost > 0
    assert caplog.text.count("no room") == 1


def test_a_schedule_of_autotune_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMSCORCH_CACHE_DIR", str(tmp_path))
    A, x = operands()
    for choice in ("vectorize()", ""):
        tuned.remember(tuned.key_of(SPMM, plans.describe_all([A, x]), None), choice)
        plans.forget(einsum_request(SPMM, (2, 2)))
        for _ in range(5):
            ns.einsum(SPMM, A, x)
        assert trial_of(A, x).is_done
        assert trial_of(A, x).untried == []


def test_operands_that_change_meanwhile_end_a_candidate_silently(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    A, x = operands()
    scheduled = Trial.scheduled

    def growing(self: Trial, schedule: str, given: Any) -> Any:
        x.mul_(2)
        return scheduled(self, schedule, given)

    monkeypatch.setattr(Trial, "scheduled", growing)
    for _ in range(20):
        ns.einsum(SPMM, A, x)
    assert trial_of(A, x).pick is trial_of(A, x).default
    assert "another result" not in caplog.text


def test_large_results_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMSCORCH_MEMORY_LIMIT", str(60 * 200 * 4))
    A, x = operands()
    for _ in range(5):
        ns.einsum(SPMM, A, x)
    assert trial_of(A, x).is_done
    assert trial_of(A, x).untried == []


def test_a_wrong_candidate_is_not_used(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    A, x = operands()
    scheduled = Trial.scheduled

    def wrong(self: Trial, schedule: str, given: Any) -> Callable[..., Any] | None:
        run = scheduled(self, schedule, given)
        return run and (lambda *operands: run(*operands) + 1)

    monkeypatch.setattr(Trial, "scheduled", wrong)
    for _ in range(20):
        ns.einsum(SPMM, A, x)
    assert trial_of(A, x).pick is trial_of(A, x).default
    assert "gives another result" in caplog.text


def test_steady_calls_keep_the_pick(monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, "tile(k, 32)")
    A, x = operands()
    for _ in range(20):
        ns.einsum(SPMM, A, x)
    trial, used = trial_of(A, x), []
    trial.pick = lambda *operands: used.append(1)
    out = torch.empty(60, 200)
    ns.einsum(SPMM, A, x, out=out)
    torch.use_deterministic_algorithms(True)
    try:
        ns.einsum(SPMM, A, x)
    finally:
        torch.use_deterministic_algorithms(False)
    compiled = torch.compile(lambda x: ns.einsum(SPMM, A, x), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), out)
    assert not used
    ns.einsum(SPMM, A, x)
    assert used


def test_a_variable_turns_trials_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMSCORCH_CONFIRM", "0")
    A, x = operands()
    ns.einsum(SPMM, A, x)
    assert trial_of(A, x) is None


def test_trials_wait_until_the_calls_pay_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling is expected to take twice the mean time of a kernel, and the runs 26 calls."""
    monkeypatch.setattr(confirming, "SHARE", 0.05)
    monkeypatch.setattr(compile_log, "counts", compile_log.Counts(compiled=2, compiling=2.0))
    A, x = operands()
    for _ in range(5):
        ns.einsum(SPMM, A, x)
    trial = trial_of(A, x)
    trial.calls = 10_001
    for seconds, pays in ((42.1, False), (42.2, True)):  # 2 seconds + 26 calls of 4.2 ms = 2.11 s
        trial.seconds = seconds
        assert trial.pays() == pays
    trial.cost = 1.0
    assert not trial.pays()


def test_short_calls_end_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirming, "LONG", 10.0)
    A, x = operands()
    for _ in range(3):
        ns.einsum(SPMM, A, x)
    assert trial_of(A, x).is_done
    assert trial_of(A, x).untried is None


def test_results_in_no_order_are_not_tried() -> None:
    """The values of two calls would no longer correspond."""
    A, _ = operands()
    B = A.t().to(ns.CSR)
    for format, is_tried in ((None, False), (ns.CSR, True)):
        ns.einsum(SPMM, A, B, format=format)
        assert (trial_of(A, B, format) is not None) == is_tried


def test_real_times_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a replaced timer, a trial ends, and results agree."""
    A, x = operands()
    expected = ns.einsum(SPMM, A, x)
    for _ in range(20):
        assert torch.equal(ns.einsum(SPMM, A, x), expected)
    assert trial_of(A, x).is_done
