"""Picks of the cost model, confirmed where calls take long: other likely schedules are timed beside the one in use.

A plan whose calls take a millisecond or more counts their time. When a trial costs less than 5 % of that time, one thread compiles the next
candidate and runs it in turns with the schedule in use. Meanwhile, other threads call their plans; a first call waits while the candidate
is compiled. A candidate that takes less than 0.95 of the time is used from then on. Its sums have another order of terms, so results may
differ in the last bits from that call on.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import ContextDecorator, suppress
from contextvars import Context, ContextVar
from dataclasses import replace
from math import prod
from statistics import median
from time import perf_counter
from typing import Any

import torch

from ..codegen.kernel import BUILDING
from ..errors import ScheduleError
from ..frontend.requests import Request, scheduled
from ..ir.format import Format
from ..ir.index import operands_of
from ..machine import compile_log, memory
from ..machine.threads import workers
from ..tensors.ledgers import note
from ..tensors.modes import outside_modes
from ..tensors.sparse_tensor import SparseTensor
from .candidates import DEARER, SERIAL, candidates, is_close
from .plans import Plan, compile_source, describe_all, find_plan, make_plan, tables_apart
from .tuned import is_tuned, key_of

TERMS = 1 << 18  # expected terms from which a plan counts its time; such calls take at least 50 microseconds
LONG = 1e-3  # seconds that calls must take on average
CALLS = 20  # calls after which the average counts
SHARE = 0.05  # the most that trials may take of the time of all calls
ROUNDS = 5  # timed runs of the schedule in use and of a candidate
BETTER = 0.95  # a candidate is used if it takes less than this fraction of the time
HOPELESS = 1.5  # a candidate that takes this many times as long in the first round is dropped
COMPILING = 1.0  # seconds that a kernel is expected to take before any was compiled
MOST_OUTCOMES = 4096

_outcomes: dict[str, str] = {}  # schedules that trials ended with, by ``tuned.key_of``; "" is the cost model's pick
_steady: ContextVar[bool] = ContextVar("whether calls keep the cost model's picks", default=False)
_log = logging.getLogger("numscorch")


class steady(ContextDecorator):
    """Context in which calls use the cost model's picks, whatever trials found: compiled programs give equal bits at every call."""

    def _recreate_cm(self) -> steady:  # each call that it decorates has a token of its own
        return type(self)()

    def __enter__(self) -> None:  # a class, because a generator takes a microsecond more
        self.token = _steady.set(True)

    def __exit__(self, *args: object) -> None:
        _steady.reset(self.token)


def watched_plan(request: Request, format: Format | str | None, operands: Sequence[Any], signatures: Sequence[Hashable]) -> Plan:
    """The plan for these SparseTensors and strided tensors, created at the first call; its pick is confirmed if calls take long."""
    return find_plan(request, format, operands, signatures, _make_watched)


def _make_watched(request: Request, operands: Sequence[Any], format: Format | str | None) -> Plan:
    """A plan with a trial of its schedule, if its calls may take long."""
    plan = make_plan(request, operands, format)
    has_fixed_order = not plan.problem.result.is_assembled or plan.problem.format.is_ordered  # so the values of two calls correspond
    if not (request.is_product and has_fixed_order and _is_wanted() and _terms(request, operands) >= TERMS):
        return plan
    return replace(plan, run=Trial(request, format, plan).run)


def _is_wanted() -> bool:
    return os.environ.get("NUMSCORCH_CONFIRM") != "0" and tables_apart() is None


def _terms(request: Request, operands: Sequence[Any]) -> float:
    """Expected number of terms of a product, if entries lie anywhere."""
    sizes = request.subscripts.sizes([tuple(operand.shape) for operand in operands])
    sparse = [operand for operand in operands if isinstance(operand, SparseTensor)]
    return prod(sizes.values()) * prod([operand.pattern.counts[-1] / max(1, prod(operand.shape)) for operand in sparse])


def _formats(plan: Plan) -> dict[str, Format]:
    """The formats in which a plan reads its operands."""
    return {access.tensor.name: access.tensor.format for access in operands_of(plan.steps[-1].stmt)}


def _is_open() -> bool:
    """Whether calls may use another schedule than the cost model's pick. Ranks of a process group, which wait for each other, may not."""
    group = torch.distributed
    return not (_steady.get() or torch.are_deterministic_algorithms_enabled() or (group.is_available() and group.is_initialized()))


