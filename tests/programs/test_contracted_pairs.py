"""Programs of three factors, contracted in pairs: autocast, transforms, rounding, promotion, numbers, sparsified results."""

from __future__ import annotations

import math

import pytest
import torch
from dense_values import as_dense
from torch.autograd import forward_ad

import numscorch as ns
from numscorch.sparsify import threshold

pytestmark = pytest.mark.usefixtures("interpreted")

G = torch.Generator().manual_seed(0)
A = ns.from_torch((torch.rand(90, 90, generator=G) < 0.05) * torch.randn(90, 90, generator=G), ns.CSR)
X, W = torch.randn(90, 80, generator=G), torch.randn(80, 2, generator=G)
TEXT = "y[i,k] = A[i,j] * x[j,f] * w[f,k]"


def expected(x: torch.Tensor = X) -> torch.Tensor:
    return A.to_dense() @ x @ W


def test_programs_keep_their_data_type_within_autocast() -> None:
    result = expected()
    for _ in range(2):
        for enabled in (True, False):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                output = ns.evaluate(TEXT, A=A, x=X, w=W)
                torch.testing.assert_close(output, result)
                ns.evaluate("h[j,k] = x[j,f] * w[f,k]; y[i,k] = A[i,j] * h[j,k]", A=A, x=X, w=W)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ns.einsum("ij,jk->ik", A, X, sparsifier=threshold(0.1)).dtype == torch.bfloat16


def test_transforms_go_through_programs_of_three_factors() -> None:
    run = lambda x: ns.evaluate(TEXT, A=A, x=x, w=W)  # noqa: E731
    run(X)
    torch.testing.assert_close(
        torch.func.vmap(run)(torch.stack([X, 2 * X])), torch.stack([expected(), 2 * expected()]), rtol=1e-4, atol=1e-4
    )
    gradient = torch.func.grad(lambda x: run(x).sum())(X)
    torch.testing.assert_close(gradient, A.to_dense().t().sum(1, keepdim=True) * W.sum(1), rtol=1e-4, atol=1e-4)


def test_16_bits_are_rounded_once() -> None:
    narrow = {"A": A.to(torch.bfloat16), "x": X.bfloat16(), "w": W.bfloat16()}
    exact = narrow["A"].to_dense().double() @ narrow["x"].double() @ narrow["w"].double()
    result = ns.evaluate(TEXT, **narrow)
    assert bool(((result.double() - exact).abs() <= (exact.bfloat16().double() - exact).abs() + 1e-5 * exact.abs().max()).all())


def test_unsupported_calls_raise_before_torch_computes() -> None:
    with pytest.raises(RuntimeError):
        ns.einsum("ij,jj->ii", torch.ones(2, 2), torch.ones(2, 2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns when it registers rules of forward-mode AD
def test_the_tangent_of_contracted_pairs() -> None:
    with forward_ad.dual_level():
        result = forward_ad.unpack_dual(ns.evaluate(TEXT, A=A, x=forward_ad.make_dual(X, 2 * X), w=W))
    torch.testing.assert_close(result.tangent, 2 * result.primal)


def test_a_chain_promotes_operands_of_another_dtype() -> None:
    for _ in range(2):
        assert ns.evaluate(TEXT, A=A, x=X, w=W).dtype == torch.float32
        assert ns.evaluate(TEXT, A=A, x=X, w=W.double()).dtype == torch.float64


def test_equal_numbers_of_other_sign_or_type_have_separate_plans() -> None:
    F = ns.from_torch(torch.eye(3), ns.CSR)
    for a in (0.0, -0.0, 0.0):
        assert float(ns.evaluate("y[i,j] = A[i,j] / a", A=F, a=a).values[0]) == math.copysign(math.inf, a)
    integers = F.to(torch.int32)
    for a in (1, 1.5, 1):
        result, expected = ns.evaluate("y[i,j] = A[i,j] * a", A=integers, a=a), integers.values * a
        assert result.dtype == expected.dtype
        assert torch.equal(result.values, expected)


@pytest.mark.parametrize("format", ["dense", "auto", "infer"])
def test_sparsified_results_have_the_requested_format(format: str) -> None:
    result = ns.evaluate(TEXT, A=A, x=X, w=W, sparsifier=threshold(0.5), format=format)
    dense_result = as_dense(result)
    torch.testing.assert_close(dense_result, torch.where(expected().abs() > 0.5, expected(), 0.0), rtol=1e-4, atol=1e-4)
