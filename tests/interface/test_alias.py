"""``import numscorch as torch`` works: numscorch hides no function of torch without its documented behaviour."""

from __future__ import annotations

import copy
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch as real

import numscorch as torch

SHARED = sorted(name for name in set(dir(real)) & set(vars(torch)) if not name.startswith("__"))


def einsum() -> None:
    """The documented examples of torch."""
    x, y = real.randn(5), real.randn(4)
    assert real.equal(torch.einsum("i,j->ij", x, y), real.einsum("i,j->ij", x, y))
    A, left, right = real.randn(3, 5, 4), real.randn(2, 5), real.randn(2, 4)
    real.testing.assert_close(torch.einsum("bn,anm,bm->ba", left, A, right), real.einsum("bn,anm,bm->ba", left, A, right))
    batch, other = real.randn(3, 2, 5), real.randn(3, 5, 4)
    assert real.equal(torch.einsum("bij,bjk->bik", batch, other), real.einsum("bij,bjk->bik", batch, other))
    assert real.equal(torch.einsum(batch, [..., 0, 1], other, [..., 1, 2], [..., 0, 2]), real.einsum("...ij,...jk->...ik", batch, other))
    assert real.equal(torch.einsum("...ij->...ji", batch), batch.permute(0, 2, 1))
    real.testing.assert_close(torch.einsum("ii", A[0, :4]), A[0, :4].trace())
    assert real.equal(torch.einsum("i,j->ij", [x, y]), real.einsum("i,j->ij", x, y))
    numbers = real.arange(4).reshape(2, 2)
    assert real.equal(torch.einsum("ij,jk->ik", numbers, numbers), numbers @ numbers)
    weight = real.randn(4, 3, requires_grad=True)
    torch.einsum("ij->", weight).backward()
    assert weight.grad is not None


def load() -> None:
    """Loads from a file and a buffer, with keywords."""
    import io

    buffer = io.BytesIO()
    torch.save({"weight": real.arange(3.0)}, buffer)
    for keywords in ({}, {"weights_only": True}, {"map_location": "cpu"}, {"map_location": real.device("cpu"), "weights_only": False}):
        buffer.seek(0)
        assert real.equal(torch.load(buffer, **keywords)["weight"], real.arange(3.0))
    buffer.seek(0)
    assert list(torch.load(f=buffer)) == ["weight"]


def save() -> None:
    """Saves of any object to a path or a buffer, with keywords."""
    import io
    import tempfile

    buffer = io.BytesIO()
    torch.save(obj=[real.arange(2)], f=buffer, pickle_protocol=2, _use_new_zipfile_serialization=False)
    buffer.seek(0)
    assert real.equal(real.load(buffer)[0], real.arange(2))
    with tempfile.TemporaryDirectory() as folder:
        for path in (f"{folder}/a.pt", Path(folder) / "b.pt"):
            torch.save({"weight": real.arange(3.0)}, path)
            assert real.equal(real.load(path)["weight"], real.arange(3.0))


def tensor() -> None:
    """Nested lists, numbers and arrays, with dtype and requires_grad."""
    for data in (1.5, [[0, 1], [2, 3]], real.arange(3.0).numpy(), [True, False]):
        result, expected = torch.tensor(data), real.tensor(data)
        assert type(result) is real.Tensor
        assert result.dtype == expected.dtype
        assert real.equal(result, expected)
    assert torch.tensor([1, 2], dtype=real.float64, device="cpu", requires_grad=True).requires_grad
    assert torch.tensor(data=[1, 2]).dtype == real.int64


def nn() -> None:
    """Modules, parameters and functions."""
    layer = torch.nn.Linear(3, 2)
    assert isinstance(layer, real.nn.Linear)
    assert isinstance(torch.nn.Parameter(real.ones(2)), real.nn.Parameter)
    assert torch.nn.functional.relu is real.nn.functional.relu
    assert torch.nn.init is real.nn.init


