"""Every operator on every format: values and gradients equal those of dense torch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np
import pytest
import torch
from operator_net import SHAPES, OperatorCase, cases, failure, formats, operand, table

import numscorch as ns
from numscorch.ir.level import Arrays, Children, Entries, Mode, Parents, ranges, starts_of_runs
from numscorch.ir.levels import Level
from numscorch.ir.loop import BinOp, Const, Expr
from numscorch.runtime.plans import uncompiled
from numscorch.schedule import tuning

PARTS = 8  # parts of the random cases, which xdist workers share
ROWS_BELOW_DENSE = [  # formats whose rows have starts and coordinates, but not those of CSR
    "(i, j) -> (i: dense, j: hash)",
    "(i, j) -> (j: dense, i: hash)",
    "(i, j) -> (i: dense, j: compressed(ordered=False))",
]


@pytest.mark.parametrize("part", range(PARTS))
def test_random_operators_on_random_formats(part: int, scale: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "COMPILE_ENTRIES", 0 if part == 1 else 1 << 16)  # in one part, kernels convert formats
    failures = list(filter(None, map(failure, islice(cases(random.Random(part)), scale(2000)))))
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("format", ROWS_BELOW_DENSE)
def test_every_selection_from_rows(format: str) -> None:
    failures = list(filter(None, (failure(OperatorCase(name, format, 7)) for name in table(SHAPES[2][0]))))
    assert not failures, "\n".join(failures)


@pytest.mark.full
@pytest.mark.parametrize("format", formats()[2])
def test_every_selection_from_many_matrices(format: str) -> None:
    numbers, names = random.Random(format), [name for name in table(SHAPES[2][0]) if name.startswith("A[")]
    failures = list(filter(None, (failure(OperatorCase(name, format, numbers.randrange(1 << 30))) for name in names for _ in range(60))))
    assert not failures, "\n".join(failures[:20])


@pytest.mark.parametrize("order", SHAPES)
def test_arrays_handed_out_store_the_tensor(order: int) -> None:
    """The index arrays of a format that has a layout of torch belong to its values; other formats are converted, or refused."""
    wrong = []
    with uncompiled():
        for format in formats()[order]:
            A = operand(OperatorCase("A[0]", format, 4))
            assert A is not None
            for convert in (lambda A: A.to_torch().to_dense(), lambda A: torch.from_numpy(A.to_scipy().toarray()), _from_own_arrays):
                try:
                    wrong += [] if torch.equal(convert(A), A.to_dense()) else [format]
                except ns.UnsupportedError:
                    continue
    assert not wrong


def _from_own_arrays(A: ns.SparseTensor) -> torch.Tensor:
    """The dense tensor of crow_indices and col_indices, or of ccol_indices and row_indices, with the values."""
    by_rows = getattr(A, "layout", None) in (torch.sparse_csr, torch.sparse_bsr)
    pos, crd = (A.crow_indices(), A.col_indices()) if by_rows else (A.ccol_indices(), A.row_indices())
    assert A._nnz() == crd.shape[-1]
    if len(A.values) != crd.numel():  # blocks
        return A.to_dense()
    return torch.sparse_compressed_tensor(pos, crd, A.values.reshape(crd.shape), A.shape, layout=A.layout).to_dense()


@dataclass(frozen=True, slots=True)
class Loose(Level):
    """A user's level: coordinates of each parent in falling order, behind a free slot that holds -1."""

    gaps: ClassVar[bool] = True
    padded: ClassVar[bool] = False
    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")

    @property
    def is_ordered(self) -> bool:
        return False

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        return mode.pos[mode.parent.begin], mode.pos[mode.parent.begin + 1]

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return mode.crd[position]

    def present(self, mode: Mode, position: Expr) -> Expr | None:
        return BinOp(">=", mode.crd[position], Const(0))

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        pos = starts_of_runs(entries.children + 1)
        crd = np.full(pos[-1], -1)
        parents = entries.parents[entries.first]
        places = pos[parents + 1] - 1 - ranges(np.zeros_like(entries.children), entries.children)
        crd[places] = entries.coordinates[entries.first]
        return self, (pos, crd), places[np.cumsum(entries.first) - 1], len(crd)

    def count(self, arrays: Arrays, parents: int, size: int) -> int:
        return len(arrays[-1])

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        pos, crd = arrays
        counts = pos[stored.parents + 1] - pos[stored.parents] - 1
        places = ranges(pos[stored.parents] + 1, counts)
        return Children(counts, crd[places], places)


LOOSE = [
    "(i, j) -> (i: dense, j: loose)",
    "(i, j) -> (j: dense, i: loose)",
    "(i, j) -> (i: loose, j: compressed)",
    "(i, j, k) -> (i: dense, j: loose, k: dense)",
]


def test_operators_on_the_level_of_a_user(known_levels: None) -> None:
    ns.register_level(Loose(), most=10)
    numbers, drawn = random.Random(0), [OperatorCase(name, LOOSE[0], 5) for name in ("A[[0, 0]]", "A[1:-1]", "A[mask]")]
    for format in LOOSE:
        names = list(table(SHAPES[ns.Format(format).order][0]))
        drawn += [OperatorCase(name, format, 3) for name in numbers.sample(names, 30)]
    failures = list(filter(None, map(failure, drawn)))
    assert not failures, "\n".join(failures)
