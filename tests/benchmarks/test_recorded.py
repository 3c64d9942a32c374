"""Recorder: the kernels of a call, their compile and load times, and the overhead of the call."""

import os
import threading
import time

import pytest
import torch

import numscorch as ns
from benchmarks.recorded import Recorder
from numscorch.measuring.peak_memory import RESET, growth
from numscorch.runtime import plans

A = ns.from_torch(torch.eye(6).mul_(2.0), ns.CSR)
X = torch.ones(6, 4)


def product():
    return ns.einsum("ij,jk->ik", A, X)


@pytest.fixture(scope="module")
def recorder():
    with Recorder() as instance:
        yield instance


def test_a_product_is_one_kernel_with_its_explanation_and_source(recorder):
    recorded = recorder.record(product)
    (name, kernel), (call,) = *recorded.kernels.items(), recorded.calls
    assert name.startswith("kernel_") and kernel.request == "ij,jk->ik"
    assert "index notation    C[i,k] = A[i,j] * B[j,k]" in kernel.explanation and "def kernel(" in kernel.source
    assert kernel.source not in kernel.explanation
    assert call.operands[0] is A and torch.equal(call.result, 2 * X)


def test_a_kernel_is_compiled_once_and_loads_faster(recorder):
    first = recorder.record(product)
    second = recorder.record(product)
    assert first.compile_seconds == second.compile_seconds > 2 * second.load_seconds > 0


def test_the_overhead_is_the_time_outside_of_kernels(recorder):
    recorded = recorder.record(lambda: [product() for _ in range(3)])
    assert 0 < recorded.overhead() < 0.01
    assert len(recorded.calls) == 3 and len(recorded.kernels) == 1


def test_the_time_of_kernels_is_no_overhead(recorder):
    rows = torch.ones(6, 1 << 21)  # milliseconds, mostly spent in the kernel
    recorded = recorder.record(lambda: ns.einsum("ij,jk->ik", A, rows))
    start = time.perf_counter()
    ns.einsum("ij,jk->ik", A, rows)
    assert recorded.overhead() < 0.5 * (time.perf_counter() - start)


def test_all_requests_of_a_call_are_recorded(recorder):
    L = ns.einsum("ij,jk->ik", A, A, format=ns.CSR)
    recorded = recorder.record(lambda: ns.einsum("ij,jk->ik", L, L))
    assert {kernel.request for kernel in recorded.kernels.values()} == {"ij,jk->ik"}
    assert sum(kernel.explanation.startswith("counts what kernel_") for kernel in recorded.kernels.values()) == len(recorded.kernels) - 1


def test_recording_does_not_change_the_process(recorder):
    product()
    kept, folder = dict(plans.PROCESS.plans), os.environ.get("NUMSCORCH_CACHE_DIR")
    recorder.record(product)
    assert plans.PROCESS.plans == kept and os.environ.get("NUMSCORCH_CACHE_DIR") == folder


def test_recording_a_failing_call_does_not_change_the_process(recorder):
    folder = os.environ.get("NUMSCORCH_CACHE_DIR")
    with pytest.raises(ns.SizeError):
        recorder.record(lambda: ns.einsum("ij,jk->ik", A, torch.ones(5, 5)))
    assert os.environ.get("NUMSCORCH_CACHE_DIR") == folder
    assert recorder.record(product).kernels


def test_kernels_of_other_threads_are_not_recorded(recorder):
    def with_another():
        thread = threading.Thread(target=lambda: ns.einsum("ij,j->i", A, X[:, 0].contiguous()))
        thread.start()
        thread.join()
        return product()

    assert [kernel.request for kernel in recorder.record(with_another).kernels.values()] == ["ij,jk->ik"]


@pytest.mark.skipif(not RESET.exists(), reason="only Linux tells how much memory a call took")
def test_growth_is_peak_memory():
    def freed_second():
        both = [torch.ones(1 << 23) for _ in range(2)]  # much larger than huge pages, in which memory is allocated
        return both[0]

    assert growth(freed_second) == pytest.approx(1 << 26, rel=0.1)
    assert growth(lambda: None) < 1 << 22


def test_reused_memory_of_dead_results_counts():
    rows = torch.ones(6, 1 << 18)
    growths = [growth(lambda: ns.einsum("ij,jk->ik", A, rows)) for _ in range(3)]
    assert None in growths or growths[-1] > 0.9 * rows.nbytes
