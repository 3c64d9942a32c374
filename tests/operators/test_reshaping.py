"""rearrange with named dimensions on dense and sparse tensors, and the mixture of experts of Scorch's slides."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import numscorch as ns

# a program that imports numscorch in place of torch has these names
from numscorch import einsum, rand, randn, rearrange
from numscorch.nn import functional as F

pytestmark = pytest.mark.usefixtures("interpreted")
FORMATS = (ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.CSF(2), ns.BCSR(2, 3), ns.DIA, ns.ELL, ns.Format("dd"))
D = torch.tensor([[0, 2, 0, 0, 0, 1], [3, 0, 4, 0, 0, 0], [0] * 6, [0, 0, 5, 6, 0, 7]], dtype=torch.float64)
CASES: dict[str, tuple[dict[str, int], Any]] = {
    "bd->bnd": ({"n": 3}, lambda x: x[:, None].expand(4, 3, 6)),
    "bd->nbd": ({"n": 2}, lambda x: x.expand(2, 4, 6)),
    "bd->bdn": ({"n": 2}, lambda x: x[..., None].expand(4, 6, 2)),
    "bd->bnd ": ({"n": 0}, lambda x: x[:, None].expand(4, 0, 6)),
    "bd->db": ({}, lambda x: x.t()),
    "bd->bd": ({}, lambda x: x),
    "bd -> 1bd": ({"b": 4}, lambda x: x[None]),
    "b d -> b n d": ({"n": 3}, lambda x: x[:, None].expand(4, 3, 6)),
    "batch (h w) -> batch h w": ({"h": 2}, lambda x: x.reshape(4, 2, 3)),
    "batch (h w) -> (batch w) h": ({"w": 2}, lambda x: x.reshape(4, 3, 2).permute(0, 2, 1).reshape(8, 3)),
    "(a b) d -> d (b a n)": ({"a": 2, "n": 2}, lambda x: x.reshape(2, 2, 6).permute(2, 1, 0)[..., None].expand(6, 2, 2, 2).reshape(6, 8)),
    "a(bc)->cab": ({"b": 2, "c": 3}, lambda x: x.reshape(4, 2, 3).permute(2, 0, 1)),
    "... d -> d ...": ({}, lambda x: x.t()),
    "...->n...": ({"n": 2}, lambda x: x.expand(2, 4, 6)),
    "a b ... -> b 1 ... a": ({}, lambda x: x.t()[:, None]),
    "a b -> (a b)": ({}, lambda x: x.reshape(-1)),
    "a_1 b2->b2 () a_1": ({}, lambda x: x.t()[:, None]),
    "(a 1) b -> b a": ({}, lambda x: x.t()),
}


@pytest.mark.parametrize("text", CASES)
def test_dense(text: str) -> None:
    sizes, expected = CASES[text]
    x = D.clone().requires_grad_()
    result = rearrange(x, text, **sizes)
    assert torch.equal(result, expected(x))
    assert (result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) == (
        expected(x).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    )
    weights = torch.rand(result.shape, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((result * weights).sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad((expected(x) * weights).sum(), x)[0])


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("text", CASES)
def test_sparse(text: str, fmt: ns.Format) -> None:
    sizes, expected = CASES[text]
    A = ns.from_torch(D, fmt)
    values = A.values.clone().requires_grad_()
    result = rearrange(A.with_values(values), text, **sizes)
    assert isinstance(result, ns.SparseTensor)
    assert torch.equal(result.to_dense(), expected(D))
    weights = torch.rand(result.shape, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((result.to_dense() * weights).sum(), values)
    x = D.clone().requires_grad_()
    (expected_gradient,) = torch.autograd.grad((expected(x) * weights).sum(), x)
    inside = A.with_values(torch.ones_like(A.values)).to_dense() != 0
    torch.testing.assert_close(A.with_values(gradient).to_dense(), expected_gradient * inside)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_torchs_sparse_tensors_stay_torchs() -> None:
    for native in (D.to_sparse(), D.to_sparse_csr()):
        result = rearrange(native, "bd->bnd", n=2)
        assert isinstance(result, torch.Tensor)
        assert torch.equal(result.to_dense(), D[:, None].expand(4, 2, 6))
        assert rearrange(native, "bd->db").layout in (torch.sparse_coo, torch.sparse_csc)


def test_methods_parameters_and_scalars() -> None:
    A = ns.from_torch(D)
    assert torch.equal(A.rearrange("bd->db").to_dense(), D.t())
    assert torch.equal(rearrange(ns.nn.Parameter(A), "bd->db").to_dense(), D.t())
    assert rearrange(torch.tensor(3.0), "->n", n=2).tolist() == [3.0, 3.0]
    assert rearrange(torch.tensor([[3.0]]), "1 1 ->").item() == 3.0
    assert rearrange(torch.ones(2, 3), "tensor pattern -> pattern tensor n", n=1, tensor=2).shape == (3, 2, 1)


@pytest.mark.filterwarnings("error")
def test_torch_compiles_rearrange() -> None:
    for dynamic in (False, True):
        compiled = torch.compile(
            lambda x: rearrange(x, "b (h w) -> b n h w", n=3, h=2) * 2, fullgraph=True, backend="eager", dynamic=dynamic
        )
        assert torch.equal(compiled(D), 2 * D.reshape(4, 1, 2, 3).expand(4, 3, 2, 3))


BAD: dict[str, tuple[dict[str, int], type[Exception], str, int | None]] = {
    "abd->bd": ({}, ns.ExpressionError, "'abd' names 3 dimensions, but the tensor has 2", 0),
    "a->a": ({}, ns.ExpressionError, "'a' names 1 dimensions, but the tensor has 2: name each, or use ...", 0),
    "a b c ... -> a b c ...": ({}, ns.ExpressionError, "names 3 dimensions", 0),
    "bd->bnd": ({}, ns.ExpressionError, "the size of the new dimension n is unknown: give its size, as n=2", 5),
    "bd->b...d": ({}, ns.ExpressionError, "the size of the new dimension ... is unknown: name it on the left", 5),
    "bd->b": ({}, ns.ExpressionError, "d is missing on the right: sum over it", 1),
    "bb->b": ({}, ns.ExpressionError, "b is repeated", 0),
    "bd->bdd": ({}, ns.ExpressionError, "d is repeated", 5),
    "batch (h w) -> batch h w": ({}, ns.ExpressionError, "the parts of dimension 1, size 6, are ambiguous: give h= or w=", 9),
    "batch $ -> batch": ({}, ns.ExpressionError, "'$' is not a name", 6),
    "b (d -> b d": ({}, ns.ExpressionError, "a parenthesis is open", 5),
    "b ((d)) -> b d": ({}, ns.ExpressionError, "'(' is not a name", 3),
    "b d) -> b d": ({}, ns.ExpressionError, "')' is not a name", 3),
    "b (...) -> b ...": ({}, ns.ExpressionError, "'...' is not a name", 3),
    "b d": ({}, ns.ExpressionError, "takes names on both sides of one ->", 3),
    "bd->bd->bd": ({}, ns.ExpressionError, "takes names on both sides of one ->", 6),
    "bd->db": ({"n": 3}, ns.ExpressionError, "n= does not name a dimension: the names are d, b", 0),
    "b d->d b": ({"b": 5}, ns.SizeError, "dimension 0 has size 4, which does not fit b=5", None),
    "b (h w)->b h w": ({"h": 4}, ns.SizeError, "dimension 1 has size 6, which does not fit h=4", None),
    "b 1->b": ({}, ns.SizeError, "dimension 1 has size 6, which does not fit 1", None),
    "b d->b d n": ({"n": -1}, ns.SizeError, "negative", None),
}


@pytest.mark.parametrize("text", BAD)
def test_errors_mark_the_position_in_the_pattern(text: str) -> None:
    sizes, kind, message, caret = BAD[text]
    for x in (D, ns.from_torch(D)):
        with pytest.raises(kind) as error:
            rearrange(x, text, **sizes)
        lines = str(error.value).splitlines()
        assert message in lines[0]
        if caret is not None:
            assert lines[1:] == [f"  {text}", "  " + " " * caret + "^"]


# ---- mixture of experts of the slides


@pytest.mark.parametrize("how", ["sparse=True", "format=", "to_sparse()"])
def test_a_mixture_of_experts(how: str) -> None:
    """The lines of the slides give torch's result; gates take the data type of x."""
    B, N, D_in, D_out = 7, 3, 4, 5
    numbers = torch.Generator().manual_seed(0)
    x = randn(B, D_in, generator=numbers, dtype=torch.float64).requires_grad_()
    E = randn(N, D_in, D_out, generator=numbers, dtype=torch.float64).requires_grad_()
    scores = rand(B, N, generator=numbers)
    match how:
        case "sparse=True":
            gates = F.one_hot(scores.argmax(1), N, sparse=True, dtype=x.dtype)
        case "format=":
            gates = F.one_hot(scores.argmax(1), N, format=ns.COO(2), dtype=x.dtype)
        case _:
            gates = F.one_hot(scores.argmax(1), N).to_sparse().to(x.dtype)
    x_dispatch = rearrange(x, "bd->bnd", n=N)
    y_experts = einsum("bnd,ndh->bnh", x_dispatch, E)
    y = einsum("bnh,bn->bh", y_experts, gates)
    gradients = torch.autograd.grad(y.square().sum(), (x, E))

    dense_gates = torch.nn.functional.one_hot(scores.argmax(1), N).double()
    expected = torch.einsum("bnh,bn->bh", torch.einsum("bnd,ndh->bnh", x[:, None].expand(B, N, D_in), E), dense_gates)
    expected_gradients = torch.autograd.grad(expected.square().sum(), (x, E))
    torch.testing.assert_close(y, expected)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient)


