"""einsum's reduce= with one term, without terms, and with unstored entries, in all formats and code paths."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
from dense_values import as_dense

import numscorch as ns

pytestmark = pytest.mark.usefixtures("interpreted")

SPLIT = ("(i, j) -> (j // 2: dense, i: dense, j % 2: compressed)", "(i, j) -> (i // 2: dense, j: dense, i % 2: bitmap)")
FORMATS = (ns.CSR, ns.CSC, ns.DCSR, ns.COO(2), ns.ELL, ns.DIA, ns.BCSR(2, 2), *map(ns.Format, SPLIT))
NO_TERMS = {"sum": 0.0, "mean": nan, "max": -inf, "min": inf, "prod": 1.0, "any": 0.0, "all": 1.0, "or_and": 0.0}
SEMIRINGS = {"min_plus": inf, "max_plus": -inf}


def matrix(rows: int, columns: int, format: ns.Format, seed: int = 0) -> tuple[ns.SparseTensor, torch.Tensor]:
    """A matrix with some stored zeros, and the mask of its stored entries."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=generator) < 0.5
    values = torch.randint(-2, 3, (int(mask.sum()),), generator=generator).double()
    A = ns.from_coo(mask.nonzero().T, values, (rows, columns)).to(format)
    return A, stored(A)


def stored(A: ns.SparseTensor) -> torch.Tensor:
    return A.with_values(torch.ones_like(A.values)).to_dense() != 0


@pytest.mark.parametrize("reduce", SEMIRINGS)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_semiring_adds_factors_where_no_index_is_reduced(format: ns.Format, reduce: str) -> None:
    (A, A_stored), (B, B_stored) = matrix(4, 5, format), matrix(4, 5, ns.CSR, 1)
    x, zero = torch.arange(5.0).double(), SEMIRINGS[reduce]
    joined = ns.einsum("ij,ij->ij", A, B, reduce=reduce)
    assert torch.equal(stored(joined) & (joined.to_dense() != zero), A_stored & B_stored)
    assert torch.equal(joined.to_dense()[A_stored & B_stored], (A.to_dense() + B.to_dense())[A_stored & B_stored])
    scaled = ns.einsum("ij,j->ij", A, x, reduce=reduce)
    assert torch.equal(stored(scaled), A_stored)
    assert torch.equal(scaled.to_dense()[A_stored], (A.to_dense() + x)[A_stored])
    dense = ns.einsum("ij,j->ij", A, x, reduce=reduce, format="dense")
    assert torch.equal(dense, torch.where(A_stored, A.to_dense() + x, zero))
    masked = ns.einsum("ij,j->ij", A, x, reduce=reduce, mask=B)
    assert torch.equal(masked.to_dense()[B_stored], dense[B_stored])


