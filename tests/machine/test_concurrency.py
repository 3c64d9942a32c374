"""Processes that build the same kernel, threads that call it, forked children, damaged files, and interrupts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fresh import forget_plans
from programs import ChildProcess, output_of

import numscorch as ns
from numscorch.codegen import kernel
from numscorch.machine import guards, kernel_cache
from numscorch.runtime import plans
from numscorch.schedule import tuning

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
PRELUDE = """
import os, sys, threading, warnings
import torch
import numscorch as ns
torch.manual_seed(0)
torch.set_num_threads(2)
dense = torch.randint(-4, 5, (300, 200)).float() * (torch.rand(300, 200) < 0.3)
small = ns.from_torch(dense[:4, :5].contiguous())
A = ns.from_torch(dense)
B = torch.randint(-4, 5, (200, 24)).float()
expected = dense @ B

def check(turns=1):
    for _ in range(turns):
        assert torch.equal(ns.einsum("ij,jk->ik", A, B), expected)
        assert torch.equal(ns.einsum("ij,j->i", small, torch.ones(5)), dense[:4, :5].sum(1))

def in_child(work):
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]
"""


def start(code: str, cache: Path, *arguments: str) -> ChildProcess:
    """A process with an empty plan cache, and its kernels in the given folder."""
    return ChildProcess(PRELUDE + code, *arguments, environment={"NUMSCORCH_CACHE_DIR": str(cache)})


@pytest.mark.process
def test_two_processes_build_the_same_kernels_at_once(tmp_path: Path) -> None:
    processes = [start("check(3); print('right')", tmp_path) for _ in range(2)]
    assert [output_of(process, 60) for process in processes] == ["right\n"] * 2
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_file() and path.name != ".room")
    assert names
    assert all(name.startswith("kernel_") and name.endswith(".py") for name in names), names


@pytest.mark.process
def test_a_process_loads_kernels_compiled_by_an_earlier_one(tmp_path: Path) -> None:
    """Loaded kernels include one that calls routines, for rows of a sparse result that are long enough to be sorted."""
    code = """
square = ns.from_torch(torch.kron(torch.eye(40), torch.ones(2, 2)) + (torch.rand(80, 80) < 0.02), ns.CSR)
wide = ns.from_torch((torch.rand(80, 60_000) < 0.0006).float(), ns.CSR)
check()
product = ns.einsum("ij,jk->ik", square, wide)
assert product.values.sum() > 0 and torch.equal(product.to_dense(), square.to_dense() @ wide.to_dense())
assert torch.allclose(ns.evaluate("R[i,j] = gelu(A[i,j])", A=square).to_dense(), torch.nn.functional.gelu(square.to_dense()))
from numscorch.machine import kernel_cache
print(len(list((kernel_cache.folder() / "__pycache__").glob("*.code"))))
"""
    first, second = (output_of(start(code, tmp_path), 60) for _ in range(2))
    assert first == second


@pytest.mark.process
@needs_fork
def test_a_forked_child_calls_kernels_compiled_by_its_parent(tmp_path: Path) -> None:
    output_of(start("check(); assert in_child(check) == 0; check()", tmp_path), 60)


@pytest.mark.process
@needs_fork
def test_a_forked_child_compiles_new_kernels(tmp_path: Path) -> None:
    code = """
def other():
    assert torch.equal(ns.einsum("ij,jk->ki", A, B), expected.T)
check()
assert in_child(other) == 0
check()
"""
    output_of(start(code, tmp_path), 60)


@pytest.mark.process
@needs_fork
def test_a_forked_child_converts_tensors(tmp_path: Path) -> None:
    """Conversions by kernels need no thread. torch's operators, in ``to``, hang in a forked child unless limited to one thread."""
    code = """
C = ns.from_torch(torch.kron(dense, torch.ones(12, 12)))
by_columns = ns.from_torch(C.to_dense().T.contiguous()).t()
squares = float((dense * dense).sum() * 144)
def converted():
    assert ns.einsum("ij,ij->", C, by_columns) == squares
    torch.set_num_threads(1)
    for fmt in (ns.CSC, ns.DCSR, ns.COO(2), ns.Format("dd", (1, 0))):
        assert torch.equal(A.to(fmt).to_dense(), dense)
check()
assert in_child(converted) == 0
"""
    output_of(start(code, tmp_path), 60)


