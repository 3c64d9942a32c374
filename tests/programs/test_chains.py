"""Chains: programs that run several kernels, with torch's functions between them, give the same results at each call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.frontend.requests import einsum_request
from numscorch.operators.reducing import _softmax_program
from numscorch.programs.operands import identify
from numscorch.programs.steps import Chain
from numscorch.runtime.plans import known_plan

pytestmark = pytest.mark.usefixtures("interpreted")

CONVOLUTION = "y[i,o] = relu(A[i,j] * x[j,f] * w[o,f] + b[o])"
TRIANGLES = "T[i,k] = A[i,j] * B[j,k]; y[i,o] = T[i,k] * x[k,o]"


def operands_of(seed: int, weight: Any = torch.Tensor) -> dict[str, Any]:
    """Operands whose patterns differ between seeds, and for which the compiler generates the same code."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(120).repeat_interleave(4)
    columns = torch.stack([torch.randperm(120, generator=generator)[:4].sort().values for _ in range(120)]).reshape(-1)
    A = ns.from_coo(torch.stack([rows, columns]), torch.randn(480, generator=generator), (120, 120), format=ns.CSR)
    dense = [torch.randn(shape, generator=generator) for shape in ((120, 30), (8, 30), (8,))]
    return {"A": A, "x": dense[0], "w": weight(dense[1]), "b": weight(dense[2])}


def expected(operands: dict[str, Any]) -> torch.Tensor:
    return torch.relu(operands["A"].to_dense() @ operands["x"] @ operands["w"].t() + operands["b"])


def is_chained(expr: str, is_statement: bool, **operands: Any) -> bool:
    _, signatures = identify(list(operands.values()))
    key = expr if is_statement else einsum_request(expr, tuple(operand.ndim for operand in operands.values()))
    return isinstance(known_plan(key, None, [*operands, *signatures] if is_statement else signatures), Chain)


@pytest.mark.parametrize("weight", [torch.Tensor, torch.nn.Parameter])
@torch.no_grad()
def test_a_program_is_a_chain_from_its_second_call_for_all_values_and_patterns(weight: Any) -> None:
    for seed in range(4):
        operands = operands_of(seed, weight)
        torch.testing.assert_close(ns.evaluate(CONVOLUTION, **operands), expected(operands))
    assert is_chained(CONVOLUTION, True, **operands_of(9, weight))


@torch.no_grad()
def test_an_einsum_in_pairs_is_a_chain_and_still_writes_into_out() -> None:
    expr = "ij,jf,of->io"
    for seed in range(3):
        operands = operands_of(seed)
        result = operands["A"].to_dense() @ operands["x"] @ operands["w"].t()
        factors = (operands["A"], operands["x"], operands["w"])
        torch.testing.assert_close(ns.einsum(expr, *factors), result)
        out = torch.empty(120, 8)
        assert ns.einsum(expr, *factors, out=out) is out
        torch.testing.assert_close(out, result)
    assert is_chained(expr, False, A=operands["A"], x=operands["x"], w=operands["w"])


@torch.no_grad()
def test_an_intermediate_result_with_a_new_pattern_prevents_a_chain() -> None:
    for seed in range(3):
        operands = operands_of(seed)
        named = {"A": operands["A"], "B": operands_of(seed + 5)["A"], "x": operands["x"]}
        torch.testing.assert_close(ns.evaluate(TRIANGLES, **named), named["A"].to_dense() @ named["B"].to_dense() @ named["x"])
    assert not is_chained(TRIANGLES, True, **named)


@pytest.mark.parametrize("text", ["C[i,j] = A[i,j] + B[i,j]", "T[i,k] = A[i,j] * B[j,k]", "C[i,j] = 2 * A[i,j] * B[i,j]"])
def test_a_last_result_with_a_new_pattern_allows_a_chain(text: str) -> None:
    for seed in range(4):
        A, B = operands_of(seed)["A"], operands_of(seed + 5)["A"]
        a, b = A.to_dense(), B.to_dense()
        result = a @ b if text.startswith("T") else a + b if "+" in text else 2 * a * b
        torch.testing.assert_close(ns.evaluate(text, A=A, B=B).to_dense(), result)
    assert is_chained(text, True, A=A, B=B)


