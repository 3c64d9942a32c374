"""Results that are sparsified as they are made: the same as sparsified afterwards, and never there as a whole."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.ir.format import sorted_format
from numscorch.runtime.dispatch import _plans, uncompiled
from numscorch.sparsify import magnitude, sparsify, threshold

G = torch.Generator().manual_seed(0)


def sparse(rows: int, columns: int, each: int, dtype: torch.dtype = torch.float32) -> ns.SparseTensor:
    dense = torch.randn(rows, columns, generator=G, dtype=dtype)
    return ns.from_torch(dense * (torch.rand(rows, columns, generator=G) < each / columns), ns.CSR)


def dense(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=G, dtype=dtype)


def programs(dtype: torch.dtype) -> dict[str, dict[str, Any]]:
    """Programs with their operands."""
    A, B, S = sparse(50, 40, 4, dtype), dense(40, 37, dtype=dtype), sparse(50, 40, 6, dtype)
    rows, columns = dense(50, 8, dtype=dtype), dense(40, 8, dtype=dtype)
    return {
        "C[i,k] = A[i,j] * B[j,k]": {"A": A, "B": B},
        "C[k,i] = A[i,j] * B[j,k]": {"A": A, "B": B},
        "C[i,k] = relu(A[i,j] * B[j,k] + b[k])": {"A": A, "B": B, "b": dense(37, dtype=dtype)},
        "C[i,j] = A[i,j] * (Q[i,k] * K[j,k])": {"A": A, "Q": rows, "K": columns},
        "C[i,j] = A[i,j] + D[i,j]": {"A": A, "D": dense(50, 40, dtype=dtype)},
        "C[i,j] = A[i,j] + S[i,j]": {"A": A, "S": S},
        "C[i,k] = A[i,j] * S[k,j]": {"A": A, "S": S},
        "C[i,k] = A[i,j] * W[j,f] * V[f,k]": {"A": A, "W": columns, "V": dense(8, 5, dtype=dtype)},
        "C[h,i,k] = A[i,j] * X[h,j,k]": {"A": A, "X": dense(3, 40, 9, dtype=dtype)},
        "C[i,k] = x[i] * y[k]": {"x": dense(50, dtype=dtype), "y": dense(9, dtype=dtype)},
        "C[i] = A[i,j] * x[j]": {"A": A, "x": dense(40, dtype=dtype)},
        "T[i,k] = A[i,j] * B[j,k]; l[i] = T[i,k]; C[i,k] = T[i,k] / (l[i] * l[i] + 1)": {"A": A, "B": B},
    }


def check(text: str, operands: dict[str, Any], bound: float) -> ns.SparseTensor:
    made = ns.evaluate(text, sparsifier=threshold(bound), **operands)
    expected = sparsify(ns.evaluate(text, **operands), threshold(bound))
    assert made.format == sorted_format(expected.format)
    assert made.dtype == expected.dtype
    torch.testing.assert_close(made.to_dense(), expected.to_dense())
    assert made.nnz == expected.nnz or abs(made.nnz - expected.nnz) <= 1  # where sums are in another order
    return made


@pytest.mark.parametrize("bound", [0, 0.4, 2.0, 1e9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("text", programs(torch.float32))
def test_a_threshold_keeps_what_it_keeps_of_the_whole_result(text: str, dtype: torch.dtype, bound: float) -> None:
    check(text, programs(dtype)[text], bound)


@pytest.mark.parametrize("text", programs(torch.float32))
def test_every_access_is_in_its_place(text: str) -> None:
    with uncompiled():
        check(text, programs(torch.float32)[text], 0.5)


def test_threads_append_side_by_side() -> None:
    A, B = sparse(6000, 300, 9), dense(300, 64)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(check("C[i,k] = A[i,j] * B[j,k]", {"A": A, "B": B}, 3.0))
    torch.set_num_threads(2)
    assert torch.equal(results[0].values, results[1].values)


def test_einsum_takes_a_sparsifier_and_a_format() -> None:
    A, B = sparse(30, 20, 3), dense(20, 6)
    expected = sparsify(ns.einsum("ij,jk->ik", A, B), threshold(1.0))
    for format in (None, ns.CSC, ns.COO(2), ns.BCSR(2, 3)):
        made = ns.einsum("ij,jk->ik", A, B, sparsifier=threshold(1.0), format=format)
        assert made.format == (format or ns.CSR)
        assert torch.equal(made.to_dense(), expected.to_dense())
    kept = ns.einsum("ij,jk->ik", A, B, sparsifier=magnitude(0.9))
    assert kept.nnz == round(0.1 * 180) and kept.format == ns.CSR
    with pytest.raises(ns.UnsupportedError, match="sparsifier= beside out=, reduce="):
        ns.einsum("ij,jk->ik", A, B, sparsifier=threshold(1.0), reduce="max")


def test_gradients_flow_to_what_is_kept() -> None:
    A, B = sparse(30, 20, 3), dense(20, 6).requires_grad_()
    ns.einsum("ij,jk->ik", A, B, sparsifier=threshold(1.0)).values.sum().backward()
    own, B.grad = B.grad, None
    whole = ns.einsum("ij,jk->ik", A, B)
    torch.where(whole.abs() > 1.0, whole, 0.0).sum().backward()
    torch.testing.assert_close(own, B.grad)


def test_nan_is_refused_as_sparsify_refuses_it() -> None:
    A, B = ns.from_torch(torch.eye(3), ns.CSR), torch.tensor([[1.0, 2.0], [torch.nan, 0.1], [0.0, 5.0]])
    with pytest.raises(ns.OperandError, match="NaN"):
        ns.einsum("ij,jk->ik", A, B, sparsifier=threshold(0.5))


@pytest.mark.parametrize("shape", [(0, 4, 5), (4, 0, 5), (4, 5, 0), (1, 1, 1)])
def test_sizes_of_0_and_1(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    check("C[i,k] = A[i,j] * B[j,k]", {"A": ns.from_torch(torch.ones(rows, inner), ns.CSR), "B": torch.ones(inner, columns)}, 0.5)


def test_the_whole_result_never_takes_memory() -> None:
    A, B = sparse(4000, 400, 5), dense(400, 500)
    run = lambda: ns.einsum("ij,jk->ik", A, B, sparsifier=threshold(9.0))  # noqa: E731
    few = run()
    assert few.density < 0.01
    assert any(getattr(getattr(plan, "problem", None), "result", None) and plan.problem.result.prunes for plan in _plans.values())
    tracemalloc.start()  # which counts what numpy reserves: coordinates and values, but no result beside them
    run()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1.2 * 4000 * 500 * 8


def test_explain_tells_where_a_result_is_sparsified() -> None:
    A, B = sparse(50, 40, 4), dense(40, 37)
    told = str(ns.explain("ij,jk->ik", A, B, sparsifier=threshold(0.5)))
    assert "evaluate in one kernel" in told and "where(abs(C_row[k]) <= C, 0, C_row[k])" in told
    apart = str(ns.explain("C[i,k] = A[i,j] * S[k,j]", A=A, S=sparse(30, 40, 4), sparsifier=threshold(0.5)))
    assert "of the result, once it is there, by a conversion's kernel" in apart
    assert str(ns.explain("ij,jk->ik", A, B, sparsifier=magnitude(0.5))).startswith("evaluate A[i,j] * B[j,k]")
