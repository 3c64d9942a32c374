"""Memory of large results is reused, but not while it is referenced."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.machine import buffer_pool

N = 520  # rows and columns of a result of more than a megabyte
A = ns.from_torch(torch.eye(N), ns.CSR)


@pytest.fixture(autouse=True)
def empty_pool() -> None:
    gc.collect()
    buffer_pool.release()


def product(value: float) -> torch.Tensor:
    result: torch.Tensor = ns.einsum("ij,jk->ik", A, torch.full((N, N), value))
    return result


def test_memory_of_a_dead_result_is_reused() -> None:
    first = product(1.0)
    address = first.data_ptr()
    del first
    assert product(2.0).data_ptr() == address


def test_memory_is_not_reused_while_a_view_of_it_is_alive() -> None:
    views = [(value, product(value)[3:, :5].t()) for value in (1.0, 2.0, 3.0)]
    arrays = [(value, product(value).numpy()[::7]) for value in (4.0, 5.0)]
    saved = torch.ones(N, N, requires_grad=True) * product(6.0)  # autograd saves the other factor
    product(7.0)
    assert all(bool((view == value).all()) for value, view in views)
    assert all(bool((array == value).all()) for value, array in arrays)
    leaf = torch.ones(N, N, requires_grad=True)
    (leaf * product(8.0)).sum().backward()
    assert bool((leaf.grad == 8).all()) and bool((saved == 6).all())


@pytest.mark.parametrize(
    "view_of",
    [
        np.asarray,
        lambda array: array.view(np.ndarray),
        lambda array: array[:9],
        lambda array: array.T,
        lambda array: torch.from_numpy(np.asarray(array)).numpy(),
    ],
)
def test_each_view_of_an_array_keeps_its_memory(view_of: Callable[[np.ndarray], Any]) -> None:
    array = buffer_pool.room(1 << 18, np.float32)
    address = array.ctypes.data
    view = view_of(view_of(array))
    del array
    assert buffer_pool.room(1 << 18, np.float32).ctypes.data != address
    del view
    assert buffer_pool.room(1 << 18, np.float32).ctypes.data in {address}


def test_the_pool_is_bounded_and_can_be_released() -> None:
    count = buffer_pool.POOL_BYTES // (4 * N * N) + 5
    results = [product(float(n)) for n in range(4)]
    del results
    for size in range(count):
        buffer_pool.room((N, N + 40 * size), np.float32)
    assert 0 < sum(size * len(blocks) for size, blocks in buffer_pool._free.items()) <= buffer_pool.POOL_BYTES
    buffer_pool.release()
    assert not buffer_pool._free


def test_threads_never_share_memory() -> None:
    wrong: list[float] = []

    def work(value: float) -> None:
        wrong.extend(value for _ in range(12) if not bool((product(value) == value).all()))

    threads = [threading.Thread(target=work, args=(float(n),)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64])
def test_other_data_types_and_kept_patterns(dtype: torch.dtype) -> None:
    B = ns.from_torch(torch.ones(N, N, dtype=dtype), ns.CSR)
    for value in (2, 3):
        result = ns.einsum("ij,ij->ij", B, torch.full((N, N), value, dtype=dtype))
        assert bool((result.values == value).all()) and result.values.dtype is dtype


def test_results_with_new_patterns_reuse_memory() -> None:
    full = ns.from_torch(torch.ones(N, N), ns.CSR)

    def addresses(tensor: ns.SparseTensor) -> set[int]:
        return {tensor.values.data_ptr(), tensor.pattern.arrays[1][1].data_ptr()}

    first, second = (ns.einsum("ij,jk->ik", A, full) for _ in range(2))
    assert addresses(first).isdisjoint(addresses(second))
    del first
    pooled = {ctypes.addressof(buffer) for buffers in buffer_pool._free.values() for buffer in buffers}
    third = ns.einsum("ij,jk->ik", A, full)
    assert addresses(third) <= pooled
    assert all(torch.equal(tensor.to_dense(), torch.ones(N, N)) for tensor in (second, third))


def test_reused_memory_is_not_read_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    pooled = buffer_pool._pooled

    def poisoned(size: int) -> Any:
        memory = pooled(size)
        ctypes.memset(memory, 0xFF, size)  # NaN, and -1 as a coordinate
        return memory

    monkeypatch.setattr(buffer_pool, "_pooled", poisoned)
    dense = torch.rand(N, N).masked_fill_(torch.rand(N, N) < 0.3, 0.0)
    B = ns.from_torch(dense, ns.CSR)
    for format in (ns.CSR, ns.CSC, ns.DCSR, ns.COO(2), ns.ELL):
        assert torch.equal(B.to(format).to_dense(), dense), format
    assert torch.allclose(ns.einsum("ij,jk->ik", B, B).to_dense(), dense @ dense, rtol=1e-4)
    assert torch.equal((B + A).to_dense(), dense + torch.eye(N)) and torch.equal(ns.einsum("ij,jk->ik", A, dense), dense)