@pytest.mark.parametrize("step", ["T[j,i] = 2 * A[i,j]", "T[j,i] = 2 * stored(A[i,j]) * B[j,i]"])
def test_operands_that_share_a_pattern_by_chance_make_no_chain(step: str) -> None:
    text = f"{step}; s += T[j,i] * B[j,i]"
    A = operands_of(0)["A"]
    for other in (A, operands_of(1)["A"]):  # the first B is the transposed A, whose pattern the result of the first step has
        a, b = A.to_dense().t(), other.t().to_dense()
        result = 2 * (((a != 0) * b if "stored" in step else a) * b).sum()
        for _ in range(2):
            torch.testing.assert_close(ns.evaluate(text, A=A, B=other.t()), result)


@torch.no_grad()
def test_softmax_is_a_chain_for_all_patterns_and_keeps_native_layouts() -> None:
    for seed in range(3):
        A = operands_of(seed)["A"]
        result = ns.softmax(A, 1)
        assert result.pattern is A.pattern
        softmax = torch.where(A.to_dense() != 0, A.to_dense(), -torch.inf).softmax(1).nan_to_num(0.0)
        torch.testing.assert_close(result.to_dense(), softmax)
    assert is_chained(_softmax_program("softmax", 2, 1), True, A=A)
    assert ns.softmax(A.to_torch(), 1).layout is A.to_torch().layout


def test_gradients_flow_through_a_sparse_result_after_a_chain_is_known() -> None:
    text = "C[i,j] = A[i,j] + B[i,j]"
    ns.evaluate(text, A=operands_of(0)["A"], B=operands_of(1)["A"])
    A, B = operands_of(2)["A"], operands_of(3)["A"]
    A.values.requires_grad_()
    ns.evaluate(text, A=A, B=B).to_dense().square().sum().backward()
    gradient = A.values.grad
    a = A.to_dense().detach().requires_grad_()
    (a + B.to_dense()).square().sum().backward()
    torch.testing.assert_close(gradient, a.grad[A.to_dense().detach() != 0])


def test_gradients_flow_after_a_chain_is_known() -> None:
    with torch.no_grad():
        ns.evaluate(CONVOLUTION, **operands_of(0, torch.nn.Parameter))
    operands, other = operands_of(1, torch.nn.Parameter), operands_of(1, torch.nn.Parameter)
    ns.evaluate(CONVOLUTION, **operands).square().sum().backward()
    expected(other).square().sum().backward()
    for name in ("w", "b"):
        torch.testing.assert_close(operands[name].grad, other[name].grad, rtol=1e-4, atol=1e-3)


@torch.no_grad()
def test_errors_do_not_change_once_a_chain_is_known() -> None:
    operands = operands_of(0)
    ns.evaluate(CONVOLUTION, **operands)
    with pytest.raises(ns.SizeError):
        ns.evaluate(CONVOLUTION, **operands | {"x": torch.ones(119, 30)})
    with pytest.raises(ns.ExpressionError, match="b missing"):
        ns.evaluate(CONVOLUTION, **{name: operands[name] for name in "Axw"})


def test_explain_lists_contracted_pairs() -> None:
    operands = operands_of(0)
    for text in (str(ns.explain("ij,jf,of->io", operands["A"], operands["x"], operands["w"])), str(ns.explain(CONVOLUTION, **operands))):
        assert "jf,of->jo: every operand is dense, so torch computes it" in text
        assert "[i,j] * result_" in text or "A[i,j] * B[j,o]" in text


@torch.no_grad()
def test_chains_take_views_of_dense_operands_and_native_sparse_tensors() -> None:
    operands = operands_of(0)
    for changed in ({"w": operands["w"].t().contiguous().t()}, {"A": operands["A"].to_torch()}, {"x": torch.conj(operands["x"])}):
        for _ in range(2):
            torch.testing.assert_close(ns.evaluate(CONVOLUTION, **operands | changed), expected(operands))
