"""SparseLinear with a weight whose rows are distributed equals the layer with the whole weight."""

from __future__ import annotations

from pathlib import Path

import pytest
from sharded_programs import PRELUDE, RANKS
from two_processes import together, two_processes

pytestmark = [pytest.mark.process, two_processes]

LAYER = """
import copy
torch.set_default_dtype(torch.float64)

def linear(columns, rows, seed=0, **options):
    torch.manual_seed(seed)
    return SparseLinear(columns, rows, **{"density": 0.4, **options})

def sharded(layer, **options):
    layer = copy.deepcopy(layer)
    layer.weight = ns.nn.Parameter(shard(layer.weight, mesh, **options))
    return layer

def own_rows(layer):
    return slice(*layer.weight.layout.rows.range_of(rank))

def same_gradients(layer, twin):
    same(layer.weight.grad.full_tensor().to_dense(), twin.weight.grad.to_dense())
    same(layer.bias.grad, twin.bias.grad)
"""

PLAIN = """
for columns, rows in ((6, 8), (5, 5), (3, 1), (1, 7)):
    for partition in ("rows", "nnz", [rows] + [0] * (ranks - 1)):
        for shape in ((4, columns), (2, 3, columns), (columns,)):
            twin = linear(columns, rows, density=0.6)
            layer = sharded(twin, partition=partition)
            x = dense(*shape).requires_grad_()
            twin_x = x.detach().clone().requires_grad_()
            expected, result = twin(twin_x), layer(x)
            mine = own_rows(layer)
            same(result, expected[..., mine])
            expected.square().sum().backward()
            result.square().sum().backward()  # the loss is the sum of the losses of all ranks
            for gradient in (x.grad, layer.bias.grad):
                dist.all_reduce(gradient)
            same(x.grad, twin_x.grad)
            same_gradients(layer, twin)
            same(torch.nn.functional.linear(x, layer.weight, layer.bias), result)
            same(layer.weight.norm(), twin.weight.to_dense().norm())
without = sharded(linear(6, 8, bias=False))
same(without(dense(3, 6)), linear(6, 8, bias=False)(dense(3, 6))[..., own_rows(without)])
whole, layer = linear(6, 8), sharded(linear(6, 8))
names = list(dict(layer.named_parameters()))
assert names == list(dict(whole.named_parameters())) and len(list(layer.buffers())) == 0, names
assert [len(p) for p in layer.parameters()] == [layer.weight.local.nnz, 8]
layer.reset_parameters()
assert "ShardedSparseTensor(shape=(8, 6), rank" in repr(layer) and "density=0.396, CSR" in repr(layer), repr(layer)
layer.load_state_dict(whole.state_dict())
same(layer.weight.full_tensor().to_dense(), whole.weight.to_dense())
again = copy.deepcopy(layer)
again.weight.values.data.zero_()
assert again.weight.layout is layer.weight.layout and layer.weight.values.ne(0).any() and again.weight.values.eq(0).all()
again.load_state_dict(layer.state_dict())
same(again(dense(3, 6)), layer(dense(3, 6)))
"""


@pytest.mark.parametrize("ranks", RANKS)
def test_plain_inputs(ranks: int, tmp_path: Path) -> None:
    """Each rank gets its output features; gradients of input and bias are parts of a sum."""
    together(PRELUDE + LAYER + PLAIN, tmp_path, ranks=ranks)


DTENSORS = """
x = dense(4, 6)
for placement in (Replicate(), Shard(1), Shard(-1)):
    twin = linear(6, 8)
    layer = sharded(twin)
    X = distribute_tensor(x, mesh, [placement]).requires_grad_()
    twin_x = x.clone().requires_grad_()
    result, expected = layer(X), twin(twin_x)
    assert result.placements == (Shard(1),) and result.shape == (4, 8), result
    same(result.full_tensor(), expected)
    result.full_tensor().square().sum().backward()
    expected.square().sum().backward()
    same(X.grad.full_tensor(), twin_x.grad)
    same_gradients(layer, twin)
twin = torch.nn.Sequential(torch.nn.Linear(6, 6), linear(6, 8, seed=1), torch.nn.ReLU(), linear(8, 5, seed=2))
model = torch.nn.Sequential(copy.deepcopy(twin[0]), sharded(twin[1]), torch.nn.ReLU(), sharded(twin[3]))
optimizers = [torch.optim.Adam(net.parameters(), lr=0.05) for net in (model, twin)]
losses = []
for _ in range(20):
    for optimizer in optimizers:
        optimizer.zero_grad()
    hidden = DTensor.from_local(model[0](x), mesh, [Replicate()], run_check=False)
    pair = [net.square().mean() for net in (model[1:](hidden).full_tensor(), twin(x))]
    for loss, optimizer in zip(pair, optimizers):
        loss.backward()
        optimizer.step()
    same(*pair)
    losses.append(pair[0].item())
assert losses[-1] < 0.5 * losses[0], losses
same(model[0].weight, twin[0].weight)
same(model[3].weight.full_tensor().to_dense(), twin[3].weight.to_dense())
"""


