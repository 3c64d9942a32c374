"""Peak memory of every operator over formats and patterns: ``python -m benchmarks.operator_memory [OPERATOR ...]``.

The operators and formats are those of ``benchmarks.sweep``. Each case runs in a forked process. The operator is called once, which
compiles its kernels, and once more on a tensor whose pattern was never used before. The second call is measured: its ratio is the peak
growth of the process over the bytes of the operands and of the result. The system counts memory of torch and of NumPy. The growth
includes the result, and data that a call keeps with the pattern. Memory that result and operands share counts once.

The worst ratio of each operator is printed, with the case that has it, and a summary of all cases. Rows of composed calls, such as
``S + 2 * S``, count their intermediate tensors as growth.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

import numscorch as ns
from numscorch.errors import NumscorchError
from numscorch.measuring.peak_memory import growth

from . import generated
from .sweep import FORMATS, ROWS, Row, SweepOperands, TooLargeError, fresh

ENTRIES = 1_000_000
MOST = 3.0  # the ratio that no operator should exceed
SECONDS = 60  # time after which a case is given up
ROOM = 12 << 30  # bytes that a case may allocate
PATTERNS: dict[str, Callable[[int], ns.SparseTensor]] = {  # of a number of entries
    "uniform": lambda nnz: generated.uniform(nnz // 5, nnz // 5, 5),
    "long-rows": lambda nnz: generated.uniform(1000, 4000, nnz // 1000),
    "mostly-empty": lambda nnz: generated.mostly_empty(nnz, 10),
}


@dataclass
class KeptOperands(SweepOperands):
    """Operands whose dense tensors are created at the first call, and kept."""

    dense: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)

    def _dense(self, *size: int) -> torch.Tensor:
        if size not in self.dense:
            self.dense[size] = super()._dense(*size)
        return self.dense[size]


@dataclass(frozen=True)
class Case:
    """A measured case, in bytes."""

    row: str
    format: str
    pattern: str
    operands: int
    result: int
    growth: int

    @property
    def ratio(self) -> float:
        """The peak growth over the bytes of operands and result."""
        return self.growth / (self.operands + self.result)

    def text(self) -> str:
        """A line of the table, in MB.

        >>> Case("sum(0)", "CSR", "uniform", 8_000_000, 2_000_000, 15_000_000).text()
        'sum(0)                          CSR   uniform            8.0       2.0      15.0    1.50'
        """
        sizes = "".join(f"{size / 1e6:10.1f}" for size in (self.operands, self.result, self.growth))
        return f"{self.row:32}{self.format:6}{self.pattern:12}{sizes}{self.ratio:8.2f}"


def storages(value: Any) -> Iterator[tuple[int, int]]:
    """The address and the bytes of each array of memory in a tensor, or in several tensors."""
    if isinstance(value, ns.SparseTensor):
        value = [value.values, *(array for arrays in value.pattern.arrays for array in arrays)]
    if isinstance(value, torch.Tensor):
        yield value.untyped_storage().data_ptr(), value.untyped_storage().nbytes()
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for part in value:
            yield from storages(part)


def measured(row: Row, A: ns.SparseTensor) -> tuple[int, int, int]:
    """The bytes of the operands and of the result of a call on a fresh pattern, and the growth of the process."""
    dense: dict[tuple[int, ...], torch.Tensor] = {}
    row(KeptOperands(fresh(A), A.shape, dense))
    given, results = KeptOperands(fresh(A), A.shape, dense), list[Any]()
    grown = growth(lambda: results.append(row(given)))
    if grown is None:
        raise OSError("the system does not report the peak memory of a process")
    before, after = (sum(dict(storages(values)).values()) for values in ([given.S, *dense.values()], [given.S, *dense.values(), results]))
    return before, after - before, grown


def in_child(row: Row, A: ns.SparseTensor) -> tuple[int, int, int] | str:
    """Call ``measured`` in a forked process with limited memory and time; the text of its error if it fails."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
        signal.alarm(SECONDS)
        try:
            answer: object = measured(row, A)
        except (NumscorchError, TooLargeError, MemoryError, RuntimeError) as error:
            answer = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else "ended without a result"


def cases(names: Sequence[str], formats: Sequence[str], patterns: Sequence[str], entries: int) -> Iterator[Case]:
    """Measure the rows whose names contain one of the given texts, or all rows; failures are reported."""
    for pattern in patterns:
        for format in formats:
            A = PATTERNS[pattern](entries).to(FORMATS[format])
            A = A.with_values(torch.randn(A.values.shape, generator=torch.Generator().manual_seed(1)))
            for name in names:
                answer = in_child(ROWS[name], A)
                if isinstance(answer, str):
                    print(f"{name} {format} {pattern}: {answer}", file=sys.stderr)
                else:
                    yield Case(name, format, pattern, *answer)


def main(arguments: Sequence[str]) -> int:
    """Print the worst case of each operator, and a summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_memory", description="Peak memory of every operator.")
    parser.add_argument("operators", nargs="*", metavar="OPERATOR", help="only rows whose names contain one of these texts")
    parser.add_argument("--formats", nargs="*", choices=FORMATS, default=tuple(FORMATS), metavar="FORMAT")
    parser.add_argument("--patterns", nargs="*", choices=PATTERNS, default=tuple(PATTERNS), metavar="PATTERN")
    parser.add_argument("--entries", type=int, default=ENTRIES, help="number of entries")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all cases to a file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    names = [name for name in ROWS if not options.operators or any(part in name for part in options.operators)]
    found = []
    for case in cases(names, options.formats, options.patterns, options.entries):
        found.append(case)
        print(case.text(), file=sys.stderr, flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(case) for case in found]))
    found.sort(key=lambda case: case.ratio)
    worst = {case.row: case for case in found}
    print(f"{'operator':32}{'format':6}{'pattern':12}{'operands':>10}{'result':>10}{'growth':>10}{'ratio':>8}   of the worst case; MB")
    for case in sorted(worst.values(), key=lambda case: -case.ratio):
        print(case.text())
    if found:
        above = sum(case.ratio > MOST for case in found)
        rows_above = sum(case.ratio > MOST for case in worst.values())
        ratio = median(case.ratio for case in found)
        print(f"{len(found)} cases, median ratio {ratio:.2f}; {above} cases of {rows_above} operators above {MOST:g}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
