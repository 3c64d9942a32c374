"""Matrices on meshes of two dimensions: rows and columns (1.5D), and rows and features. Results and gradients equal one process's."""

from __future__ import annotations

from pathlib import Path

import pytest
from sharded_programs import GRIDS, PRELUDE, on_mesh
from two_processes import together, two_processes

pytestmark = [pytest.mark.process, two_processes]
CLOSE = """
from torch.distributed.tensor import Partial
own = Shard(0)
full = matrix(11, 11, 0.3, 1)
whole = ns.from_torch(full, ns.CSR)
x, y, w = dense(11, 4, seed=1), dense(11, 4, seed=2), dense(2, 4, seed=3)

def leaf(value, placements):
    return distribute_tensor(value, mesh, placements).requires_grad_()

def trained_twin():
    return whole.values.clone().requires_grad_()

def equal(gradients, wanted):
    for gradient, want in zip(gradients, wanted, strict=True):
        same(gradient.full_tensor(), want)
"""

COLUMNS = """
A = shard(whole, mesh, placements)
for operand in ([own, own], [own, Replicate()], [Replicate(), Replicate()]):
    X, Y, W = leaf(x, operand), leaf(y, operand), leaf(w, [Replicate(), Replicate()])
    trained, values = A.with_values(A.values.clone().requires_grad_()), trained_twin()
    twins = [value.clone().requires_grad_() for value in (x, y, w)]
    result = ns.einsum("ij,jf,of->io", trained, X, W).relu()
    assert result.placements == (own, own), result.placements
    product = trained.t() @ Y
    assert product.placements == (own, own), product.placements
    total = ns.einsum("ij,ik,jk->", trained, Y, X)
    assert all(placement.is_partial() for placement in total.placements), total.placements
    scores = ns.einsum("ij,ik,jk->ij", trained, Y, X) @ X
    twin = whole.with_values(values)
    expected = [(twin @ twins[0] @ twins[2].T).relu(), twin.t() @ twins[1], ns.einsum("ij,ik,jk->", twin, twins[1], twins[0]).reshape(())]
    expected.append(ns.einsum("ij,ik,jk->ij", twin, twins[1], twins[0]) @ twins[0])
    equal([result, product, total, scores], expected)
    loss = sum(value.square().sum() for value in (result, product, scores)) + total.redistribute(placements=[Replicate()] * 2)
    loss.full_tensor().backward()
    (sum(value.square().sum() for value in (expected[0], expected[1], expected[3])) + expected[2]).backward()
    equal([X.grad, Y.grad, W.grad], [value.grad for value in twins])
    same(A.with_values(trained.values.grad).full_tensor().to_dense(), whole.with_values(values.grad).to_dense())
S = DTensor.from_local(x / ranks, mesh, [Partial(), Partial()])
with ns.strict():
    refused(ns.UnsupportedError, lambda: A @ S)
    same((A @ leaf(x, [own, own])).full_tensor(), full @ x)
"""


@pytest.mark.parametrize("extents", GRIDS)
def test_columns_over_the_second_dimension(extents: tuple[int, ...], tmp_path: Path) -> None:
    """1.5D products with dense operands in all supported placements, which may be replicated over the second dimension."""
    together(PRELUDE + CLOSE + COLUMNS, tmp_path, **on_mesh(extents))


