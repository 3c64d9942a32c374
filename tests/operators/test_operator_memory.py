"""Operators of a huge, nearly empty matrix work in little memory, or refuse their result with its size before it is allocated."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import as_operand, random_format
from scale import scaled

import numscorch as ns
from benchmarks.new_sizes import OPERATORS
from numscorch.convert.values import looked_up, values_of
from numscorch.tensors.packing import coordinates, entry_columns

pytestmark = [pytest.mark.usefixtures("interpreted"), pytest.mark.filterwarnings("ignore")]
ROOM = 2 << 30  # bytes of address space that an operator may add
LEFT_OUT = {"unbind", "repeat_interleave"}  # a list of a tensor for each column; a dense operand with a number for each row


class NeedsDenseError(Exception):
    """A row needs a dense matrix of the huge shape."""


@dataclass(frozen=True)
class HugeGiven:
    """The operands of a row of operators, apart from dense matrices of the huge shape."""

    S: ns.SparseTensor

    @property
    def T(self) -> Any:
        return self.S.t()

    @property
    def D(self) -> torch.Tensor:
        raise NeedsDenseError

    @property
    def X(self) -> torch.Tensor:
        return torch.ones(self._size(1), 2)

    @property
    def v(self) -> torch.Tensor:
        return torch.ones(self._size(1))

    @property
    def u(self) -> torch.Tensor:
        return torch.ones(self._size(0))

    def _size(self, dim: int) -> int:
        if self.S.shape[dim] > 10**7:
            raise NeedsDenseError
        return self.S.shape[dim]


@contextmanager
def little_memory() -> Iterator[None]:
    """Let larger allocations fail, without writing to their memory."""
    import resource

    field = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize"))
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (int(field.split()[1]) * 1024 + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the address space")
@pytest.mark.parametrize("format", [ns.COO(2), ns.DCSR], ids=str)
@pytest.mark.parametrize("shape", [(10_000, 500_000), (2**31 - 1, 2**31 - 1)], ids=str)
def test_operators_of_huge_shapes(shape: tuple[int, int], format: ns.Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMSCORCH_MEMORY_LIMIT", "1G")
    places = [[5, 7, 7, 9_000, shape[0] - 1], [9, 3, 400_000, 9, shape[1] - 1]]
    failures = {}
    for name in OPERATORS.keys() - LEFT_OUT:
        S = ns.from_coo(places, torch.tensor([1.0, -2.0, 3.0, 4.0, 5.0]), shape, format)
        try:
            with little_memory():
                OPERATORS[name](HugeGiven(S))
        except (ns.SizeError, NeedsDenseError):
            continue
        except (MemoryError, RuntimeError) as error:
            failures[name] = f"{type(error).__name__}: {error}"
    assert not failures


@pytest.mark.parametrize("block", range(scaled(20)))
def test_columns_and_lookups_of_random_formats(block: int) -> None:
    for seed in range(10 * block, 10 * block + 10):
        rng = random.Random(seed)
        shape = [rng.choice((0, 1, 3, 5, 8)) for _ in range(rng.choice((1, 2, 2, 3)))]
        array = np.random.default_rng(seed).random(shape)
        array *= array < 0.4
        A = as_operand(array, random_format(rng, len(shape)))
        if not isinstance(A, ns.SparseTensor):
            continue
        columns = entry_columns(A.pattern)
        assert np.array_equal(array[tuple(columns)], values_of(A).numpy()), A.format
        assert np.array_equal(np.stack(columns), coordinates(A.pattern).numpy()), A.format
        if array.size:
            wanted = [torch.from_numpy(np.random.default_rng(seed).integers(0, size, 7)) for size in shape]
            assert torch.equal(looked_up(A, wanted), torch.from_numpy(array)[tuple(wanted)]), A.format


LARGEST = 2**31 - 1  # of int32


@pytest.mark.parametrize("format", [ns.COO(2), ns.DCSR, ns.Format("ss", (1, 0))], ids=str)
def test_sums_of_coordinates_do_not_wrap(format: ns.Format) -> None:
    A = ns.from_coo([[3, LARGEST - 1], [LARGEST - 1, LARGEST - 2]], [1.0, 2.0], (LARGEST, LARGEST), format)
    first, second = [3, LARGEST - 1], [LARGEST - 1, LARGEST - 2]
    assert places(torch.roll(A, (LARGEST - 1, 2), (0, 1))) == [[2, 1], [LARGEST - 2, 0]]
    assert places(torch.tril(A)) == [second]
    assert places(torch.triu(A)) == [first]
    assert places(torch.diagonal(A, -1)) == [[LARGEST - 2]]
    assert places(torch.cat([A, A])) == [first, second, [LARGEST + 3, LARGEST - 1], [2 * LARGEST - 1, LARGEST - 2]]
    assert places(torch.kron(A, ns.from_torch(torch.eye(1, 2)))) == [[3, 2 * LARGEST - 2], [LARGEST - 1, 2 * LARGEST - 4]]
    assert places(A.reshape(LARGEST**2)) == [[3 * LARGEST + LARGEST - 1], [(LARGEST - 1) * LARGEST + LARGEST - 2]]
    assert A.take(torch.tensor([3 * LARGEST + LARGEST - 1])).tolist() == [1.0]
    assert torch.argwhere(A).tolist() == [first, second]


def places(A: ns.SparseTensor) -> list[list[int]]:
    return sorted(A.indices().T.tolist())


def test_selections_by_masks_that_broadcast() -> None:
    full = torch.tensor([[0.0, 2.0, 0.0], [3.0, 4.0, 0.0]])
    for mask in (
        torch.tensor([[True], [False]]),
        torch.tensor([False, True, True]),
        torch.tensor(True),
        torch.zeros(1, 3, dtype=torch.bool),
    ):
        for given in (mask, ns.from_torch(mask)):
            assert torch.equal(torch.masked_select(ns.from_torch(full), given), torch.masked_select(full, mask))
    A = ns.from_coo([[5, 7], [7, 9]], [1.0, 2.0], (10**9, 10**5))
    mask = torch.zeros(10**5, dtype=torch.bool)
    assert torch.masked_select(A[:100], mask.index_fill(0, torch.tensor([7]), True)).nonzero().tolist() == [[5]]
    with pytest.raises(ns.SizeError, match="the result of shape"):
        torch.masked_select(A, ~mask)


def test_dense_results_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMSCORCH_MEMORY_LIMIT", "1G")
    with pytest.raises(ns.SizeError, match="the dense intermediate tensor 1000000x1000000 takes"):
        ns.einsum("i,j->ij", torch.ones(10**6), torch.ones(10**6))