def arithmetic() -> None:
    """Operators with alpha, out, dtype, dim, keepdim, numbers and gradients."""
    x, y = real.randn(3, 4), real.randn(4)
    for name in ("add", "sub", "mul", "div"):
        function, reference = getattr(torch, name), getattr(real, name)
        assert real.equal(function(x, y), reference(x, y))
        assert real.equal(function(x, 2), reference(x, 2))
        assert function(x, y, out=(out := real.empty(3, 4))) is out
    assert real.equal(torch.add(x, y, alpha=2), x + 2 * y)
    assert real.equal(torch.div(x, y, rounding_mode="floor"), real.div(x, y, rounding_mode="floor"))
    assert real.equal(torch.add(input=x, other=y), x + y)
    assert torch.sum(x, dtype=real.float64).dtype == real.float64
    for name in ("sum", "mean", "amax", "amin"):
        assert real.equal(getattr(torch, name)(x, dim=1, keepdim=True), getattr(real, name)(x, dim=1, keepdim=True))
    assert real.equal(torch.softmax(x, -1), x.softmax(-1))
    assert torch.softmax(x, dim=0, dtype=real.float64).dtype == real.float64
    weight = real.randn(4, requires_grad=True)
    torch.sum(torch.mul(x, weight)).backward()
    assert real.equal(weight.grad, x.sum(0))


def matmul() -> None:
    """Vectors, matrices, broadcast batches, out, gradients, and native sparse matrices."""
    vector, matrix, batch = real.randn(4), real.randn(3, 4), real.randn(2, 4, 5)
    for left, right in ((vector, vector), (matrix, vector), (matrix, batch), (batch[0].T, vector), (batch.mT, vector)):
        assert real.equal(torch.matmul(left, right), real.matmul(left, right))
    assert torch.matmul(input=matrix, other=vector, out=(out := real.empty(3))) is out
    sparse = matrix.to_sparse_csr().requires_grad_()
    torch.matmul(sparse, vector).sum().backward()
    assert sparse.grad is not None


def stack() -> None:
    """Any dimension, out, a tuple or a list, and gradients."""
    x, y = real.randn(2, 3), real.randn(2, 3, requires_grad=True)
    for dim in (0, 1, 2, -1):
        assert real.equal(torch.stack([x, y], dim), real.stack([x, y], dim))
        assert real.equal(torch.stack((x, y), dim=dim), real.stack((x, y), dim))
    assert torch.stack(tensors=[x, x], out=(out := real.empty(2, 2, 3))) is out
    torch.stack([x, y]).sum().backward()
    assert y.grad is not None
    assert torch.stack([x.to_sparse(), x.to_sparse()]).layout is real.sparse_coo


def sort() -> None:
    """Values and indices, for any dimension and direction."""
    x = real.randn(3, 4)
    for args, keywords in (((), {}), ((0,), {}), ((), {"dim": 0, "descending": True}), ((), {"stable": True, "dim": 1}), ((1, True), {})):
        result, expected = torch.sort(x, *args, **keywords), real.sort(x, *args, **keywords)
        assert real.equal(result.values, expected.values)
        assert real.equal(result.indices, expected.indices)
    out = real.empty(3, 4), real.empty(3, 4, dtype=real.long)
    assert torch.sort(input=x, out=out)[0] is out[0]


def constants() -> None:
    """Sizes as arguments, as a sequence or by keyword; out, dtype, layout, device, requires_grad."""
    for name in ("zeros", "ones"):
        function, reference = getattr(torch, name), getattr(real, name)
        for args, keywords in (
            ((2, 3), {}),
            (((2, 3),), {}),
            (([2, 3],), {}),
            ((real.Size([2, 3]),), {}),
            ((), {"size": (2, 3)}),
            ((), {"size": ()}),
        ):
            result = function(*args, **keywords, dtype=real.int32, device="cpu")
            assert type(result) is real.Tensor
            assert result.dtype == real.int32
            assert real.equal(result, reference(*args, **keywords, dtype=real.int32))
        assert function(2, 3, out=(out := real.empty(2, 3))) is out
        assert function(2, requires_grad=True).requires_grad
    assert torch.zeros(2, 3, layout=real.sparse_csr).layout is real.sparse_csr
    assert torch.zeros((2, 3), layout=real.sparse_coo, dtype=real.float64).dtype == real.float64
    assert real.equal(torch.full((2, 3), 7), real.full((2, 3), 7))
    assert real.equal(torch.full(size=(2,), fill_value=True, dtype=real.float16), real.ones(2, dtype=real.float16))
    assert torch.full((2, 3), 1.5, out=(out := real.empty(2, 3))) is out
    assert torch.empty(2, 3).shape == torch.empty((2, 3)).shape == torch.empty(size=(2, 3)).shape
    assert torch.empty(2, 3, 4, 5, memory_format=real.channels_last).is_contiguous(memory_format=real.channels_last)
    assert torch.empty(2, 3, layout=real.sparse_csc).layout is real.sparse_csc
    assert torch.empty((2, 3), out=(out := real.empty(2, 3))) is out
    assert torch.zeros(2, device="meta").is_meta


