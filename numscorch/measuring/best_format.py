"""best_format: time an einsum with one operand in each format that its pattern suggests, and show what the formats cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from typing import Any

import numpy as np
import torch

from ..convert.conversions import to_format
from ..errors import SizeError, UnsupportedError
from ..interface.api import einsum
from ..ir.format import BCSR, COO, CSC, CSR, DCSR, DIA, ELL, Format
from ..programs.operands import call_form, identify
from ..tensors.packing import entry_columns
from ..tensors.sparse_tensor import SparseTensor
from .comparison import check
from .turns import in_turns

BLOCKS = ((2, 2), (4, 4), (8, 8), (16, 16), (2, 1), (4, 1), (8, 1), (16, 1), (1, 4), (1, 8))  # sizes of blocks to look for
TALLEST = max(rows for rows, _ in BLOCKS)
SAMPLED = 256  # groups of rows in which blocks are counted
PADDING = 2.5  # formats that store more places than this for each entry are not tried
FEWER = 1.25  # entries for each block, at least, in formats of blocks that are tried
CONVERSIONS = 3  # of which the fastest counts
EMPTY = 0.5  # share of empty rows above which a list of the others is tried


@dataclass(frozen=True, slots=True)
class Candidate:
    """One format of the operand: the seconds of a call, the bytes of the operand, and the seconds of its conversion."""

    format: Format
    seconds: float
    nbytes: int
    conversion: float


@dataclass(frozen=True, slots=True)
class BestFormat:
    """The result of best_format: the fastest format, and every format that was timed, the fastest first; ``print`` shows a table."""

    expr: str
    operand: int
    given: Format
    candidates: tuple[Candidate, ...]

    @property
    def format(self) -> Format:
        return self.candidates[0].format

    def calls_until_it_pays(self, candidate: Candidate) -> float:
        """The number of calls after which a format has saved the time of its conversion; infinite if it saves nothing."""
        saved = next(other.seconds for other in self.candidates if other.format == self.given) - candidate.seconds
        if candidate.format == self.given:
            return 0
        return ceil(candidate.conversion / saved) if saved > 0 else inf

    def __str__(self) -> str:
        rows = [
            f"{candidate.format.name:<14}{1e6 * candidate.seconds:12.1f}{candidate.nbytes / 2**20:10.2f}"
            f"{1e3 * candidate.conversion:16.2f}{_calls(self.calls_until_it_pays(candidate)):>16}"
            for candidate in self.candidates
        ]
        head = f"{'format':<14}{'us a call':>12}{'MiB':>10}{'ms to convert':>16}{'pays after':>16}"
        return "\n".join([f"{self.expr}, operand {self.operand} stored as {self.given.name}", head, *rows])

    __repr__ = __str__


def best_format(expr: Any, *operands: Any, operand: int | None = None, seconds: float = 30.0) -> BestFormat:
    """Time an einsum with one sparse operand in several formats, and list time, memory and cost of the conversion.

    The pattern suggests the formats: blocks or diagonals if they need little padding, ELL for rows of similar lengths, DCSR for many
    empty rows, and each order of the dimensions. Formats with another result than the given one are left out, because their padding
    counts as stored. The choice is not recorded: to use it, convert the operand with ``operand.to(best.format)``.

    Args:
        expr, operands: as for :func:`einsum`.
        operand: the position of the sparse operand whose format changes, from 0; by default that of the operand with the most entries.
        seconds: the time budget of the calls, without compilation. At least two formats are tried.

    Returns:
        An object with ``format``, the fastest format, and ``candidates``, the timed formats from the fastest to the slowest. Each
        candidate has ``format``, ``seconds`` (of a call), ``nbytes`` (of the operand) and ``conversion`` (seconds). ``print`` shows a
        table.

    Raises:
        UnsupportedError: no operand is sparse, or ``operand`` is not the position of a sparse one.
        SizeError: ``seconds`` is not positive, or an index has two sizes.
        ExpressionError, OperandError: as for :func:`einsum`.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.eye(64).repeat_interleave(4, 0).repeat_interleave(4, 1))
    >>> best = ns.best_format("ij,jk->ik", A, torch.ones(256, 8), seconds=0.1)
    >>> ns.CSR in [candidate.format for candidate in best.candidates]
    True
    """
    if not seconds > 0:
        raise SizeError(f"seconds={seconds}: best_format needs a time budget above 0, such as seconds=10")
    text, arguments = call_form(expr, operands)
    with torch.no_grad():
        ready, _ = identify(arguments)
    place = _place(text, ready, operand)
    given = ready[place].detach()
    stop = time.perf_counter() + seconds / 2
    calls, costs = {given.format: _call(text, ready, place, given)}, {given.format: (given.nbytes, 0.0)}
    expected = calls[given.format]()
    for format in _suggested(given):
        if len(calls) > 1 and time.perf_counter() > stop:
            break
        converted, conversion = _convert(given, format)
        call = _call(text, ready, place, converted)
        if _is_equal(call(), expected):
            calls[format], costs[format] = call, (converted.nbytes, conversion)
    others = {str(format): call for format, call in calls.items() if format != given.format}
    turns = in_turns(calls[given.format], others, seconds=seconds / 2)
    times = {str(given.format): turns.ours, **turns.peers}
    candidates = [Candidate(format, min(times[str(format)]), *costs[format]) for format in calls]
    return BestFormat(text, place, given.format, tuple(sorted(candidates, key=lambda candidate: candidate.seconds)))


def _place(text: str, operands: Sequence[Any], wanted: int | None) -> int:
    """The place of the operand whose format changes."""
    sparse = [place for place, operand in enumerate(operands) if isinstance(operand, SparseTensor)]
    if not sparse:
        raise UnsupportedError(f"no operand of {text!r} is sparse: torch.einsum computes it, and there is no format to choose")
    if wanted is not None and wanted not in sparse:
        raise UnsupportedError(f"operand={wanted} of {text!r} is not sparse: use {' or '.join(f'operand={at}' for at in sparse)}")
    return max(sparse, key=lambda place: operands[place].pattern.nnz) if wanted is None else wanted


def _suggested(A: SparseTensor) -> Iterator[Format]:
    """Formats other than the tensor's own that may suit its pattern, the most usual first."""
    n = len(A.shape)
    usual = [CSR, CSC] if n == 2 else [Format("s" * n, (first, *(d for d in range(n) if d != first))) for first in range(n)]
    special = _special(A) if n == 2 and A.pattern.nnz else ()
    yield from (format for format in (*usual, *special, COO(n)) if format != A.format)


