"""Threads and processes under load never abort or hang, and their results are bitwise equal to those without load."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from programs import run_program


def full(*arguments: object) -> ParameterSet:
    """Arguments of a test that runs at full scale only."""
    return pytest.param(*arguments, marks=pytest.mark.full)


LAYERS = ["omp", full("tbb"), full("workqueue")]  # each compiles all kernels anew
LIMITS = [8, 64, 250, 420]  # MiB of address space beyond what is taken: less than LLVM takes, than its first kernel takes, just enough
LIMITED_STARTS = [
    full(8, "cold"), (64, "cold"), (250, "cold"), (420, "cold"),
    (8, "warm"), full(64, "warm"), (250, "warm"), full(420, "warm"),
]  # fmt: skip
pytestmark = [pytest.mark.process, pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")]

PRELUDE = """
import concurrent.futures, functools, multiprocessing, os, sys, threading, time
import torch
import numscorch as ns
from torch.utils.data import DataLoader

def drawn(rows, columns, share, seed):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=random) * (torch.rand(rows, columns, generator=random) < share)

S, X, Y = drawn(700, 500, 0.1, 0), drawn(500, 70, 1, 1), drawn(700, 70, 1, 2)
SMALL = drawn(12, 16, 0.4, 3)

@functools.cache
def stored(name):
    formats = {"CSR": ns.CSR, "CSC": ns.CSC, "COO": ns.COO(2), "BCSR": ns.BCSR(4, 4), "ELL": ns.ELL, "DCSR": ns.DCSR}
    return ns.from_torch(S if name in formats else SMALL, formats.get(name, ns.CSR))

def gradients(A, function, *others):
    A = A.with_values(A.values.clone().requires_grad_())
    others = [other.clone().requires_grad_() for other in others]
    function(A, *others).square().sum().backward()
    return [A.values.grad, *(other.grad for other in others)]

WORKS = {
    "products": lambda: [stored("CSR") @ X, stored("COO") @ X, ns.einsum("ij,ik->jk", stored("CSC"), Y)],
    "gradients": lambda: gradients(stored("CSR"), lambda A, x: A @ x, X),
    "sampled": lambda: [ns.einsum("ij,ik,jk->ij", stored("DCSR"), Y, X).values],
    "sampled gradients": lambda: gradients(stored("CSC"), lambda A, y, x: ns.einsum("ij,ik,jk->ij", A, y, x).values, Y, X),
    "sparse results": lambda: [
        ns.einsum("ij,kj->ik", stored("CSR"), stored("CSR"), format=ns.CSR).values,
        (stored("CSR") + stored("COO")).values,
    ],
    "blocks": lambda: [stored("BCSR") @ X, stored("ELL") @ X[:, 0]],
    "statements": lambda: [
        ns.evaluate("R[i,j] = 2 * A[i,j] + tanh(A[i,j])", A=stored("CSR")).values,
        torch.softmax(stored("CSR"), 1).values,
    ],
    "small": lambda: [stored("small") @ SMALL.t(), (stored("small") * 2).values, ns.from_torch(SMALL).values],
}

def done(names=WORKS):
    return [made.detach().clone() for name in names for made in WORKS[name]()]

def same(left, right):
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right))
"""


def layer_or_skip(layer: str) -> dict[str, str]:
    """Environment variables for a threading layer, or skip the test if the platform lacks it."""
    if layer == "omp" and sys.platform != "linux":
        pytest.skip("torch and Numba share OpenMP on Linux only")
    return {"NUMBA_THREADING_LAYER": layer}


EIGHT_THREADS = """
seconds, torch_threads = map(float, sys.argv[1:])
torch.set_num_threads(int(torch_threads))
gate, until, failures, turns = threading.Barrier(len(WORKS)), [0.0], [], dict.fromkeys(WORKS, 0)
first = {}

def work(name):
    try:
        gate.wait(300)
        first[name] = done([name])  # all at once: they race to compile
        if gate.wait(300) == 0:
            until[0] = time.monotonic() + seconds
        gate.wait(300)
        while time.monotonic() < until[0] or turns[name] < 3:
            assert same(done([name]), first[name]), f"{name}: other bits"
            turns[name] += 1
    except BaseException as error:
        failures.append((name, error))
        gate.abort()

threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in WORKS]
for thread in threads: thread.start()
for thread in threads: thread.join(350)
assert not any(thread.is_alive() for thread in threads), "a thread hangs"
assert not failures, failures
for name in WORKS:
    assert same(done([name]), first[name]), f"{name}: other bits alone"
torch.set_num_threads(1)
for name in WORKS:
    assert same(done([name]), first[name]), f"{name}: other bits on one thread"