def eye() -> None:
    """One or two sizes, also by keyword; out, dtype, layout."""
    for args, keywords in (((3,), {}), ((2, 4), {}), ((), {"n": 3, "m": 2})):
        assert real.equal(torch.eye(*args, **keywords), real.eye(*args, **keywords))
    assert torch.eye(3, out=(out := real.empty(3, 3)), dtype=real.float32, requires_grad=False, layout=real.strided) is out
    assert torch.eye(3, dtype=real.bool).dtype == real.bool


def diag() -> None:
    """A vector or a matrix, the diagonal by place or by keyword, and out."""
    for tensor in (real.arange(3), real.arange(6.0).reshape(2, 3)):
        for args, keywords in (((), {}), ((1,), {}), ((), {"diagonal": -1})):
            assert real.equal(torch.diag(tensor, *args, **keywords), real.diag(tensor, *args, **keywords))
    assert torch.diag(real.ones(2), out=(out := real.empty(2, 2))) is out


def random() -> None:
    """The numbers that torch draws with the same seed or generator, and out."""
    for name in ("rand", "randn"):
        function, reference = getattr(torch, name), getattr(real, name)
        for args, keywords in (((2, 3), {}), (((2, 3),), {}), ((), {"size": (2, 3)}), ((3,), {"dtype": real.float64})):
            real.manual_seed(1)
            result = function(*args, **keywords)
            real.manual_seed(1)
            assert real.equal(result, reference(*args, **keywords))
        samples = [f(4, generator=real.Generator().manual_seed(2)) for f in (function, reference)]
        assert real.equal(*samples)
        assert function(2, 3, out=(out := real.empty(2, 3))) is out
        assert function(2, requires_grad=True).requires_grad


def index_arrays() -> None:
    """Native sparse tensors, with keywords, names of index arrays, and gradients."""
    coo = torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3, 4, 5], (2, 4), dtype=real.float64, requires_grad=True)
    assert coo.layout is real.sparse_coo
    assert coo.requires_grad
    assert torch.sparse_coo_tensor(indices=real.tensor([[0, 1]]), values=real.ones(2, 5)).shape == (2, 5)
    assert torch.sparse_coo_tensor(size=(2, 3)).shape == (2, 3)
    block = real.ones(2, 1, 1)
    for kind, first, second, values in (
        ("csr", "crow_indices", "col_indices", block[:, 0, 0]),
        ("csc", "ccol_indices", "row_indices", block[:, 0, 0]),
        ("bsr", "crow_indices", "col_indices", block),
        ("bsc", "ccol_indices", "row_indices", block),
    ):
        name, layout = f"sparse_{kind}_tensor", getattr(real, f"sparse_{kind}")
        for tensor in (
            getattr(torch, name)([0, 1, 2], [0, 1], values),
            getattr(torch, name)(
                **{first: [0, 1, 2], second: [0, 1]}, values=values, size=(2, 2), dtype=real.float64, check_invariants=True
            ),
            torch.sparse_compressed_tensor([0, 1, 2], [0, 1], values, layout=layout),
        ):
            assert tensor.layout is layout
            assert real.equal(tensor.to_dense(), real.eye(2, dtype=tensor.dtype))


ARITHMETIC = ("add", "sub", "mul", "div", "sum", "mean", "amax", "amin", "softmax")
DOCUMENTED = {
    "einsum": einsum,
    "load": load,
    "save": save,
    "tensor": tensor,
    "matmul": matmul,
    "nn": nn,
    "stack": stack,
    "sort": sort,
    "eye": eye,
    "diag": diag,
    **dict.fromkeys(ARITHMETIC, arithmetic),
    **dict.fromkeys(("empty", "full", "ones", "zeros"), constants),
    **dict.fromkeys(("rand", "randn"), random),
    **dict.fromkeys([f"sparse_{kind}_tensor" for kind in ("coo", "csr", "csc", "bsr", "bsc", "compressed")], index_arrays),
}


@pytest.mark.filterwarnings("ignore:Sparse")  # torch warns of its sparse tensors
@pytest.mark.parametrize("name", SHARED)
def test_shared_names_behave_as_torch_documents(name: str) -> None:
    assert name in DOCUMENTED, f"numscorch.{name} hides torch.{name}: say here what torch documents of it"
    DOCUMENTED[name]()


