"""Errors of sharded operations name what works instead; one rank suffices for most of them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sharded_programs import PRELUDE
from two_processes import together, two_processes

import numscorch as ns

pytestmark = two_processes
WHOLE = ns.from_torch(torch.diag(torch.arange(1.0, 5.0)), ns.CSR)


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    """A mesh of one rank, which is this process."""
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def A(mesh: Any) -> Any:
    """A sharded matrix."""
    return ns.sharding.shard(WHOLE, mesh)


@pytest.mark.process
@pytest.mark.parametrize("call", ["whole @ X", "ns.einsum('ij,jk->ik', whole, X)", "torch.nn.functional.linear(X, whole)"])
def test_a_dtensor_loads_the_package(call: str, tmp_path: Path) -> None:
    """Products with a DTensor do not need an import of numscorch.sharding before."""
    program = f"""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
whole = ns.from_torch(torch.eye(4), ns.CSR)
X = distribute_tensor(torch.ones(4, 4), init_device_mesh("cpu", (1,)), [Replicate()])
assert "numscorch.sharding" not in sys.modules
assert torch.equal(({call}).full_tensor(), torch.ones(4, 4))
"""
    together(program, tmp_path, ranks=1)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".mtx", ".pt"])
@pytest.mark.parametrize("make", [lambda A: A, lambda A: A.t(), ns.nn.Parameter], ids=["matrix", "transposed", "parameter"])
def test_saving_names_checkpoints(A: Any, make: Callable[[Any], Any], suffix: str, tmp_path: Path) -> None:
    """ns.save, torch.save and pickle refuse a matrix of which each rank holds a part."""
    whole = "checkpoint.save.*A.full_tensor"
    with pytest.raises(ns.NumscorchError, match=whole):
        ns.save(make(A), tmp_path / f"A{suffix}")
    with pytest.raises(ns.UnsupportedError, match=whole):
        torch.save({"A": make(A)}, tmp_path / "A.pt")
    with pytest.raises(ns.UnsupportedError, match=whole):
        pickle.dumps(make(A))


def test_copies(A: Any) -> None:
    """Matrices and their parameters can be copied, although they cannot be pickled."""
    for twin in (copy.copy(A), copy.deepcopy(A), copy.deepcopy(ns.nn.Parameter(A)).tensor):
        assert torch.equal(twin.full_tensor().to_dense(), WHOLE.to_dense())


def test_files_that_ranks_cannot_divide(mesh: Any, tmp_path: Path) -> None:
    """Text files, graphs, and archives of other programs; arguments that the user did not pass are not mentioned."""
    ns.save(WHOLE, tmp_path / "text.mtx")
    np.savez(tmp_path / "graph.npz", edge_index=np.array([[0, 1], [1, 0]]))
    for name in ("text.mtx", "graph.npz"):
        with pytest.raises(ns.FormatError, match=rf"{name} is not a .npz archive of ns.save.*ns.save\(ns.load") as caught:
            ns.sharding.load(tmp_path / name, mesh)
        assert "mmap" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"ns.sharding.load finds no such file.*checkpoints"):
        ns.sharding.load(tmp_path / "none.npz", mesh)


@pytest.mark.parametrize(
    "call",
    [
        lambda A: A + A.t(),
        lambda A: A * A.t(),
        lambda A: A - torch.ones(4, 4),
        lambda A: A + 1,
        lambda A: A**0,
        torch.exp,
        lambda A: A.cos(),
    ],
)
def test_results_with_other_patterns(A: Any, call: Callable[[Any], Any]) -> None:
    """The text has the shape of the whole matrix, and what a sharded matrix has: to_dense and strict mode are not mentioned."""
    with pytest.raises(ns.UnsupportedError, match=r"of a sharded matrix of shape \(4, 4\).*A.full_tensor\(\)") as caught:
        call(A)
    assert "to_dense" not in str(caught.value) and "strict" not in str(caught.value)


def test_local_entries_of_another_shape(A: Any) -> None:
    with pytest.raises(ns.SizeError, match=r"with_local of shape \(4, 5\): the entries of this rank have shape \(4, 4\)"):
        A.with_local(ns.zeros(4, 5, format=ns.CSR))
    assert torch.equal(A.with_local(A.local * 2).full_tensor().to_dense(), 2 * WHOLE.to_dense())


def test_explain(A: Any) -> None:
    """Explain takes the local part."""
    x = torch.ones(4, 2)
    for matrix in (A, A.t()):
        with pytest.raises(ns.OperandError, match=r"give A.to_local\(\)"):
            ns.explain("ij,jk->ik", matrix, x)
    with pytest.raises(ns.OperandError, match=r"give A.to_local\(\)"):
        ns.explain("y[i,k] = A[i,j] * x[j,k]", A=A, x=x)
    assert "4x4 (CSR)" in str(ns.explain("ij,jk->ik", A.to_local(), x))


@pytest.mark.parametrize("kind", ["NoneType", "int", "ProcessGroup"])
def test_objects_that_are_no_mesh(mesh: Any, kind: str, tmp_path: Path) -> None:
    """Each function that takes a mesh refuses other objects."""
    other: Any = {"NoneType": None, "int": 4, "ProcessGroup": mesh.get_group()}[kind]
    calls = [
        lambda: ns.sharding.shard(WHOLE, other),
        lambda: ns.sharding.from_local_rows(WHOLE, other),
        lambda: ns.sharding.load(tmp_path / "A.npz", other),
    ]
    for call in calls:
        with pytest.raises(ns.OperandError, match=f"the mesh is of type {kind}: pass torch.distributed.init_device_mesh"):
            call()


def test_no_rank_has_the_matrix(mesh: Any) -> None:
    """All ranks pass None."""
    with pytest.raises(ns.OperandError, match="all ranks pass None"):
        ns.sharding.shard(None, mesh)


@pytest.mark.process
def test_ranks_outside_of_the_mesh(tmp_path: Path) -> None:
    """A rank that is not part of the mesh raises; the rank of the mesh goes on."""
    program = """
