"""Checkpoints of sharded matrices: saved and loaded under 1, 2 and 3 ranks, bitwise equal."""

from __future__ import annotations

from pathlib import Path

import pytest
from sharded_programs import PRELUDE, RANKS
from two_processes import together, two_processes

pytestmark = [pytest.mark.process, two_processes]

MATRICES = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
folder = sys.argv[4]

def cases():
    for at, (rows, columns, density, dtype, partition, permute) in enumerate((
        (20, 20, 0.3, torch.float64, "rows", "nnz"),
        (20, 20, 0.3, torch.float64, "nnz", None),
        (7, 12, 0.4, torch.float32, [7] + [0] * (ranks - 1), None),
        (7, 12, 0.4, torch.float32, [0] * (ranks - 1) + [7], None),
        (2, 5, 0.5, torch.bool, "rows", None),
        (9, 9, 0, torch.float64, "nnz", None),
    )):
        full = matrix(rows, columns, density, rows, torch.float64).to(dtype)
        yield str(at), ns.from_torch(full, ns.CSR), {"partition": partition, "permute": permute}

def identical(A, whole):
    gathered = A.full_tensor()
    assert gathered.dtype == whole.dtype and torch.equal(gathered.indices(), whole.indices())
    assert gathered.values.numpy().tobytes() == whole.values.numpy().tobytes()

def networks():
    torch.manual_seed(0)
    whole = torch.nn.Sequential(SparseLinear(6, 8, density=0.4), torch.nn.ReLU(), SparseLinear(8, 3, density=0.5))
    torch.manual_seed(0)
    net = torch.nn.Sequential(SparseLinear(6, 8, density=0.4), torch.nn.ReLU(), SparseLinear(8, 3, density=0.5))
    for at, partition in ((0, "rows"), (2, "nnz")):
        net[at].weight = ns.nn.Parameter(shard(net[at].weight, mesh, partition=partition))
    return whole, net

def moments(net, optimizer):
    return {
        f"{name} {at}": net[at].weight.tensor.with_values(moment)
        for at in (0, 2) for name, moment in optimizer.state[net[at].weight.values].items() if moment.ndim
    }

def trained(net):
    optimizer = adam(net)
    for values in (net[0].weight.values, net[2].weight.values):
        values.grad = values.detach().clone()
    optimizer.step()
    return optimizer
"""

SAVE = """
for name, whole, options in cases():
    dcp.save({"A": shard(whole, mesh, **options), "step": 3}, checkpoint_id=f"{folder}/{name}")
A = shard(ns.from_torch(matrix(5, 5, 0.5, 1), ns.CSR), mesh)
dcp.save({"A": A, "graphs": {"B": (2 * A).state_dict()}}, checkpoint_id=f"{folder}/several")
whole, net = networks()
optimizer, _ = trained(net), trained(whole)
dcp.save({"net": net, **moments(net, optimizer)}, checkpoint_id=f"{folder}/sharded")
dcp.save({"net": get_model_state_dict(net)}, checkpoint_id=f"{folder}/of state dict")
dcp.save({"net": whole}, checkpoint_id=f"{folder}/whole")
"""

LOAD = """
given["loaded"] = 0
for name, whole, options in cases():
    for loaded in (options["partition"], "rows"):
        A = ns.sharding.load(f"{folder}/{name}", mesh, partition=loaded)
        identical(A, whole)
        assert (A.layout.permutation is None) == (options["permute"] is None)
    same(A.gathered(A.to(torch.float64) @ A.rows_of(dense(whole.shape[1], 2))), whole.to_dense().double() @ dense(whole.shape[1], 2))
    if options["permute"] is None:
        B = shard(whole.with_values(torch.zeros_like(whole.values)), mesh, partition="nnz")
        state = {"A": B, "step": 0}
        dcp.load(state, checkpoint_id=f"{folder}/{name}")
        identical(B, whole)
        assert state["step"] == 3
    given["loaded"] += 1
A = ns.from_torch(matrix(5, 5, 0.5, 1), ns.CSR)
identical(ns.sharding.load(f"{folder}/several", mesh, key="graphs.B"), 2 * A)
identical(ns.sharding.load(f"{folder}/several", mesh, key="A"), A)
grid = init_device_mesh("cpu", (1, ranks))
blocks = ns.sharding.load(f"{folder}/several", grid, [Shard(0), Shard(1)], key="A")
identical(blocks, A)
refused(ns.UnsupportedError, blocks.state_dict)
other = shard(ns.from_torch(matrix(5, 5, 0.5, 1).t().contiguous(), ns.CSR), mesh)
given["messages"] = [
    refused(ns.OperandError, lambda: ns.sharding.load(f"{folder}/several", mesh)),
    refused(ns.OperandError, lambda: ns.sharding.load(f"{folder}/whole", mesh)),
    refused(ns.NumscorchError, lambda: dcp.load({"A": other}, checkpoint_id=f"{folder}/several")),
    refused(OSError, lambda: ns.sharding.load(f"{folder}/none", mesh)),
]
expected, _ = networks()
after = trained(expected)
for checkpoint in ("sharded", "of state dict", "whole"):
    for net in networks():
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()
        dcp.load({"net": net}, checkpoint_id=f"{folder}/{checkpoint}")
        for at in (0, 2):
            weight = net[at].weight
            weight = weight.full_tensor() if isinstance(weight, ns.sharding.ShardedSparseParameter) else weight.tensor
            assert torch.equal(weight.values, expected[at].weight.values) and torch.equal(net[at].bias, expected[at].bias)
_, net = networks()
optimizer = trained(net)
for moment in moments(net, optimizer).values():
    moment.values.zero_()
dcp.load(moments(net, optimizer), checkpoint_id=f"{folder}/sharded")
for at in (0, 2):
    for name, moment in optimizer.state[net[at].weight.values].items():
        if moment.ndim:
            gathered = net[at].weight.tensor.with_values(moment).full_tensor().values
            assert torch.equal(gathered, after.state[expected[at].weight.values][name]), name
"""


def test_checkpoints_under_other_numbers_of_ranks(tmp_path: Path) -> None:
    """Pattern and values are equal to the bit; sharded and whole layers read each other's checkpoints, and moments of optimizers follow."""
    for saving in RANKS:
        folder = tmp_path / f"{saving}"
        start = tmp_path / f"save{saving}"
        start.mkdir()
        together(PRELUDE + MATRICES + SAVE, start, str(folder), ranks=saving)
        for loading in RANKS:
            start = tmp_path / f"load{saving}{loading}"
            start.mkdir()
            for given in together(PRELUDE + MATRICES + LOAD, start, str(folder), ranks=loading):
                assert given["loaded"] == 6
                several, none, other, _ = given["messages"]
                assert "its sharded matrices are 'A', 'graphs.B'; give the key of one" in several
                assert "its sharded matrices are none" in none
                assert "level1_pos differs; ns.sharding.load(path, mesh) reads a matrix with its pattern" in other