def _special(A: SparseTensor) -> Iterator[Format]:
    """Formats of matrices for empty rows, blocks, rows of similar lengths, and diagonals, where the pattern has them."""
    (rows, columns), (height, width) = entry_columns(A.pattern), A.shape
    places, lengths = PADDING * len(rows), np.bincount(rows, minlength=height)
    if np.count_nonzero(lengths) < (1 - EMPTY) * height:
        yield DCSR
    groups = np.flatnonzero(np.add.reduceat(lengths, np.arange(0, height, TALLEST)))
    in_sample = np.isin(rows // TALLEST, groups[:: max(1, len(groups) // SAMPLED)])
    sampled_rows, sampled_columns = rows[in_sample], columns[in_sample]
    for r, c in BLOCKS:
        blocks = len(np.unique(sampled_rows // r * np.int64(width) + sampled_columns // c))
        if height % r == width % c == 0 and blocks * max(r * c / PADDING, FEWER) <= len(sampled_rows):
            yield BCSR(r, c)
    if int(lengths.max()) * height <= places:
        yield ELL
    if len(np.unique(columns - rows)) * min(height, width) <= places:
        yield DIA


def _convert(A: SparseTensor, format: Format) -> tuple[SparseTensor, float]:
    """The tensor in another format, and the seconds of converting a new pattern; the first conversions compile kernels."""
    times = []
    for copy in (deepcopy(A) for _ in range(CONVERSIONS)):
        start = time.perf_counter()
        converted = to_format(copy, format)
        times.append(time.perf_counter() - start)
    return converted, min(times)


def _call(text: str, operands: Sequence[Any], place: int, operand: SparseTensor) -> Callable[[], Any]:
    return torch.no_grad()(partial(einsum, text, *operands[:place], operand, *operands[place + 1 :]))


def _is_equal(result: Any, expected: Any) -> bool:
    """Whether two results agree up to the rounding of sums in another order."""
    with suppress(AssertionError):
        check(result, expected)
        return True
    return False


def _calls(count: float) -> str:
    return "never" if count == inf else f"{count:,.0f} calls"
