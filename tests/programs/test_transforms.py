"""Twelve programs within every transform of torch.func: the result of the program on dense tensors, or an error that is listed here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import ref

import pytest
import torch
from dense_values import as_dense
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import functional_call, functionalize, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

import numscorch as ns
from numscorch.programs.batches import pattern_of_batch
from numscorch.programs.gradients import DifferentiableCall
from numscorch.sparsify import sparsify, topk

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch warns when it registers rules of forward-mode AD
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),  # linearize
]

FORMATS = (ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.BCSR(2, 2), ns.ELL, ns.DIA, ns.Format("(i, j) -> (i: dense, j: bitmap)"))
D = torch.tensor([[0.0, 2.0, 0.0, -1.0], [3.0, 0.0, 0.5, 0.0], [0.0, -4.0, 0.0, 0.0], [1.0, 1.5, 0.0, -2.0]], dtype=torch.float64)
X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
B = ns.from_torch(D.roll(1, 0), ns.CSC)
LAYER = torch.nn.Linear(4, 2).double()


@dataclass(frozen=True)
class Pair:
    """A function of a sparse matrix and a dense one, and the same function of dense matrices; unstored entries of ``A`` are 0."""

    sparse: Callable[[ns.SparseTensor, Tensor], Any]
    dense: Callable[[Tensor, Tensor], Tensor]


def masked_softmax(scores: Tensor) -> Tensor:
    return scores.masked_fill(D == 0, -torch.inf).softmax(1)


def layer_of(A: ns.SparseTensor) -> torch.nn.Module:
    """A network whose first weight has the pattern of A."""
    return torch.nn.Sequential(Layer(A.detach()), torch.nn.Tanh(), LAYER)


class Layer(torch.nn.Module):
    """A linear layer with a sparse weight."""

    def __init__(self, weight: ns.SparseTensor) -> None:
        super().__init__()
        self.weight = ns.nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight)


PROGRAMS = {
    "SpMM": Pair(lambda A, x: A @ x, lambda A, x: A @ x),
    "SpMV": Pair(lambda A, x: A @ x[:, 0], lambda A, x: A @ x[:, 0]),
    "sampled product": Pair(lambda A, x: ns.einsum("ij,ik,jk->ij", A, x, x), lambda A, x: A * (x @ x.T)),
    "attention": Pair(
        ns.fuse(lambda A, x: torch.softmax(A * (x @ x.T), 1) @ x),
        lambda A, x: masked_softmax(A * (x @ x.T)) @ x,
    ),
    "elementwise": Pair(lambda A, x: torch.relu(A) * 2, lambda A, x: torch.relu(A) * 2),
    "sum": Pair(lambda A, x: A.sum(1), lambda A, x: A.sum(1)),
    "max": Pair(lambda A, x: A.amax(1), lambda A, x: A.amax(1)),
    "sparse + sparse": Pair(lambda A, x: A + B, lambda A, x: A + B.to_dense()),
    "layer": Pair(
        lambda A, x: functional_call(layer_of(A), {"0.weight.values": A.values}, (x.T,)),
        lambda A, x: LAYER(torch.tanh(x.T @ A.T)),
    ),
    "three operands": Pair(lambda A, x: ns.einsum("ij,jk,lk->il", A, x, x), lambda A, x: A @ x @ x.T),
    "transpose": Pair(lambda A, x: A.T @ x, lambda A, x: A.T @ x),
    "masked softmax": Pair(lambda A, x: torch.softmax(A, 1), lambda A, x: masked_softmax(A)),
}

Function = Callable[[Tensor, Tensor], Tensor]
BOTH = (0, 1)


def loss(f: Function) -> Function:
    return lambda values, x: f(values, x).square().sum()


def pulled_back(f: Function, *leaves: Tensor) -> Any:
    result, pull = vjp(f, *leaves)
    return result, pull(result.cos())


def tangents(leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(leaf.detach().cos() for leaf in leaves)


def linearized(f: Function, *leaves: Tensor) -> Any:
    result, push = linearize(f, *leaves)
    return result, push(*tangents(leaves))


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": lambda f, *leaves: grad(loss(f), BOTH)(*leaves),
    "grad_and_value": lambda f, *leaves: grad_and_value(loss(f), BOTH)(*leaves),
    "vjp": pulled_back,
    "jvp": lambda f, *leaves: jvp(f, leaves, tangents(leaves)),
    "linearize": linearized,
    "jacrev": lambda f, *leaves: jacrev(f, BOTH)(*leaves),
    "jacfwd": lambda f, *leaves: jacfwd(f, BOTH)(*leaves),
    "hessian": lambda f, *leaves: hessian(loss(f), BOTH)(*leaves),
    "vmap": lambda f, *leaves: vmap(f)(*(torch.stack([leaf, 2 * leaf]) for leaf in leaves)),
    "vmap of values": lambda f, values, x: vmap(f, (0, None))(torch.stack([values, 2 * values]), x),
    "vmap of dense operands": lambda f, values, x: vmap(f, (None, 0))(values, torch.stack([x, 2 * x])),
    "vmap(grad)": lambda f, *leaves: vmap(grad(loss(f), BOTH))(*(torch.stack([leaf, 2 * leaf]) for leaf in leaves)),
    "vmap(jvp)": lambda f, *leaves: vmap(lambda *t: jvp(f, leaves, t))(*(torch.stack([leaf.cos(), leaf.sin()]) for leaf in leaves)),
    "functionalize": lambda f, *leaves: functionalize(f)(*leaves),
}
KERNELS = {"attention", "sum", "max", "sparse + sparse", "masked softmax"}
REFUSED = {  # by transform: a sentence, and the programs that it refuses
    "linearize": (r"takes tangents of contract.* only: use torch\.func\.jvp", {"attention", "max", "sparse + sparse", "masked softmax"}),
    "functionalize": (r"torch\.func\.functionalize.*records torch's operators only: use torch\.compile", KERNELS),
}


def full(A: ns.SparseTensor) -> Callable[[Tensor], Tensor]:
    """The function from values to the dense matrix, written with torch's operators."""
    places = A.with_values(torch.arange(1.0, len(A.values) + 1, dtype=torch.float64)).to_dense()
    return lambda values: torch.where(places > 0, values[(places - 1).clamp(min=0).long()], 0.0)


