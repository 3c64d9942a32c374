"""Reductions of NaN, of empty tensors, along ``axis``, and under vmap."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dense_values import as_dense
from small_graph import GAPS, matrix

import numscorch as ns

pytestmark = pytest.mark.usefixtures("interpreted")
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("row", [[1.0, NAN, 0, NAN], [0.0, 0, 2, NAN], [-1.0, 0, 0, 2], [NAN, NAN, NAN, NAN]])
@pytest.mark.parametrize("name", ["min", "max", "argmin", "argmax", "amin", "amax"])
def test_nan_is_the_smallest_and_the_largest(name: str, row: list[float]) -> None:
    D = torch.tensor([row])
    result, expected = (getattr(torch, name)(t, 1) for t in (ns.from_torch(D), D))
    result, expected = (tuple(t) if name in ("min", "max") else t for t in (result, expected))
    torch.testing.assert_close(result, expected, equal_nan=True)
    torch.testing.assert_close(getattr(torch, name)(ns.from_torch(D)), getattr(torch, name)(D), equal_nan=True)


@pytest.mark.parametrize("largest", [True, False])
def test_topk_orders_nan_as_torch(largest: bool) -> None:
    D = torch.tensor([[1.0, NAN, 0, -1.0]])
    torch.testing.assert_close(ns.from_torch(D).topk(3, largest=largest).values, D.topk(3, largest=largest).values, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool, torch.float16])
def test_logsumexp_of_integers_equals_torchs(dtype: torch.dtype) -> None:
    A = matrix(torch.tensor([1, 2, 3, 0, 1, 2])).to(dtype)
    torch.testing.assert_close(torch.logsumexp(A, 1), torch.logsumexp(A.to_dense(), 1))


@pytest.mark.parametrize("dim", [None, 0, 1, (0, 1), -2])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("name", ["any", "all"])
def test_any_and_all_of_empty_tensors(name: str, shape: tuple[int, int], keepdim: bool, dim: Any) -> None:
    D = torch.zeros(shape)
    options = {} if dim is None else {"dim": dim, "keepdim": keepdim}
    result, expected = (getattr(torch, name)(t, **options) for t in (ns.from_torch(D), D))
    assert result.dtype == torch.bool
    assert torch.equal(result, expected)


@pytest.mark.parametrize("format", [ns.CSR, *GAPS])
def test_infinity_norm_without_entries(format: Any) -> None:
    A = ns.from_torch(torch.zeros(2, 3), format)
    assert torch.norm(A, INF) == torch.linalg.vector_norm(A, INF) == 0
    with pytest.raises(RuntimeError, match="zero entries"):
        torch.norm(ns.from_torch(torch.zeros(0, 3)), INF)


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin", "prod", "any", "argmax", "var", "logsumexp", "cumsum", "softmax"])
@pytest.mark.filterwarnings("ignore::numscorch.DenseFallbackWarning")
def test_axis_is_dim(name: str) -> None:
    A = matrix()
    torch.testing.assert_close(getattr(torch, name)(A, axis=1), getattr(torch, name)(A, dim=1))
    result = getattr(A, name)(axis=1)
    assert isinstance(result, ns.SparseTensor) or torch.equal(result, getattr(A, name)(dim=1))
    with pytest.raises(TypeError, match=r"multiple values|combination of arguments|unexpected keyword"):
        getattr(A, name)(axis=1, dim=1)
    if name in ("sum", "amax", "var", "logsumexp"):
        assert getattr(torch, name)(A, axis=1, keepdims=True).shape == (4, 1)


STATISTICS: dict[str, Callable[[Any, Any], Any]] = {
    "var": lambda t, dim: torch.var(t, dim),
    "std_mean": lambda t, dim: torch.stack(torch.std_mean(t, dim, correction=0)),
    "logsumexp": lambda t, dim: torch.logsumexp(t, (0, 1) if dim is None else dim),
    "norm": lambda t, dim: torch.norm(t, 2, dim),
}


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2), "dd", ns.BCSR(3, 3), ns.DIA, *GAPS], ids=str)
def test_statistics_of_any_format(format: Any, name: str, dim: Any) -> None:
    """Blocks of 3 x 3 extend past the edges of the matrix. Gradients equal those of the dense matrix."""
    A = matrix(torch.tensor([1.0, -2.0, 3.0, 0.0, -5.0, 6.0], dtype=torch.float64)).to(format)
    A.values.requires_grad_()
    result, expected = STATISTICS[name](A, dim), STATISTICS[name](A.to_dense(), dim)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(*(torch.autograd.grad(t.sum(), A.values)[0] for t in (result, expected)))


@pytest.mark.parametrize("format", [ns.CSR, ns.COO(2), "dd", ns.BCSR(3, 3), *GAPS], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.float16])
def test_nonzeros_and_truths_of_any_format(format: Any, dtype: torch.dtype) -> None:
    A = matrix(torch.tensor([1, 0, 3, 0, 5, 6])).to(format).to(dtype)
    for dim in (None, 0, 1):
        for name in ("count_nonzero", "any", "all"):
            result, expected = (getattr(torch, name)(t, *([] if dim is None else [dim])) for t in (A, A.to_dense()))
            torch.testing.assert_close(result, expected)


def test_maxima_under_vmap() -> None:
    A, values = matrix(), torch.randn(3, 6)
    for call in (lambda B: torch.topk(B, 2, 0).values, lambda B: torch.max(B, 1).indices, lambda B: torch.min(B, 1).values, torch.argmin):
        rows = torch.func.vmap(lambda v, call=call: call(A.with_values(v)))(values)
        torch.testing.assert_close(rows, torch.stack([call(A.with_values(v)) for v in values]))
    gradient = torch.func.grad(lambda v: torch.max(A.with_values(v), 1).values.sum())(values[0])
    assert gradient.tolist() == torch.autograd.functional.jacobian(lambda v: A.with_values(v).to_dense().amax(1).sum(), values[0]).tolist()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("stored", [torch.int8, torch.bool, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("format", [ns.CSR, ns.COO(2), ns.CSF(3)], ids=str)
def test_sums_have_the_requested_integer_type(format: ns.Format, stored: torch.dtype, dtype: torch.dtype) -> None:
    """Sums wrap around in that type, as torch's do."""
    shape = (5, 7, 3)[: format.order]
    dense = torch.randint(0, 99, shape, generator=torch.Generator().manual_seed(0)).to(stored)
    dense[2] = 0
    A = ns.from_torch(dense, format)
    for dim in (None, 0, -1, (0, 1)):
        for keepdim in (False, True):
            result, expected = A.sum(dim, keepdim, dtype=dtype), dense.sum(dim, keepdim, dtype=dtype)
            assert result.dtype == dtype
            assert type(result) is type(A.sum(dim, keepdim))
            assert torch.equal(result.to_dense(), expected)


