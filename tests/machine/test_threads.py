"""Threads: all threading layers run two Python threads at once and a forked child, and torch's thread count does not change.

Each test runs in a separate process, since a process has one threading layer.
"""

from __future__ import annotations

import os
import sys

import pytest
from programs import ChildProcess, output_of

pytestmark = [pytest.mark.process, pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")]
LAYERS = ["tbb", "omp", "workqueue"]

PRELUDE = """
import os, sys, threading
import numpy as np, torch
from parallel_sum import compiled
from numscorch.machine import threads

x = np.ones(20_000)

def call(total):
    if threads.must_run_serial():
        return x.sum()
    with threads.call_lock():
        return total(x, threads.workers())

def in_child(total):
    child = os.fork()
    if not child:
        os._exit(0 if call(total) == x.size else 1)
    return os.waitpid(child, 0)[1]
"""


def run(code: str, **environment: str) -> list[str]:
    """The lines that a new process prints; the process must not warn, abort or hang."""
    settings = {"PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_CACHE_DIR": os.environ["NUMSCORCH_CACHE_DIR"]} | environment
    return output_of(ChildProcess(PRELUDE + code, environment=settings)).splitlines()


def test_preferred_layer_and_counts() -> None:
    code = """
before = torch.get_num_threads()
assert "numba" not in sys.modules
threads.prepare()
assert torch.get_num_threads() == before
name, reason = threads.layer()
import multiprocessing, numba
multiprocessing.set_start_method("spawn")
assert numba.threading_layer() == name
torch.set_num_threads(1)
assert threads.workers() == 1
torch.set_num_threads(4)
assert threads.workers() == min(4, numba.config.NUMBA_NUM_THREADS)
print(name)
"""
    assert run(code)[0] in LAYERS
    assert run(code, NUMBA_NUM_THREADS="1")[0] in LAYERS


@pytest.mark.parametrize("layer", LAYERS)
def test_layer_runs_threads_at_once_and_forked_children(layer: str) -> None:
    code = """
name, reason = threads.layer()
total = compiled()
assert call(total) == x.size
results = []
started = [threading.Thread(target=lambda: results.extend(call(total) for _ in range(200))) for _ in range(2)]
for thread in started: thread.start()
for thread in started: thread.join()
assert results == [x.size] * 400
assert in_child(total) == 0
statuses = []
forking = threading.Thread(target=lambda: statuses.append(in_child(total)))
forking.start(); forking.join()
assert statuses == [0]
assert call(total) == x.size
assert not threads.must_run_serial()
print(name)
print(reason)
"""
    name, reason = run_or_skip(code, layer)[-2:]  # before them, Numba may print that it was forked while its workers were busy
    assert name == layer
    assert reason == f"NUMBA_THREADING_LAYER={layer} requests it"


def run_or_skip(code: str, layer: str) -> list[str]:
    """Run on a threading layer, or skip the test if the platform lacks it."""
    available = "import importlib; importlib.import_module('numba.np.ufunc.' + sys.argv[1])"
    module = {"tbb": "tbbpool", "omp": "omppool", "workqueue": "workqueue"}[layer]
    program = ChildProcess("from numscorch.machine import threads; threads._tbb_problem(); import sys; " + available, module, strict=False)
    program.communicate(timeout=200)
    if program.returncode:
        pytest.skip(f"Numba has no {layer} layer here")
    return run(code, NUMBA_THREADING_LAYER=layer)


def test_child_of_a_process_whose_layer_other_code_started() -> None:
    code = """
import numba
numba.get_num_threads()
total = compiled()
assert total(x, 2) == x.size
child = os.fork()
if not child:
    threads.prepare()
    assert threads.must_run_serial() and threads.workers() == 1
    os._exit(0 if call(total) == x.size else 1)
assert os.waitpid(child, 0)[1] == 0
print(threads.layer()[1])
"""
    assert run_or_skip(code, "omp") == ["was started by other code before numscorch"]


def test_layer_that_cannot_be_loaded() -> None:
    code = """
import numba
from numscorch import NumscorchError
numba.config.THREADING_LAYER = "nothing"
try:
    threads.prepare()
except NumscorchError as error:
    print(error)
"""
    assert "unset NUMBA_THREADING_LAYER" in "\n".join(run(code))
