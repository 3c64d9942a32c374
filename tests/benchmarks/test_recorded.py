"""What a call runs is seen: its kernels, what compiling and loading them takes, and what it costs beside them."""

import os
import threading
import time

import pytest
import torch

import numscorch as ns
from benchmarks.recorded import Recorder
from numscorch.measuring.memory import RESET, growth
from numscorch.runtime import plans as dispatch

A = ns.from_torch(torch.eye(6).mul_(2.0), ns.CSR)
X = torch.ones(6, 4)


def product():
    return ns.einsum("ij,jk->ik", A, X)


@pytest.fixture(scope="module")
def recorder():
    with Recorder() as made:
        yield made


def test_a_product_is_one_kernel_with_its_explanation_and_source(recorder):
    seen = recorder.record(product)
    (name, kernel), (call,) = *seen.kernels.items(), seen.calls
    assert name.startswith("kernel_") and kernel.request == "ij,jk->ik"
    assert "index notation    C[i,k] = A[i,j] * B[j,k]" in kernel.explanation and "def kernel(" in kernel.source
    assert kernel.source not in kernel.explanation
    assert call.operands[0] is A and torch.equal(call.result, 2 * X)


def test_a_kernel_is_compiled_once_and_loading_it_takes_less(recorder):
    first = recorder.record(product)
    again = recorder.record(product)
    assert first.compile_seconds == again.compile_seconds > 2 * again.load_seconds > 0


def test_the_overhead_is_what_kernels_leave(recorder):
    seen = recorder.record(lambda: [product() for _ in range(3)])
    assert 0 < seen.overhead() < 0.01
    assert len(seen.calls) == 3 and len(seen.kernels) == 1


def test_what_kernels_take_is_no_overhead(recorder):
    rows = torch.ones(6, 1 << 21)  # milliseconds, nearly all of them in the kernel
    seen = recorder.record(lambda: ns.einsum("ij,jk->ik", A, rows))
    start = time.perf_counter()
    ns.einsum("ij,jk->ik", A, rows)
    assert seen.overhead() < 0.5 * (time.perf_counter() - start)


def test_all_requests_that_a_call_comes_to_are_seen(recorder):
    L = ns.einsum("ij,jk->ik", A, A, format=ns.CSR)
    seen = recorder.record(lambda: ns.einsum("ij,jk->ik", L, L))
    assert {kernel.request for kernel in seen.kernels.values()} == {"ij,jk->ik"}
    assert sum(kernel.explanation.startswith("counts what kernel_") for kernel in seen.kernels.values()) == len(seen.kernels) - 1


def test_recording_leaves_the_process_as_it_was(recorder):
    product()
    plans, folder = dict(dispatch._plans), os.environ.get("NUMSCORCH_CACHE_DIR")
    recorder.record(product)
    assert dispatch._plans == plans and os.environ.get("NUMSCORCH_CACHE_DIR") == folder


def test_a_call_that_fails_leaves_the_process_as_it_was(recorder):
    folder = os.environ.get("NUMSCORCH_CACHE_DIR")
    with pytest.raises(ns.SizeError):
        recorder.record(lambda: ns.einsum("ij,jk->ik", A, torch.ones(5, 5)))
    assert os.environ.get("NUMSCORCH_CACHE_DIR") == folder
    assert recorder.record(product).kernels


def test_what_other_threads_run_meanwhile_is_not_seen(recorder):
    def with_another():
        thread = threading.Thread(target=lambda: ns.einsum("ij,j->i", A, X[:, 0].contiguous()))
        thread.start()
        thread.join()
        return product()

    assert [kernel.request for kernel in recorder.record(with_another).kernels.values()] == ["ij,jk->ik"]


@pytest.mark.skipif(not RESET.exists(), reason="only Linux tells how much memory a call took")
def test_memory_is_that_of_the_largest_moment():
    def two_of_which_one_stays():
        both = [torch.ones(1 << 23) for _ in range(2)]  # large beside huge pages, by which memory comes
        return both[0]

    assert growth(two_of_which_one_stays) == pytest.approx(1 << 26, rel=0.1)
    assert growth(lambda: None) < 1 << 22


def test_memory_of_dead_results_counts_again():
    rows = torch.ones(6, 1 << 18)
    seen = [growth(lambda: ns.einsum("ij,jk->ik", A, rows)) for _ in range(3)]
    assert None in seen or seen[-1] > 0.9 * rows.nbytes