def test_narrow_sums_copy_no_values() -> None:
    A = ns.from_torch(torch.eye(3, dtype=torch.int8))
    with ns.ledger() as copies:
        assert A.sum(1, dtype=torch.int8).tolist() == [1, 1, 1]
    assert not list(copies)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [0, 1, 2, -1, (0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 2, 3), (2, 3, 0), (0, 0, 2), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("name", ["mean", "logsumexp", "sum", "any", "all", "var", "std"])
def test_reductions_of_three_dimensions_without_elements(name: str, shape: tuple[int, ...], dim: Any, keepdim: bool) -> None:
    D = torch.zeros(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # var and std warn of degrees of freedom
        result, expected = (getattr(torch, name)(t, dim=dim, keepdim=keepdim) for t in (ns.from_torch(D), D))
    result = as_dense(result)
    torch.testing.assert_close(result, expected, equal_nan=True)


BLOCKED = {
    "BCSR": "(i, j) -> (i // 4: dense, j // 4: compressed, i % 4: dense, j % 4: dense)",
    "columns of blocks": "(i, j) -> (j // 2: dense, i // 4: compressed, i % 4: dense, j % 2: dense)",
    "tiles of some rows": "(i, j) -> (i: compressed, j: dense)",
    "dense below": "dsd",
    "list of tiles": "(i, j, k) -> (i: compressed(unique=False), j: singleton, k: dense)",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["var", "std", "logsumexp"])
@pytest.mark.parametrize("format", BLOCKED.values(), ids=BLOCKED)
def test_statistics_of_tiles_and_their_gradients(format: str, name: str, dtype: torch.dtype) -> None:
    fmt, generator = ns.Format(format), torch.Generator().manual_seed(1)
    dense = torch.rand((8, 12, 8)[: fmt.order], generator=generator, dtype=dtype)
    dense = dense * (torch.rand(dense.shape, generator=generator) < 0.3)
    options = {} if name == "logsumexp" else {"correction": 0}
    for dim in [(0,), (1,), tuple(range(fmt.order))]:
        A, D = ns.from_torch(dense, fmt), dense.clone().requires_grad_()
        A = A.with_values(A.values.clone().requires_grad_())
        result, expected = (getattr(torch, name)(t, dim, **options) for t in (A, D))
        torch.testing.assert_close(result, expected)
        if name != "std":  # whose gradient is infinite where all entries are equal
            gradients = torch.autograd.grad(result.square().sum(), A.values)[0], torch.autograd.grad(expected.square().sum(), D)[0]
            stored = A.with_values(torch.ones_like(A.values)).to_dense()
            torch.testing.assert_close(A.with_values(gradients[0]).to_dense(), gradients[1] * stored)


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "logsumexp"])
def test_statistics_of_a_number(name: str) -> None:
    S = ns.from_torch(torch.tensor(3.0))
    options = {} if name == "logsumexp" else {"correction": 0}
    torch.testing.assert_close(getattr(torch, name)(S, (), **options), getattr(torch, name)(S.to_dense(), (), **options))


def test_a_number_stays_sparse_if_all_of_it_is_selected() -> None:
    S = ns.from_torch(torch.tensor(3.0))
    assert type(S[()]) is type(S[...]) is ns.SparseTensor
