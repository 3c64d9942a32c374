"""Issues that users reported for sparse tensors of other libraries work here; names contain the numbers of the issues."""

from __future__ import annotations

import copy
import io
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dense_values import as_dense

import numscorch as ns

D = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)) * (torch.rand(6, 5, generator=torch.Generator().manual_seed(1)) < 0.5)
E = torch.randn(5, 4, generator=torch.Generator().manual_seed(2)) * (torch.rand(5, 4, generator=torch.Generator().manual_seed(3)) < 0.6)
X, Y = torch.randn(5, 3), torch.randn(6, 3)
FORMATS = [ns.CSR, ns.CSC, ns.COO(2), ns.BCSR(2, 2)]

formats = pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),  # raised by torch's compiler
]


def leaf(full: torch.Tensor, format: ns.Format = ns.CSR) -> ns.SparseTensor:
    A = ns.from_torch(full, format)
    return A.with_values(A.values.clone().requires_grad_())


def gradient(function: Any, full: torch.Tensor) -> torch.Tensor:
    dense = full.clone().requires_grad_()
    function(dense).sum().backward()
    assert dense.grad is not None
    return dense.grad * (full != 0)


@formats
def test_pytorch_16070_einsum_takes_sparse_operands(format: ns.Format) -> None:
    torch.testing.assert_close(torch.einsum("ij,jk->ik", ns.from_torch(D, format), X), D @ X)


def test_pytorch_72065_batches_of_sparse_products() -> None:
    left, right = ns.stack([ns.from_torch(D), ns.from_torch(2 * D)]), ns.stack([ns.from_torch(E), ns.from_torch(-E)])
    result = ns.einsum("bij,bjk->bik", left, right)
    torch.testing.assert_close(result.to_dense(), torch.stack([D @ E, -2 * D @ E]))


@formats
def test_pytorch_41128_the_gradient_of_a_product_has_the_pattern(format: ns.Format) -> None:
    A = leaf(D, format)
    (A @ X).sum().backward()
    assert A.grad is not None
    assert A.grad.pattern is A.pattern
    torch.testing.assert_close(A.grad.to_dense()[D != 0], gradient(lambda full: full @ X, D)[D != 0])


def test_pytorch_118883_gradients_of_a_sampled_product() -> None:
    x, y = Y.clone().requires_grad_(), X.clone().requires_grad_()
    ns.einsum("ik,jk->ij", x, y, mask=ns.from_torch(D)).values.sum().backward()
    expected = (D != 0).float()
    torch.testing.assert_close(x.grad, expected @ X)
    torch.testing.assert_close(y.grad, expected.t() @ Y)


def test_pytorch_105548_gradients_of_batches_of_sampled_products() -> None:
    batch, x, y = ns.stack([ns.from_torch(D), ns.from_torch(D.flip(0))]), torch.randn(2, 6, 3, requires_grad=True), torch.randn(2, 5, 3)
    ns.einsum("bij,bik,bjk->bij", batch, x, y).values.sum().backward()
    torch.testing.assert_close(x.grad, torch.stack([D @ y[0], D.flip(0) @ y[1]]))


def test_pytorch_49683_a_constructor_s_gradient_is_that_of_its_values() -> None:
    values = torch.rand(3, requires_grad=True)
    A = ns.from_coo([[0, 1, 2], [1000, 5, 9]], values, (3, 10**9))
    A.values.square().sum().backward()
    torch.testing.assert_close(values.grad, 2 * values.detach())


@formats
def test_pytorch_134396_softmax_of_compressed_rows(format: ns.Format) -> None:
    full = D + (torch.eye(6, 5) * 1e-3)
    result = torch.softmax(ns.from_torch(full, format), 1).to_dense()
    stored = ns.from_torch(full, format)
    inside = stored.with_values(torch.ones_like(stored.values)).to_dense() != 0
    expected = torch.softmax(torch.where(inside, full, -torch.inf), 1)
    torch.testing.assert_close(result, expected.nan_to_num())


