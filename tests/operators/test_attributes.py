"""Attributes of dense tensors on SparseTensors, the autograd graph, assignments, and suggestions in errors."""

from __future__ import annotations

import pydoc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dense_values import as_dense

import numscorch as ns
from numscorch import operators
from numscorch.tensors import suggestions

pytestmark = pytest.mark.usefixtures("interpreted")
D = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])


@pytest.fixture
def A() -> Any:
    return ns.from_torch(D)


SAME: dict[str, Callable[[Any], Any]] = {
    "itemsize": lambda t: t.itemsize,
    "element_size": lambda t: t.element_size(),
    "is_floating_point": lambda t: t.is_floating_point(),
    "torch.is_floating_point": torch.is_floating_point,
    "is_complex": torch.is_complex,
    "is_signed": lambda t: t.is_signed(),
    "is_contiguous": lambda t: t.is_contiguous(),
    "ndimension": lambda t: t.ndimension(),
    "nelement": lambda t: t.nelement(),
    "numel": torch.numel,
    "is_cuda": lambda t: t.is_cuda,
    "is_cpu": lambda t: t.is_cpu,
    "get_device": lambda t: t.get_device(),
    "is_leaf": lambda t: (t.is_leaf, (2 * t).is_leaf),
    "grad_fn": lambda t: t.grad_fn,
    "retains_grad": lambda t: t.retains_grad,
    "new_zeros": lambda t: t.new_zeros(2).tolist(),
    "new_full": lambda t: t.new_full((1, 2), 3).dtype,
    "new_tensor": lambda t: t.new_tensor([1, 2]).dtype,
    "type_as": lambda t: t.type_as(torch.ones(1, dtype=torch.int8)).dtype,
    "cpu": lambda t: t.cpu() is t,
}


@pytest.mark.parametrize("name", SAME)
def test_attributes_are_torchs(name: str, A: Any) -> None:
    assert SAME[name](A) == SAME[name](D)


@pytest.mark.parametrize("name", ["mT", "T", "mH", "H"])
def test_transposes(name: str) -> None:
    full = D * (1 + 2j)
    transposed = getattr(ns.from_torch(full), name)
    assert torch.equal(transposed.to_dense(), getattr(full, name).resolve_conj())


def test_memory_and_data(A: Any) -> None:
    assert A.nbytes == A.values.nbytes + sum(array.nbytes for level in A.pattern.arrays for array in level)
    A.values.requires_grad_()
    assert not A.data.requires_grad
    A.data.values[0] = 7.0
    assert A.values[0] == 7.0
    complex_one = ns.from_torch(D * (1 + 2j))
    assert torch.equal(complex_one.real.to_dense(), D)
    assert torch.equal(complex_one.imag.to_dense(), 2 * D)


def test_gradients_can_be_set_and_cleared(A: Any) -> None:
    A.values.requires_grad_()
    A.sum().backward()
    A.grad = 2 * A.grad
    assert torch.equal(A.values.grad, torch.full((3,), 2.0))
    A.grad = None
    assert A.values.grad is None


@pytest.mark.parametrize("hook", [lambda g: 3 * g, lambda g: None, lambda g: g + g + g], ids=["another", "none", "a sum"])
def test_hooks_see_the_gradient_as_a_sparse_tensor(hook: Callable[[Any], Any], A: Any) -> None:
    A.values.requires_grad_()
    gradients = []

    def record(gradient: Any) -> Any:
        gradients.append(gradient)
        return hook(gradient)

    handle = A.register_hook(record)
    (A * D).sum().backward()
    assert gradients[0].pattern is A.pattern
    assert torch.equal(A.grad.to_dense(), D if hook(A) is None else 3 * D)
    handle.remove()
    A.grad = None
    (A * D).sum().backward()
    assert len(gradients) == 1


def test_a_hook_returns_a_gradient(A: Any) -> None:
    A.values.requires_grad_()
    A.register_hook(lambda gradient: gradient.to_dense())
    with pytest.raises(ns.UnsupportedError, match=r"use gradient.with_values"):
        A.sum().backward()


