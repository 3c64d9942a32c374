"""Graph layers, DTensor operands, statements and functions of sharded matrices equal those of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from sharded_programs import PRELUDE, RANKS
from two_processes import together, two_processes

pytestmark = [pytest.mark.process, two_processes]

LAYERS = """
from numscorch.nn import GATConv, GCNConv, GINConv, SAGEConv
for nodes in (1, 2, 7, 20):
    full = (torch.rand(nodes, nodes, generator=torch.Generator().manual_seed(nodes)) < 0.3).double()
    weighted = full * torch.rand(nodes, nodes, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x, upstream = dense(nodes, 4, seed=1), dense(nodes, 3, seed=2)
    layers = {
        "gcn": (lambda: GCNConv(4, 3), weighted), "improved": (lambda: GCNConv(4, 3, improved=True), weighted),
        "no loops": (lambda: GCNConv(4, 3, add_self_loops=False), weighted), "sums": (lambda: GCNConv(4, 3, normalize=False), weighted),
        "sage": (lambda: SAGEConv(4, 3), weighted), "max": (lambda: SAGEConv(4, 3, aggr="max"), full),
        "gin": (lambda: GINConv(torch.nn.Linear(4, 3)), weighted), "gat": (lambda: GATConv(4, 3), full),
    }
    for name, (make, graph) in layers.items():
        torch.manual_seed(0)
        layer = make().double()
        whole = ns.from_torch(graph, ns.CSR)
        A = shard(whole, mesh, permute="nnz" if nodes == 20 else None)
        twin_x, own_x = x.clone().requires_grad_(), A.rows_of(x).clone().requires_grad_()
        expected, result = layer(twin_x, whole), layer(own_x, A)
        same(result, rows_of(A, expected))
        parameters = list(layer.parameters())
        wanted = torch.autograd.grad((expected * upstream).sum(), [twin_x, *parameters])
        gradients = torch.autograd.grad((result * rows_of(A, upstream)).sum(), [own_x, *parameters])
        same(gradients[0], A.rows_of(wanted[0]))
        for gradient, want in zip(gradients[1:], wanted[1:]):
            gradient = gradient.contiguous()
            dist.all_reduce(gradient)
            same(gradient, want)
        with torch.no_grad():
            same(layer(own_x, A), rows_of(A, layer(x, whole)))
given["layers"] = len(layers)
"""


@pytest.mark.parametrize("ranks", RANKS)
def test_graph_layers(ranks: int, tmp_path: Path) -> None:
    """Results and gradients of layers whose graph is distributed."""
    assert [given["layers"] for given in together(PRELUDE + LAYERS, tmp_path, ranks=ranks)] == [8] * ranks


DTENSORS = """
full = matrix(7, 7, 0.4, 1)
whole = ns.from_torch(full, ns.CSR)
A = shard(whole, mesh)
x, y, w = dense(7, 3, seed=1), dense(7, 3, seed=2), dense(2, 3, seed=3)
X, Y = (distribute_tensor(value, mesh, [Shard(0)]).requires_grad_() for value in (x, y))
W = distribute_tensor(w, mesh, [Replicate()]).requires_grad_()
R = distribute_tensor(x, mesh, [Replicate()])
same((A @ X).full_tensor(), full @ x)
same((A.t() @ Y).full_tensor(), full.T @ y)
same((A @ R).full_tensor(), full @ x)
same(ns.einsum("ij,jf,of->io", A, X, W).full_tensor(), full @ x @ w.T)
same(ns.einsum("ij,ik,jk->", A, Y, X).full_tensor(), torch.einsum("ij,ik,jk->", full, y, x))
P = DTensor.from_local(x / ranks, mesh, [torch.distributed.tensor.Partial()])
with ns.ledger() as entries:
    same((A @ P).full_tensor(), full @ x)
given["gathered"] = [entry.what for entry in entries]
with ns.strict():
    refused(ns.UnsupportedError, lambda: A @ P)
    same((A @ X).full_tensor(), full @ x)
for features, graph, twin in ((X, A, x), (R, whole, x), (Y, None, y)):
    torch.manual_seed(0)
    layer = (ns.nn.SparseLinear(3, 2, density=0.5) if graph is None else ns.nn.GCNConv(3, 2, normalize=False)).double()
    torch.nn.init.normal_(layer.bias)
    expected = layer(twin, *([] if graph is None else [whole]))
    result = layer(features.detach(), *([] if graph is None else [graph]))
    same(result.full_tensor(), expected)
    with torch.no_grad():
        same(layer(features, *([] if graph is None else [graph])).full_tensor(), expected)
    parameters = list(layer.parameters())
    wanted = torch.autograd.grad(expected.square().sum(), parameters)
    for gradient, want in zip(torch.autograd.grad(result.square().sum().full_tensor(), parameters), wanted, strict=True):
        gradient = gradient.contiguous()
        if features is not R:
            dist.all_reduce(gradient)
        same(gradient, want)
loss = ns.einsum("ij,jf,of->io", A, X, W).square().sum()
loss.backward()
twins = [value.clone().requires_grad_() for value in (x, w)]
(full @ twins[0] @ twins[1].T).square().sum().backward()
same(X.grad.full_tensor(), twins[0].grad)
same(W.grad.full_tensor(), twins[1].grad)
"""


FEATURES = """
full = matrix(7, 5, 0.4, 1)
A = ns.from_torch(full, ns.CSR)
A.values.requires_grad_()
x = dense(5, 6, seed=1)
X = distribute_tensor(x, mesh, [Shard(1)]).requires_grad_()
R = distribute_tensor(x, mesh, [Replicate()]).requires_grad_()
w = distribute_tensor(dense(6, 2, seed=2), mesh, [Shard(0)])
for result in (A @ X, torch.matmul(A, X), ns.einsum("ij,jk->ik", A, X), torch.sparse.mm(A, X)):
    assert result.placements == (Shard(1),) and result.shape == (7, 6), result
    same(result.full_tensor(), full @ x)
same((A @ R).full_tensor(), full @ x)
summed = ns.einsum("ij,jk,ko->io", A, X, w)
assert summed.placements[0].is_partial()
same(summed.full_tensor(), full @ x @ w.full_tensor())
(A @ X).square().sum().backward()
twin = x.clone().requires_grad_()
values = A.values.detach().clone().requires_grad_()
(A.with_values(values) @ twin).square().sum().backward()
same(X.grad.full_tensor(), twin.grad)
dist.all_reduce(A.values.grad)
same(A.values.grad, values.grad)
given["message"] = refused(ns.UnsupportedError, lambda: A @ distribute_tensor(x, mesh, [Shard(0)])), refused(
    ns.UnsupportedError, lambda: ns.evaluate("y[i,k] = A[i,j] * X[j,k]", A=A, X=X))
"""


@pytest.mark.parametrize("ranks", RANKS)
def test_sharded_features(ranks: int, tmp_path: Path) -> None:
    """Products of a matrix that every rank holds need no exchange."""
    for given in together(PRELUDE + FEATURES, tmp_path, ranks=ranks):
        assert "shard the matrix, as ns.sharding.shard does" in given["message"][0]
        assert "use einsum, or to_local()" in given["message"][1]


@pytest.mark.parametrize("ranks", RANKS)
def test_dtensors(ranks: int, tmp_path: Path) -> None:
    """Rows, replicated operands and sums over ranks; results are DTensors, and so are gradients."""
    for given in together(PRELUDE + DTENSORS, tmp_path, ranks=ranks):
        assert given["gathered"] == ["the second operand of 'ij,jk->ik', a sum over ranks, on every rank"]


FUNCTIONS = """
import copy
full = matrix(9, 9, 0.4, 2)
whole = ns.from_torch(full, ns.CSR)
A = shard(whole, mesh, partition="nnz")

def equal(result, expected):
    same(result.full_tensor().to_dense(), expected.to_dense())

equal(torch.softmax(A, 1), torch.softmax(whole, 1))
equal(torch.nn.functional.softmax(A, 1), torch.softmax(whole, 1))
equal(2 * A, 2 * whole)
equal(A / 3 + A, whole / 3 + whole)
equal(-A, -whole)
equal(torch.relu(A), torch.relu(whole))
equal(A.abs().sqrt(), whole.abs().sqrt())
equal(torch.absolute(A), whole.abs())
equal(torch.maximum(A, A / 2), torch.maximum(whole, whole / 2))
equal(torch.gt(A, 0), whole > 0)
equal(torch.lerp(A, 3 * A, 0.25), torch.lerp(whole, 3 * whole, 0.25))
same(A.norm(), full.norm())
same(torch.norm(A), full.norm())
same(torch.linalg.norm(A), full.norm())
same(A.norm(float("inf")), full.abs().max())
same(A.sum(), full.sum())
same(A.sum(1), rows_of(A, full.sum(1)))
same(A.sum(dim=0, keepdim=True)[0], A.rows_of(full.sum(0)))
d, e = dense(9, seed=1), dense(9, seed=2)
scaled = "N[i,j] = d[i] * A[i,j] * e[j]"
equal(ns.evaluate(scaled, A=A, d=rows_of(A, d), e=A.rows_of(e)), ns.evaluate(scaled, A=whole, d=d, e=e))
same(ns.evaluate("y[i] = relu(A[i,j] * x[j]) + b[i]", A=A, x=A.rows_of(e), b=rows_of(A, d)), rows_of(A, (full @ e).relu() + d))
same(A.gathered(A @ A.rows_of(e)), full @ e)
T, y = A.t(), dense(9, 2, seed=3)
assert (T.shape, T.ndim, T.dtype, T.T) == ((9, 9), 2, torch.float64, A)
for product in (
    T @ rows_of(A, y), torch.mm(T, rows_of(A, y)), ns.einsum("ji,ik->jk", T, rows_of(A, y)), torch.einsum("ji,ik", T, rows_of(A, y)),
):
    same(product, A.rows_of(full.T @ y))
same(torch.mv(T, rows_of(A, d)), A.rows_of(full.T @ d))
same(A.rows_of(d) @ T, rows_of(A, full @ d))
same(A.rows_of(y).T @ T, rows_of(A, full @ y).T)
equal(copy.deepcopy(A), whole)
softmax = "m[i] stored max= A[i,j]; E[i,j] = stored(A[i,j]) * exp(A[i,j] - m[i]); l[i] = E[i,j]; P[i,j] = E[i,j] / l[i]"
equal(ns.evaluate(softmax, A=A), torch.softmax(whole, 1))
x = A.rows_of(dense(9, 2, seed=4))
layer = ns.nn.GCNConv(2, 2).double()
P = A.abs()  # degrees are positive
gathered = A.gathered(layer(x, P))
with torch.inference_mode():
    same(A.gathered(A @ x), full @ dense(9, 2, seed=4))
    same(A.gathered(layer(x, P)), gathered.clone())
    same(A.gathered(torch.softmax(A, 1) @ x), torch.softmax(whole, 1) @ dense(9, 2, seed=4))
x = x.clone().requires_grad_()
(A @ x).sum().backward()
values = whole.values.clone().requires_grad_()
S = shard(whole.with_values(values), mesh)
norm = S.norm()
((S @ S.rows_of(e) - norm).square().sum()).backward()
dist.all_reduce(values.grad)
twin = whole.values.clone().requires_grad_()
(whole.with_values(twin) @ e - whole.with_values(twin).norm()).square().sum().backward()
same(values.grad, twin.grad)
if rank == 0:
    P.values[:1] *= 2  # the ranks normalise the graph together again
layer(x, P)
trained = P.with_values(P.values.clone().requires_grad_())
assert ns.nn.graphs.gcn_norm(trained).layout is ns.nn.graphs.gcn_norm(trained).layout  # values change in each step, patterns do not
P @ A.rows_of(e)
P.values.data = A.values.abs()
same(A.gathered(layer(x, P)), gathered)
same(A.gathered(P @ A.rows_of(e)), full.abs() @ e)
assert shard(ns.from_torch(full.bfloat16(), ns.CSR), mesh).dtype == torch.bfloat16
report = A.report()
assert sum(report.entries) == whole.nnz and 0 <= report.edge_cut <= 1 <= report.imbalance, report
local = whole[slice(*A.layout.rows.range_of(rank))]
other = from_local_rows(local, mesh)
equal(other, whole)
path = os.path.join(place, "matrix.npz")
if rank == 0:
    ns.save(whole, path)
dist.barrier()
equal(ns.sharding.load(path, mesh, partition="nnz"), whole)
sent = other.exchange.bytes_sent
other @ other.rows_of(e)
given["sent"], given["halo"] = other.exchange.bytes_sent - sent, len(other.exchange.halo)
"""


@pytest.mark.parametrize("ranks", RANKS)
def test_functions(ranks: int, tmp_path: Path) -> None:
    """The bytes that all ranks send are those of all halo rows."""
    results = together(PRELUDE + FUNCTIONS, tmp_path, ranks=ranks)
    assert sum(given["sent"] for given in results) == 8 * sum(given["halo"] for given in results)


REFUSALS = """
import warnings
whole = ns.from_torch(matrix(6, 6, 0.5, 3), ns.CSR)
messages = given["messages"] = []

def refuse(kind, call):
    messages.append(refused(kind, call))

refuse(ns.RankError, lambda: shard(whole * (rank + 1), mesh))
refuse(ns.NumscorchError, lambda: shard(torch.ones(3) if rank == 0 else whole, mesh))
refuse(ns.SizeError, lambda: shard(whole, mesh, partition="columns"))
refuse(ns.SizeError, lambda: shard(whole, mesh, partition=[6] * ranks))
refuse(ns.UnsupportedError, lambda: shard(whole, mesh, [Shard(1)]))
A = shard(whole, mesh)
refuse(ns.SizeError, lambda: A @ torch.ones(6 + ranks, 2, dtype=torch.float64))
refuse(ns.UnsupportedError, lambda: ns.einsum("ij,jk->ik", A, A))
refuse(ns.UnsupportedError, lambda: A @ None)
refuse(ns.UnsupportedError, lambda: A @ torch.ones(6, 2).int())
with torch.autocast("cpu", dtype=torch.bfloat16):  # converts operands, as for a matrix of one process
    assert (A.to(torch.float32) @ torch.ones(A.exchange.owned, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16
refuse(ns.UnsupportedError, lambda: ns.einsum("ij,jk->ik", A, torch.ones(6, 2).double(), reduce="max"))
refuse(ns.UnsupportedError, lambda: ns.einsum("ij,ij->i", A, torch.ones(6, 6).double()))
refuse(ns.UnsupportedError, lambda: ns.evaluate("y[j] = A[i,j]", A=A))
refuse(ns.UnsupportedError, lambda: torch.cumsum(A, 0))
v, w = A.rows_of(dense(6)), A.rows_of(dense(6, 2))
with warnings.catch_warnings():
    warnings.simplefilter("error")
    for call in (lambda: A + 1, lambda: torch.exp(A), lambda: A - torch.tensor(2.0)):
        refuse(ns.UnsupportedError, call)
for call in (lambda: torch.sum(A.t()), lambda: ns.evaluate("y[j] = T[j,i] * x[i]", T=A.t(), x=v), lambda: A @ A.t()):
    refuse(ns.UnsupportedError, call)
refuse(ns.SizeError, lambda: A.t() @ w[..., None])
given["transforms"] = [
    refused(ns.UnsupportedError, call)
    for call in (
        lambda: torch.vmap(lambda x: A @ x, 1)(w), lambda: torch.func.grad(lambda x: (A @ x).sum())(v),
        lambda: torch.func.grad(lambda values: A.with_values(values).sum())(A.values),
        lambda: torch.func.jvp(lambda x: A.t() @ x, (v,), (v,)),
    )
]
for statement in (
    "y[i] = A[i,j] + x[j]", "y[i] = relu(A[i,j] - x[j])", "s = x[j]; y[i] = A[i,j] * x[j] / s", "E[i,j] = exp(A[i,j]); y[i] = E[i,j]",
    "y[i] max= A[i,j]", "P[i,j] = A[i,j] + x[i]", "B[j,i] = A[i,j]",
):
    refuse(ns.NumscorchError, lambda: ns.evaluate(statement, A=A, x=v))
refuse(ns.UnsupportedError, lambda: ns.einsum("ij->ji", A))
refuse(ns.UnsupportedError, lambda: torch.linalg.norm(A, 2))
refuse(ns.RangeError, lambda: A.sum(2))
refuse(ns.RankError, lambda: shard(whole, mesh, permute=torch.arange(6).roll(rank)))
refuse(ns.RankError, lambda: shard(whole, mesh, partition=[2 + 2 * rank, 4 - 2 * rank]))
refuse(ns.RankError, lambda: A @ dense(3, 2 + rank))
refuse(ns.RankError, lambda: ns.einsum("ij,jk->ik", A, dense(3, 2, dtype=(torch.float64, torch.float32)[rank])))
trained = whole.with_values(whole.values.clone().requires_grad_())
refuse(ns.NumscorchError, lambda: shard(trained if rank == 0 else None, mesh))
layer = ns.nn.GCNConv(2, 2).double()
refuse(ns.UnsupportedError, lambda: layer(w, A, torch.zeros(A.local.nnz)))
refuse(ns.SizeError, lambda: ns.nn.SAGEConv(2, 2).double()(dense(6, 2), A))
uneven = from_local_rows(whole[3 * rank : 3 * rank + 3], mesh, columns=[4, 2])
refuse(ns.SizeError, lambda: ns.nn.SAGEConv(2, 2).double()(w, uneven))
refuse(ns.SizeError, lambda: A.gathered(w[:2]))
refuse(ns.RankError, lambda: A.gathered(dense(3, 2 + rank)))
refuse(ns.SizeError, lambda: A @ distribute_tensor(dense(7, 2), mesh, [Replicate()]))
refuse(ns.SizeError, lambda: A @ distribute_tensor(dense(8, 2), mesh, [Shard(0)]))
refuse(ns.RankError, lambda: A @ dense(3, 2).requires_grad_(rank == 0))
same(A.gathered(distribute_tensor(dense(6, 2), mesh, [Shard(0)])), dense(6, 2))
same(A.gathered(distribute_tensor(dense(6, 2), mesh, [Replicate()])), dense(6, 2))
"""


def test_refusals(tmp_path: Path) -> None:
    """All ranks raise, also if only one of them finds the fault."""
    results = together(PRELUDE + REFUSALS, tmp_path)
    (first, second), transforms = (given["messages"] for given in results), results[0]["transforms"]
    assert first[0].startswith("the matrix differs between ranks 0 and 1")
    assert first[1].startswith("a tensor of 1 dimensions") and second[1].startswith("rank 0 raised SizeError: a tensor of 1 dimensions")
    assert "give 'rows', 'nnz', or the number of rows of each rank" in first[2]
    assert "that add up to 6" in first[3]
    assert len(transforms) == 4 and all("use torch.autograd.grad for gradients" in text for text in transforms)
    assert "this rank has 3 of the 6 columns: pass its rows, as A.rows_of(x) returns, or a DTensor" in first[5]