FEATURES = """
def summed(gradient, dim):
    dist.all_reduce(gradient, group=mesh.get_group(dim))
    return gradient

for rows, features in ((0, 1), (1, 0)):
    def on(row, feature):
        return [row, feature] if rows == 0 else [feature, row]

    A = shard(whole, mesh, on(own, Replicate()))
    for first, second in ((own, Shard(1)), (own, Replicate()), (Replicate(), Shard(1))):
        X, W = leaf(x, on(first, second)), leaf(w, on(Replicate(), Replicate() if second == Replicate() else Shard(1)))
        Y = leaf(y, on(own, second))
        trained, values = A.with_values(A.values.clone().requires_grad_()), trained_twin()
        twins = [value.clone().requires_grad_() for value in (x, w, y)]
        product = trained @ X
        assert product.placements == tuple(on(own, second)), product.placements
        mixed = ns.einsum("ij,jf,of->io", trained, X, W)
        assert mixed.placements == tuple(on(own, Replicate() if second == Replicate() else Partial())), mixed.placements
        scores = ns.einsum("ij,ik,jk->ij", trained, Y, X) @ X
        functions = ns.evaluate("z[i,k] = relu(A[i,j] * x[j,k]) + y[i,k]", A=trained, x=X, y=Y)
        assert functions.placements == product.placements, functions.placements
        twin = whole.with_values(values)
        expected = [twin @ twins[0], twin @ twins[0] @ twins[1].T, ns.einsum("ij,ik,jk->ij", twin, twins[2], twins[0]) @ twins[0]]
        expected.append((twin @ twins[0]).relu() + twins[2])
        results = [product, mixed, scores, functions]
        equal(results, expected)
        sum(value.square().sum() for value in results).full_tensor().backward()
        sum(value.square().sum() for value in expected).backward()
        equal([X.grad, W.grad, Y.grad], [value.grad for value in twins])
        gradient = trained.values.grad if second == Replicate() else summed(trained.values.grad, features)
        same(A.with_values(gradient).full_tensor().to_dense(), whole.with_values(values.grad).to_dense())
    same(A.sum(), full.sum())
    same(A.full_tensor().to_dense(), full)
    own_x = A.rows_of(x).tensor_split(extents[features], 1)[mesh.get_local_rank(features)]
    part = (full @ x).tensor_split(extents[features], 1)[mesh.get_local_rank(features)]
    same(A @ own_x, A.rows_of(part, 0))
    refused(ns.UnsupportedError, lambda: ns.evaluate("z[i] = A[i,j] * x[j,k] * w[o,k]", A=A, x=leaf(x, on(own, Shard(1))), w=w))
"""


@pytest.mark.parametrize("extents", GRIDS)
def test_rows_and_features(extents: tuple[int, ...], tmp_path: Path) -> None:
    """Rows over one dimension of the mesh, columns of the dense operand over the other one, in either order."""
    together(PRELUDE + CLOSE + FEATURES, tmp_path, **on_mesh(extents))


BYTES = """
full = matrix(60, 60, 0.03, 5)  # many rows and columns of a rank have no entries
A = shard(ns.from_torch(full, ns.CSR), mesh, placements)
A @ A.rows_of(dense(60, 4))
given["sent"] = A.exchange.bytes_sent, A.row_exchange.bytes_sent
given["report"] = A.report()
blocks, shares = extents
pieces = [piece for block in torch.arange(60).chunk(blocks) for piece in block.chunk(shares)]  # of rows and of columns, by rank
halo = partial = 0
for at, mine in enumerate(pieces):
    block, share = divmod(at, shares)
    rows, columns = torch.cat(pieces[block * shares :][:shares]), torch.cat(pieces[share::shares])
    entries = torch.zeros_like(full, dtype=torch.bool)
    entries[rows[:, None], columns] = full[rows[:, None], columns] != 0
    halo += len(set(entries.any(0).nonzero().flatten().tolist()) - set(mine.tolist()))
    partial += len(set(entries.any(1).nonzero().flatten().tolist()) - set(mine.tolist()))
given["pattern"] = halo, partial
"""


@pytest.mark.parametrize("extents", GRIDS)
def test_rows_sent_are_those_of_the_pattern(extents: tuple[int, ...], tmp_path: Path) -> None:
    """The bytes that all ranks send are those of halo rows, and of rows of partial results that have entries: 4 columns of 8 bytes."""
    results = together(PRELUDE + CLOSE + BYTES, tmp_path, **on_mesh(extents))
    halo, partial = results[0]["pattern"]
    report = results[0]["report"]
    assert (sum(report.halo_rows), sum(report.partial_rows)) == (halo, partial)
    assert sum(given["sent"][0] for given in results) == 4 * 8 * halo
    assert sum(given["sent"][1] for given in results) == 4 * 8 * partial


