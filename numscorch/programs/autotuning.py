"""autotune: time the schedules that the cost model ranks best on the user's operands, and record the fastest."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from ..errors import ScheduleError, UnsupportedError
from ..frontend.requests import Request, einsum_request, scheduled
from ..ir.format import Format
from ..runtime.candidates import candidates, is_close
from ..runtime.confirming import steady
from ..runtime.plans import compile_source, describe_all, forget
from ..runtime.tuned import key_of, remember
from ..tensors.sparse_tensor import SparseTensor
from .dispatch import compute
from .operands import call_form, identify
from .pairing import paired

ROUNDS = 15  # timed runs of each schedule
CLEARLY = 0.97  # another schedule is chosen if it takes less than this fraction of the default's time


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of autotune: the chosen schedule ("" for the compiler's default), and each schedule's time in seconds."""

    expr: str
    schedule: str
    times: dict[str, float]

    def __str__(self) -> str:
        best = min(self.times.values())
        lines = [f"{1e6 * seconds:10.1f} us {seconds / best:6.2f}  {text or 'default schedule'}" for text, seconds in self.times.items()]
        return "\n".join([f"{self.expr}: {self.schedule or 'default schedule'} is kept", *lines])

    __repr__ = __str__


def autotune(expr: Any, *operands: Any, format: Format | str | None = None, seconds: float = 30.0) -> Tuned:
    """Time the promising schedules of an einsum, and keep the fastest for operands of similar sizes.

    Later calls of :func:`einsum` with this text, in this process and in others, use the chosen schedule. The compiler's default
    (``""``) stays unless another schedule takes less than 0.97 of its time.

    Args:
        expr, operands, format: as for :func:`einsum`.
        seconds: the time budget. At least two schedules are tried; the others are skipped once the budget is spent.

    Returns:
        An object with ``schedule``, the chosen one (``""`` for the compiler's default), and ``times``, the median time of each schedule
        in seconds. ``print`` shows a table.

    Raises:
        UnsupportedError: no operand is sparse, or the einsum is contracted in pairs.
        ExpressionError, FormatError, OperandError, SizeError: as for :func:`einsum`.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.eye(64))
    >>> "" in ns.autotune("ij,jk->ik", A, torch.ones(64, 8), seconds=1).times
    True
    """
    stop = time.perf_counter() + seconds
    text, arguments = call_form(expr, operands)
    with torch.no_grad():
        ready, _ = identify(arguments)
    if not any(isinstance(operand, SparseTensor) for operand in ready):
        raise UnsupportedError(f"no operand of {text!r} is sparse: torch.einsum computes it, and there is no schedule")
    request = einsum_request(text, tuple([operand.ndim for operand in ready]))
    if len(paired(request, ready)) > 1:
        raise UnsupportedError(f"{text!r} is contracted in pairs: autotune the einsum of each pair")
    described = describe_all(ready)
    problem, steps, _ = compile_source(request, described, format)
    with steady():
        times = _timed(_compile_schedules(request, ready, format, ["", *candidates(problem, steps)], stop), stop)
    best = min(times, key=times.__getitem__)
    chosen = best if times[best] < CLEARLY * times[""] else ""
    remember(key_of(str(request), described, format), chosen)
    forget(request)
    return Tuned(text, chosen, times)


def _compile_schedules(plain: Request, operands: Sequence[Any], format: Any, schedules: Sequence[str], stop: float) -> dict[str, Any]:
    """Compile a function for each schedule within the time budget; schedules that cannot be compiled are skipped.

    Raises:
        RuntimeError: a schedule's result differs from the default's.
    """
    runs: dict[str, Any] = {}
    expected = None
    for schedule in schedules:
        if len(runs) > 1 and time.perf_counter() > stop:
            break
        request = scheduled(plain, schedule) if schedule else plain
        with suppress(ScheduleError):
            result = compute(request, operands, format)  # every schedule gives the same format and pattern
            expected = result if expected is None else expected
            if not is_close(result, expected):
                raise RuntimeError(f"schedule={schedule!r} gives another result: please report {str(plain)!r} with these formats")
            runs[schedule] = lambda request=request: compute(request, operands, format)
    return runs


def _timed(runs: dict[str, Any], stop: float) -> dict[str, float]:
    """The median time of each schedule, over interleaved runs."""
    times: dict[str, list[float]] = {schedule: [] for schedule in runs}
    for at in range(ROUNDS):
        for schedule, run in runs.items():
            start = time.perf_counter()
            run()
            times[schedule].append(time.perf_counter() - start)
        if at >= 2 and time.perf_counter() > stop:
            break
    return {schedule: median(seconds) for schedule, seconds in times.items()}
