"""Every operator over formats and sizes, beside torch and SciPy: ``python -m benchmarks.sweep [OPERATOR ...]``.

Each case is an operator of ``docs/coverage.md`` or another common call, a format, a number of entries, and a pattern of
``benchmarks/generated.py`` that a seed draws. All run on one thread, in CPU time, on tensors whose pattern was never used before;
the peer is the faster of torch's sparse layouts and SciPy. The worst cases are printed, and a summary of all.

    ours, peer    median microseconds of a call, without a first one that may compile
    ns/entry      ours, in nanoseconds for each entry
    ratio         ours over the peer's

A case is left out if no peer has the operator in a sparse format, or if it needs a dense tensor of the matrix's shape with more than
``MOST_DENSE`` entries.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sparse_linalg
import torch

import numscorch as ns
from numscorch.errors import NumscorchError

from . import generated
from .new_sizes import OPERATORS

CALLS = 7
WORST = 20
SECONDS = 2.0  # time after which a case is not called again
MOST_DENSE = 4_000_000
ENTRIES = (100, 1000, 10_000, 100_000, 1_000_000)
IN_ROW = 5
FORMATS: dict[str, ns.Format] = {"CSR": ns.CSR, "CSC": ns.CSC, "COO": ns.COO(2), "DCSR": ns.DCSR, "BCSR": ns.BCSR(4, 4)}
PATTERNS: dict[str, Callable[[int], ns.SparseTensor]] = {  # of a number of entries
    "uniform": lambda nnz: generated.uniform(nnz // IN_ROW, nnz // IN_ROW, IN_ROW),
    "power-law": lambda nnz: generated.power_law(nnz // IN_ROW, nnz),
    "banded": lambda nnz: generated.banded(nnz // IN_ROW, IN_ROW // 2),
    "hypersparse": lambda nnz: generated.hypersparse(nnz * 4, nnz),
    "full-row": lambda nnz: generated.full_row(nnz // IN_ROW, nnz // IN_ROW, IN_ROW - 1),
}
Call = Callable[[], Any]


class TooLargeError(Exception):
    """A dense tensor of the matrix's shape is too large to be measured."""


@dataclass
class SweepOperands:
    """A sparse matrix with dense operands of matching sizes, made when they are read; see ``coverage_rows.Given``."""

    S: Any
    shape: Sequence[int]

    def _dense(self, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=torch.Generator().manual_seed(0))

    @property
    def T(self) -> Any:
        return self.S.t()

    @property
    def D(self) -> torch.Tensor:
        if self.shape[0] * self.shape[1] > MOST_DENSE:
            raise TooLargeError
        return self._dense(*self.shape)

    @property
    def X(self) -> torch.Tensor:
        return self._dense(self.shape[1], 8)

    @property
    def v(self) -> torch.Tensor:
        return self._dense(self.shape[1])

    @property
    def u(self) -> torch.Tensor:
        return self._dense(self.shape[0])


Row = Callable[[SweepOperands], Any]
OTHERS: dict[str, Row] = {
    "to CSR": lambda g: g.S.to_sparse_csr(),
    "to CSC": lambda g: g.S.to_sparse_csc(),
    "to COO": lambda g: g.S.to_sparse_coo(),
    "count_nonzero": lambda g: torch.count_nonzero(g.S),
    "topk(3)": lambda g: torch.topk(g.S, 3, 1).values,
    "max(1)": lambda g: torch.max(g.S, 1),
}
ROWS: dict[str, Row] = {**OPERATORS, **OTHERS}


def _of_data(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any, SweepOperands], Any]:
    """SciPy's way to apply a function that keeps zero: on a copy's data."""

    def apply(S: Any, g: SweepOperands) -> Any:
        result = S.copy()
        result.data = function(result.data)
        return result

    return apply


def _mask(S: Any) -> np.ndarray:
    return np.arange(S.shape[0]) % 2 == 0