def test_gradients_of_tensors_that_are_no_leaf(A: Any) -> None:
    A.values.requires_grad_()
    B = 2 * A
    B.retain_grad()
    B.sum().backward()
    assert torch.equal(B.grad.values, torch.ones(3))
    assert B.grad_fn is not None
    assert not B.is_leaf


def test_autograd_by_values(A: Any) -> None:
    A.values.requires_grad_()
    with pytest.raises(ns.UnsupportedError, match=r"torch.autograd.grad\(loss, A.values\)"):
        torch.autograd.grad((A * A).sum(), A)
    (gradient,) = torch.autograd.grad((A * A).sum(), A.values)
    assert torch.equal(gradient, 2 * A.values)


def test_torchs_parameter_does_not_take_it(A: Any) -> None:
    """A SparseTensor has no ``requires_grad_``: torch.nn.Parameter of it would register nothing."""
    assert not hasattr(A, "requires_grad_")
    with pytest.raises(AttributeError, match=r"A.values.requires_grad_\(\)"):
        A.requires_grad_()


ASSIGNED: dict[str, tuple[Any, Any]] = {
    "an entry": ((1, 2), 7),
    "an entry from behind": ((-1, -1), torch.tensor(7.0)),
    "0 where nothing is": ((0, 0), 0),
    "a row": (1, torch.tensor([5.0, 0.0, 6.0])),
    "zeros": (slice(None), 0.0),
    "a column": ((slice(None), 2), torch.tensor([0.0, 1.0])),
    "a sparse row": (0, ns.from_torch(torch.tensor([0.0, 9.0, 0.0]))),
    "a row for all": (slice(0, 1), torch.tensor([0.0, 8.0, 0.0])),
    "pairs": (([0, 1], [1, 0]), torch.tensor([1.0, 2.0])),
    "pairs of which one isn't stored": (([0, 1], [0, 0]), torch.tensor([0.0, 2.0])),
    "a mask": (D > 2, -1.0),
    "a sparse mask": (ns.from_torch(D) > 2, -1.0),
    "a mask of rows": (torch.tensor([False, True]), torch.tensor([[1.0, 0.0, 2.0]])),
    "everything": (Ellipsis, 2 * D),
}


@pytest.mark.parametrize("format", ["ds", "COO(2)", "CSC", "BCSR(2, 2)", "ELL"])
@pytest.mark.parametrize("name", ASSIGNED)
def test_assignments_to_stored_entries(name: str, format: str) -> None:
    key, value = ASSIGNED[name]
    A, expected = ns.from_torch(D, eval(f"ns.{format}") if format != "ds" else format), D.clone()
    before = A.pattern
    A[key] = value
    expected[as_dense(key)] = as_dense(value)
    assert torch.equal(A.to_dense(), expected)
    assert A.pattern is before


def test_assignments_add_and_differentiate(A: Any) -> None:
    A[1, 2] += 1
    assert torch.equal(A.values, torch.tensor([2.0, 3.0, 5.0]))
    x = torch.tensor(3.0, requires_grad=True)
    A[0, 1] = x
    (A * A).sum().backward()
    assert x.grad == 6.0


