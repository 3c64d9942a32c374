"""The memory of large results is used again, and never while anything still reads it."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.machine import buffer_pool as reuse

N = 520  # rows and columns of a result of more than a megabyte
A = ns.from_torch(torch.eye(N), ns.CSR)


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    gc.collect()
    reuse.release()


def product(value: float) -> torch.Tensor:
    made: torch.Tensor = ns.einsum("ij,jk->ik", A, torch.full((N, N), value))
    return made


def test_a_result_that_died_leaves_its_memory_to_the_next_one() -> None:
    first = product(1.0)
    address = first.data_ptr()
    del first
    assert product(2.0).data_ptr() == address


def test_memory_is_not_given_away_while_a_view_of_it_lives() -> None:
    views = [(value, product(value)[3:, :5].t()) for value in (1.0, 2.0, 3.0)]
    arrays = [(value, product(value).numpy()[::7]) for value in (4.0, 5.0)]
    saved = torch.ones(N, N, requires_grad=True) * product(6.0)  # autograd holds what it multiplied by
    product(7.0)
    assert all(bool((view == value).all()) for value, view in views)
    assert all(bool((array == value).all()) for value, array in arrays)
    leaf = torch.ones(N, N, requires_grad=True)
    (leaf * product(8.0)).sum().backward()
    assert bool((leaf.grad == 8).all()) and bool((saved == 6).all())


def test_what_is_kept_is_bounded_and_can_be_given_back() -> None:
    count = reuse.POOL_BYTES // (4 * N * N) + 5
    held = [product(float(n)) for n in range(4)]
    del held
    for size in range(count):
        reuse.room((N, N + 40 * size), np.float32)
    assert 0 < sum(size * len(own) for size, own in reuse._free.items()) <= reuse.POOL_BYTES
    reuse.release()
    assert not reuse._free


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
        made = ns.einsum("ij,ij->ij", B, torch.full((N, N), value, dtype=dtype))
        assert bool((made.values == value).all()) and made.values.dtype is dtype


def test_results_with_a_pattern_of_their_own_use_memory_again() -> None:
    full = ns.from_torch(torch.ones(N, N), ns.CSR)

    def places(made: ns.SparseTensor) -> set[int]:
        return {made.values.data_ptr(), made.pattern.arrays[1][1].data_ptr()}

    first, second = (ns.einsum("ij,jk->ik", A, full) for _ in range(2))
    assert places(first).isdisjoint(places(second))
    del first
    kept = {address for own in reuse._free.values() for _, address in own}
    third = ns.einsum("ij,jk->ik", A, full)
    assert places(third) <= kept
    assert all(torch.equal(made.to_dense(), torch.ones(N, N)) for made in (second, third))


def test_dead_memory_never_shows_in_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = reuse._pooled

    def poisoned(size: int) -> reuse.Memory:
        memory = taken(size)
        memory[0].fill(0xFF)  # NaN, and -1 as a coordinate
        return memory

    monkeypatch.setattr(reuse, "_pooled", poisoned)
    dense = torch.rand(N, N).masked_fill_(torch.rand(N, N) < 0.3, 0.0)
    B = ns.from_torch(dense, ns.CSR)
    for format in (ns.CSR, ns.CSC, ns.DCSR, ns.COO(2), ns.ELL):
        assert torch.equal(B.to(format).to_dense(), dense), format
    assert torch.allclose(ns.einsum("ij,jk->ik", B, B).to_dense(), dense @ dense, rtol=1e-4)
    assert torch.equal((B + A).to_dense(), dense + torch.eye(N)) and torch.equal(ns.einsum("ij,jk->ik", A, dense), dense)
