"""Two processes train together: values are summed as they are, and patterns stay equal, or it is said that they aren't."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import ROOT

import numscorch as ns
from numscorch.nn import SparseLinear
from numscorch.sparsify import GradualPruning, check_patterns, data_parallel, magnitude, schedules

two_processes = pytest.mark.skipif(
    not torch.distributed.is_available() or not sys.platform.startswith("linux"), reason="needs gloo on Linux's loopback"
)
COMMON = """
import datetime, os, pickle, sys
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
import numscorch as ns
from numscorch.nn import SparseLinear
from numscorch.sparsify import (
    SET, GradualPruning, RigL, broadcast_patterns, check_patterns, data_parallel, magnitude, schedules, straight_through)

rank, place = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{place}/meeting", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=200))
X = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(12) % 4
own = slice(6 * rank, 6 * rank + 6)

def network(seed=0, density=0.4):
    torch.manual_seed(seed)
    return torch.nn.Sequential(SparseLinear(6, 8, density=density), torch.nn.ReLU(), SparseLinear(8, 4, density=density))

def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)

def train(model, optimizer, steps=1, after=lambda: None, part=own):
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(X[part]), Y[part]).backward()
        optimizer.step()
        after()

def close(first, second):
    for name, one in first.state_dict().items():
        torch.testing.assert_close(one, second.state_dict()[name], msg=lambda text: f"{name}: {text}")

def alike(model):
    check_patterns(model)
    for one in model.parameters():
        gathered = [torch.empty_like(one) for _ in range(2)]
        dist.all_gather(gathered, one.detach())
        assert torch.equal(*gathered)

def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was refused")

given = {}
"""
# DistributedDataParallel of torch 2.13 now and then aborts a process that has done all its work while Python shuts down ("terminate called
# without an active exception"), with dense layers, too; so what was found is written, and processes leave together without that.
END = """
with open(f"{place}/{rank}.pkl", "wb") as file:
    pickle.dump(given, file)