@pytest.mark.parametrize(
    ("key", "value", "kind", "text"),
    [
        ((0, 0), 1.0, ns.UnsupportedError, "would store 1 new entries"),
        (0, 1.0, ns.UnsupportedError, "would store 2 new entries"),
        (0, torch.ones(3), ns.UnsupportedError, "add new entries with A + ns.from_coo"),
        (D == 0, 1.0, ns.UnsupportedError, "would store 3 new entries"),
        (0, torch.ones(2), ns.SizeError, "of shapes (2,) and (3,): the shapes don't broadcast"),
        (0, torch.ones(2, 3), ns.SizeError, "a value of shape (2, 3) for entries of shape (3,)"),
        ((2, 0), 1.0, ns.SizeError, "index 2 is out of range"),
    ],
    ids=str,
)
def test_assignments_of_new_entries_or_wrong_shapes_are_refused(key: Any, value: Any, kind: type[Exception], text: str, A: Any) -> None:
    with pytest.raises(kind) as error:
        A[key] = value
    assert text in str(error.value)
    assert torch.equal(A.to_dense(), D)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "sort": (torch.sort, "torch.topk"),
    "argsort": (torch.argsort, "torch.topk"),
    "median": (torch.median, "sort A.values"),
    "quantile": (lambda A: torch.quantile(A, 0.5), "sort A.values"),
    "mode": (torch.mode, "sort A.values"),
    "kthvalue": (lambda A: torch.kthvalue(A, 1), "torch.topk"),
    "histc": (torch.histc, "A.numel() - A.nnz zeros"),
    "unique": (torch.unique, "count A.values"),
    "linalg.solve": (lambda A: torch.linalg.solve(A, torch.ones(2)), "spsolve(A.to_scipy().tocsc(), b.numpy())"),
    "linalg.inv": (torch.linalg.inv, "spsolve"),
    "inverse": (torch.inverse, "spsolve"),
    "linalg.eigh": (torch.linalg.eigh, "eigsh(A.to_scipy())"),
    "linalg.svd": (torch.linalg.svd, "svd_lowrank"),
    "linalg.cholesky": (torch.linalg.cholesky, "splu"),
    "det": (torch.det, "splu"),
    "linalg.cond": (torch.linalg.cond, "scipy.sparse.linalg with A.to_scipy()"),
    "linalg.matrix_exp": (torch.linalg.matrix_exp, "scipy.sparse.linalg with A.to_scipy()"),
    "scatter": (lambda A: torch.scatter(A, 0, torch.tensor([[0]]), 1.0), "A + ns.from_coo"),
    "index_add": (lambda A: torch.index_add(A, 0, torch.tensor([0]), torch.ones(1, 3)), "A + ns.from_coo"),
    "fft": (torch.fft.fft, ".to_dense()"),
    "conv1d": (lambda A: F.conv1d(A, torch.ones(1, 1, 1)), "einsum, or use .to_dense()"),
    "layer_norm": (lambda A: F.layer_norm(A, (3,)), "normalise A.values"),
    "attention": (lambda A: F.scaled_dot_product_attention(A, A, A), "einsum with mask="),
    "cov": (torch.cov, "A @ A.T"),
    "anything else": (lambda A: torch.addcdiv(A, A, A), "use einsum, or .to_dense()"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_of_unsupported_functions_suggest_a_replacement(name: str, A: Any) -> None:
    call, text = REFUSED[name]
    with pytest.raises(ns.UnsupportedError) as error:
        call(A)
    assert "does not take a SparseTensor yet" in str(error.value)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("name", "text"), [("median", "sort A.values"), ("numpy", "A.to_scipy()"), ("scatter_", "A.values"), ("backward", "A.sum().backward()")]
)
def test_errors_of_unsupported_methods_suggest_a_replacement(name: str, text: str, A: Any) -> None:
    with pytest.raises(AttributeError) as error:
        getattr(A, name)
    assert text in str(error.value)


def test_suggestions_name_functions_of_torch_that_numscorch_does_not_support() -> None:
    homes = (torch, torch.Tensor, F, torch.linalg, torch.fft, torch.special, torch.autograd)
    for name in suggestions.SUGGESTIONS:
        bare = name.removeprefix("linalg_").removeprefix("fft_").removeprefix("special_")
        functions = [getattr(home, attribute) for home in homes for attribute in {name, bare} if hasattr(home, attribute)]
        assert functions, name
        assert name not in operators.OPERATORS, name


def test_a_way_out_works(A: Any) -> None:
    linalg = pytest.importorskip("scipy.sparse.linalg")
    square = ns.from_torch(torch.tensor([[2.0, 0.0], [1.0, 4.0]]))
    b = torch.tensor([2.0, 9.0])
    torch.testing.assert_close(torch.from_numpy(linalg.spsolve(square.to_scipy().tocsc(), b.numpy())), torch.tensor([1.0, 2.0]))
    new = A + ns.from_coo([[0], [0]], torch.tensor([1.0]), A.shape)
    assert new[0, 0] == 1


