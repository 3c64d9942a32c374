"""What a call runs: its kernels, how long they take to compile and to load, and what the call costs beside them.

A call is recorded apart from all others: its plans are made anew, and seen as they are made, with kernels of a cache folder that
starts empty. What is remembered with operands, as transposes, stays, as for any warm call.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..codegen.kernel import Kernel, Run, build
from ..codegen.machine import Addresses
from ..codegen.source import Source
from ..explanation.explanation import Explanation
from ..frontend.operand import Operand
from ..frontend.statements import Request
from ..runtime.plans import Plan, Tables, apart

FOLDER = "NUMSCORCH_CACHE_DIR"
CALLS = 20  # of which the overhead is the median
LONGEST = 0.2  # seconds for these; three calls are made however long they take
FEWEST = 3


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """What a kernel was made for, how the compiler came to it, and its text."""

    request: str
    explanation: str
    source: str


@dataclass(frozen=True, slots=True)
class PlanCall:
    """A plan's call: the request, its operands, and what it made."""

    request: Request
    operands: tuple[Any, ...]
    result: Any


class Recording:
    """What a call ran.

    ``calls`` are those of plans, one for each request that it came to; ``result`` is what it returned. ``compile_seconds`` and
    ``load_seconds`` are those of its ``kernels``, by name, added up: from source to machine code, and from the
    cache folder.
    """

    def __init__(self, recorder: Recorder, call: Callable[[], Any]):
        self._call, self._watch = call, _CallObserver(recorder)
        self._tables = Tables(self._watch.build, {}, {}, self._watch.on_plan)
        with recorder.in_folder(), apart(self._tables):
            self.result = call()
        self.calls = tuple(self._watch.calls)
        self._watch.is_over = True
        self.kernels = self._watch.kernels
        seconds = [recorder.seconds[name] for name in self._watch.compiled]
        self.compile_seconds, self.load_seconds = sum(compiling for compiling, _ in seconds), sum(loading for _, loading in seconds)

    def overhead(self, longest: float = LONGEST) -> float:
        """What a warm call takes outside of its kernels, in seconds; the median of some calls.

        That is finding the plan, memory for the results, and whatever else the call does, as operators of torch.

        Args:
            longest: make no more calls after so many seconds, but a few anyway.
        """
        with self._watch.recorder.in_folder(), apart(self._tables):
            return statistics.median(self._outside(longest))

    def _outside(self, longest: float) -> Iterator[float]:
        watch, start = self._watch, time.perf_counter()
        for number in range(CALLS):
            watch.inside = 0.0
            before = time.perf_counter()
            result = self._call()
            after = time.perf_counter()
            del result
            yield max(after - before - watch.inside, 0.0)
            if number + 1 >= FEWEST and after - start > longest:
                return


class Recorder:
    """Records calls; each kernel is compiled once, and known from then on.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.eye(3), ns.CSR)
    >>> with Recorder() as recorder:
    ...     seen = recorder.record(lambda: ns.einsum("ij,j->i", A, torch.ones(3)))
    ...     overhead = seen.overhead()
    >>> [kernel.request for kernel in seen.kernels.values()], seen.result, seen.load_seconds < seen.compile_seconds
    (['ij,j->i'], tensor([1., 1., 1.]), True)
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="numscorch-recorded-", ignore_cleanup_errors=True)
        self.seconds: dict[str, tuple[float, float]] = {}  # to compile and to load, by kernel

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder."""
        self._folder.cleanup()

    def record(self, call: Callable[[], Any]) -> Recording:
        """Call a function, and tell what it ran.

        Args:
            call: the function. Where it hands work to other threads, what those run isn't seen.

        Raises:
            OSError: the cache folder can't be written.
        """
        return Recording(self, call)

    @contextmanager
    def in_folder(self) -> Iterator[None]:
        """Within it, kernels are stored in this recorder's folder; those of other threads too, which does no harm."""
        before = os.environ.get(FOLDER)
        os.environ[FOLDER] = self._folder.name
        try:
            yield
        finally:
            if before is None:
                del os.environ[FOLDER]
            else:
                os.environ[FOLDER] = before


class RecordedKernel(Kernel):
    """A kernel that tells how long it is compiled and loaded, and how long it runs."""

    __slots__ = ("watch",)

    def __init__(self, kernel: Kernel, watch: _CallObserver):
        super().__init__(kernel.source, kernel.scope)
        self.watch = watch

    def _compiled(self) -> Addresses:
        seconds, name = self.watch.recorder.seconds, self.source.name
        if name not in seconds:
            new, stored = (_seconds_of(lambda: Kernel._compiled(self)) for _ in range(2))
            seconds[name] = new, stored
        self.watch.compiled.append(name)
        return super()._compiled()

    @property
    def plain(self) -> Callable[..., None]:
        return self._timed(super().plain)

    def _runner(self) -> Run:
        return self._timed(super()._runner())

    def _timed(self, entry: Callable[..., Any]) -> Callable[..., Any]:
        watch, clock = self.watch, time.perf_counter

        def run(*arguments: Any) -> None:
            start = clock()
            entry(*arguments)
            watch.inside += clock() - start

        return run


class _CallObserver:
    """What is seen of one call: the kernels that are built, the plans that are made and called."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.built: list[Source] = []  # of which no plan is known yet
        self.compiled: list[str] = []
        self.kernels: dict[str, KernelRecord] = {}
        self.calls: list[PlanCall] = []
        self.inside = 0.0  # seconds in kernels
        self.depth = 0
        self.is_over = False

    def build(self, source: Source) -> Kernel:
        self.built.append(source)
        return RecordedKernel(build(source), self)

    def on_plan(self, request: Request, operands: Sequence[Operand], plan: Plan) -> Plan:
        """Note the kernels of a plan, and have its calls noted."""
        main, name = plan.kernel.source, f"{plan.kernel.source.name}.py"
        text = str(Explanation(f"einsum {request}", tuple(operands), plan.problem, plan.steps, main, Path(name), request))
        text = text.replace(main.text, "").rstrip()
        self.kernels.setdefault(main.name, KernelRecord(str(request), text, main.text))
        # those before it belong to a plan that this one is part of
        since = self.built.index(main) if main in self.built else len(self.built)
        for source in self.built[since + 1 :]:
            self.kernels.setdefault(source.name, KernelRecord(str(request), f"counts what {main.name} writes\n\n{text}", source.text))
        del self.built[since:]
        return replace(plan, run=self._recorded_run(request, plan.run))

    def _recorded_run(self, request: Request, run: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a plan; calls within another plan's are part of that one."""

        def recorded_run(*operands: Any) -> Any:
            if self.is_over:
                return run(*operands)
            self.depth += 1
            try:
                result = run(*operands)
            finally:
                self.depth -= 1
            if not self.depth:
                self.calls.append(PlanCall(request, operands, result))
            return result

        return recorded_run


def _seconds_of(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