@pytest.mark.process
@needs_fork
def test_a_forked_child_makes_the_first_call(tmp_path: Path) -> None:
    """The parent ran torch's operators in parallel, but no kernel."""
    output_of(start("assert in_child(check) == 0; check()", tmp_path), 60)


@pytest.mark.process
@needs_fork
def test_a_child_forked_while_a_thread_stores_a_schedule(tmp_path: Path) -> None:
    code = """
import time
from numscorch.machine import kernel_cache
from numscorch.runtime import tuned
started, write = threading.Event(), kernel_cache.write
def slow(*arguments):
    started.set()
    time.sleep(0.5)
    return write(*arguments)
kernel_cache.write = slow
thread = threading.Thread(target=tuned.remember, args=("one", "tile()"))
thread.start()
started.wait()
assert in_child(lambda: tuned.remember("other", "")) == 0
thread.join()
assert tuned.kept() == {"one": "tile()", "other": ""}
"""
    output_of(start(code, tmp_path), 60)


@pytest.mark.process
@needs_fork
def test_a_child_forked_while_a_thread_compiles(tmp_path: Path) -> None:
    """The thread holds locks that the child cannot release, since the thread does not exist in it."""
    code = """
from numscorch.runtime import plans
check()
began, release = threading.Event(), threading.Event()
build = plans.build
def slow(source):
    began.set()
    release.wait(5)
    return build(source)
def other():
    plans.PROCESS.build = build
    assert torch.equal(ns.einsum("ij,kj->ik", small, torch.ones(3, 5)), dense[:4, :5].sum(1, keepdim=True).expand(4, 3))
plans.PROCESS.build = slow
thread = threading.Thread(target=lambda: ns.einsum("ij,jk->ki", A, B))
thread.start()
assert began.wait(60)
assert in_child(other) == 0
release.set()
thread.join()
"""
    output_of(start(code, tmp_path), 60)


@pytest.mark.process
def test_two_threads_call_at_once_in_a_new_process(tmp_path: Path) -> None:
    """The first calls of both threads race to compile."""
    code = """
failures = []
def work():
    try:
        check(20)
    except BaseException as error:
        failures.append(error)
started = [threading.Thread(target=work) for _ in range(2)]
for thread in started: thread.start()
for thread in started: thread.join()
assert not failures, failures
from numscorch.runtime import plans
assert len(plans.PROCESS.kernels) == 2, plans.PROCESS.kernels
"""
    output_of(start(code, tmp_path), 60)