def test_dir_lists_operators_and_attributes(A: Any) -> None:
    names = dir(A)
    assert {"sum", "matmul", "relu", "values", "to", "mT", "is_leaf", "with_values"} <= set(names)
    assert not {"getitem", "cat", "mse_loss"} & set(names), "functions that are no methods of torch's tensors"
    assert all(hasattr(A, name) for name in names if name not in ("grad_fn", "imag", "real"))
    assert "sum" in dir(ns.nn.Parameter(A))


def test_help_renders_the_documentation_of_a_method(A: Any) -> None:
    text = pydoc.render_doc(A.sum, renderer=pydoc.plaintext)
    assert "sum(dim: 'Dim' = None, keepdim: 'bool' = False" in text
    assert all(part in text for part in ("Args:", "Raises:", ">>> A.sum(), A.sum(dim=1)"))
    assert "sum(input: 'Any', dim: 'Dim' = None" in pydoc.render_doc(ns.sum, renderer=pydoc.plaintext)


@pytest.mark.parametrize("name", sorted(operators.OPERATORS))
def test_every_operator_is_documented(name: str) -> None:
    operator = operators.OPERATORS[name]
    assert operator.__doc__
    assert "lambda" not in operator.__name__


@pytest.mark.parametrize("kind", ["SparseTensor", "SparseParameter"])
def test_errors_of_torch_suggest_a_replacement(kind: str, A: Any) -> None:
    parameter = A if kind == "SparseTensor" else ns.nn.Parameter(A)
    with pytest.raises(TypeError, match=rf"one of the params is .*{kind} \(optimizers take A\.values; "):
        torch.optim.Adam([parameter])
    layer = torch.nn.Linear(3, 2)
    with pytest.raises(TypeError, match=rf"cannot assign .*{kind} \(.*SparseLinear\.from_dense\(.*\), take ns\.nn\.Parameter\(A\)\)"):
        layer.weight = parameter
    sparse = ns.nn.SparseLinear(3, 2, density=0.5)
    sparse.weight = ns.nn.Parameter(A)
    torch.optim.Adam([A.values])
    torch.testing.assert_close(sparse(torch.eye(3)) - sparse.bias, D.T)


def test_parameter_data_of_the_same_pattern_is_copied() -> None:
    weight = ns.nn.Parameter(ns.from_torch(torch.eye(3)))
    values = weight.values
    weight.data = ns.from_torch(3 * torch.eye(3))
    assert weight.values is values
    assert weight.values.tolist() == [3.0, 3.0, 3.0]
    assert not weight.data.requires_grad


@pytest.mark.parametrize("data", [torch.zeros(3, 3), ns.from_torch(torch.ones(3, 3)), ns.from_torch(torch.eye(3), ns.COO(2)), 3])
def test_parameter_data_of_another_pattern_is_refused(data: Any) -> None:
    weight = ns.nn.Parameter(ns.from_torch(torch.eye(3)))
    with pytest.raises(ns.OperandError, match="must have its pattern") as error:
        weight.data = data
    assert "layer.weight = ns.nn.Parameter" in str(error.value)
    assert weight.values.tolist() == [1.0, 1.0, 1.0]


def test_entries_of_a_parameter_can_be_assigned() -> None:
    weight = ns.nn.Parameter(ns.from_torch(torch.eye(3)))
    with torch.no_grad():
        weight[1] = 0
    assert weight.values.tolist() == [1.0, 0.0, 1.0]
    with pytest.raises(ns.UnsupportedError, match="write within torch"):
        weight[1, 1] = 2


def test_the_suggested_covariance_is_torchs() -> None:
    D = torch.tensor([[0.0, 2.0, 0.0, 1.0], [3.0, 0.0, 4.0, 0.0]])
    A, n = ns.from_torch(D), D.shape[1]
    torch.testing.assert_close(((A @ A.T).to_dense() - n * torch.outer(A.mean(1), A.mean(1))) / (n - 1), torch.cov(D))
