"""Networks on sharded graphs train as in one process: 50 epochs, with summed gradients, DistributedDataParallel and fully_shard."""

from __future__ import annotations

from pathlib import Path

import pytest
from sharded_programs import PRELUDE, RANKS
from two_processes import together, two_processes

pytestmark = [pytest.mark.process, two_processes]

GRAPH = """
import copy
from numscorch.nn import GATConv, GCNConv, GINConv, SAGEConv
from torch.distributed.fsdp import fully_shard

NODES, FEATURES, CLASSES, EPOCHS = 40, 6, 3, 50
whole = ns.from_torch(matrix(NODES, NODES, 0.15, 1, torch.float32).abs(), ns.CSR)
labels = torch.arange(NODES) % CLASSES
x = dense(NODES, FEATURES, dtype=torch.float32) + 4 * torch.nn.functional.one_hot(labels, FEATURES)

class Net(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = layer(FEATURES, 8), layer(8, CLASSES)

    def forward(self, x, graph):
        return self.second(self.first(x, graph).relu(), graph)

def sgd(net):  # Adam would hide wrong factors of gradients
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

def losses_of(net, graph, x, labels, factor=1, after=lambda: None, epochs=EPOCHS):
    optimizer = sgd(net)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = cross_entropy(net(x, graph), labels, reduction="sum") / NODES
        (loss * factor).backward()
        after()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total)
    return torch.stack(losses)

def alone(net):
    return losses_of(net, whole, x, labels) / ranks  # every rank adds the same loss

def same_losses(given, expected):
    torch.testing.assert_close(given, expected, rtol=1e-5, atol=0)

A = shard(whole, mesh, permute="nnz")
x_rows, label_rows = A.rows_of(x), A.rows_of(labels)

def summed(net):
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
"""

SUMMED = """
layers = {
    "gcn": GCNConv, "sage": SAGEConv, "gat": GATConv,
    "gin": lambda c, o: GINConv(torch.nn.Linear(c, o)),
}
for name, layer in layers.items():
    net, twin = Net(layer), Net(layer)
    given[name] = losses_of(net, A, x_rows, label_rows, after=lambda: summed(net))
    same_losses(given[name], alone(twin))
"""


@pytest.mark.parametrize("ranks", RANKS)
def test_summed_gradients(ranks: int, tmp_path: Path) -> None:
    """Losses over 50 epochs equal those of one process to 1e-5."""
    for given in together(PRELUDE + GRAPH + SUMMED, tmp_path, ranks=ranks):
        assert all(losses[-1] < 0.95 * losses[0] for losses in given.values()), given


WRAPPED = """
twin = Net(GCNConv)
expected = alone(twin)
ddp = DistributedDataParallel(Net(GCNConv))
same_losses(losses_of(ddp, A, x_rows, label_rows, factor=ranks), expected)
close(ddp.module, twin)

def fully_sharded(net):
    for layer in (*net.children(), net):
        fully_shard(layer, mesh=mesh)
    return net

def same_parameters(net, twin):
    for parameter, want in zip(net.parameters(), twin.parameters(), strict=True):
        assert isinstance(parameter, DTensor)
        torch.testing.assert_close(parameter.full_tensor(), want)

net = fully_sharded(Net(GCNConv))
same_losses(losses_of(net, A, x_rows, label_rows, factor=ranks), expected)
same_parameters(net, twin)

twin, net, ddp = network(), fully_sharded(network()), data_parallel(network())
part = slice(12 // ranks * rank, 12 // ranks * (rank + 1))
train(twin, sgd(twin), 5, part=slice(None))
for other in (net, ddp):
    train(other, sgd(other), 5, part=part)
same_parameters(net, twin)
close(ddp.module, twin)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_wrapped_networks(ranks: int, tmp_path: Path) -> None:
    """DistributedDataParallel and fully_shard take the mean of gradients, so that the loss is multiplied by the number of ranks.

    Sparse weights train in them, too: compiled kernels leave the memory of values resizable.
    """
    together(PRELUDE + GRAPH + WRAPPED, tmp_path, ranks=ranks, NUMBA_DISABLE_JIT="0")


BOTH = """
grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
twin = network()
nets = {name: network() for name in ("ddp", "fully_shard")}
for net in nets.values():
    for layer in (net[0], net[2]):
        layer.weight = ns.nn.Parameter(shard(layer.weight, grid["model"]))
part = slice(6 * grid.get_local_rank("data"), 6 * grid.get_local_rank("data") + 6)
models = {
    "ddp": DistributedDataParallel(nets["ddp"], process_group=grid["data"].get_group()),
    "fully_shard": fully_shard(nets["fully_shard"], mesh=grid["data"]),
}
optimizers = {name: sgd(model) for name, model in models.items()}
expected = sgd(twin)
for _ in range(5):
    expected.zero_grad()
    cross_entropy(twin(X), Y).backward()
    expected.step()
    for name, model in models.items():
        optimizers[name].zero_grad()
        output = model(DTensor.from_local(X[part], grid["model"], [Replicate()], run_check=False)).full_tensor()
        cross_entropy(output, Y[part]).backward()
        optimizers[name].step()
for layer, want in zip(nets["ddp"], twin):
    if isinstance(layer, SparseLinear):
        torch.testing.assert_close(layer.weight.full_tensor().to_dense(), want.weight.to_dense())
        torch.testing.assert_close(layer.bias, want.bias)
for one, two in zip(nets["fully_shard"].parameters(), nets["ddp"].parameters(), strict=True):
    torch.testing.assert_close(one.full_tensor(), two)
"""


def test_data_and_tensor_parallel(tmp_path: Path) -> None:
    """Weights are sharded over one dimension of a mesh, and batches over the other, with DistributedDataParallel and fully_shard."""
    together(PRELUDE + GRAPH + BOTH, tmp_path, ranks=4)
