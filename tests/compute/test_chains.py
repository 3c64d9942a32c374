"""Chains: what is computed by several kernels, or by torch between them, is the same at every call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.compute.chains import Chain
from numscorch.compute.operands import identify
from numscorch.frontend.requests import einsum_request
from numscorch.operators.reducing import _softmax_program
from numscorch.runtime.plans import known_plan

CONVOLUTION = "y[i,o] = relu(A[i,j] * x[j,f] * w[o,f] + b[o])"
TRIANGLES = "T[i,k] = A[i,j] * B[j,k]; y[i,o] = T[i,k] * x[k,o]"


def given(seed: int, weight: Any = torch.Tensor) -> dict[str, Any]:
    """Operands whose patterns differ from seed to seed, and which the compiler treats alike."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(120).repeat_interleave(4)
    columns = torch.stack([torch.randperm(120, generator=generator)[:4].sort().values for _ in range(120)]).reshape(-1)
    A = ns.from_coo(torch.stack([rows, columns]), torch.randn(480, generator=generator), (120, 120), format=ns.CSR)
    dense = [torch.randn(shape, generator=generator) for shape in ((120, 30), (8, 30), (8,))]
    return {"A": A, "x": dense[0], "w": weight(dense[1]), "b": weight(dense[2])}


def expected(own: dict[str, Any]) -> torch.Tensor:
    return torch.relu(own["A"].to_dense() @ own["x"] @ own["w"].t() + own["b"])


def is_chained(expr: str, named: bool, **operands: Any) -> bool:
    _, signatures = identify(list(operands.values()))
    key = expr if named else einsum_request(expr, tuple(operand.ndim for operand in operands.values()))
    return isinstance(known_plan(key, None, [*operands, *signatures] if named else signatures), Chain)


@pytest.mark.parametrize("weight", [torch.Tensor, torch.nn.Parameter])
@torch.no_grad()
def test_a_program_is_a_chain_from_its_second_call_on_whatever_the_values_and_the_pattern(weight: Any) -> None:
    for seed in range(4):
        own = given(seed, weight)
        torch.testing.assert_close(ns.evaluate(CONVOLUTION, **own), expected(own))
    assert is_chained(CONVOLUTION, True, **given(9, weight))


@torch.no_grad()
def test_an_einsum_in_pairs_is_a_chain_and_still_writes_into_out() -> None:
    expr = "ij,jf,of->io"
    for seed in range(3):
        own = given(seed)
        wanted = own["A"].to_dense() @ own["x"] @ own["w"].t()
        operands = (own["A"], own["x"], own["w"])
        torch.testing.assert_close(ns.einsum(expr, *operands), wanted)
        out = torch.empty(120, 8)
        assert ns.einsum(expr, *operands, out=out) is out
        torch.testing.assert_close(out, wanted)
    assert is_chained(expr, False, A=own["A"], x=own["x"], w=own["w"])


@torch.no_grad()
def test_what_comes_with_a_pattern_of_its_own_makes_no_chain() -> None:
    for seed in range(3):
        own = given(seed)
        taken = {"A": own["A"], "B": given(seed + 5)["A"], "x": own["x"]}
        torch.testing.assert_close(ns.evaluate(TRIANGLES, **taken), taken["A"].to_dense() @ taken["B"].to_dense() @ taken["x"])
    assert not is_chained(TRIANGLES, True, **taken)


@pytest.mark.parametrize("text", ["C[i,j] = A[i,j] + B[i,j]", "T[i,k] = A[i,j] * B[j,k]", "C[i,j] = 2 * A[i,j] * B[i,j]"])
def test_a_last_result_with_a_pattern_of_its_own_makes_one(text: str) -> None:
    for seed in range(4):
        A, B = given(seed)["A"], given(seed + 5)["A"]
        a, b = A.to_dense(), B.to_dense()
        wanted = a @ b if text.startswith("T") else a + b if "+" in text else 2 * a * b
        torch.testing.assert_close(ns.evaluate(text, A=A, B=B).to_dense(), wanted)
    assert is_chained(text, True, A=A, B=B)