def test_only_selected_experts_are_computed() -> None:
    """Results are computed only for selected experts: by one einsum, or by inputs rearranged with the pattern of the gates."""
    x, E, picks = torch.randn(6, 4), torch.randn(3, 4, 5), torch.tensor([0, 2, 1, 1, 0, 2])
    gates = F.one_hot(picks, 3, sparse=True, dtype=x.dtype)
    expected = torch.stack([row @ E[pick] for row, pick in zip(x, picks, strict=True)])
    torch.testing.assert_close(einsum("bn,bd,ndh->bh", gates, x, E), expected)
    dispatched = rearrange(gates, "bn->bnd", d=4) * rearrange(x, "bd->bnd", n=3)
    assert dispatched.nnz == 6 * 4
    torch.testing.assert_close(einsum("bnd,ndh->bh", dispatched, E), expected)


def test_gates_of_integers_are_promoted() -> None:
    y, gates = torch.randn(4, 3, 2), F.one_hot(torch.tensor([0, 1, 2, 0]), 3, sparse=True)
    torch.testing.assert_close(einsum("bnh,bn->bh", y, gates), y[torch.arange(4), [0, 1, 2, 0]])


def test_gates_are_differentiable() -> None:
    """Gradients flow only to the probabilities of selected experts."""
    scores = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, 3, 2, dtype=torch.float64)
    gates = F.one_hot(scores.argmax(1), 3, sparse=True, dtype=torch.float64)
    einsum("bnh,bn->bh", y, gates * scores.softmax(1)).sum().backward()
    gradient, scores.grad = scores.grad, None
    dense = torch.nn.functional.one_hot(scores.argmax(1), 3).double()
    torch.einsum("bnh,bn->bh", y, dense * scores.softmax(1)).sum().backward()
    torch.testing.assert_close(gradient, scores.grad)