def at_once(work: Callable[[int], None], count: int = 4) -> None:
    """Run the function in threads that start together, and raise the first failure."""
    failures: list[BaseException] = []
    gate = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            gate.wait(60)
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def test_threads_that_need_one_kernel_build_it_once(plain: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    A, x = ns.from_torch(torch.eye(5)), torch.ones(5)

    def build(source: object) -> kernel.Kernel:
        names.append(source.name)
        return kernel.build_plain(source)

    plain.setattr(plans.PROCESS, "build", build)
    at_once(lambda number: torch.testing.assert_close(ns.einsum("ij,j->i", A, x), x))
    assert len(names) == 1


def test_threads_with_different_problems(plain: pytest.MonkeyPatch) -> None:
    def work(number: int) -> None:
        for size in range(1, 9):
            A = ns.from_torch(torch.eye(size) * (number + 1))
            x = torch.ones(size, number + 1)
            assert torch.equal(ns.einsum("ij,jk->ik", A, x), x * (number + 1))

    at_once(work)


def test_threads_that_convert_one_pattern(plain: pytest.MonkeyPatch) -> None:
    A = ns.from_torch(torch.arange(20.0).reshape(4, 5))
    at_once(lambda number: torch.testing.assert_close(ns.einsum("ij,ki->kj", A, torch.ones(3, 4)), torch.ones(3, 4) @ A.to_dense()))


def test_plans_are_bounded(plain: pytest.MonkeyPatch) -> None:
    plain.setattr(plans, "MOST_PLANS", 3)
    for size in range(1, 9):
        ns.einsum("ij,j->i", ns.from_torch(torch.eye(size)), torch.ones(size))
        assert len(plans.PROCESS.plans) <= 3


def test_uncompiled_applies_to_its_context_only(fresh_plans: pytest.MonkeyPatch) -> None:
    """Other threads do not wait for the context, and get no plans from it."""
    names: list[str] = []
    fresh_plans.setattr(plans.PROCESS, "build", lambda source: (names.append(source.name), kernel.build_plain(source))[1])
    A, x = ns.from_torch(torch.eye(3)), torch.ones(3)

    def work() -> None:
        assert torch.equal(ns.einsum("ij,j->i", A, x), x)

    with plans.uncompiled():
        work()
        assert not names
        assert not plans.PROCESS.plans
        other = threading.Thread(target=work)
        other.start()
        other.join(30)
        assert not other.is_alive()
        assert len(names) == len(plans.PROCESS.plans) == len(plans.PROCESS.kernels) == 1
    work()
    assert len(names) == len(plans.PROCESS.plans) == 1


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda whole: b"",
    "zeroed": lambda whole: b"\0" * 100,
    "overwritten": lambda whole: b"garbage",
    "cut off": lambda whole: whole[: len(whole) // 2],
    "no object file inside": lambda whole: whole.replace(b"\x7fELF", b"\x7fELG"),
    "bits flipped": lambda whole: whole[:-300] + bytes(byte ^ 4 for byte in whole[-300:]),
}


@pytest.mark.parametrize("suffix", [".py", ".code"])
@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_file_is_rebuilt(suffix: str, damage: str, tmp_path: Path, fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setenv("NUMSCORCH_CACHE_DIR", str(tmp_path))
    A, x = ns.from_torch(torch.eye(5)), torch.arange(5.0)

    def call() -> None:
        forget_plans(fresh_plans)
        assert torch.equal(ns.einsum("ij,j->i", A, x), x)

    call()
    damaged = list(tmp_path.rglob(f"*{suffix}"))
    assert damaged
    whole = {path: path.read_bytes() for path in damaged}
    for path in damaged:
        path.write_bytes(DAMAGES[damage](whole[path]))
    call()
    for path in damaged:
        assert path.exists()
        assert suffix != ".py" or path.read_bytes() == whole[path]
    call()
    assert kernel_cache.folder() == tmp_path


# ---- interrupts (Ctrl-C)


def test_an_interrupt_is_deferred_and_never_lost() -> None:
    class Noisy:
        def __del__(self) -> None:  # Python ignores exceptions that are raised here
            signal.raise_signal(signal.SIGINT)

    completed = []
    with pytest.raises(KeyboardInterrupt), guards.deferred():
        Noisy()
        completed.append(1)
    assert completed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_calls_the_programs_handler_once(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []

    def handler(number: int, frame: object) -> None:
        called.append(number)

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(ZeroDivisionError), guards.deferred(), guards.deferred():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            assert not called
            raise ZeroDivisionError
        assert signal.getsignal(signal.SIGINT) is handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with guards.deferred():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert called == [signal.SIGINT]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signal, "signal", lambda *args: pytest.fail("signals are the main thread's"))
        at_once(lambda number: guards.deferred().__enter__(), 1)


def test_an_interrupt_in_a_callback_of_llvm(tmp_path: Path, fresh_plans: pytest.MonkeyPatch) -> None:
    """Python ignores exceptions in such callbacks, and LLVM would go on without the machine code."""
    from numba.core.registry import cpu_target

    fresh_plans.setenv("NUMSCORCH_CACHE_DIR", str(tmp_path))
    codegen = cpu_target.target_context.codegen()
    compiled, wanted = codegen._library_class._object_compiled_hook, codegen._library_class._object_getbuffer_hook
    calls: list[object] = []

    def interrupted(module: object, code: bytes) -> None:
        calls.append(module)
        signal.raise_signal(signal.SIGINT)
        compiled(module, code)

    A, x = ns.from_torch(torch.eye(5)), torch.arange(5.0)
    codegen._engine.set_object_cache(interrupted, wanted)
    try:
        with pytest.raises(KeyboardInterrupt):
            ns.einsum("ij,j->i", A, x)
    finally:
        codegen._engine.set_object_cache(compiled, wanted)
    assert calls
    assert torch.equal(ns.einsum("ij,j->i", A, x), x)
    assert len(list(tmp_path.rglob("*.code"))) == 1


INTERRUPTED = """
import random, signal, time
from numscorch.machine import compile_log
ns.einsum("ij->i", small)  # what follows is imported by now
told, outcomes = [], set()
compile_log.log.info = lambda *line: told.append(line)

def interrupted(delay):
    threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
    before = time.monotonic()
    try:
        check()
        while time.monotonic() < before + delay + 5:
            time.sleep(0.001)
        print("lost")
    except KeyboardInterrupt:
        pass
    check()  # in the same process
    print("right")
    sys.stdout.flush()

random.seed(int(sys.argv[1]))
for turn in range(int(sys.argv[2])):
    os.environ["NUMSCORCH_CACHE_DIR"] = os.path.join(sys.argv[3], str(turn))
    assert in_child(lambda: interrupted(random.Random(sys.argv[1] + str(turn)).uniform(0, 2.5))) == 0
    told.clear()
    assert in_child(lambda: (check(), print("loaded", len(told)), sys.stdout.flush())) == 0
"""


@pytest.mark.process
@needs_fork
def test_interrupts_at_any_moment_of_a_cold_compilation(tmp_path: Path, scale: Callable[[int], int]) -> None:
    """Each interrupt raises KeyboardInterrupt. The process and the next one compute right results, and the next one compiles nothing."""
    turns = scale(40)
    printed = output_of(start(INTERRUPTED, tmp_path, "0", str(turns), str(tmp_path)), 60 * turns).splitlines()
    assert printed == ["right", "loaded 0"] * turns


EXPRESSIONS = ["ij,jk->ik", "ij,jk->ki", "ij,ik->jk", "ij,j->i", "ij->", "ij,ij->", "ij,ij->ij"]
TILED = ["ij,jk->ik", "ij,ik,jk->"]


@pytest.mark.parametrize("fmt", [ns.CSR, ns.COO(2)], ids=lambda f: f.name)
@pytest.mark.parametrize(("expressions", "schedule"), [(EXPRESSIONS, None), (TILED, "tile(k, 16) parallelize(i)")], ids=["plain", "tiled"])
def test_threads_keep_all_bits(fmt: ns.Format, expressions: list[str], schedule: str | None, fresh_plans: pytest.MonkeyPatch) -> None:
    """Blocks depend on the problem only, and partial sums are added in order, so results are bitwise equal."""
    fresh_plans.setattr(tuning, "PARALLEL_STEPS", 0)
    torch.manual_seed(0)
    dense = torch.randn(700, 500) * (torch.rand(700, 500) < 0.1)
    A = ns.from_torch(dense).to(fmt)
    others = {"jk": torch.randn(500, 40), "ik": torch.randn(700, 40), "j": torch.randn(500), "ij": torch.randn(700, 500)}
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            operands = [[others[term] for term in expr.split("->")[0].split(",")[1:]] for expr in expressions]
            outputs = [ns.einsum(expr, A, *factors, schedule=schedule) for expr, factors in zip(expressions, operands, strict=True)]
            results.append([r.values if isinstance(r, ns.SparseTensor) else r for r in outputs])
    finally:
        torch.set_num_threads(before)
    for one, two, three in zip(*results, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