@pytest.mark.parametrize("step", ["T[j,i] = 2 * A[i,j]", "T[j,i] = 2 * stored(A[i,j]) * B[j,i]"])
def test_what_is_like_another_operand_this_time_makes_no_chain(step: str) -> None:
    text = f"{step}; s += T[j,i] * B[j,i]"
    A = given(0)["A"]
    for other in (A, given(1)["A"]):  # the first B is the transposed A, in whose pattern the first step's result is
        a, b = A.to_dense().t(), other.t().to_dense()
        wanted = 2 * (((a != 0) * b if "stored" in step else a) * b).sum()
        for _ in range(2):
            torch.testing.assert_close(ns.evaluate(text, A=A, B=other.t()), wanted)


@torch.no_grad()
def test_softmax_is_a_chain_whatever_the_pattern_and_of_torchs_tensors_it_is_torchs() -> None:
    for seed in range(3):
        A = given(seed)["A"]
        found = ns.softmax(A, 1)
        assert found.pattern is A.pattern
        wanted = torch.where(A.to_dense() != 0, A.to_dense(), -torch.inf).softmax(1).nan_to_num(0.0)
        torch.testing.assert_close(found.to_dense(), wanted)
    assert is_chained(_softmax_program("softmax", 2, 1), True, A=A)
    assert ns.softmax(A.to_torch(), 1).layout is A.to_torch().layout


def test_gradients_flow_through_a_sparse_result_after_a_chain_is_known() -> None:
    text = "C[i,j] = A[i,j] + B[i,j]"
    ns.evaluate(text, A=given(0)["A"], B=given(1)["A"])
    A, B = given(2)["A"], given(3)["A"]
    A.values.requires_grad_()
    ns.evaluate(text, A=A, B=B).to_dense().square().sum().backward()
    found = A.values.grad
    a = A.to_dense().detach().requires_grad_()
    (a + B.to_dense()).square().sum().backward()
    torch.testing.assert_close(found, a.grad[A.to_dense().detach() != 0])


def test_gradients_flow_after_a_chain_is_known() -> None:
    with torch.no_grad():
        ns.evaluate(CONVOLUTION, **given(0, torch.nn.Parameter))
    own, other = given(1, torch.nn.Parameter), given(1, torch.nn.Parameter)
    ns.evaluate(CONVOLUTION, **own).square().sum().backward()
    expected(other).square().sum().backward()
    for name in ("w", "b"):
        torch.testing.assert_close(own[name].grad, other[name].grad, rtol=1e-4, atol=1e-3)


@torch.no_grad()
def test_a_mistake_is_told_as_before_once_a_chain_is_known() -> None:
    own = given(0)
    ns.evaluate(CONVOLUTION, **own)
    with pytest.raises(ns.SizeError):
        ns.evaluate(CONVOLUTION, **own | {"x": torch.ones(119, 30)})
    with pytest.raises(ns.ExpressionError, match="b missing"):
        ns.evaluate(CONVOLUTION, **{name: own[name] for name in "Axw"})


def test_what_is_contracted_in_pairs_is_explained_so() -> None:
    own = given(0)
    for text in (str(ns.explain("ij,jf,of->io", own["A"], own["x"], own["w"])), str(ns.explain(CONVOLUTION, **own))):
        assert "over jf,of->jo: every operand is dense, so this is torch's" in text
        assert "[i,j] * result_" in text or "A[i,j] * B[j,o]" in text


@torch.no_grad()
def test_views_of_dense_operands_and_torchs_sparse_tensors_are_taken_as_they_are() -> None:
    own = given(0)
    for changed in ({"w": own["w"].t().contiguous().t()}, {"A": own["A"].to_torch()}, {"x": torch.conj(own["x"])}):
        for _ in range(2):
            torch.testing.assert_close(ns.evaluate(CONVOLUTION, **own | changed), expected(own))