print(len(first), min(turns.values()))
"""


@pytest.mark.parametrize("layer", LAYERS)
def test_eight_threads_with_different_kernels(layer: str, tmp_path: Path) -> None:
    (line,) = run_program(PRELUDE + EIGHT_THREADS, tmp_path, "1", "2", timeout=400, **layer_or_skip(layer))
    assert int(line.split()[0]) == 8


@pytest.mark.full
@pytest.mark.parametrize("torch_threads", ["1", "2", "5"])
def test_eight_threads_for_half_a_minute(torch_threads: str, tmp_path: Path) -> None:
    (line,) = run_program(PRELUDE + EIGHT_THREADS, tmp_path, "30", torch_threads, timeout=300)
    assert int(line.split()[1]) >= 3


LOADERS = """
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, at):
        rows = ns.from_torch(S)[at * 20 : at * 20 + 20]
        return {"rows": rows, "made": rows @ X, "large": (stored("CSR") * (at + 1)) @ X[:, 0]}

def together(samples):
    batch = torch.utils.data.default_collate(samples)
    return batch["rows"], batch["made"], batch["large"], ns.einsum("bij,jk->bik", batch["rows"], X)

if __name__ == "__main__":
    torch.set_num_threads(2)
    expected = [together([Samples()[at] for at in ats]) for ats in ((0, 1), (2, 3), (4, 5))]
    done()
    for _ in range(2):
        loader = DataLoader(Samples(), 2, num_workers=2, multiprocessing_context=sys.argv[1], collate_fn=together)
        for found, wanted in zip(loader, expected):
            assert found[0].equal(wanted[0]) and same(found[1:], wanted[1:])
        done(["products"])  # the parent goes on
        if sys.argv[1] != "fork": break
    print("right")
"""


@pytest.mark.parametrize("method", ["fork", full("spawn"), "forkserver"])
def test_workers_of_a_loader_after_their_parent(method: str, tmp_path: Path) -> None:
    assert run_program(PRELUDE + LOADERS, tmp_path, method) == ["right"]


POOLS = """
def worked(number):
    names = sorted(WORKS)
    return [made.numpy().tobytes() for made in done([names[number % len(names)]])]

def pooled(kind, method):
    if kind == "Pool":
        with multiprocessing.get_context(method).Pool(2) as pool:
            return pool.map(worked, range(8), 1)
    if kind == "Executor":
        with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
            return list(pool.map(worked, range(8)))
    import joblib, program  # by name, so that it isn't sent by value
    return joblib.Parallel(2, backend=method)(joblib.delayed(program.worked)(number) for number in range(8))

if __name__ == "__main__":
    torch.set_num_threads(2)
    kind, method = sys.argv[1:]
    expected = [worked(number) for number in range(8)]
    if kind == "joblib":
        import warnings
        warnings.simplefilter("ignore")  # joblib's own
    assert pooled(kind, method) == expected
    assert [worked(number) for number in range(8)] == expected
    print("right")
"""


POOL_METHODS = [
    ("Pool", "fork"), full("Pool", "spawn"), ("Pool", "forkserver"),
    full("Executor", "fork"), ("Executor", "spawn"), full("Executor", "forkserver"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "method"), POOL_METHODS)
def test_pools_of_processes(kind: str, method: str, tmp_path: Path) -> None:
    assert run_program(PRELUDE + POOLS, tmp_path, kind, method) == ["right"]


@pytest.mark.parametrize("backend", ["loky", "threading", full("multiprocessing")])
def test_pools_of_joblib(backend: str, tmp_path: Path) -> None:
    pytest.importorskip("joblib", reason="its pools are tested where it is installed")
    assert run_program(PRELUDE + POOLS, tmp_path, "joblib", backend, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path])) == ["right"]


FORKED = """
torch.set_num_threads(2)
expected, stop, turns, failures = done(), threading.Event(), [0], []

def busy():
    try:
        while not stop.is_set():
            assert same(done(["products"]), expected[:3])
            turns[0] += 1
    except BaseException as error:
        failures.append(error)

def in_child(work):
    child = os.fork()
    if not child:
        try:
            code = 0 if work() else 1
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            code = 2
        os._exit(code)
    return os.waitpid(child, 0)[1]

def convert():
    large = torch.randn(600, 700)  # torch's own operators run in parallel on so much
    return torch.equal(ns.from_torch(large).to(ns.CSC).to_dense(), large) and torch.equal(large.add(1), 1 + large)

def nested():
    return in_child(lambda: same(done(), expected)) == 0

thread = threading.Thread(target=busy, daemon=True)
thread.start()
while not turns[0]: time.sleep(0.01)
for work in (lambda: same(done(), expected), convert, nested, lambda: same(done(["gradients"]), expected[3:5])):
    assert in_child(work) == 0
