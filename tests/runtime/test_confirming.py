"""Picks of the cost model are confirmed: faster schedules replace them while calls go on, and steady calls keep them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from random_tensors import integers

import numscorch as ns
from numscorch.frontend.requests import einsum_request
from numscorch.runtime import confirming, plans
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

    def timed(self: Trial, run: Callable[..., Any], operands: Any) -> float:
        return float("inf") if ratio(self, run, operands) == float("-inf") else 0.5 if last[-1] == wanted else 2.0

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
    assert trial.ended
    assert trial.picked == "tile(k, 32)"
    assert trial.pick is not trial.given
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
    monkeypatch.setattr(Trial, "list_candidates", lambda self, given: listed.append(list_candidates(self, given)) or list(listed[-1]))
    for _ in range(5):
        ns.einsum(SPMM, other, x)
    assert listed == [["tile(k, 32)"]]
    assert trial_of(other, x).picked == "tile(k, 32)"


def test_the_pick_stays_if_nothing_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, "none")
    A, x = operands()
    with ns.ledger() as led:
        for _ in range(20):
            ns.einsum(SPMM, A, x)
    assert trial_of(A, x).ended
    assert trial_of(A, x).pick is trial_of(A, x).given
    assert not led


def test_eight_threads_share_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, "tile(k, 128)")
    A, x = operands()
    expected = ns.einsum(SPMM, A, x)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: ns.einsum(SPMM, A, x), range(200)))
    assert all(torch.equal(result, expected) for result in results)
    assert trial_of(A, x).picked == "tile(k, 128)"


def test_a_wrong_candidate_is_not_used(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    A, x = operands()
    scheduled = Trial.scheduled

    def wrong(self: Trial, schedule: str, given: Any) -> Callable[..., Any] | None:
        run = scheduled(self, schedule, given)
        return run and (lambda *operands: run(*operands) + 1)

    monkeypatch.setattr(Trial, "scheduled", wrong)
    for _ in range(20):
        ns.einsum(SPMM, A, x)
    assert trial_of(A, x).pick is trial_of(A, x).given
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
    monkeypatch.setattr(confirming, "SHARE", 0.05)
    A, x = operands()
    for _ in range(20):
        ns.einsum(SPMM, A, x)
    trial = trial_of(A, x)
    assert trial.left is None
    trial.calls, trial.seconds = 10**7, 1e4
    ns.einsum(SPMM, A, x)
    assert 0 < trial.cost < trial.seconds * 0.05


def test_short_calls_end_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirming, "LONG", 10.0)
    A, x = operands()
    for _ in range(3):
        ns.einsum(SPMM, A, x)
    assert trial_of(A, x).ended
    assert trial_of(A, x).left is None


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
    assert trial_of(A, x).ended
