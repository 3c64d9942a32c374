"""Failures of sharded operations: all ranks raise, with the message of the rank that failed, and can go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from sharded_programs import PRELUDE
from two_processes import ranks_of, together, two_processes

pytestmark = [pytest.mark.process, two_processes]

BEGINNING = (
    PRELUDE
    + """
import time
from functools import partial
from numscorch.sharding import operators, tensor
from numscorch.sharding import constructors
from numscorch.sharding import halo_products
from torch.distributed.device_mesh import DeviceMesh

mesh = DeviceMesh.from_group(dist.new_group(timeout=datetime.timedelta(seconds=30)), "cpu")
full = matrix(6, 6, 1, 3)
whole = ns.from_torch(full, ns.CSR)
A = shard(whole, mesh)
x, y = A.rows_of(dense(6, 2)), A.rows_of(dense(6))
started = time.monotonic()

def go_on():
    same(A @ x, rows_of(A, full @ dense(6, 2)))

def failing(place, name, count=1):
    # a function of a module that raises at a call on the last rank
    function, calls = getattr(place, name), iter(range(1, 1000))
    def call(*arguments, **options):
        if rank == ranks - 1 and next(calls) == count:
            raise MemoryError("no memory left")
        return function(*arguments, **options)
    return call

def refused_with(place, name, call, count=1):
    function = getattr(place, name)
    setattr(place, name, failing(place, name, count))
    try:
        return refused((MemoryError, ns.RankError), call)
    finally:
        setattr(place, name, function)
"""
)

FAULTS = """
last = rank == ranks - 1
calls = {
    "product": lambda: A @ (dense(7, 2) if last else x),
    "operand": lambda: A @ (whole if last else x),
    "dimensions": lambda: A @ (x[..., None] if last else x),
    "transposed": lambda: A.t() @ (dense(7, 2) if last else x),
    "sum": lambda: ns.einsum("ij,i->", A, dense(7) if last else y),
    "sampled": lambda: ns.einsum("ij,ik,jk->ij", A, x, dense(7, 2) if last else x),
    "evaluate": lambda: ns.evaluate("y[i] = A[i,j] * x[j]", A=A, x=dense(7) if last else y),
    "dimension": lambda: A.sum(2 if last else 1),
    "norm": lambda: A.norm(5 if last else 2),
    "features": lambda: ns.nn.SAGEConv(2, 2).double()(dense(7, 2) if last else x, A),
    "partition": lambda: shard(whole, mesh, partition="columns" if last else "rows"),
    "placements": lambda: shard(whole, mesh, [Shard(1)] if last else [Shard(0)]),
    "rows": lambda: from_local_rows(torch.ones(3) if last else whole[:1], mesh),
    "file": lambda: ns.sharding.load(os.path.join(place, "no such file" if last else "matrix.npz"), mesh),
}
if rank == 0:
    ns.save(whole, os.path.join(place, "matrix.npz"))
dist.barrier()
for name, call in calls.items():
    given[name] = refused((ns.NumscorchError, FileNotFoundError), call)
    go_on()
ones = lambda: ns.from_torch(torch.ones(6, 6).double(), ns.CSR)
calls = {
    "owned part": lambda: refused_with(halo_products, "einsum", lambda: A @ x),
    "halo part": lambda: refused_with(halo_products, "einsum", lambda: A @ x, count=2),
    "sampling": lambda: refused_with(halo_products, "einsum", lambda: ns.einsum("ij,ik,jk->ij", A, x, x)),
    "returning": lambda: refused_with(halo_products, "einsum", lambda: A.t() @ x),
    "statement": lambda: refused_with(halo_products, "evaluate", lambda: ns.evaluate("y[i] = A[i,j] * x[j]", A=A, x=y)),
    "normalised graph": lambda: refused_with(ns.nn.graphs, "_normalized", lambda: ns.nn.graphs.gcn_norm(shard(ones(), mesh))),
    "matrix": lambda: refused_with(constructors, "make_layout", lambda: shard(whole, mesh)),
    "values": lambda: refused_with(operators, "total", lambda: A.norm()),
    "gathered": lambda: refused_with(tensor.torch, "cat", lambda: A.gathered(x)),
    "whole matrix": lambda: refused_with(tensor, "from_coo", lambda: A.full_tensor()),
}
for name, call in calls.items():
    given[name] = call()
    go_on()