@formats
def test_pytorch_98796_sums_along_a_dimension(format: ns.Format) -> None:
    A = ns.from_torch(D, format)
    for dim in (0, 1):
        torch.testing.assert_close(torch.sum(A, dim), D.sum(dim))


@formats
@pytest.mark.parametrize("shape", [(5,), (6, 1), (1, 5), (6, 5), (1,), (2, 6, 5)])
def test_pytorch_3158_46307_sparse_times_broadcast_dense(shape: tuple[int, ...], format: ns.Format) -> None:
    A, other = ns.from_torch(D, format), torch.randn(shape)
    torch.testing.assert_close((A * other).to_dense(), D * other)
    torch.testing.assert_close((other * A).to_dense(), D * other)
    torch.testing.assert_close((A / (other.abs() + 1)).to_dense(), D / (other.abs() + 1))


@formats
def test_pytorch_158861_broadcasting_along_each_dimension(format: ns.Format) -> None:
    """torch silently repeats the wrong dimension; here, rows and columns have different values."""
    ones = (D != 0).float()
    A = ns.from_torch(ones, format)
    rows, columns = torch.arange(1.0, 7)[:, None], torch.arange(10.0, 15)
    torch.testing.assert_close((A * rows).to_dense(), ones * rows)
    torch.testing.assert_close((A * columns).to_dense(), ones * columns)
    with pytest.raises(RuntimeError):
        A * torch.ones(6)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_pytorch_116633_products_of_torchs_sparse_tensors(layout: torch.layout) -> None:
    """Products of native sparse tensors, also hybrid ones, keep unstored entries 0."""
    native = D.to_sparse(layout=layout)
    for other in (torch.randn(6, 1), torch.randn(1, 5), torch.randn(5)):
        torch.testing.assert_close(ns.mul(native, other).to_dense(), D * other)
    hybrid, other = D.to_sparse(1), torch.randn(6, 1)
    torch.testing.assert_close((ns.from_torch(hybrid) * other).to_dense(), D * other)


@formats
def test_pytorch_150277_indexing_and_slices(format: ns.Format) -> None:
    A = ns.from_torch(D, format)
    mask = torch.tensor([True, False, True, False, True, True])
    for result, expected in (
        (A[2], D[2]),
        (A[1:4, ::2], D[1:4, ::2]),
        (A[mask], D[mask]),
        (A[:, [4, 0]], D[:, [4, 0]]),
        (A[-1, -1], D[-1, -1]),
    ):
        torch.testing.assert_close(as_dense(result), expected)
    with pytest.raises(ns.SizeError, match="index 6 is out of range along dim 0"):
        A[6]


@formats
def test_pytorch_105790_reductions_other_than_sums(format: ns.Format) -> None:
    A, terms = ns.from_torch(D, format), D[:, :, None] * X
    torch.testing.assert_close(ns.einsum("ij,jk->ik", A, X, reduce="max"), terms.amax(1))
    torch.testing.assert_close(ns.einsum("ij,jk->ik", A, X, reduce="mean"), terms.mean(1))


@formats
def test_pytorch_8853_operators_and_their_gradients(format: ns.Format) -> None:
    for function in (
        lambda t: torch.tanh(t),
        lambda t: t.t(),
        lambda t: torch.cat([t, t]),
        lambda t: t * t + t,
        lambda t: t.reshape(3, 10),
    ):
        A = leaf(D, format)
        function(A).to_dense().sum().backward()
        assert A.grad is not None
        torch.testing.assert_close(A.grad.to_dense()[D != 0], gradient(function, D)[D != 0])


def test_pytorch_9222_a_layer_of_blocks() -> None:
    pattern = torch.block_diag(*[torch.ones(4, 2)] * 3)
    layer = ns.nn.SparseLinear(6, 12, pattern=pattern, format=ns.BCSR(4, 2))
    inputs = torch.randn(7, 6)
    torch.testing.assert_close(layer(inputs), layer.to_dense()(inputs))
    assert layer.weight.format == ns.BCSR(4, 2)