@pytest.mark.parametrize(
    "name",
    ["Tensor", "as_tensor", "arange", "float32", "autograd", "ops", "sparse", "optim", "utils", "no_grad", "library", "linalg", "compile"],
)
def test_other_names_are_torchs(name: str) -> None:
    assert getattr(torch, name) is getattr(real, name)


def test_functions_of_nn_are_torchs_except_two() -> None:
    shared = {name for name in set(dir(real.nn.functional)) & set(vars(torch.nn.functional)) if not name.startswith("__")}
    replaced = {name for name in shared if getattr(torch.nn.functional, name) is not getattr(real.nn.functional, name)}
    assert replaced == {"one_hot", "scaled_dot_product_attention"}


def test_attention_without_a_pattern_is_torchs() -> None:
    x, mask = real.randn(2, 3, 4), real.rand(3, 3) < 0.7
    for options in ({}, {"is_causal": True}, {"attn_mask": mask | real.eye(3).bool()}, {"scale": 0.1}):
        result, expected = (module.nn.functional.scaled_dot_product_attention(x, x, x, **options) for module in (torch, real))
        assert real.equal(result, expected)


def test_common_names_of_programs_are_torchs() -> None:
    import numscorch.nn as modules
    from numscorch import nn as nn_of_numscorch
    from numscorch.nn import Linear

    assert nn_of_numscorch is modules is torch.nn
    assert Linear is real.nn.Linear
    assert torch.optim.Adam is real.optim.Adam
    assert torch.utils.data.DataLoader is real.utils.data.DataLoader
    assert torch.linalg.norm is real.linalg.norm
    assert torch.sparse.mm is real.sparse.mm
    assert torch.func.grad is real.func.grad
    assert torch.float32 is real.float32
    assert isinstance(torch.zeros(2), torch.Tensor)
    assert torch.nn.functional.relu(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    with torch.no_grad():
        assert not (torch.ones(2, requires_grad=True) * 2).requires_grad
    torch.manual_seed(3)
    first = real.rand(2)
    real.manual_seed(3)
    assert real.equal(torch.rand(2), first)
    for name in torch.nn.__dict__["__all__"]:
        assert hasattr(torch.nn, name)


SHAPED = {
    "addmm": ((5, 5), (5, 5), (5, 5)),
    "bmm": ((2, 3, 4), (2, 4, 5)),
    "mv": ((5, 5), (5,)),
    "dot": ((5,), (5,)),
    "outer": ((5,), (5,)),
    "inner": ((5,), (5,)),
    "vdot": ((5,), (5,)),
    "ger": ((5,), (4,)),
    "addmv": ((3,), (3, 4), (4,)),
    "addr": ((3, 4), (3,), (4,)),
    "addbmm": ((3, 5), (2, 3, 4), (2, 4, 5)),
    "baddbmm": ((2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "chain_matmul": ((2, 3), (3, 4), (4, 5)),
}
OTHER_ARGUMENTS: dict[str, tuple[object, ...]] = {
    "cat": ([real.ones(2, 3), real.ones(1, 3)],),
    "concat": ([real.ones(2, 3), real.ones(1, 3)],),
    "stack": ([real.ones(2, 3), real.zeros(2, 3)], 1),
    "permute": (real.arange(6.0).reshape(2, 3), (1, 0)),
    "reshape": (real.arange(6.0), (2, 3)),
    "transpose": (real.arange(6.0).reshape(2, 3), 0, 1),
    "swapaxes": (real.arange(6.0).reshape(2, 3), 0, 1),
    "t": (real.arange(6.0).reshape(2, 3),),
    "index_select": (real.arange(6.0).reshape(2, 3), 1, real.tensor([2, 0])),
    "narrow": (real.arange(6.0).reshape(2, 3), 1, 0, 2),
    "select": (real.arange(6.0).reshape(2, 3), 1, 2),
    "unsqueeze": (real.arange(6.0), 0),
    "where": (real.tensor([True, False]), real.ones(2), real.zeros(2)),
    "dropout": (real.ones(5), 0.5, False),
    "clamp": (real.arange(6.0), 1, 3),
    "clip": (real.arange(6.0), 1, 3),
    "full_like": (real.ones(3), 2.0),
    "imag": (real.tensor([1 + 2j]),),
    "item": (real.ones(1),),
    "prod": (real.arange(6.0).reshape(2, 3), 1),
    "softmax": (real.arange(6.0).reshape(2, 3), 1),
    "log_softmax": (real.arange(6.0).reshape(2, 3), 1),
    "logical_not": (real.tensor([True, False]),),
    "tensordot": (real.ones(2, 3), real.ones(3, 2), 1),
    "broadcast_to": (real.arange(3.0), (2, 3)),
    "tile": (real.arange(6.0).reshape(2, 3), (2, 1, 2)),
    "unflatten": (real.arange(12.0).reshape(2, 6), 1, (2, -1)),
    "flip": (real.arange(6.0).reshape(2, 3), (0, 1)),
    "movedim": (real.arange(24.0).reshape(2, 3, 4), 0, -1),
    "moveaxis": (real.arange(24.0).reshape(2, 3, 4), (0, 1), (2, 0)),
    "swapdims": (real.arange(6.0).reshape(2, 3), 0, 1),
    "concatenate": ([real.ones(2, 3), real.zeros(2, 1)], 1),
    "column_stack": ([real.arange(2.0), real.ones(2, 3)],),
    "hstack": ([real.ones(2, 3), real.zeros(2, 1)],),
    "vstack": ([real.arange(3.0), real.ones(2, 3)],),
    "row_stack": ([real.arange(3.0), real.ones(2, 3)],),
    "dstack": ([real.ones(2, 3), real.zeros(2, 3)],),
    "hsplit": (real.arange(8.0).reshape(2, 4), 2),
    "vsplit": (real.arange(8.0).reshape(4, 2), [1, 3]),
    "split_with_sizes": (real.arange(10.0).reshape(2, 5), [2, 3], 1),
    "gather": (real.arange(6.0).reshape(2, 3), 1, real.tensor([[2, 0], [1, 1]])),
    "take": (real.arange(6.0).reshape(2, 3), real.tensor([5, 0, -1])),
    "take_along_dim": (real.arange(6.0).reshape(2, 3), real.tensor([[2], [0]]), 1),
    "masked_fill": (real.arange(3.0), real.tensor([True, False, True]), 7),
    "masked_select": (real.arange(3.0), real.tensor([True, False, True])),
    "addcmul": (real.arange(3.0), real.ones(3), real.arange(3.0)),
    "lerp": (real.arange(3.0), real.ones(3), 0.5),
    "bitwise_left_shift": (real.arange(3), real.tensor([1, 0, 2])),
    "bitwise_right_shift": (real.arange(9), 1),
    "poisson_nll_loss": (real.arange(3.0), real.ones(3), True, False, 1e-8, 1),
}


def outcome(function: object, arguments: tuple[object, ...], **keywords: object) -> object:
    """The result of a call, or the type of its error."""
    real.manual_seed(0)
    try:
        return function(*arguments, **keywords)
    except Exception as error:
        return type(error)


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated:UserWarning")  # torch warns once per process
@pytest.mark.parametrize("name", sorted(torch.operators.PUBLIC - {"einsum", "stack", "empty_like"}))
def test_every_operator_is_torchs_on_dense_tensors(name: str) -> None:
    """Values, data types, shapes and errors equal torch's; einsum and stack are tested above, and empty_like has no values."""
    function, reference = getattr(torch, name), getattr(real, name)
    A = real.tensor([[1.5, -0.5, 2.0], [0.25, 3.0, 1.0], [2.0, 0.5, 1.0]])
    calls = [OTHER_ARGUMENTS.get(name, (A,)), (A, A), (A, 0), (A, real.ones(7)), ("text",), (), (A.long(),), (A, 9)]
    if name in SHAPED:
        calls.append(tuple(real.arange(float(real.Size(shape).numel())).reshape(shape) for shape in SHAPED[name]))
    valid_calls = 0
    for arguments in calls:
        result, expected = (outcome(candidate, copy.deepcopy(arguments)) for candidate in (function, reference))
        if isinstance(expected, type):
            assert result is expected, arguments
            continue
        valid_calls += 1
        assert type(result) is type(expected)
        real.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    assert outcome(function, (A,), no_such_keyword=1) is outcome(reference, (A,), no_such_keyword=1)
    assert valid_calls, f"no call of torch.{name} is right: add one to OTHER_ARGUMENTS"


def test_modules_of_numscorch_hide_no_attribute_of_torch() -> None:
    names = {module.name for module in pkgutil.iter_modules(torch.__path__)}
    assert len(names) > 10
    assert {name for name in names if hasattr(real, name)} == {"nn"}


def test_imported_modules_hide_no_attribute_of_torch() -> None:
    """Python binds an imported module in its package, so importing all modules must hide no attribute."""
    for module in pkgutil.walk_packages(torch.__path__, "numscorch."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    assert sorted(name for name in set(dir(real)) & set(vars(torch)) if not name.startswith("__")) == SHARED


def test_nn_and_functional_are_modules_of_numscorch() -> None:
    import numscorch.nn
    from numscorch.nn import functional

    assert torch.nn is numscorch.nn
    assert torch.nn.functional is functional
    assert functional.__name__ == "numscorch.nn.functional"
    assert functional.softmax is real.nn.functional.softmax


@pytest.mark.parametrize(
    ("module", "base"), [(torch, real), (torch.nn, real.nn), (torch.nn.functional, real.nn.functional)], ids=["torch", "nn", "functional"]
)
def test_dunder_names_are_refused(module: ModuleType, base: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools query such names to identify a module, so torch's values would be wrong."""
    monkeypatch.setattr(base, "__probe__", 1, raising=False)
    monkeypatch.setattr(base, "probe", 1, raising=False)
    assert module.probe == 1
    assert not hasattr(module, "__probe__")
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute '__probe__'"):
        module.__probe__  # noqa: B018
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018


def test_public_names() -> None:
    assert torch.__version__ != real.__version__
    assert all(name in vars(torch) for name in torch.__all__)
    assert set(torch.__all__) & set(dir(real)) <= set(DOCUMENTED)


def test_saved_by_one_and_loaded_by_the_other(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for load in (torch.load, real.load):
        state = load(tmp_path / "model.pt", weights_only=True)
        assert all(real.equal(state[key], value) for key, value in model.state_dict().items())
    with (tmp_path / "model.pt").open("rb") as file:
        assert list(torch.load(file)) == list(model.state_dict())


def test_a_training_step_written_for_torch() -> None:
    torch.manual_seed(0)
    x, target = torch.randn(8, 3), torch.zeros(8, dtype=torch.long)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    loss = torch.nn.functional.cross_entropy(torch.einsum("ij,kj->ik", x, model.weight), target)
    loss.backward()
    optimizer.step()
    assert not torch.equal(before, model.weight)


def run(code: str) -> str:
    finished = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


@pytest.mark.process
def test_import_is_light() -> None:
    code = """
import sys, torch
before = set(sys.modules)
import numscorch
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""
    imported = set(run(code).split())
    assert "numscorch" in imported
    assert not imported & {
        "numba",
        "llvmlite",
        "scipy",
        "sklearn",
        "tbb",
        "sparse",
        "networkx",
        "torch_geometric",
        "torch_sparse",
        "dgl",
        "tqdm",
    }


@pytest.mark.process
def test_torch_is_not_modified_and_no_warning_is_shown() -> None:
    code = """
import torch
before = {name: id(value) for name, value in vars(torch).items()}, {name: id(value) for name, value in vars(torch.Tensor).items()}
import numscorch as ns
A = ns.from_coo([[0, 1], [1, 0]], [1.0, 2.0], (2, 2), format=ns.CSR)
native = A.to_torch()
assert ns.einsum("ij,j->i", A, torch.ones(2)).tolist() == [1.0, 2.0]
assert ns.einsum("ij,ij->ij", native, torch.ones(2, 2)).layout == torch.sparse_csr
after = {name: id(value) for name, value in vars(torch).items()}, {name: id(value) for name, value in vars(torch.Tensor).items()}
print([name for b, a in zip(before, after) for name in b if a.get(name) != b[name]])
"""
    assert run(code) == "[]"


@pytest.mark.process
def test_large_calls_give_no_warning() -> None:
    code = """
import torch, numscorch as ns
A = ns.from_torch((torch.rand(600, 500) * (torch.rand(600, 500) < 0.3)).to_sparse_csr())
B = torch.rand(500, 20)
torch.testing.assert_close(A @ B, A.to_dense() @ B)
torch.testing.assert_close(ns.einsum("ij->", A), A.to_dense().sum())
torch.testing.assert_close(ns.einsum("ij,ij->", A, A.to_dense()), (A.to_dense() ** 2).sum())
"""
    assert "Sparse CSR tensor support" not in run("import warnings; warnings.filterwarnings('ignore', message='Sparse')\n" + code)