@pytest.mark.parametrize("reduce", SEMIRINGS)
@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_the_extreme_integer_is_infinite(dtype: torch.dtype, format: ns.Format, reduce: str) -> None:
    """Shortest and longest paths: no edge leads out of an unreachable vertex."""
    (A, A_stored), limits = matrix(6, 5, format), torch.iinfo(dtype)
    limit, extreme = (limits.max, torch.amin) if reduce == "min_plus" else (limits.min, torch.amax)
    A, x, X = (
        A.to(dtype),
        torch.tensor([3, -limit // 2, limit, 0, limit], dtype=dtype),
        torch.tensor([[2, limit]], dtype=dtype).expand(5, 2),
    )
    full = torch.where(A_stored, A.to_dense(), limit)

    def expected(other: torch.Tensor) -> torch.Tensor:
        is_infinite = (full[:, :, None] == limit) | (other == limit)
        return extreme(torch.where(is_infinite, limit, full[:, :, None] + other), 1)

    for operand in (A, full):
        assert torch.equal(ns.einsum("ij,j->i", operand, x, reduce=reduce), expected(x[:, None])[:, 0])
        assert torch.equal(ns.einsum("ij,jk->ik", operand, X, reduce=reduce), expected(X))
    at_entries = ns.einsum("ij,jk->ik", A, ns.from_torch(X, ns.CSR), reduce=reduce, format=ns.CSR)
    assert torch.equal(torch.where(stored(at_entries), at_entries.to_dense(), limit), expected(X))


@pytest.mark.parametrize("reduce", SEMIRINGS)
@pytest.mark.parametrize("format", [*FORMATS, ns.Format("sd")], ids=str)
def test_entries_without_terms_are_the_zero_of_the_semiring(format: ns.Format, reduce: str) -> None:
    (A, A_stored), zero = matrix(4, 4, ns.CSR), SEMIRINGS[reduce]
    for operand in (A, torch.where(A_stored, A.to_dense(), zero)):
        result = ns.einsum("ij->ij", operand, reduce=reduce, format=format)
        mask = stored(result)
        assert bool((mask | ~A_stored).all())
        assert torch.equal(result.to_dense()[mask], torch.where(A_stored, A.to_dense(), zero)[mask])
    out = torch.zeros(4, 4).double()
    ns.einsum("ij->ij", A, reduce=reduce, out=out)
    assert torch.equal(out, torch.where(A_stored, A.to_dense(), zero))


@pytest.mark.parametrize("reduce", [*NO_TERMS, *SEMIRINGS])
@pytest.mark.parametrize("format", ["dd", "ds", "ss", "oo", "(i, j) -> (i // 2: dense, j // 2: compressed, i % 2: dense, j % 2: dense)"])
def test_a_reduction_of_no_terms(format: str, reduce: str) -> None:
    expected = (NO_TERMS | SEMIRINGS)[reduce]
    A = ns.zeros(3, 0, format=ns.Format(format))
    for operand in (A, A.to_dense()):
        result = ns.einsum("ij->i", operand, reduce=reduce, format="dense")
        torch.testing.assert_close(result, torch.full((3,), expected), equal_nan=True)
    sparse = ns.einsum("ij->i", A, reduce=reduce, format="s")
    default = 0.0 if reduce in SEMIRINGS else expected
    torch.testing.assert_close(sparse.to_dense(), torch.full((3,), default), equal_nan=True)


def test_a_product_of_no_terms_is_1_where_nothing_is_stored() -> None:
    A, B = ns.zeros(2, 0, format=ns.CSR), ns.from_torch(torch.eye(2, 3), ns.CSR)
    assert torch.equal(as_dense(ns.evaluate("y[i,k] *= A[i,j] * B[i,k]", A=A, B=B)), torch.ones(2, 3))
    assert torch.equal(as_dense(ns.evaluate("y[i,k] max= A[i,j] * B[i,k]", A=A, B=B)), torch.full((2, 3), -inf))


@pytest.mark.parametrize("reduce", ["prod", "min", "mean"])
def test_a_mask_limits_reductions_without_terms(reduce: str) -> None:
    mask = ns.from_torch(torch.tensor([1.0, 0.0, 1.0]), ns.Format("s"))
    result = ns.einsum("ij->i", ns.zeros(3, 0, format=ns.CSR), reduce=reduce, mask=mask, format="dense")
    value = NO_TERMS[reduce]
    torch.testing.assert_close(result, torch.tensor([value, 0.0, value]), equal_nan=True)


def test_maxima_and_minima_of_booleans_without_terms() -> None:
    A = ns.zeros(2, 0, format=ns.CSR, dtype=torch.bool)
    for operand in (A, A.to_dense()):
        assert ns.einsum("ij->i", operand, reduce="max", format="dense").tolist() == [False, False]
        assert ns.einsum("ij->i", operand, reduce="min", format="dense").tolist() == [True, True]


@pytest.mark.parametrize("reduce", SEMIRINGS)
def test_integers_of_different_infinities_are_refused(reduce: str) -> None:
    A = ns.from_torch(torch.eye(3, dtype=torch.int64))
    with pytest.raises(ns.UnsupportedError, match=r"torch.int32 and torch.int64 values.*convert"):
        ns.einsum("ij,j->i", A, torch.ones(3, dtype=torch.int32), reduce=reduce)


@pytest.mark.parametrize("reduce", ["max", "min", "prod", "any", "min_plus"])
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_nan_times_an_unstored_entry_is_no_term(format: ns.Format, reduce: str) -> None:
    A, A_stored = matrix(4, 4, format, 2)
    x = torch.where(A_stored, 1.0, nan).double()
    terms = torch.where(A_stored, A.to_dense() + 1, inf) if reduce == "min_plus" else A.to_dense()
    expected = {"max": terms.amax(1), "prod": terms.prod(1), "any": (terms != 0).any(1).double()}.get(reduce, terms.amin(1))
    assert torch.equal(ns.einsum("ij,ij->i", A, x, reduce=reduce, format="dense"), expected)
    stored_diagonal, diagonal = A_stored.diagonal(), A.to_dense().diagonal()
    expected = torch.where(stored_diagonal, diagonal + 1, inf) if reduce == "min_plus" else torch.where(stored_diagonal, diagonal, 0.0)
    expected = (expected != 0).double() if reduce == "any" else expected
    assert torch.equal(ns.einsum("ii,i->i", A, torch.where(stored_diagonal, 1.0, nan).double(), reduce=reduce, format="dense"), expected)


def test_the_diagonal_of_a_statement_stores_what_its_operand_stores() -> None:
    A = ns.from_torch(torch.tensor([[2.0, 1.0], [1.0, 0.0]]), ns.CSR)
    x = torch.tensor([1.0, nan])
    assert torch.equal(ns.evaluate("y[i] max= A[i,i] * x[i]", A=A, x=x, format="dense"), torch.tensor([2.0, 0.0]))


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("reduce", ["max", "prod", "mean", "any", "min_plus"])
@pytest.mark.parametrize("expression", ["ij,j->ij", "ij,ik->ij", "ij,jk->ik", "ij,i->ij"])
@pytest.mark.parametrize("is_masked", [False, True])
def test_gradients_of_sparse_results(format: ns.Format, reduce: str, expression: str, is_masked: bool) -> None:
    """The reference reduces dense terms whose factors are all stored."""
    A, A_stored = matrix(4, 4, format, 3)
    A = A.with_values(torch.rand(A.values.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_())
    other = expression.split("->")[0].split(",")[1]
    x = torch.rand([4] * len(other), generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()
    mask = matrix(4, 4, ns.CSR, 4)[0] if is_masked else None
    result = ns.einsum(expression, A, x, reduce=reduce, mask=mask, format=None if is_masked else format)
    a, y = A.to_dense().detach().requires_grad_(), x.detach().clone().requires_grad_()
    names = "ijk"
    left, right = a[:, :, None], y[tuple(slice(None) if n in other else None for n in names)]
    is_term, zero = A_stored[:, :, None], SEMIRINGS.get(reduce, 0.0)
    terms = torch.where(is_term, left + right if reduce in SEMIRINGS else left * right, zero)
    kept_names = expression[-2:]
    order = [names.index(name) for name in (*kept_names, *(name for name in names if name not in kept_names))]
    terms = terms.expand(4, 4, 4 if "k" in expression else 1).permute(order)
    expected = {"prod": terms.prod(-1), "mean": terms.mean(-1), "any": (terms != 0).any(-1).double()}.get(
        reduce, terms.amax(-1) if reduce.startswith("max") else terms.amin(-1)
    )
    chosen = stored(result) & expected.isfinite()
    torch.testing.assert_close(result.to_dense()[chosen], expected[chosen])
    if reduce == "any":
        return
    weight = torch.rand(4, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    torch.where(chosen, result.to_dense() * weight, 0.0).sum().backward()
    torch.where(chosen, expected * weight, 0.0).sum().backward()
    assert A.values.grad is not None
    assert a.grad is not None
    torch.testing.assert_close(A.with_values(A.values.grad).to_dense(), torch.where(A_stored, a.grad, 0.0))
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("format", ["ds", "ss", "oo", "(i, j) -> (i // 2: dense, j // 2: compressed, i % 2: dense, j % 2: dense)"])
@pytest.mark.parametrize("expression", ["ijk->ij", "ijk,k->ij"])
def test_products_that_are_0_keep_their_entries_and_gradients(expression: str, format: str) -> None:
    """The result stores the same entries with and without gradients, and a single factor of 0 has a gradient."""
    as_dense = torch.rand(3, 4, 2, generator=torch.Generator().manual_seed(0)).double() + 0.5
    as_dense[:, :, 0] *= torch.rand(3, 4, generator=torch.Generator().manual_seed(1)) < 0.6
    A = ns.from_torch(torch.ones_like(as_dense), ns.CSF(3)).with_values(as_dense.flatten().requires_grad_())
    others = [torch.ones(2).double()] if "," in expression else []
    result = ns.einsum(expression, A, *others, reduce="prod", format=ns.Format(format))
    without_gradient = ns.einsum(expression, A.with_values(A.values.detach()), *others, reduce="prod", format=ns.Format(format))
    assert torch.equal(stored(result), stored(without_gradient))
    dense = as_dense.clone().requires_grad_()
    dense.prod(-1)[stored(result)].sum().backward()
    result.to_dense().sum().backward()
    assert A.grad is not None
    torch.testing.assert_close(A.grad.to_dense(), dense.grad)


def test_the_mean_of_one_term_does_not_change_a_leaf() -> None:
    A, _ = matrix(3, 3, ns.CSR)
    leaf = A.values.clone().requires_grad_()
    result = ns.einsum("ij->ij", A.with_values(leaf), reduce="mean")
    result.values.sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.ones_like(leaf))


@pytest.mark.parametrize("reduce", ["sum", "max", "prod", "min_plus"])
def test_gradients_outside_of_a_mask_are_0(reduce: str) -> None:
    A, x = matrix(3, 3, ns.CSR)[0], torch.ones(3, dtype=torch.float64, requires_grad=True)
    mask = ns.from_torch(torch.eye(3).double(), ns.CSR)
    result = ns.einsum("ij,j->ij", A, x, reduce=reduce, mask=mask, format="dense")
    result[result.isfinite()].sum().backward()
    stored_diagonal = stored(A).diagonal()
    expected = stored_diagonal.double() if reduce == "min_plus" else A.to_dense().diagonal()
    torch.testing.assert_close(x.grad, expected)
