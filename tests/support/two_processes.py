"""Distributed programs, with one process for each rank."""

from __future__ import annotations

import pickle
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import ChildProcess

two_processes = pytest.mark.skipif(
    not torch.distributed.is_available() or not sys.platform.startswith("linux"), reason="needs gloo on Linux's loopback"
)
IMPORTED = ("torch", "torch._dynamo", "torch.nn.parallel", "numba", "numscorch")  # they take 5 s

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

rank, ranks, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{place}/meeting", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=200))
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


# DistributedDataParallel of torch 2.13 sometimes aborts a process during interpreter shutdown ("terminate called without an active
# exception"), also with dense layers. The processes therefore write their results and exit together without a shutdown.
END = """
with open(f"{place}/{rank}.pkl", "wb") as file:
    pickle.dump(given, file)
dist.barrier()
os._exit(0)
"""


def ranks_of(code: str, place: Path, *arguments: str, ranks: int = 2, **environment: str) -> list[ChildProcess]:
    """Start a program in several processes. By default, kernels run as Python: each rank would compile all kernels."""
    source = COMMON + textwrap.dedent(code) + END
    environment = {"GLOO_SOCKET_IFNAME": "lo", "NUMBA_DISABLE_JIT": "1"} | environment
    return [
        ChildProcess(source, str(rank), str(ranks), str(place), *arguments, environment=environment, strict=False, imported=IMPORTED)
        for rank in range(ranks)
    ]


def together(code: str, place: Path, *arguments: str, ranks: int = 2, **environment: str) -> list[dict[str, Any]]:
    """Run a program in several processes; return the contents of ``given`` of each."""
    processes = ranks_of(code, place, *arguments, ranks=ranks, **environment)
    try:
        outputs = [process.communicate(240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(process.returncode for process in processes), "\n".join(errors for _, errors in outputs)
    return [pickle.loads((place / f"{rank}.pkl").read_bytes()) for rank in range(ranks)]