def test_pytorch_56959_conversions_copy_neither_values_nor_indices() -> None:
    for dtype in (torch.int32, torch.int64):
        A = ns.from_coo(torch.tensor([[0, 1], [1, 0]], dtype=dtype), torch.ones(2), (2, 2))
        csr = A.to(ns.CSR)
        coo = csr.to(ns.COO(2))
        assert A.pattern.index_dtype == csr.pattern.index_dtype == coo.pattern.index_dtype == str(dtype).removeprefix("torch.")
        assert csr.values.data_ptr() == coo.values.data_ptr() == A.values.data_ptr()
        assert csr.pattern.arrays[1][1].data_ptr() == A.pattern.arrays[1][0].data_ptr()


def test_pytorch_106141_coordinates_of_32_bits() -> None:
    """torch widens COO coordinates to 64 bits."""
    indices = torch.tensor([[0, 1, 1], [1, 0, 2]], dtype=torch.int32)
    A = ns.from_coo(indices, torch.ones(3), (2, 3))
    assert A.format == ns.COO(2)
    assert {array.dtype for level in A.pattern.arrays for array in level} == {torch.int32}
    assert (A + A).pattern.index_dtype == (A * torch.ones(3)).pattern.index_dtype == A.t().pattern.index_dtype == "int32"
    assert torch.equal(A @ torch.ones(3), torch.tensor([1.0, 2.0]))


def test_pytorch_102520_sizes_beyond_int32() -> None:
    A = ns.from_coo([[0, 2**40], [5, 1]], [1.0, 2.0], (2**41, 8))
    assert A.pattern.index_dtype == "int64"
    torch.testing.assert_close(torch.sum(A, 0), torch.tensor([0.0, 2, 0, 0, 0, 1, 0, 0]))


