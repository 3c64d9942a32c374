"""Rows that are merged with many others are scattered into dense arrays and looked up."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.ir.index import loops_of
from numscorch.schedule import tuning


def matrix(rows: int, columns: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 5, (rows, columns), generator=generator).to(dtype) * (torch.rand(rows, columns, generator=generator) < 0.6)


def is_scattered(explanation: ns.Explanation) -> bool:
    return any(step.name == "scatter_rows" for step in explanation.steps) and "_row_vals" in explanation.source


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
@pytest.mark.parametrize("workers", [1, 3])
def test_sums_at_a_mask(dtype: torch.dtype, workers: int, plain: pytest.MonkeyPatch) -> None:
    plain.setattr(tuning, "PARALLEL_STEPS", 0)
    plain.setattr(tuning, "BLOCKS", 5)
    plain.setattr("numscorch.machine.threads.workers", lambda: workers)
    a, b, c = matrix(9, 13, 1, dtype), matrix(13, 11, 2, dtype), matrix(9, 11, 3, dtype)
    A, B, C = (ns.from_torch(t, ns.CSR) for t in (a, b, c))
    assert is_scattered(ns.explain("ij,jk,ik->", A, B, C))
    assert ns.einsum("ij,jk,ik->", A, B, C).item() == ((a @ b) * c).sum().item()
    assert torch.equal(ns.einsum("ij,jk->ik", A, B, mask=C).to_dense(), (a @ b) * (c != 0))
    assert torch.equal(ns.einsum("ij,jk,ik->i", A, B, C), ((a @ b) * c).sum(1))


def test_unstored_entries_of_a_scattered_row_are_no_terms(plain: pytest.MonkeyPatch) -> None:
    a, b, c = matrix(9, 13, 1), matrix(13, 11, 2), matrix(9, 11, 3)
    b[b == 1] = float("inf")
    a[a == 2] = float("nan")
    A, B, C = (ns.from_torch(t, ns.CSR) for t in (a, b, c))
    result = ns.einsum("ij,jk->ik", A, B, mask=C)
    terms = torch.where((a != 0)[:, :, None] & (b != 0)[None], a[:, :, None] * b[None], 0.0)
    assert torch.equal(torch.nan_to_num(result.to_dense(), 7.0), torch.nan_to_num(terms.sum(1).where(c != 0, 0.0), 7.0))
    assert is_scattered(ns.explain("ij,jk->ik", A, B, mask=C))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [3, 13, 60])
@pytest.mark.parametrize("compiled", [False, True])
def test_stored_zeros_are_entries(dtype: torch.dtype, columns: int, compiled: bool, request: pytest.FixtureRequest) -> None:
    """Zero times infinity is NaN where the zero is stored, also a negative one, and 0 where it is not."""
    request.getfixturevalue("fresh_plans" if compiled else "plain")
    a, b, c = matrix(9, columns, 1, dtype), matrix(columns, 11, 2, dtype), matrix(9, 11, 3, dtype)
    A, B, C = ns.from_torch(a, ns.CSR), ns.from_torch(b, ns.CSC), ns.from_torch(c, ns.CSR)
    zeros, infinite = A.values.clone(), B.values.clone()
    zeros[::3], zeros[1::3], infinite[::4] = 0.0, -0.0, torch.inf
    A, B = A.with_values(zeros), B.with_values(infinite)
    assert is_scattered(ns.explain("ij,jk->ik", A, B, mask=C))
    terms = torch.where((a != 0)[:, :, None] & (b != 0)[None], A.to_dense()[:, :, None] * B.to_dense()[None], 0.0)
    expected = torch.where(c != 0, terms.sum(1), 0.0)
    assert torch.isnan(expected).any()
    result = ns.einsum("ij,jk->ik", A, B, mask=C).to_dense()
    torch.testing.assert_close(result, expected, equal_nan=True)


def test_long_rows_are_gathered() -> None:
    a = matrix(40, 90, 1, torch.float32)
    A, C = ns.from_torch(a, ns.CSR), ns.from_torch(matrix(40, 40, 3, torch.float32), ns.CSR)
    assert "stored_product(gather(A_row_vals" in ns.explain("ij,kj->ik", A, A, mask=C).source
    narrow = ns.from_torch(a.int(), ns.CSR)  # registers hold floats
    assert "A_row_vals[j] = A_vals" in ns.explain("ij,kj->ik", narrow, narrow, mask=C).source


@pytest.mark.parametrize("width", [1, 11, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_beside_a_vectorised_dimension(width: int, dtype: torch.dtype, plain: pytest.MonkeyPatch) -> None:
    a, b, c = (matrix(40, 40, seed, dtype) for seed in (1, 2, 3))
    A, B, C = ns.from_torch(a, ns.CSR), ns.from_torch(b, ns.CSC), ns.from_torch(c, ns.CSR)
    x = matrix(40, width, 4, dtype)
    result = ns.evaluate("y[i,l] = A[i,j] * B[k,j] * X[k,l] * C[i,k]", A=A, B=B, X=x, C=C)
    assert torch.equal(result, ((a @ b.T) * c) @ x)
    assert torch.equal(ns.einsum("ij,kj,kl,ik->il", A, B, x, C), ((a @ b.T) * c) @ x)


def test_rows_of_one_merge_are_merged(plain: pytest.MonkeyPatch) -> None:
    A, B = ns.from_torch(matrix(9, 13, 1), ns.CSR), ns.from_torch(matrix(9, 13, 2), ns.CSR)
    explanation = ns.explain("ij,ij->i", A, B)
    assert not is_scattered(explanation)
    assert len(loops_of(explanation.steps[-1].stmt)) == 2


def test_compiled(fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setattr(tuning, "PARALLEL_STEPS", 0)
    a, b, c = matrix(200, 300, 1), matrix(300, 150, 2), matrix(200, 150, 3)
    A, B, C = (ns.from_torch(t, ns.CSR) for t in (a, b, c))
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert ns.einsum("ij,jk,ik->", A, B, C).item() == ((a @ b) * c).sum().item()
        assert torch.equal(ns.einsum("ij,jk->ik", A, B, mask=C).to_dense(), (a @ b) * (c != 0))


def test_one_long_row_among_short_ones_is_scattered(plain: pytest.MonkeyPatch) -> None:
    """The average row is merged rarely, but the row that holds most values is merged often."""
    n = 3000  # statistics are made of 4,096 entries or more
    a = torch.zeros(n, n, dtype=torch.float64)
    a[range(1, n), range(n - 1)] = 1.0
    assert not is_scattered(ns.explain("ij,jk,ik->", *[ns.from_torch(a, ns.CSR)] * 3))
    a[n - 1] = 1.0
    A = ns.from_torch(a, ns.CSR)
    assert is_scattered(ns.explain("ij,jk,ik->", A, A, A))
    assert ns.einsum("ij,jk,ik->", A, A, A).item() == ((a @ a) * a).sum().item()


def test_lookups_in_a_scattered_row_do_not_count_as_work() -> None:
    """Counted as merges, the same product would be six times as much work, and run in parallel."""
    A = ns.from_torch((torch.rand(200, 200, generator=torch.Generator().manual_seed(0)) < 0.025).float(), ns.CSR)
    explanation = ns.explain("ij,jk->ik", A, A, mask=A)
    assert is_scattered(explanation)
    assert "one worker" in next(step.why for step in explanation.steps if step.name == "parallelize")


@pytest.mark.parametrize("lower", [True, False])
def test_triangles_are_counted_in_the_order_with_the_fewest_lookups(lower: bool, fresh_plans: pytest.MonkeyPatch) -> None:
    """Hubs have long columns in one triangle of a graph, and long rows in the other one."""
    generator = torch.Generator().manual_seed(0)
    edges = (torch.rand(2, 20_000, generator=generator) ** 4 * 1500).long()
    dense = torch.zeros(1500, 1500)
    dense[edges[0], edges[1]] = 1.0
    dense = (dense + dense.T > 0).float().tril(-1)
    dense = dense if lower else dense.T.contiguous()
    A = ns.from_torch(dense, ns.CSR)
    explanation = ns.explain("ij,jk,ik->", A, A, A)
    assert is_scattered(explanation)
    nest = next(step.stmt for step in explanation.steps if step.name == "order_loops")
    rows, columns = dense.sum(1), dense.sum(0)
    of_rows, of_both, of_columns = ((left * right).sum().item() for left, right in ((rows, rows), (rows, columns), (columns, columns)))
    lookups = {"ijk": of_both, "kji": of_both, "ikj": of_columns, "jki": of_columns, "jik": of_rows, "kij": of_rows}
    assert lookups["".join(loop.var.name for loop in loops_of(nest))] <= 2 * min(lookups.values()) < max(lookups.values())
    assert ns.einsum("ij,jk,ik->", A, A, A).item() == ((dense @ dense) * dense).sum().item()
