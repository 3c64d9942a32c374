"""Records what a call runs: its kernels, their compile and load times, and the call's overhead outside of them.

A recorded call builds its plans anew, in separate plan tables, with an initially empty kernel cache folder. Data cached with operands,
such as transposes, is reused, as in any warm call. Older packages have this module themselves, as ``numscorch.measuring.recorded``:
``compat`` takes theirs.
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
from typing import TYPE_CHECKING, Any

from numscorch.codegen.kernel import Addresses, Kernel, Run, build
from numscorch.codegen.source import Source
from numscorch.explanation.explanation import Explanation
from numscorch.runtime.plans import Tables, apart

if TYPE_CHECKING:  # other packages have these elsewhere
    from numscorch.frontend.requests import Operand, Request

FOLDER = "NUMSCORCH_CACHE_DIR"
CALLS = 20  # the overhead is their median
LONGEST = 0.2  # time limit of these calls, in seconds
FEWEST = 3  # calls made regardless of the time limit


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """A kernel's request, its explanation, and its source."""

    request: str
    explanation: str
    source: str


@dataclass(frozen=True, slots=True)
class PlanCall:
    """A call of a plan: the request, its operands and its result."""

    request: Request
    operands: tuple[Any, ...]
    result: Any


class Recording:
    """The record of one call.

    ``calls`` holds a ``PlanCall`` per request that the call computed, ``result`` its return value, and ``kernels`` a ``KernelRecord`` per
    kernel name. ``compile_seconds`` is the kernels' total time from source to machine code, ``load_seconds`` their total time to load
    from the cache folder.
    """

    def __init__(self, recorder: Recorder, call: Callable[[], Any]):
        self._call, self._observer = call, _CallObserver(recorder)
        self._tables = Tables(self._observer.build, on_kind=self._observer.on_kind)
        with recorder.in_folder(), apart(self._tables):
            self.result = call()
        self.calls = tuple(self._observer.calls)
        self._observer.is_over = True
        self.kernels = self._observer.kernels
        seconds = [recorder.seconds[name] for name in self._observer.compiled]
        self.compile_seconds, self.load_seconds = sum(compiling for compiling, _ in seconds), sum(loading for _, loading in seconds)

    def overhead(self, longest: float = LONGEST) -> float:
        """The median time of a warm call outside of its kernels, in seconds.

        It includes the plan lookup, the allocation of results, and other work of the call, such as torch's operators.

        Args:
            longest: the time limit in seconds; at least three calls are made.
        """
        with self._observer.recorder.in_folder(), apart(self._tables):
            return statistics.median(self._outside_seconds(longest))

    def _outside_seconds(self, longest: float) -> Iterator[float]:
        observer, start = self._observer, time.perf_counter()
        for number in range(CALLS):
            observer.inside = 0.0
            before = time.perf_counter()
            result = self._call()
            after = time.perf_counter()
            del result
            yield max(after - before - observer.inside, 0.0)
            if number + 1 >= FEWEST and after - start > longest:
                return


class Recorder:
    """Records calls. Each kernel is compiled once per recorder.

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
        self.seconds: dict[str, tuple[float, float]] = {}  # compile time and load time, by kernel

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the cache folder."""
        self._folder.cleanup()

    def record(self, call: Callable[[], Any]) -> Recording:
        """Call a function, and record what it runs.

        Args:
            call: the function. Work that it hands to other threads isn't recorded.

        Raises:
            OSError: the cache folder can't be written.
        """
        return Recording(self, call)

    @contextmanager
    def in_folder(self) -> Iterator[None]:
        """Store kernels in this recorder's folder within the context (kernels of other threads too)."""
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
    """A kernel that records its compile time, its load time and its run times."""

    __slots__ = ("observer",)

    def __init__(self, kernel: Kernel, observer: _CallObserver):
        super().__init__(kernel.source, kernel.scope)
        self.observer = observer

    def _compiled(self) -> Addresses:
        seconds, name = self.observer.recorder.seconds, self.source.name
        if name not in seconds:
            compile_seconds, load_seconds = (_seconds_of(lambda: Kernel._compiled(self)) for _ in range(2))
            seconds[name] = compile_seconds, load_seconds
        self.observer.compiled.append(name)
        return super()._compiled()

    @property
    def plain(self) -> Callable[..., None]:
        return self._timed(super().plain)

    def _runner(self) -> Run:
        return self._timed(super()._runner())

    def _timed(self, entry: Callable[..., Any]) -> Callable[..., Any]:
        observer, clock = self.observer, time.perf_counter

        def run(*arguments: Any) -> None:
            start = clock()
            entry(*arguments)
            observer.inside += clock() - start

        return run


class _CallObserver:
    """Observes one call: the kernels it builds, and the plans it creates and calls."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.built: list[Source] = []  # sources whose plan isn't known yet
        self.compiled: list[str] = []
        self.kernels: dict[str, KernelRecord] = {}
        self.calls: list[PlanCall] = []
        self.inside = 0.0  # seconds in kernels
        self.depth = 0
        self.is_over = False

    def build(self, source: Source) -> Kernel:
        self.built.append(source)
        return RecordedKernel(build(source), self)

    def on_kind(self, request: Request, operands: Sequence[Operand], plan: Any) -> Any:
        """Record the kernels of a kind of plans (of a plan, in older commits), and return it with calls recorded."""
        main, name = plan.kernel.source, f"{plan.kernel.source.name}.py"
        text = str(Explanation(f"einsum {request}", tuple(operands), plan.problem, plan.steps, main, Path(name), request))
        text = text.replace(main.text, "").rstrip()
        self.kernels.setdefault(main.name, KernelRecord(str(request), text, main.text))
        # earlier sources belong to an enclosing plan
        since = self.built.index(main) if main in self.built else len(self.built)
        for source in self.built[since + 1 :]:
            self.kernels.setdefault(source.name, KernelRecord(str(request), f"counts what {main.name} writes\n\n{text}", source.text))
        del self.built[since:]
        if hasattr(plan, "bind"):
            return replace(plan, bind=lambda sizes: self._recorded_run(request, plan.bind(sizes)))
        return replace(plan, run=self._recorded_run(request, plan.run))

    def _recorded_run(self, request: Request, run: Callable[..., Any]) -> Callable[..., Any]:
        """The plan's function with its calls recorded. Calls nested within another plan's call aren't recorded."""

        def recorded_run(*operands: Any, **into: Any) -> Any:
            if self.is_over:
                return run(*operands, **into)
            self.depth += 1
            try:
                result = run(*operands, **into)
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