OTHERS = """
from numscorch.nn import GATConv, GCNConv
A = shard(whole, mesh, placements, permute="nnz")

def matrix_of(A):
    return A.full_tensor().to_dense()

same(matrix_of(2 * A.abs().sqrt() - A), 2 * full.abs().sqrt() - full)
for dim in (0, 1):
    same(A.gathered(A.sum(dim)), full.sum(dim))
same(A.norm(), full.norm())
same(A.norm(float("inf")), full.abs().max())
same(A.gathered(A @ (A @ A.rows_of(x)).relu()), full @ (full @ x).relu())
own_rows = slice(*ns.sharding.Partition.even(11, extents[0]).range_of(mesh.get_local_rank(0)))
same(from_local_rows(whole[own_rows], mesh, placements=placements).full_tensor().to_dense(), full)
path = os.path.join(place, "matrix.npz")
if rank == 0:
    ns.save(whole, path)
dist.barrier()
same(ns.sharding.load(path, mesh, placements, partition="nnz").full_tensor().to_dense(), full)
graph = ns.from_torch(full.abs() + torch.eye(11, dtype=torch.float64), ns.CSR)
weights = torch.nn.Parameter(dense(3, 4, seed=4))
layers = [GCNConv(4, 3, **options).double() for options in ({"add_self_loops": False}, {"normalize": False})]
for layer in layers:
    layer.lin.weight = weights
G = shard(graph, mesh, placements)
roots = G.sum(1).pow(-0.5)
normalized = ns.einsum("ij,i,j->ij", G, roots, roots)
same(G.gathered(layers[1](G.rows_of(x), normalized)), layers[0](x, graph))
given["error"] = refused((ns.SizeError, ns.RankError), lambda: G @ (G.rows_of(x) if rank < ranks - 1 else x))
same(G.gathered(G @ G.rows_of(x)), graph.to_dense() @ x)
messages = given["messages"] = []
for call in (
    lambda: torch.softmax(A, 1),
    lambda: GATConv(4, 3).double()(A.rows_of(x), A),
    lambda: ns.evaluate("y[i] = A[i,j] * v[j]", A=A, v=A.rows_of(x[:, 0])),
    lambda: G @ leaf(x, [Replicate(), own]),
    lambda: G @ leaf(x, [own, Shard(1)]),
    lambda: shard(whole, mesh, [own, Replicate()]) @ leaf(x, [own, own]),
    lambda: shard(whole, mesh, [Shard(1), own]),
    lambda: shard(whole, mesh),
    lambda: from_local_rows(whole if rank == 0 else 2 * whole, mesh, placements=placements),
):
    messages.append(refused(ns.NumscorchError, call))
"""


def test_functions_and_refusals(tmp_path: Path) -> None:
    """Functions of entries and sums; an error of one rank, functions of whole rows and other placements are refused on all ranks."""
    *others, failed = results = together(PRELUDE + CLOSE + OTHERS, tmp_path, **on_mesh((2, 2)))
    for given in others:
        assert given["error"] == f"rank 3 raised SizeError: {failed['error']}"
    for given in results:
        softmax, layer, statement, columns, features, replicated, order, few, rows = given["messages"]
        for message in (softmax, layer, statement):
            assert "needs whole rows on each rank" in message and "shard with Replicate() instead of Shard(1)" in message, message
        for message in (columns, features):
            assert "and shares j with dimension 0 of the operand: pass" in message, message
        assert "j is sharded in one operand over dimension 1 of the mesh" in replicated
        assert "redistribute that operand, with Replicate() over dimension 1" in replicated
        for message in (order, few):
            assert "give one for each dimension" in message, message
        assert "ranks with the same block of rows pass different rows" in rows


WEIGHTS = """
from copy import deepcopy
torch.manual_seed(0)
layer = SparseLinear(4, 9, density=0.5).double()
twin = deepcopy(layer)
layer.weight = ns.nn.Parameter(shard(layer.weight, mesh, [own, Replicate()]))
X, copy = leaf(x, [Replicate(), own]), x.clone().requires_grad_()
result, expected = layer(X), twin(copy)
assert result.placements == (Shard(1), own), result.placements
same(result.full_tensor(), expected)
result.square().sum().full_tensor().backward()
expected.square().sum().backward()
same(X.grad.full_tensor(), copy.grad)
dist.all_reduce(layer.weight.values.grad, group=mesh.get_group(1))
weight = layer.weight.tensor
gradient = twin.weight.tensor.with_values(twin.weight.values.grad)
same(weight.with_values(layer.weight.values.grad).full_tensor().to_dense(), gradient.to_dense())
layer.load_state_dict(twin.state_dict())
layer.load_state_dict(layer.state_dict())
refused(ns.UnsupportedError, lambda: ns.nn.Parameter(shard(whole, mesh, placements)))
"""


@pytest.mark.parametrize("extents", [(1, 2), (2, 2)])
def test_weights_and_batches(extents: tuple[int, ...], tmp_path: Path) -> None:
    """Output features over one dimension of the mesh, and the batch over the other one."""
    together(PRELUDE + CLOSE + WEIGHTS, tmp_path, **on_mesh(extents))
