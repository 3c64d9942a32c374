"""Entries of kernels: functions called by address with an array of words, by any number of workers."""

from __future__ import annotations

import pickle
from struct import Struct

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.codegen import compiling
from numscorch.codegen.assembly import KernelBody, Param
from numscorch.codegen.kernel import Kernel, build
from numscorch.codegen.source import Source
from numscorch.ir.loop import FunctionDef
from numscorch.machine.memory import address

TEXT = '''"""y[i] = scale * x[i] + worker"""

from numba import prange
from numpy import empty


def body(worker, x, scale, y, n, workers):
    for i in range(n * worker // workers, n * (worker + 1) // workers):
        y[i] = scale * x[i] + worker
    if n > 6:
        y[0] += empty((n - 7 << 59) - 1).size


def finish(y, n):
    y[n - 1] = -1.0


def kernel(x, scale, y, n, workers):
    for worker in prange(workers):
        body(worker, x, scale, y, n, workers)
    finish(y, n)
'''
PARAMS = (
    Param("x", "vals", dtype="float32"),
    Param("scale", "size", dtype="float64"),
    Param("y", "vals", dtype="float32"),
    Param("n", "size"),
    Param("workers", "workers"),
)
FUNCTIONS = (
    FunctionDef("body", ("worker", "x", "scale", "y", "n", "workers"), ()),
    FunctionDef("finish", ("y", "n"), ()),
    FunctionDef("kernel", ("x", "scale", "y", "n", "workers"), ()),
)
PACK = Struct("qdqqq").pack


@pytest.fixture
def kernel() -> Kernel:
    return build(Source("kernel_0123456789abcdef", TEXT, KernelBody(FUNCTIONS, PARAMS, False, True)))


RESULTS = {1: [0.5, 1, 1.5, 2, 2.5, -1], 2: [0.5, 1, 1.5, 3, 3.5, -1], 3: [0.5, 1, 2.5, 3, 4.5, -1]}


@pytest.mark.parametrize(("workers", "expected"), RESULTS.items())
def test_an_entry_serves_any_number_of_workers(kernel: Kernel, workers: int, expected: list[float]) -> None:
    x, y = np.arange(1, 7, dtype=np.float32), np.zeros(6, np.float32)
    kernel.run(PACK(address(x), 0.5, address(y), 6, workers), workers)
    assert y.tolist() == expected
    y[:] = 0
    kernel.plain(x, 0.5, y, 6, workers)
    assert y.tolist() == expected


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_kernel_raises_its_exception(kernel: Kernel, workers: int) -> None:
    """Only a failed allocation is reported as a lack of memory."""
    x = np.ones(8, np.float32)
    with pytest.raises(ValueError, match="negative dimensions"):
        kernel.run(PACK(address(x), 0.5, address(x), 7, workers), workers)
    with pytest.raises(MemoryError, match="could not allocate"):
        kernel.run(PACK(address(x), 0.5, address(x), 8, workers), workers)


def test_machine_code_is_loaded_from_disk_for_equal_parameters_only(kernel: Kernel) -> None:
    addresses, code = compiling.compiled(kernel.source, kernel.scope)
    assert set(addresses) == {"body", "finish"} and all(addresses.values())
    assert set(compiling.loaded(kernel.source, code) or ()) == {"body", "finish"}
    other = Source(kernel.source.name, TEXT, KernelBody(FUNCTIONS, PARAMS[::-1], False, True))
    assert compiling.loaded(other, code) is None


def test_memory_that_moved_is_read_at_its_new_address() -> None:
    A, x = ns.from_torch(torch.eye(4).mul_(2.0), ns.CSR), torch.ones(4)
    assert ns.einsum("ij,j->i", A, x).tolist() == [2.0] * 4
    for array in (*A.pattern.arrays[1], A.values):
        array.set_(array.clone().untyped_storage(), 0, array.shape)
    A.values[1] = 5.0
    assert ns.einsum("ij,j->i", A, x).tolist() == [2.0, 5.0, 2.0, 2.0]


def test_a_file_shows_the_loop_over_workers() -> None:
    A = ns.rand(3000, 3000, density=0.05, format=ns.CSR)
    text = ns.explain("ij,jk->ik", A, torch.ones(3000, 64)).source
    assert "def body(worker, " in text and "for worker in prange(workers):\n        body(worker, " in text
    assert text.index("def body(") < text.index("def kernel(")


def test_one_kernel_serves_small_and_large_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (ns.rand(n, n, density=10 / n, format=ns.CSR) for n in (20, 2000))
    sources = {ns.explain("ij,jk->ik", A, torch.ones(A.shape[1], 32)).source for A in (small, large)}
    assert len(sources) == 1
    monkeypatch.setattr("numscorch.codegen.kernel.launcher", lambda lock: pytest.fail("threads for a small problem"))
    assert torch.allclose(ns.einsum("ij,jk->ik", small, torch.ones(20, 32)), small.to_dense() @ torch.ones(20, 32))


@pytest.mark.parametrize(("arguments", "expected"), [(None, ()), ((), ()), (("a", 2), ("a", 2))])
def test_exceptions_are_read_with_and_without_arguments(arguments: tuple[object, ...] | None, expected: tuple[object, ...]) -> None:
    data = pickle.dumps((ValueError, arguments, None))
    text = np.frombuffer(data, np.uint8)
    status = np.frombuffer(Struct("qi").pack(text.ctypes.data, len(data)), np.uint8)
    error = compiling.raised(status.ctypes.data)
    assert type(error) is ValueError
    assert error.args == expected
