"""A request timed in turns with its peers, the times to compile and to load its kernels, and the resulting table."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from timeit import timeit
from typing import Any
from unittest.mock import patch

import torch

from ..codegen.kernel import build
from ..errors import UnsupportedError
from ..explanation.roofline import seconds_in_words
from ..explanation.roofs import rates
from ..explanation.work import Work, work_of
from ..machine.compile_log import counts
from ..runtime.plans import Tables, apart
from ..tensors.sparse_tensor import SparseTensor
from .comparison import RELATIVE, check
from .peak_memory import growth
from .peers import peers_of
from .specifications import BoundRequest
from .this_machine import this_machine, versions
from .turns import DISTURBED, OURS, Interval, in_turns, ratio_of_medians

PATIENCE = 10.0  # peers slower than the best one by this factor are called a few times only
TOLERANCES = {torch.float16: 1e-2, torch.bfloat16: 5e-2}  # relative tolerances
HALVED = (torch.float64, torch.complex128)  # data types with half the peak rate of float32


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: a name, its median time in seconds, and the ratio to our time (None in our own row)."""

    name: str
    seconds: float
    ratio: Interval | None


@dataclass(frozen=True, slots=True)
class Table:
    """The measurements of a request: the times of all sides, the request's minimum work, and our compile times and peak memory.

    ``missing`` maps absent peers to the reason. ``slower`` names the peers that were called only a few times, because they are slow.
    """

    request: BoundRequest
    threads: int
    rows: tuple[Row, ...]
    missing: dict[str, str]
    slower: tuple[str, ...]
    work: Work
    roofs: tuple[float, float]
    compile_seconds: float
    load_seconds: float
    peak: int | None
    disturbance: float = 1.0

    def as_json(self) -> dict[str, Any]:
        """All measurements, with the machine and the versions."""
        return {
            "request": self.request.expr,
            "operands": dict(self.request.descriptions),
            "threads": self.threads,
            "sides": [asdict(row) for row in self.rows],
            "missing": self.missing,
            "called_a_few_times": list(self.slower),
            "disturbance": self.disturbance,
            "flops": self.work.flops,
            "bytes": self.work.bytes,
            "roofs": {"bytes_per_second": self.roofs[0], "flops_per_second": self.roofs[1]},
            "compile_seconds": self.compile_seconds,
            "load_seconds": self.load_seconds,
            "peak_bytes": self.peak,
            "machine": this_machine().as_json(),
            "versions": versions(),
        }

    def __str__(self) -> str:
        width = max(len(name) for name in (*self.missing, *(row.name for row in self.rows)))
        head = f"  {'':<{width}} {'time':>10} {'GB/s':>8} {'Gflop/s':>8}   times as long as {OURS}"
        lines = [
            str(self.request),
            f"  {self.threads} thread{'s' * (self.threads > 1)}",
            "",
            head,
            *(self._line(row, width) for row in self.rows),
            *(f"  {name:<{width}} {'missing':>10}   {why}" for name, why in self.missing.items()),
            "",
            self._notes(),
        ]
        return "\n".join(lines)

    def _line(self, row: Row, width: int) -> str:
        rate = f"{self.work.bytes / row.seconds / 1e9:8.1f} {self.work.flops / row.seconds / 1e9:8.1f}"
        cells = "" if row.ratio is None else f"   {row.ratio}" if row.name not in self.slower else f"   {row.ratio.ratio:.3g}x, few calls"
        return f"  {row.name:<{width}} {seconds_in_words(row.seconds):>10} {rate}{cells}"

    def _notes(self) -> str:
        memory, peak = (
            amount / self.rows[0].seconds / roof for amount, roof in zip((self.work.bytes, self.work.flops), self.roofs, strict=True)
        )
        disturbed = (
            f"  Other programs disturbed the measurement: half of our calls took {self.disturbance:.1f} times the fastest or more.\n"
        )
        peak_memory = "" if self.peak is None else f"  Peak memory of a call: {self.peak / 1e6:,.1f} MB, including the result."
        return (
            f"{disturbed if self.disturbance > DISTURBED else ''}"
            f"  The request needs at least {self.work.bytes:,} bytes of memory traffic and {self.work.flops:,} operations. {OURS} reaches\n"
            f"  {memory:.0%} of a triad from memory ({self.roofs[0] / 1e9:.1f} GB/s)"
            f" and {peak:.0%} of multiply-adds in registers ({self.roofs[1] / 1e9:.0f} Gflop/s).\n"
            f"  The first call compiles in {seconds_in_words(self.compile_seconds)};"
            f" later processes load the kernels in {seconds_in_words(self.load_seconds)}.\n"
            f"{peak_memory or '  This system does not report memory.'}"
        )


def measure(request: BoundRequest, seconds: float) -> Table:
    """Compare the results of a request and its peers, then time all of them in turns.

    Args:
        request: the request.
        seconds: the total time of the turns.

    Raises:
        AssertionError: a peer's result differs; nothing is timed.
        NumscorchError: the request can't be computed, for example because sizes differ.
        UnsupportedError: every operand is dense.
    """
    operands = list(request.operands.values())
    if not any(isinstance(operand, SparseTensor) for operand in operands):
        raise UnsupportedError(f"every operand is dense: torch computes it, and there is nothing to compare\n{request}")
    ours, dtype = request(), operands[0].dtype
    work = work_of(request.expr, operands if request.is_einsum else request.operands, ours)
    peers = peers_of(request)
    for name, expected in peers.results.items():
        check(ours, expected, name, TOLERANCES.get(dtype, RELATIVE))
    peers.results.clear()
    del ours
    compiling, loading = compile_and_load_seconds(request)
    peak = growth(request)
    turns = in_turns(request, peers.functions, seconds=seconds, rest=peers.rest, patience=PATIENCE)
    rows = [
        Row(OURS, statistics.median(turns.ours), None),
        *(Row(name, statistics.median(times), ratio_of_medians(times, turns.ours)) for name, times in turns.peers.items()),
    ]
    slower = tuple(name for name, times in turns.peers.items() if len(times) < len(turns.ours))
    threads, halved = torch.get_num_threads(), 0.5 if dtype in HALVED else 1.0
    roofs = rates(threads)
    rates_here = (roofs.bytes_per_second, roofs.flops_per_second * halved)
    measurements = (compiling, loading, peak, turns.disturbance)
    return Table(request, threads, tuple(rows), peers.missing, slower, work, rates_here, *measurements)


def compile_and_load_seconds(call: Callable[[], object]) -> tuple[float, float]:
    """For the kernels that a call runs: the total time to compile their sources, and the total time to load their machine code.

    The call makes its plans anew, and stores kernels in an empty folder. Data cached with operands, such as transposes, is reused.

    Args:
        call: the function.

    Raises:
        OSError: the folder can't be written.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.eye(3), ns.CSR)
    >>> compiling, loading = compile_and_load_seconds(lambda: ns.einsum("ij,j->i", A, torch.ones(3)))
    >>> 0 < loading < compiling
    True
    """
    before, tables = counts.compiling, Tables(build)
    with (
        tempfile.TemporaryDirectory(prefix="numscorch-", ignore_cleanup_errors=True) as folder,
        patch.dict("os.environ", {"NUMSCORCH_CACHE_DIR": folder}),
        apart(tables),
    ):
        call()
        compiling = counts.compiling - before
        kernels = [kernel for kernel in tables.kernels.values() if kernel._addresses is not None]
        return compiling, sum(timeit(kernel._compiled, number=1) for kernel in kernels)  # from the folder