class Net(torch.nn.Module):
    """A module with a sparse parameter created from a dense tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = ns.nn.Parameter(ns.from_torch(D))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return F.linear(inputs, self.weight)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_pytorch_171865_compiled_modules_with_sparse_weights(backend: str) -> None:
    torch.compiler.reset()
    net, inputs = Net(), torch.randn(4, 5)
    output = torch.compile(net, fullgraph=True, backend=backend)(inputs)
    output.sum().backward()
    torch.testing.assert_close(output, inputs @ D.t())
    assert net.weight.grad is not None
    torch.compiler.reset()


def test_pytorch_150083_inductor_asks_for_no_strides() -> None:
    """The sparse matrix is an argument of the program, or captured by it."""
    torch.compiler.reset()
    A, inputs = ns.from_torch(D), torch.randn(5, 3)
    run = torch.compile(lambda sparse, x: torch.relu(ns.einsum("ij,jk->ik", sparse, x)) + ns.einsum("ij,jk->ik", A, x), fullgraph=True)
    torch.testing.assert_close(run(A, inputs), torch.relu(D @ inputs) + D @ inputs)
    torch.compiler.reset()


def test_pytorch_117188_exported_programs() -> None:
    inputs = torch.randn(4, 5)
    exported = torch.export.export(Net().eval(), (torch.ones(4, 5),))
    torch.testing.assert_close(exported.module()(inputs), inputs @ D.t())


def test_pytorch_106837_20248_batches_of_workers() -> None:
    items = [ns.from_torch(torch.triu(torch.ones(3, 3), at)) for at in range(4)]
    (batch,) = torch.utils.data.DataLoader(items, batch_size=4, num_workers=1)
    torch.testing.assert_close(batch.to_dense(), torch.stack([item.to_dense() for item in items]))


def test_pytorch_39982_a_sparse_parameter_is_a_leaf() -> None:
    net = Net()
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in net.parameters())
    net(torch.ones(1, 5)).sum().backward()
    assert net.weight.values.grad is not None


def test_pytorch_71652_the_state_of_a_module() -> None:
    net = Net()
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.weight.values.mul_(0)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other.weight.to_dense(), D)


def test_pytorch_84537_101370_adam_trains_sparse_parameters() -> None:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    before = net.weight.to_dense()
    net(torch.ones(4, 5)).sum().backward()
    optimizer.step()
    assert bool(((net.weight.to_dense() != before) == (D != 0)).all())
    assert optimizer.state[net.weight.values]["exp_avg"].shape == net.weight.values.shape


def test_pytorch_36214_pruning_saves_memory() -> None:
    def size(layer: torch.nn.Module) -> int:
        buffer = io.BytesIO()
        torch.save(layer.state_dict(), buffer)
        return len(buffer.getvalue())

    assert size(ns.nn.SparseLinear(512, 512, density=0.1)) < size(torch.nn.Linear(512, 512)) / 4


def test_pytorch_79542_distributed_data_parallel(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = torch.nn.parallel.DistributedDataParallel(Net())
        net(torch.randn(4, 5)).sum().backward()
        assert net.module.weight.values.grad is not None
        del net  # before its group, whose end waits for threads that may wait for Python
    finally:
        torch.distributed.destroy_process_group()


def test_pytorch_ao_143_a_mask_that_grows_again_while_training() -> None:
    layer = ns.nn.SparseLinear(5, 6, pattern=D)
    denser = layer.weight.to_dense().detach() + torch.where(torch.eye(6, 5) * (D == 0) != 0, 1e-3, 0.0)
    layer.weight = ns.nn.Parameter(ns.from_torch(denser))
    layer(torch.randn(2, 5)).sum().backward()
    assert layer.weight.grad.nnz == int((denser != 0).sum())


@formats
def test_pytorch_sparse_248_einsum(format: ns.Format) -> None:
    A, B = ns.from_torch(D, format), ns.from_torch(E, format)
    for expression, operands, expected in (
        ("ij,jk->ik", (A, B), D @ E),
        ("ij,jk->ki", (A, X), (D @ X).t()),
        ("ij,ij,jk->i", (A, A, B), torch.einsum("ij,ij,jk->i", D, D, E)),
        ("ij->ji", (A,), D.t()),
    ):
        result = ns.einsum(expression, *operands)
        torch.testing.assert_close(result.to_dense(), expected)


@formats
def test_pytorch_sparse_45_gradients_of_products_of_sparse_matrices(format: ns.Format) -> None:
    A, B = leaf(D, format), leaf(E, format)
    ns.einsum("ij,jk->ik", A, B).to_dense().sum().backward()
    assert A.grad is not None
    assert B.grad is not None
    torch.testing.assert_close(A.grad.to_dense()[D != 0], gradient(lambda full: full @ E, D)[D != 0])
    torch.testing.assert_close(B.grad.to_dense()[E != 0], gradient(lambda full: D @ full, E)[E != 0])


@formats
def test_pytorch_sparse_27_products_and_sums_by_element(format: ns.Format) -> None:
    other = D.flip(0)
    A, B = ns.from_torch(D, format), ns.from_torch(other, format)
    torch.testing.assert_close((A * B).to_dense(), D * other)
    torch.testing.assert_close((A + B).to_dense(), D + other)
    torch.testing.assert_close((A - 2 * B).to_dense(), D - 2 * other)


def test_pytorch_sparse_270_81_derived_data_of_a_matrix_is_cached() -> None:
    """Reports were about data that was derived again at each call; benchmarks/ measures the speed of kernels."""
    A = ns.from_torch(D, ns.COO(2))
    ns.einsum("ij,ik->jk", A, Y)
    cached = dict(A.pattern.derived)
    for _ in range(3):
        ns.einsum("ij,ik->jk", A.with_values(A.values * 2), Y)
    assert A.pattern.derived.keys() == cached.keys()
    assert all(A.pattern.derived[key] is value for key, value in cached.items())


def test_pytorch_sparse_250_395_nothing_is_built_at_installation() -> None:
    """The package has no compiled extension: it has Python files only."""
    home = Path(ns.__file__).parent
    files = [path for path in home.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.suffix for path in files} <= {".py", ".typed", ".css", ".html"}
    project = tomllib.loads((home.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["build-system"]["requires"] == ["setuptools>=77"]
    assert "ext-modules" not in project.get("tool", {}).get("setuptools", {})