class Trial:
    """Counts the time of a plan, and tries other schedules when it pays; ``pick`` is replaced by one assignment.

    Args:
        request, format: as for plans.
        plan: the plan with the cost model's schedule.
    """

    __slots__ = (
        *("calls", "claim", "cost", "default", "formats", "is_done", "key"),
        *("pick", "requested", "schedule", "seconds", "threads", "untried"),
    )

    def __init__(self, request: Request, format: Format | str | None, plan: Plan) -> None:
        self.requested, self.formats = (request, format), _formats(plan)
        self.default, self.pick, self.schedule = plan.run, plan.run, ""
        self.calls, self.seconds, self.cost, self.is_done = 0, 0.0, 0.0, False
        self.untried: list[str] | None = None  # candidates; None until they are listed
        self.key = ""  # of similar operands; "" until candidates are listed
        self.claim, self.threads = threading.Lock(), workers()

    def run(self, *operands: Any, into: Any = None) -> Any:
        """The result by the schedule in use; in steady calls, and with ``into``, by the cost model's pick."""
        is_default = self.pick is self.default
        if into is not None or (self.is_done if is_default else not (_is_open() and self.threads == workers())):
            return self.default(*operands, into=into)
        if self.is_done:
            return self.pick(*operands)
        started = perf_counter()
        result = self.pick(*operands)
        self.calls += 1
        if self.calls > 1:  # the first call may compile
            self.seconds += perf_counter() - started
        if self.pays() and _is_open() and self.claim.acquire(blocking=False):
            try:
                change = Context().run(self.try_next, operands, result)  # ledgers of this thread list no copies of a trial
            finally:
                self.claim.release()
            if change:
                _log.info(change)
                note("schedule", change, 0)
        return result

    def pays(self) -> bool:
        """Whether the time of all calls pays for another candidate; calls that are short on average end the trial."""
        if self.calls < CALLS or self.is_done:
            return False
        mean = self.seconds / (self.calls - 1)
        if mean < LONG:
            self.end()
        counts = compile_log.counts
        compiling = 2 * counts.compiling / counts.compiled if counts.compiled else COMPILING
        return not self.is_done and SHARE * self.seconds >= self.cost + compiling + (2 * ROUNDS + DEARER) * mean

    def end(self) -> None:
        """End the trial. Similar operands then try the schedule that it ended with."""
        if self.key and len(_outcomes) < MOST_OUTCOMES:
            _outcomes.setdefault(self.key, self.schedule)
        self.is_done = True

    def try_next(self, operands: Sequence[Any], result: Any) -> str:
        """Compile and time the next candidate; a sentence for the ledger if it is used from now on, else "".

        The user's call has its ``result``, so whatever fails here ends the trial, and nothing else.
        """
        started, change = perf_counter(), ""
        try:
            with outside_modes():
                change = self.compare(operands, result)
        except Exception as error:
            _log.warning("no other schedule of %s is tried: %s: %s", self.requested[0], type(error).__name__, error)
            self.untried = []
        if not self.untried:
            self.end()
        self.cost += perf_counter() - started
        return change

    def compare(self, operands: Sequence[Any], result: Any) -> str:
        """As ``try_next``, for which exceptions may escape."""
        if self.untried is None:
            self.untried = self.list_candidates(operands, result)
        if not self.untried:
            return ""
        schedule = self.untried.pop(0)
        run = self.scheduled(schedule, operands)
        if run is None or (ratio := self.ratio(run, operands, result)) >= BETTER:
            return ""
        self.pick, self.schedule = run, schedule
        return f"{self.requested[0]} runs with schedule={schedule!r} from now on, which took {ratio:.2f} of the time"

    def list_candidates(self, operands: Sequence[Any], result: Any) -> list[str]:
        """The candidates, or the schedule that a trial with operands of similar sizes ended with.

        There are none if ``autotune`` has chosen the schedule, or if memory for results is short.
        """
        request, format = self.requested
        described = describe_all(operands)
        key = key_of(str(request), described, format)
        if is_tuned(key) or 2 * result.nbytes > memory.limit():
            return []
        self.key = key
        if (known := _outcomes.get(self.key)) is not None:
            return [known] if known else []
        problem, steps, _ = compile_source(request, described, format)
        return [schedule for schedule in candidates(problem, steps) if schedule != SERIAL]  # a busy core would bias this comparison

    def scheduled(self, schedule: str, operands: Sequence[Any]) -> Callable[..., Any] | None:
        """The function of the plan with a schedule; None if the schedule is not possible, or needs memory for operands in other formats."""
        request, format = self.requested
        with suppress(ScheduleError), BUILDING:
            plan = make_plan(scheduled(request, schedule), operands, format)
            return plan.run if _formats(plan) == self.formats else None
        return None

    def ratio(self, run: Callable[..., Any], operands: Sequence[Any], result: Any) -> float:
        """The time of a function over the time of the pick, in turns; infinite if it is hopeless or its result differs."""
        if not is_close(run(*operands), result):
            if is_close(self.pick(*operands), result):  # else another thread writes to the operands
                _log.warning("a candidate for %s gives another result and is not used: please report it", self.requested[0])
            return float("inf")
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for seconds, function in zip(times, (run, self.pick), strict=True):
                started = perf_counter()
                function(*operands)
                seconds.append(perf_counter() - started)
            if times[0][0] > HOPELESS * times[1][0]:
                return float("inf")
        return median(times[0]) / median(times[1])
