"""Results whose size is bounded by operands are appended to in one pass, also by several threads, and not if bounds would be wrong."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.codegen.closing import closing_of
from numscorch.codegen.kernel import build_plain
from numscorch.ir.format import CSR
from numscorch.ir.index import TensorVar
from numscorch.machine import memory
from numscorch.machine.target import host
from numscorch.runtime import result_arrays
from numscorch.schedule import tuning
from numscorch.tensors.validate import validate


@pytest.fixture
def two_threads(fresh_plans: pytest.MonkeyPatch) -> Iterator[None]:
    fresh_plans.setattr(tuning, "PARALLEL_STEPS", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 9, (rows, columns), generator=generator) * (torch.rand(rows, columns, generator=generator) < 0.1)


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC], ids=str)
@pytest.mark.parametrize("text", ["R[i,j] = A[i,j] + B[i,j]", "R[i,j] = A[i,j] * B[i,j]", "R[i,j] = A[i,j] - 2 * B[i,j] + C[i,j]"])
def test_workers_append_side_by_side(text: str, fmt: ns.Format, two_threads: None) -> None:
    """The number of entries of each worker is stored after its last loop. Once, that store was dropped."""
    dense = {name: matrix(300, 200, seed).float() for seed, name in enumerate("ABC") if f"{name}[" in text}
    result = ns.evaluate(text, **{name: ns.from_torch(value, fmt) for name, value in dense.items()})
    validate(result.pattern)
    assert torch.equal(result.to_dense(), eval(text.split(" = ")[1].replace("[i,j]", ""), dense))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("largest", [0, result_arrays.LARGEST])
def test_gaps_are_closed_in_place_or_by_each_worker(
    largest: int, dtype: torch.dtype, two_threads: None, fresh_plans: pytest.MonkeyPatch
) -> None:
    """Results larger than pooled memory are moved in place."""
    moved, closed = [], result_arrays.ResultLayout.closed
    fresh_plans.setattr(result_arrays.ResultLayout, "closed", lambda *arguments: moved.append(1) or closed(*arguments))
    fresh_plans.setattr(result_arrays, "LARGEST", largest)
    fresh_plans.setattr(tuning, "SERIAL_CALLS", 0)
    A, B = (matrix(301, 200, seed).to(dtype) for seed in (0, 1))
    for of_torch in (lambda dense: ns.from_torch(dense, ns.CSR), lambda dense: ns.from_torch(dense.to_sparse_csr())):
        S, T = map(of_torch, (A, B))  # with int32 and with int64 indices
        for result, expected in ((S + T, A + B), (S * T, A * B), (S @ T.t(), A @ B.t())):
            validate(result.pattern)
            assert torch.equal(result.to_dense(), expected)
    assert len(moved) == (0 if largest else 6)


def test_each_worker_moves_its_own_entries() -> None:
    """Worker 1 wrote two entries of rows 1 and 2 from position 5 on, and worker 2 one of row 3 from position 9 on."""
    source = closing_of(TensorVar("R", CSR), host())
    pos, crd, values = np.array([0, 2, 6, 7, 10], np.int32), np.arange(12, dtype=np.int32), np.arange(12, dtype=np.float32)
    new_crd, new_values = np.full(5, -1, np.int32), np.full(5, -1, np.float32)
    starts, ends, cuts = np.array([0, 5, 9]), np.array([2, 7, 10]), np.array([0, 1, 3, 4])
    build_plain(source).plain(pos, crd, values, new_crd, new_values, starts, ends, cuts, 3)
    assert pos.tolist() == [0, 2, 3, 4, 5]
    assert new_crd.tolist() == new_values.tolist() == [0, 1, 5, 6, 9]


def test_a_broadcast_operand_gives_no_bound(plain: pytest.MonkeyPatch) -> None:
    """Its entries are in each row along which it is broadcast."""
    stacked, A = matrix(3 * 4, 6, 0).float().reshape(3, 4, 6), matrix(4, 6, 1).float()
    S, B = ns.from_torch(stacked, ns.Format("dds")), ns.from_torch(A, ns.CSR)
    assert torch.equal((S + B).to_dense(), stacked + A)
    assert torch.equal((B / torch.full((4, 1, 1), 2.0)).to_dense(), A / torch.full((4, 1, 1), 2.0))
    assert torch.equal(ns.einsum("bij,bij,ij->bij", S, S, B).to_dense(), stacked * stacked * A)


@pytest.mark.parametrize("fmt", [None, ns.CSR], ids=str)
def test_rows_are_appended_if_there_is_room(fmt: ns.Format | None, two_threads: None, fresh_plans: pytest.MonkeyPatch) -> None:
    """The number of insertions bounds the number of entries; if the bound needs too much memory, entries are counted first."""
    A, B = matrix(200, 150, 0).float(), matrix(150, 180, 1).float()
    for limit in (1 << 30, 0):
        fresh_plans.setattr(memory, "ASK_FROM", limit)
        result = ns.einsum("ij,jk->ik", ns.from_torch(A, ns.CSR), ns.from_torch(B, ns.CSR), format=fmt)
        validate(result.pattern)
        assert torch.equal(result.to_dense(), A @ B)
        batch = ns.einsum(
            "aij,jk->aik", ns.from_torch(A.reshape(10, 20, 150), ns.Format("dds")), ns.from_torch(B, ns.CSR), format=fmt and "dds"
        )
        validate(batch.pattern)
        assert torch.equal(batch.to_dense(), (A @ B).reshape(10, 20, 180))