@pytest.mark.parametrize("format", [ns.CSR, ns.COO(2)], ids=lambda f: f.name)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_sparse_programs_are_those_of_dense_programs(transform: str, name: str, format: ns.Format, interpreted: None) -> None:
    program, A = PROGRAMS[name], ns.from_torch(D, format)
    run = lambda: TRANSFORMS[transform](lambda values, x: as_dense(program.sparse(A.with_values(values), x)), A.values, X)  # noqa: E731
    sentence, refused = REFUSED.get(transform, ("", set()))
    if name in refused:
        with pytest.raises(ns.UnsupportedError, match=sentence):
            run()
        return
    expected = TRANSFORMS[transform](lambda values, x: program.dense(full(A)(values), x), A.values, X)
    torch.testing.assert_close(run(), expected)


@pytest.mark.parametrize(
    "name,format",
    [(name, ns.CSR) for name in PROGRAMS] + [(name, format) for name in ("SpMM", "sampled product", "max") for format in FORMATS[1:]],
    ids=str,
)
def test_gradcheck_in_forward_mode_and_in_batches(name: str, format: ns.Format, interpreted: None) -> None:
    program, A = PROGRAMS[name], ns.from_torch(D, format)
    away_from_zero = A.values + torch.linspace(0.1, 0.2, len(A.values), dtype=torch.float64)  # where relu and max have a derivative
    leaves = away_from_zero.requires_grad_(), X.clone().requires_grad_()
    function = lambda values, x: as_dense(program.sparse(A.with_values(values), x))  # noqa: E731
    assert gradcheck(function, leaves, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    assert gradgradcheck(function, leaves, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_dual_numbers_and_values_that_require_grad(name: str, interpreted: None) -> None:
    """The tangent of the result can be differentiated in reverse mode."""
    program, A = PROGRAMS[name], ns.from_torch(D, ns.CSR)

    leaves = A.values.clone().requires_grad_(), X.clone().requires_grad_()

    def with_gradients(tangent: Tensor | None) -> tuple[Tensor, ...]:
        assert tangent is not None
        return tangent, *torch.autograd.grad(tangent.square().sum() + 0 * sum(map(torch.sum, leaves)), leaves)

    with forward_ad.dual_level():
        values, x = (forward_ad.make_dual(leaf, tangent) for leaf, tangent in zip(leaves, tangents(leaves), strict=True))
        computed = with_gradients(forward_ad.unpack_dual(as_dense(program.sparse(A.with_values(values), x))).tangent)
    dense = lambda values, x: program.dense(full(A)(values), x)  # noqa: E731
    expected = torch.autograd.functional.jvp(dense, leaves, tangents(leaves), create_graph=True)[1]  # in reverse mode
    torch.testing.assert_close(computed, with_gradients(expected))


@pytest.mark.parametrize("reduce", ["max_plus", "min_plus", "prod", "max", "min", "mean"])
def test_tangents_of_reductions_with_ties(reduce: str, interpreted: None) -> None:
    """They are consistent with the gradients, which ties share."""
    A, x = (
        ns.from_torch(torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 2.0]], dtype=torch.float64), ns.CSR),
        torch.ones(3, 2, dtype=torch.float64),
    )
    function = lambda values, x: as_dense(ns.einsum("ij,jk->ik", A.with_values(values), x, reduce=reduce))  # noqa: E731
    torch.testing.assert_close(jacfwd(function, BOTH)(A.values, x), jacrev(function, BOTH)(A.values, x))


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("name", ["SpMM", "sampled product", "sum", "max", "sparse + sparse", "transpose"])
def test_one_kernel_computes_a_batch(name: str, format: ns.Format, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    run = DifferentiableCall.run
    monkeypatch.setattr(DifferentiableCall, "run", lambda self, values: runs.append(self.request) or run(self, values))
    program, A = PROGRAMS[name], ns.from_torch(D, format)
    values = torch.stack([A.values * n for n in range(1, 6)])
    computed = vmap(lambda values: as_dense(program.sparse(A.with_values(values), X)))(values)
    assert len(runs) == len(dict.fromkeys(runs)) <= 2  # a product of three operands is computed in pairs
    torch.testing.assert_close(computed, torch.stack([program.dense(row, X) for row in map(full(A), values)]))


def test_a_batch_of_sparse_results_keeps_their_pattern(interpreted: None) -> None:
    A = ns.from_torch(D, ns.CSR)
    patterns = []

    def sampled(x: Tensor) -> ns.SparseTensor:
        result = ns.einsum("ij,ik,jk->ij", A, x, x)
        patterns.append(result.pattern)
        return result

    batch = vmap(sampled)(torch.stack([X, 2 * X]))
    assert patterns == [A.pattern]
    assert batch.pattern is A.pattern
    torch.testing.assert_close(A.with_values(batch.values[1]).to_dense(), 4 * D * (X @ X.T))
    torch.testing.assert_close(vmap(lambda R: R @ X)(batch)[1], 4 * D * (X @ X.T) @ X)
    product = vmap(lambda values: ns.einsum("ij,jk->ik", A.with_values(values), B, format=ns.CSC))(torch.stack([A.values, 2 * A.values]))
    assert product.pattern.format == ns.CSC
    torch.testing.assert_close(ns.SparseTensor(product.pattern, product.values[1]).to_dense(), 2 * D @ B.to_dense())


def test_values_with_dimensions_that_transforms_add(interpreted: None) -> None:
    """They are no SparseTensor: which dimension is the batch depends on the transform."""
    A = ns.from_torch(D, ns.CSR)
    values = torch.stack([A.values, 2 * A.values])
    batch = vmap(lambda values: torch.relu(A.with_values(values)))(values)
    torch.testing.assert_close(batch.values, torch.relu(values))
    torch.testing.assert_close(vmap(lambda A: A @ X)(batch), torch.relu(torch.stack([D, 2 * D])) @ X)
    nested = vmap(vmap(lambda values: A.with_values(values)))(torch.stack([values, -values]))
    torch.testing.assert_close(nested.values, torch.stack([values, -values]))
    moved = vmap(lambda values: A.with_values(values), out_dims=1)(values)
    torch.testing.assert_close(moved.values, values.T)
    columns = ns.from_torch(torch.eye(5, dtype=torch.float64), ns.CSR)
    jacobian = jacrev(lambda x: columns * x.cumsum(0))(torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(jacobian.values, torch.ones(5, 5, dtype=torch.float64).tril())
    torch.testing.assert_close(jacrev(lambda A: A @ X[:, 0])(A).values, jacrev(lambda values: A.with_values(values) @ X[:, 0])(A.values))
    of_both = jacrev(lambda A: A * A)(A)
    torch.testing.assert_close(of_both.values.values, torch.diag(2 * A.values))
    calls = (lambda: batch @ X, lambda: torch.relu(batch), lambda: batch.sum(1), lambda: batch[0], lambda: ns.einsum("ij,jk->ik", batch, X))
    for call in calls:
        with pytest.raises(ns.NumscorchError, match=r"A.with_values"):
            call()
    assert not hasattr(batch, "crow_indices")


def test_patterns_of_recent_batch_sizes_are_kept(interpreted: None) -> None:
    A = ns.from_torch(D, ns.CSR)
    patterns = []
    for size in range(1, 40):
        torch.testing.assert_close(vmap(lambda v: A.with_values(v).sum(1))(A.values.expand(size, -1)), D.sum(1).expand(size, -1))
        patterns.append(ref(pattern_of_batch(A.pattern, size)))
    assert patterns[0]() is None
    assert patterns[-1]() is pattern_of_batch(A.pattern, 39)


@pytest.mark.parametrize("is_fused", [False, True])
def test_transforms_of_sparsified_results(is_fused: bool, interpreted: None) -> None:
    A = ns.from_torch(D, ns.CSR)
    program = lambda A, x: sparsify(A @ x, topk(2))  # noqa: E731
    function = lambda x: as_dense((ns.fuse(program) if is_fused else program)(A, x))  # noqa: E731
    leaf = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(function(leaf).square().sum(), leaf)
    torch.testing.assert_close(grad(lambda x: function(x).square().sum())(X), expected)
    torch.testing.assert_close(jvp(lambda x: function(x).square().sum(), (X,), (X,))[1], (expected * X).sum())
    with pytest.raises(ns.UnsupportedError, match="a batch shares one pattern, so make it outside of vmap"):
        vmap(function)(torch.stack([X, X]))