assert time.monotonic() - started < 25
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_ranks_raise_the_error_of_one(ranks: int, tmp_path: Path) -> None:
    """Bad operands, and errors within operations, on the last rank only; the next product is right again."""
    *others, failed = together(BEGINNING + FAULTS, tmp_path, ranks=ranks)
    assert len(failed) == 24
    for given in others:
        for name, text in failed.items():
            assert given[name].startswith(f"rank {ranks - 1} raised ") and given[name].endswith(text), name


DIFFERENCES = """
B = shard(whole, mesh)
first = rank == 0
calls = {
    "operations": lambda: A @ x if first else A.t() @ x,
    "matrices": lambda: (A if first else B) @ x,
    "statements": lambda: ns.einsum("ij->i", A) if first else ns.einsum("ij,i->i", A, y),
    "lengths": lambda: A @ (x if first else x[:, :1]),
    "types": lambda: ns.einsum("ij,jk->ik", A, x if first else x.float()),
    "sums": lambda: ns.einsum("ij,k->k", A, y if first else y[:1]),
    "columns": lambda: from_local_rows(whole[:1] if first else whole[:1, :5], mesh),
    "values": lambda: shard(whole if first else 2 * whole, mesh),
    "call": lambda: A @ x if first else shard(whole, mesh),
}
for name, call in calls.items():
    given[name] = refused(ns.RankError, call)
    go_on()
version = constructors.version
constructors.version = lambda name: version(name) if first else "0.0.1"
given["version"] = refused(ns.RankError, lambda: shard(whole, mesh))
constructors.version = version
go_on()

# an error of the program on one rank between operations
trained = x.clone().requires_grad_()
try:
    loss = (A @ trained).sum()
    if not first:
        raise ZeroDivisionError
    loss.backward()
except ZeroDivisionError:
    given["program"] = refused(ns.RankError, go_on)
except ns.RankError as error:
    given["program"] = str(error)
go_on()
assert time.monotonic() - started < 25
"""


def test_different_operations_raise_on_all_ranks(tmp_path: Path) -> None:
    """Other operations, matrices, operands, versions; and a rank that misses a backward pass."""
    first, second = together(BEGINNING + DIFFERENCES, tmp_path)
    assert first == second and len(first) == 11
    assert first["lengths"].startswith("rank 0 sends rows of 2 numbers of torch.float64 for matrix ")
    assert ", but rank 1 sends rows of 1 numbers of torch.float64 for matrix " in first["lengths"]
    assert "the version of numscorch or torch differs between ranks 0 and 1" in first["version"]
    assert "rank 0 sends back rows" in first["program"] and "rank 1 sends rows" in first["program"]


KILLED = """
import signal
A @ x
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    for _ in range(100):
        A @ x
except ns.RankError as error:
    print(error)
assert time.monotonic() - started < 60
os._exit(0)
"""


def test_a_killed_rank_ends_the_others(tmp_path: Path) -> None:
    """The survivor raises an error that says so, long before the timeout of the process group."""
    survivor, killed = ranks_of(BEGINNING + KILLED, tmp_path)
    printed, errors = survivor.communicate(100)
    killed.communicate(100)
    assert (survivor.returncode, killed.returncode) == (0, -9), errors
    assert printed.startswith("rank 0 sends rows of 2 numbers of torch.float64 for matrix 1 in 'ij,jk->ik', but another rank has ended")


RAISING = """
A @ x
A @ (x if rank == 0 else dense(6, 2))
"""


def test_the_error_of_a_rank_reaches_the_others(tmp_path: Path) -> None:
    """A rank that raises in a product and ends: the others show its message."""
    waiting, raising = ranks_of(BEGINNING + RAISING, tmp_path)
    assert "SizeError: the second operand" in raising.communicate(100)[1]
    errors = waiting.communicate(100)[1]
    assert "RankError: rank 1 raised SizeError: the second operand of 'ij,jk->ik' has size 6" in errors