from torch.distributed.device_mesh import DeviceMesh
part = DeviceMesh("cpu", [0])
whole = ns.from_torch(torch.eye(4), ns.CSR)
if rank == 0:
    given["matrix"] = shard(whole, part).nnz
else:
    given["error"] = refused(ns.RankError, lambda: shard(whole, part))
"""
    first, second = together(PRELUDE + program, tmp_path, ranks=2)
    assert first["matrix"] == 4
    assert second["error"].startswith("rank 1 is not part of the mesh, which has ranks [0]")


def test_placements(A: Any, mesh: Any) -> None:
    """The call in the text of a placement error works."""
    from torch.distributed.tensor import Shard, distribute_tensor

    x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(1)])
    text = r"shares j with dimension 0 of the operand: pass x.redistribute\(mesh, \[Shard\(dim=0\)\]\)"
    with pytest.raises(ns.UnsupportedError, match=text):
        A @ x
    assert torch.equal((A @ x.redistribute(mesh, [Shard(dim=0)])).full_tensor(), WHOLE @ torch.ones(4, 4))
    with pytest.raises(ns.UnsupportedError, match=r"needs all of it: pass x.redistribute\(mesh, \[Replicate\(\)\]\)"):
        ns.einsum("ij,k->ik", A, distribute_tensor(torch.ones(4), mesh, [Shard(0)]))


@pytest.mark.parametrize(
    "call",
    [
        lambda A, x: A @ x + 1,
        lambda A, x: A.t() @ x + 1,
        lambda A, x: torch.mm(A, x) + 1,
        lambda A, x: ns.einsum("ij,jk->ik", A, x) + 1,
        lambda A, x: (2 * A).sum(1)[:, None] + x,
    ],
)
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_compiled_programs(A: Any, call: Callable[[Any, Any], Any]) -> None:
    """Operations of a sharded matrix are graph breaks of torch.compile."""
    x = torch.randn(4, 2)
    torch.testing.assert_close(torch.compile(lambda x: call(A, x), backend="eager")(x), call(A, x))