@pytest.mark.parametrize("ranks", RANKS)
def test_dtensor_inputs(ranks: int, tmp_path: Path) -> None:
    """Outputs are sharded in the last dimension, and can be inputs of a sharded layer; a network trains as in one process."""
    together(PRELUDE + LAYER + DTENSORS, tmp_path, ranks=ranks)


REFUSALS = """
messages = given["messages"] = []

def refuse(kind, call):
    messages.append(refused(kind, call))

layer = sharded(linear(6, 8))
refuse(ns.SizeError, lambda: layer(dense(4, 3)))
refuse(ns.UnsupportedError, lambda: layer(dense(4, 6).float()))
refuse(ns.SizeError, lambda: sharded(linear(6, 8), partition=[5, 3])(distribute_tensor(dense(4, 6), mesh, [Replicate()])))
refuse(ns.UnsupportedError, lambda: sharded(linear(6, 6), permute="nnz")(dense(4, 6)))
refuse(ns.UnsupportedError, lambda: layer.weight.hold(layer.weight.pattern))
refuse(ns.SizeError, lambda: setattr(layer, "weight", ns.nn.Parameter(shard(linear(6, 7).weight, mesh))))
refuse(RuntimeError, lambda: layer.load_state_dict(linear(6, 8, seed=1).state_dict()))
refuse(RuntimeError, lambda: layer.load_state_dict(linear(6, 8, density=0.2).state_dict()))
refuse(RuntimeError, lambda: layer.load_state_dict(sharded(linear(6, 8), partition=[2, 6]).state_dict()))
refuse(RuntimeError, lambda: layer.load_state_dict({"bias": layer.bias}))
"""


def test_refusals(tmp_path: Path) -> None:
    """Messages name the clash and the way out, on all ranks."""
    for given in together(PRELUDE + LAYER + REFUSALS, tmp_path):
        messages = given["messages"]
        assert "input has shape (4, 3), but its last dimension has to be in_features=6, on every rank" in messages[0]
        assert "pass input.to(torch.float64)" in messages[1]
        assert "the partition is uneven" in messages[2]
        assert "shard it without permute=" in messages[3]
        assert "change the whole weight, then set ns.nn.Parameter(shard(A, mesh))" in messages[4]
        assert "has shape (8, 6), but the parameter has (7, 6)" in messages[5]
        assert "the state has other entries than a sharded matrix of shape (8, 6) with 19 entries: level1_" in messages[6]
        assert "the state has other entries" in messages[7]
        assert "load it with the same partition" in messages[8]
        assert 'Missing key(s) in state_dict: "weight.values"' in messages[9]


RECIPES = """
from torch.distributed.fsdp import fully_shard

x = dense(5, 6)

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 6), linear(6, 8))

def halves():
    net = network()
    net[1] = sharded(net[1])
    return net, {net[1].weight.values}

twin = network()
twin(x).square().sum().backward()
net, values = halves()
net(x).square().sum().backward()
whole = [parameter for parameter in net.parameters() if parameter not in values]
for parameter in whole:
    dist.all_reduce(parameter.grad)
square = sum(value.grad.square().sum() for value in values)
dist.all_reduce(square)
norm = (square + sum(parameter.grad.square().sum() for parameter in whole)).sqrt()
torch.nn.utils.clip_grads_with_norm_(net.parameters(), 1.0, norm)

wrapped, values = halves()
wrapped = fully_shard(wrapped, mesh=mesh, ignored_params=values)
(wrapped(x).square().sum() * ranks).backward()
for value in values:
    value.grad /= ranks
same(wrapped[1].weight.grad.full_tensor().to_dense(), twin[1].weight.grad.to_dense())
same(wrapped[0].weight.grad.full_tensor(), twin[0].weight.grad)
same(wrapped[1].bias.grad.full_tensor(), twin[1].bias.grad)

same(norm, torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0))
same_gradients(net[1], twin[1])
same(net[0].weight.grad, twin[0].weight.grad)
"""


@pytest.mark.parametrize("ranks", RANKS)
def test_clipped_norms_and_ignored_parameters(ranks: int, tmp_path: Path) -> None:
    """The recipes of the guide give the gradients of one process."""
    together(PRELUDE + LAYER + RECIPES, tmp_path, ranks=ranks)