SCIPY: dict[str, Callable[[Any, SweepOperands], Any]] = {
    **dict.fromkeys(("torch.mm(S, D)", "S @ D", "einsum ij,jk->ik", "tensordot"), lambda S, g: S @ g.X.numpy()),
    **dict.fromkeys(("torch.mv(S, v)", "S @ v", "inner"), lambda S, g: S @ g.v.numpy()),
    **dict.fromkeys(("t()", "transpose", "permute", "swapdims", "movedim", "mT", "einsum ij->ji"), lambda S, g: S.T),
    **dict.fromkeys(("amax(1)", "max(1).values"), lambda S, g: S.max(axis=1).toarray()),
    **dict.fromkeys(("argmax(1)", "max(1).indices"), lambda S, g: S.argmax(axis=1)),
    **dict.fromkeys(("relu", "F.relu"), _of_data(lambda x: np.maximum(x, 0))),
    "diagonal": lambda S, g: S.diagonal(1),
    "diag": lambda S, g: S.diagonal(-1),
    **dict.fromkeys(("cat, dim 1", "hstack"), lambda S, g: sp.hstack([S, S], format=S.format)),
    **dict.fromkeys(("S * scalar", "scalar * S"), lambda S, g: S * 2.5),
    "mul_(2)": lambda S, g: S * 2,
    "torch.matmul(u, S)": lambda S, g: g.u.numpy() @ S,
    "D @ S": lambda S, g: g.X.numpy().T @ S.T,
    "F.linear(x, S)": lambda S, g: g.X.numpy().T @ S.T,
    "S @ S": lambda S, g: S @ S.T,
    "matrix_power": lambda S, g: sparse_linalg.matrix_power(S[:, : S.shape[0]], 3),
    "S + S": lambda S, g: S + 2 * S,
    "S + D": lambda S, g: S + g.D.numpy(),
    "S - S": lambda S, g: S - 3 * S,
    "S * S": lambda S, g: S.multiply(S),
    "S * D": lambda S, g: S.multiply(g.D.numpy()),
    "S * row vector": lambda S, g: S.multiply(g.v.numpy()),
    "S * column vector": lambda S, g: S.multiply(g.u.numpy()[:, None]),
    "S / scalar": lambda S, g: S / 2.5,
    "S ** 2": lambda S, g: S.power(2),
    "S > 0": lambda S, g: S > 0,
    "maximum(S, S)": lambda S, g: S.maximum(0.5 * S),
    "clamp(-1, 1)": _of_data(lambda x: x.clip(-1, 1)),
    "sin": lambda S, g: S.sin(),
    "abs": lambda S, g: abs(S),
    "sqrt": lambda S, g: abs(S).sqrt(),
    "neg": lambda S, g: -S,
    "tanh": lambda S, g: S.tanh(),
    "sum()": lambda S, g: S.sum(),
    "sum(0)": lambda S, g: S.sum(0),
    "sum(1, keepdim)": lambda S, g: S.sum(1),
    "mean()": lambda S, g: S.mean(),
    "mean(0)": lambda S, g: S.mean(0),
    "max()": lambda S, g: S.max(),
    "amin(0)": lambda S, g: S.min(axis=0).toarray(),
    "max(1)": lambda S, g: (S.max(axis=1).toarray(), S.argmax(axis=1)),
    "argmin": lambda S, g: S.argmin(),
    "norm": lambda S, g: sparse_linalg.norm(S),
    "linalg.norm": lambda S, g: sparse_linalg.norm(S),
    "norm(1, dim=1)": lambda S, g: sparse_linalg.norm(S, 1, 1),
    "trace": lambda S, g: S.trace(),
    "S[0]": lambda S, g: S[[0]],
    "S[0, 1]": lambda S, g: S[0, 1],
    "S[1:3]": lambda S, g: S[1:3],
    "S[:, 1:5:2]": lambda S, g: S[:, 1:5:2],
    "S[mask]": lambda S, g: S[g.u.numpy() > 0],
    "S[[0, 2, 0]]": lambda S, g: S[[0, 2, 0]],
    "S[rows, columns]": lambda S, g: S[[0, 3, 0], [1, 2, 1]],
    "S[rows[:, None], columns]": lambda S, g: S[[[0], [-1]], [1, 2, 5]],
    "S[S > 0]": lambda S, g: S[S > 0],
    "index_select": lambda S, g: S[:, [3, 0]],
    "select": lambda S, g: S[:, [2]],
    "narrow": lambda S, g: S[1:3],
    "tril": lambda S, g: sp.tril(S, format=S.format),
    "triu(1)": lambda S, g: sp.triu(S, 1, format=S.format),
    "cat": lambda S, g: sp.vstack([S, S[:2]], format=S.format),
    "vstack": lambda S, g: sp.vstack([S, S[[0]]], format=S.format),
    "chunk": lambda S, g: S[S.shape[0] // 3 : 2 * S.shape[0] // 3],
    "split": lambda S, g: S[:, 1:-1],
    "flip": lambda S, g: S[::-1, ::-1],
    "reshape(2, 12)": lambda S, g: S.reshape(S.shape[1], S.shape[0]),
    "repeat": lambda S, g: sp.hstack([sp.vstack([S, S])] * 3, format=S.format),
    "block_diag": lambda S, g: sp.block_diag([S, g.D.numpy(), S[[0]]], format=S.format),
    "repeat_interleave": lambda S, g: S[np.repeat(np.arange(S.shape[0]), np.arange(S.shape[0]) % 3)],
    "argwhere": lambda S, g: np.transpose(S.nonzero()),
    "clone": lambda S, g: S.copy(),
    "equal": lambda S, g: not (S.copy() != S).nnz,
    "count_nonzero": lambda S, g: S.count_nonzero(),
    "to CSR": lambda S, g: S.tocsr(),
    "to CSC": lambda S, g: S.tocsc(),
    "to COO": lambda S, g: S.tocoo(),
}
"""What SciPy's users write for a row."""
SCIPY_CLASSES = {"CSR": sp.csr_array, "CSC": sp.csc_array, "COO": sp.coo_array, "DCSR": sp.csr_array, "BCSR": sp.bsr_array}
TORCH_FORMATS = {name: (format,) for name, format in FORMATS.items()} | {"DCSR": (ns.COO(2), ns.CSR)}  # those that torch has, too


@dataclass(frozen=True)
class Case:
    """A measured case; times are microseconds."""

    row: str
    format: str
    pattern: str
    entries: int
    ours: float
    peer: float
    name: str

    @property
    def ratio(self) -> float:
        """Our time over the peer's."""
        return self.ours / self.peer

    def text(self) -> str:
        """A line of the table.

        >>> Case("sum(0)", "CSR", "banded", 1000, 20.0, 10.0, "SciPy").text()
        'sum(0)                        CSR   banded          1000          20          10    20.0    2.00 SciPy'
        """
        return (
            f"{self.row:30}{self.format:6}{self.pattern:12}{self.entries:>8}{self.ours:12.0f}{self.peer:12.0f}"
            f"{self.ours * 1e3 / self.entries:8.1f}{self.ratio:8.2f} {self.name}"
        )


def timed(make: Callable[[], Call]) -> float:
    """Median CPU microseconds of calls, each on fresh operands; the first, which may compile, does not count."""
    make()()
    taken: list[float] = []
    began = time.monotonic()
    while len(taken) < CALLS and (not taken or time.monotonic() - began < SECONDS):
        call = make()
        started = time.process_time()
        call()
        taken.append((time.process_time() - started) * 1e6)
    return median(taken)


def fresh(A: ns.SparseTensor) -> ns.SparseTensor:
    """The same matrix with a pattern that nothing was remembered with."""
    return ns.SparseTensor(copy.deepcopy(A.pattern), A.values.clone())


def on(row: Row, make: Callable[[], Any], shape: Sequence[int]) -> Callable[[], Call]:
    """Calls of a row on matrices that ``make`` returns."""

    def maker() -> Call:
        operands = SweepOperands(make(), shape)
        return lambda: row(operands)

    return maker


def peers_of(name: str, format: str, A: ns.SparseTensor) -> Iterator[tuple[str, Callable[[], Call]]]:
    """torch and SciPy computing a row."""
    rows, columns = A.indices().numpy()
    plain = sp.coo_array((A.to(ns.COO(2)).values.numpy(), (rows, columns)), shape=A.shape)
    if name in SCIPY:
        by_scipy, its = SCIPY[name], SCIPY_CLASSES[format](plain.tocsr())
        yield "SciPy", on(lambda g: by_scipy(g.S, g), its.copy, A.shape)
    for its_format in TORCH_FORMATS[format]:
        layout = A.to(its_format).to_torch()
        yield f"torch {str(layout.layout).removeprefix('torch.sparse_')}", on(ROWS[name], layout.clone, A.shape)


def is_sparse_enough(result: Any) -> bool:
    """Whether a peer computed in a sparse format; torch densifies some results."""
    return not isinstance(result, torch.Tensor) or result.layout is not torch.strided or result.numel() <= MOST_DENSE


def measured(name: str, format: str, pattern: str, entries: int) -> Case | None:
    """Measure a case; None if there is no peer, or if it needs a large dense tensor."""
    A = PATTERNS[pattern](entries).to(FORMATS[format])
    A = A.with_values(torch.randn(A.values.shape, generator=torch.Generator().manual_seed(1)))
    if A.numel() > MOST_DENSE and name in DENSE_RESULTS:
        return None
    best = (float("inf"), "")
    for peer, make in peers_of(name, format, A):
        try:
            if is_sparse_enough(make()()):
                best = min(best, (timed(make), peer))
        except TooLargeError:
            return None
        except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, IndexError, MemoryError):
            continue  # the peer lacks it in this format
    if not best[1]:
        return None
    try:
        ours = timed(on(ROWS[name], lambda: fresh(A), A.shape))
    except (NumscorchError, TooLargeError, MemoryError) as error:
        print(f"{name} {format} {pattern} {entries}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
        return None
    return Case(name, format, pattern, entries, ours, *best)


def dense_results() -> set[str]:
    """Rows whose result, of a sparse matrix, is a dense tensor of its size or larger."""
    A = PATTERNS["uniform"](1000)
    found = set()
    for name, row in ROWS.items():
        result = row(SweepOperands(A, A.shape))
        if isinstance(result, torch.Tensor) and result.numel() >= A.numel():
            found.add(name)
    return found


DENSE_RESULTS: set[str] = set()


def cases(options: argparse.Namespace) -> Iterator[tuple[str, str, str, int]]:
    """The cases, in an order in which sizes and rows mix."""
    draw = random.Random(options.seed)
    wanted = [name for name in ROWS if not options.operators or any(part in name for part in options.operators)]
    listed = [(name, format, draw.choice(list(PATTERNS)), entries) for name in wanted for format in FORMATS for entries in options.entries]
    draw.shuffle(listed)
    yield from listed[: options.cases]


def main(arguments: Sequence[str]) -> int:
    """Print the worst cases, and a summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description="Every operator beside torch and SciPy.")
    parser.add_argument("operators", nargs="*", metavar="OPERATOR", help="only rows whose names contain one of these texts")
    parser.add_argument("--entries", type=int, nargs="*", default=ENTRIES, help="numbers of entries")
    parser.add_argument("--cases", type=int, help="the number of cases, chosen at random with the seed; by default all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write all cases to a file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    DENSE_RESULTS.update(dense_results())
    found = []
    for case in cases(options):
        if (result := measured(*case)) is not None:
            found.append(result)
            print(result.text(), file=sys.stderr, flush=True)
    found.sort(key=lambda case: -case.ratio)
    for result in found[:WORST]:
        print(result.text())
    for entries in options.entries:
        ratios = [case.ratio for case in found if case.entries == entries]
        if ratios:
            above = sum(ratio > 2 for ratio in ratios)
            print(f"{entries:>8} entries: {len(ratios)} cases, median ratio {median(ratios):.2f}, {above} above 2, worst {max(ratios):.1f}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(case) for case in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