dist.barrier()
os._exit(0)
"""


def together(code: str, place: Path) -> list[dict[str, Any]]:
    """What two processes that run a program leave in ``given``."""
    path = place / "program.py"
    path.write_text(COMMON + textwrap.dedent(code) + END, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PYTHONPATH"] = str(Path(ns.__file__).parent.parent)
    processes = [
        subprocess.Popen([sys.executable, str(path), str(rank), str(place)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        told = [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(told)
    return [pickle.loads((place / f"{rank}.pkl").read_bytes()) for rank in range(2)]


@pytest.mark.process
@two_processes
class TestTwoProcesses:
    def test_values_are_summed_as_they_are(self, tmp_path: Path) -> None:
        """Steps are those of one process with both halves of the batch, and messages those of the values alone."""
        program = """
            model, twin = network(), network()
            ddp = data_parallel(model)
            sent = []
            def counted(state, bucket):
                sent.append(bucket.buffer().numel())
                return dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(lambda f: f.value()[0])
            ddp.register_comm_hook(None, counted)
            buffers = []
            ddp._sync_module_buffers = lambda *_: buffers.append(ddp._assign_modules_buffers())
            with ns.ledger() as led:
                train(ddp, adam(ddp), 3)
            assert not [entry for entry in led if entry.kind == "densification"], led
            assert not list(ddp.modules_buffers), "index arrays are sent"
            train(twin, adam(twin), 3, part=slice(None))
            close(model, twin)
            alike(model)
            given["sent"] = sum(sent), sum(p.numel() for p in model.parameters())
            """
        for given in together(program, tmp_path):
            total, each = given["sent"]
            assert total == 3 * each == 3 * (19 + 13 + 8 + 4)

    def test_patterns_that_differ_are_refused_or_agreed_on(self, tmp_path: Path) -> None:
        program = """
            model = network(seed=rank)
            given["told"] = refused(ns.UnsupportedError, lambda: data_parallel(model))
            optimizer = adam(model)
            train(model, optimizer, 2)
            before = model[0].weight.to_dense().detach()
            broadcast_patterns(model, optimizer)
            after = model[0].weight.to_dense().detach()
            assert torch.equal(after, torch.where(after != 0, before, 0))
            train(model, optimizer)
            check_patterns(model)
            other = network(seed=0, density=0.4 + 0.2 * rank)
            refused(ns.UnsupportedError, lambda: check_patterns(other))
            broadcast_patterns(other, source=1)
            ddp = data_parallel(other)
            train(ddp, adam(ddp), 2)
            alike(other)
            given["nnz"] = other[0].weight.nnz
            lacking = torch.nn.Sequential(network()[rank * 2])
            given["lacking"] = refused(ns.UnsupportedError, lambda: check_patterns(lacking))
            """
        for given in together(program, tmp_path):
            assert given["told"].startswith("the pattern of 0.weight differs between ranks 0 and 1")
            assert "broadcast_patterns(model)" in given["told"]
            assert given["nnz"] == round(0.6 * 48)
            assert "0.weight differs" in given["lacking"]

    def test_torchs_own_wrapper_sends_patterns_with_their_values(self, tmp_path: Path) -> None:
        """Which is no reason to warn, as an average of another pattern is."""
        program = """
            import warnings
            model = torch.nn.Sequential(SparseLinear(6, 4, pattern=torch.eye(6).roll(rank, 0)[:4]))
            with warnings.catch_warnings():
                warnings.simplefilter("error", ns.PatternWarning)
                ddp = DistributedDataParallel(model)
                train(ddp, adam(ddp), 2)
            alike(model)
            given["dense"] = model[0].weight.to_dense().detach()
            """
        first, second = (given["dense"] for given in together(program, tmp_path))
        assert torch.equal(first, second)

    def test_rigl_and_set_keep_patterns_equal(self, tmp_path: Path) -> None:
        """RigL chooses as one process with both halves of the batch; either half alone would choose others."""
        program = """
            for kind, options in ((RigL, {"until": 100}), (SET, {"seed": 3})):
                model, twin, half = network(), network(), network()
                ddp = data_parallel(model)
                for one, part in ((ddp, own), (twin, slice(None)), (half, own)):
                    optimizer = adam(one)
                    dynamic = kind(one, optimizer, every=2, fraction=0.5, **options)
                    train(one, optimizer, 5, dynamic.step, part)
                    if one is ddp:
                        state = dynamic.state_dict()
                close(model, twin)
                alike(model)
                assert set(state["patterns"]) == {"0.weight", "2.weight"}
                if kind is RigL:
                    given["told"] = refused(ns.UnsupportedError, lambda: check_patterns(half))
            """
        for given in together(program, tmp_path):
            assert "differs between ranks 0 and 1" in given["told"]

    def test_gradual_pruning(self, tmp_path: Path) -> None:
        """Masked in the DistributedDataParallel; or sparse, in one that is made anew when step() says so."""
        program = """
            def dense(seed=0):
                torch.manual_seed(seed)
                return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))

            schedule = schedules.linear(0.8, begin=0, end=4)
            model, twin, masked = dense(), dense(), dense()
            optimizer = adam(twin)
            train(twin, optimizer, 6, GradualPruning(twin, optimizer, magnitude, schedule, sparse_from=0.5).step, slice(None))

            ddp = data_parallel(masked)
            optimizer = adam(masked)
            given["told"] = refused(ns.UnsupportedError, lambda: GradualPruning(ddp, optimizer, magnitude, schedule))
            train(ddp, optimizer, 6, GradualPruning(ddp, optimizer, magnitude, schedule, sparse_from=None).step)
            for at in (0, 2):
                torch.testing.assert_close(masked[at].weight.detach(), twin[at].weight.to_dense().detach())

            optimizer = adam(model)
            pruning = GradualPruning(model, optimizer, magnitude, schedule, sparse_from=0.5)
            ddp, wrapped = data_parallel(model), []
            for step in range(6):
                train(ddp, optimizer)
                if pruning.step():
                    wrapped.append(step + 1)
                    ddp = data_parallel(model)
            close(model, twin)
            alike(model)
            given["wrapped"] = wrapped
            """
        for given in together(program, tmp_path):
            assert "give sparse_from=None" in given["told"]
            assert given["wrapped"] == [3, 4]


@pytest.mark.process
@two_processes
def test_the_program_of_the_guide(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "guide" / "training.md").read_text(encoding="utf-8")
    program = text[text.index("model = ns.nn.SparseLinear") : text.index("```", text.index("model = ns.nn.SparseLinear"))]
    before = "torch.manual_seed(rank)\nbatches = [(X[own], Y[own])] * 3\n"
    after = "alike(model)\ngiven['step'] = rigl.count, model.weight.nnz"
    assert [given["step"] for given in together(before + program + after, tmp_path)] == [(3, 12)] * 2


def test_without_processes(plain: None) -> None:
    model = SparseLinear(6, 4, density=0.5)
    for call in (check_patterns, data_parallel):
        with pytest.raises(ns.OperandError, match="there is no process group"):
            call(model)
    assert GradualPruning(model, None, magnitude, schedules.one_shot(0.9, at=1)).step()