before = turns[0]
while turns[0] == before and thread.is_alive(): time.sleep(0.01)
stop.set()
thread.join(60)
assert not failures and not thread.is_alive(), failures
assert torch.get_num_threads() == 2 and same(done(), expected)
print("right")
"""


@pytest.mark.parametrize("layer", LAYERS)
def test_forks_while_another_thread_runs_a_kernel(layer: str, tmp_path: Path) -> None:
    assert run_program(PRELUDE + FORKED, tmp_path, timeout=180, **layer_or_skip(layer))[-1] == "right"  # Numba may print a fork before


def test_the_number_of_threads_is_torchs(tmp_path: Path) -> None:
    """The processor time of other threads shows that kernels use as many threads as torch."""
    code = """
A, x = stored("CSR"), torch.randn(500, 512)

def others(threads):
    "Processor time of the other threads, as a share of this one's."
    torch.set_num_threads(threads)
    A @ x
    time.sleep(0.3)  # for those that still wait for work
    every, own = time.process_time(), time.thread_time()
    for _ in range(60):
        ns.einsum("ij,jk->ik", A, x)
        ns.einsum("ij,ik->jk", A, Y)
    own, every = time.thread_time() - own, time.process_time() - every
    return (every - own) / own

for _ in range(2):
    print(others(1), others(2))
"""
    for line in run_program(PRELUDE + code, tmp_path):
        alone, two = map(float, line.split())
        assert alone < 0.02
        assert two > 0.1 or os.cpu_count() == 1


LIMITED = """
import resource, warnings
warnings.simplefilter("ignore")  # torch's, of its layouts

def outcome(work):
    try:
        return "right" if work() else "wrong"
    except MemoryError:  # ours, numpy's or Python's
        return "refused"
    except RuntimeError as error:  # torch's
        assert "allocate memory" in str(error), error
        return "refused"

eye = torch.eye(5)
A, B, ones = ns.from_torch(S.to_sparse_csr()), ns.from_torch(eye.to_sparse_csr()), torch.ones(4000)
if sys.argv[2] == "warm":
    expected = torch.equal(A @ X, A @ X) and A @ X
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + int(sys.argv[1]) * 2**20,) * 2)
longest = ns.from_coo([range(20_000)], [1.0] * 20_000, (20_000,))
works = {
    "known": lambda: torch.equal(A @ X, expected),
    "small": lambda: torch.equal(B @ ones[:5], ones[:5]),
    "new": lambda: torch.allclose(ns.einsum("ij,jk->ki", A, X), (S @ X).t(), atol=1e-4),
    "statement": lambda: torch.allclose(ns.evaluate("R[i] = tanh(A[i,j]) * x[j]", A=A, x=X[:, 0]), S.tanh() @ X[:, 0], atol=1e-4),
    "too large": lambda: ns.einsum("i,j->ij", ns.from_coo([[0]], [1.0], (30_000,)), torch.ones(30_000)).sum() == 30_000,
    "too large, sparse": lambda: ns.einsum("i,j->ij", longest, A.values[:8000], format=ns.CSR).nnz > 0,
    "known again": lambda: torch.equal(A @ X, expected),
}
for name, work in works.items():
    if sys.argv[2] == "warm" or "known" not in name:
        print(name, outcome(work), sep=": ")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems don't limit the address space")
@pytest.mark.parametrize(("room", "before"), LIMITED_STARTS)
def test_a_limited_address_space(room: int, before: str, tmp_path: Path) -> None:
    """LLVM and OpenMP would end the process without memory; instead, calls that do not fit are refused, and the others are right."""
    lines = run_program(PRELUDE + LIMITED, tmp_path, str(room), before)
    outcomes = dict(line.split(": ") for line in lines)
    assert "wrong" not in outcomes.values()
    assert outcomes["too large"] == "refused"
    if before == "warm":
        assert outcomes["known"] == outcomes["known again"] == "right"
    if room < 100:
        assert outcomes["new"] == outcomes["statement"] == "refused"
    if room == max(LIMITS):
        assert outcomes["small"] == "right"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems don't limit the address space")
def test_errors_name_the_limit_of_the_address_space(tmp_path: Path) -> None:
    code = """
import resource, warnings
warnings.simplefilter("ignore")  # torch's, of its layouts
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**27,) * 2)
for _ in range(2):
    try:
        ns.einsum("ij,j->i", ns.from_torch(torch.eye(3).to_sparse_csr()), torch.ones(3))
    except ns.NumscorchError as error:
        print(type(error).__name__, isinstance(error, MemoryError), error)
"""
    text = "compiling a kernel may take 384 MiB of address space, more than the process has left: raise its limit (ulimit -v)"
    assert run_program(PRELUDE + code, tmp_path) == [f"MemoryLimitError True {text}"] * 2
