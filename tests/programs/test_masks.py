"""Masks with any data type and format, and dense factors in any layout."""

from __future__ import annotations

import pytest
import torch
from random_tensors import integers

import numscorch as ns
from numscorch.errors import UnsupportedError


def random_mask(rows: int, columns: int) -> torch.Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(rows)) < 0.4


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.DCSR, ns.COO(2)], ids=str)
@pytest.mark.parametrize("width", [1, 7, 8, 16, 64])
def test_scores_at_a_mask(fmt: ns.Format, width: int, interpreted: None) -> None:
    selected, Q, K = random_mask(9, 12), integers(9, width), integers(12, width)
    mask = ns.from_torch(selected.float(), fmt)
    assert torch.equal(ns.einsum("ik,jk->ij", Q, K, mask=mask).to_dense(), Q @ K.T * selected)
    assert torch.equal(ns.einsum("ik,kj->ij", Q, K.T, mask=mask).to_dense(), Q @ K.T * selected)


def test_scores_at_masks_of_a_batch_compiled(fresh_plans: pytest.MonkeyPatch) -> None:
    selected, Q, K = random_mask(9, 12), integers(2, 9, 16), integers(2, 12, 16)
    mask = ns.from_torch(selected.float(), ns.CSR)
    scores = ns.einsum("bik,bjk->bij", Q, K, mask=ns.stack([mask, mask])).to_dense()
    assert torch.equal(scores, Q @ K.transpose(1, 2) * selected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float16, torch.int64, torch.complex64])
def test_values_of_a_mask_have_any_type(dtype: torch.dtype, interpreted: None) -> None:
    selected, A, x = random_mask(6, 5), integers(6, 4), integers(4, 5)
    S, mask = ns.from_torch(A, ns.CSR), ns.from_torch(selected.to(dtype), ns.CSR)
    assert torch.equal(ns.einsum("ij,jk->ik", S, x, mask=mask).to_dense(), A @ x * selected)
    assert torch.equal(ns.einsum("ij,jk->ik", A, x, mask=mask.to_torch()).to_dense(), A @ x * selected)
    narrow = ns.einsum("ij,jk->ik", S.to(torch.bfloat16), x.bfloat16(), mask=mask)
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow.to_dense().float(), A @ x * selected)


def test_a_mask_is_explained(interpreted: None) -> None:
    mask = ns.from_torch(torch.eye(3), ns.CSR)
    assert "CSR" in str(ns.explain("ik,jk->ij", integers(3, 4), integers(3, 4), mask=mask))
    assert "max=" in str(ns.explain("ij->i", mask, reduce="max"))
    with pytest.raises(UnsupportedError, match="mask= is an option of einsum"):
        ns.explain("y[i] = A[i,j]", A=mask, mask=mask)


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.DCSR, ns.COO(2), ns.BCSR(2, 2)], ids=str)
def test_reductions_without_terms_do_not_depend_on_the_format(fmt: ns.Format, interpreted: None) -> None:
    A = ns.from_torch(torch.zeros(5, 0), fmt)
    for reduce, value in (("prod", 1.0), ("max", -torch.inf), ("min", torch.inf), ("mean", torch.nan)):
        assert torch.equal(ns.einsum("ij->i", A, reduce=reduce).nan_to_num(), torch.full((5,), value).nan_to_num())
    assert torch.equal(ns.einsum("ij->i", A, reduce="prod", format="s").values, torch.ones(5))


@pytest.mark.parametrize("name", ["mask", "reduce"])
def test_a_tensor_in_a_statement_may_be_named_like_an_argument_of_explain(name: str) -> None:
    text = str(ns.explain(f"y[i] = {name}[i,j]", **{name: ns.from_torch(torch.eye(3))}))
    assert "A[i,j]" in text


def test_a_mask_of_another_shape_is_refused_after_one_that_fits(interpreted: None) -> None:
    A, mask = ns.from_torch(torch.eye(4), ns.CSR), ns.from_torch(torch.eye(4), ns.CSR)
    for _ in range(2):
        assert torch.equal(ns.einsum("ij,jk->ik", A, A, mask=mask).to_dense(), torch.eye(4))
        with pytest.raises(ns.SizeError, match=r"mask has shape \(5, 4\), but the result has \(4, 4\)"):
            ns.einsum("ij,jk->ik", A, A, mask=ns.from_torch(torch.ones(5, 4), ns.CSR))
        with pytest.raises(ns.UnsupportedError, match="mask must be sparse"):
            ns.einsum("ij,jk->ik", A, A, mask=torch.ones(4, 4))


SPLIT = [
    f"(i, j) -> ({outer} // 2: {above}, {other}: dense, {outer} % 2: {level})"
    for outer, other in (("i", "j"), ("j", "i"))
    for above, level in (("dense", "compressed"), ("dense", "bitmap"), ("dense", "hash"), ("compressed", "fixed"))
]
IMPLICIT = [
    f"(i, j) -> ({above}: {stored}, {below}: {level})"
    for above, below in (("i", "j"), ("j", "i"))
    for stored, level in (("dense", "identity"), ("dense", "causal"), ("compressed", "band(1, 1)"), ("dense", "band(0, 2)"))
]


def pattern_of(mask: ns.SparseTensor) -> torch.Tensor:
    """The coordinates that a mask stores, as a dense boolean tensor."""
    stored = torch.zeros(mask.shape, dtype=torch.bool)
    stored[tuple(mask.indices())] = True
    return stored


def check_selects(mask: ns.SparseTensor) -> None:
    """Check that products of dense and sparse operands at a mask have the entries of the mask and no others."""
    rows, columns = mask.shape
    A, B, selected = integers(rows, 3), integers(3, columns), pattern_of(mask)
    for left, right in ((A, B), (A, ns.from_torch(B, ns.CSC)), (ns.from_torch(A, ns.COO(2)), ns.from_torch(B, ns.CSR))):
        for format in (None, ns.COO(2)):
            result = ns.einsum("ik,kj->ij", left, right, mask=mask, format=format)
            assert torch.equal(pattern_of(result), selected)
            assert torch.equal(result.to_dense(), A @ B * selected)
        assert torch.equal(ns.einsum("ik,kj->ij", left, right, mask=mask, format="dense"), A @ B * selected)
    other = ns.from_torch(integers(rows, columns), ns.DCSR)
    assert torch.equal(ns.einsum("ij->ij", other, mask=mask).to_dense(), other.to_dense() * selected)
    assert torch.equal(ns.einsum("ij,i->ij", other, A[:, 0], reduce="max", mask=mask).to_dense(), other.to_dense() * A[:, :1] * selected)


@pytest.mark.parametrize("text", SPLIT)
def test_masks_of_split_dimensions_with_a_sparse_part(text: str, interpreted: None) -> None:
    check_selects(ns.from_torch(random_mask(5, 7).float() * 5, ns.Format(text)))


@pytest.mark.parametrize("text", IMPLICIT)
def test_masks_of_implicit_levels(text: str, interpreted: None) -> None:
    mask = ns.from_torch(torch.eye(5) * 5, ns.Format(text))
    check_selects(mask)
    assert ns.einsum("ik,jk->ij", integers(5, 2), integers(5, 2), mask=mask).format == mask.format


def test_a_large_band_selects_without_a_dense_tensor(interpreted: None) -> None:
    count, format = 60_000, ns.Format("(i, j) -> (i: dense, j: band(1, 1))")
    rows = torch.arange(count)
    mask = ns.from_coo(torch.stack([rows, rows]), torch.ones(count), (count, count), format)
    text = str(ns.explain("i,j->ij", torch.rand(count), torch.rand(count), mask=mask))
    assert "is the mask" in text
    small = ns.from_coo(torch.stack([rows[:5], rows[:5]]), torch.ones(5), (5, 5), format)
    with ns.strict():
        assert ns.einsum("i,j->ij", integers(5), integers(5), mask=small).format == format


@pytest.mark.parametrize("text", ["dd", "(i, j) -> (j: dense, i: dense)", "(i, j) -> (i // 2: dense, j: dense, i % 2: dense)"])
@pytest.mark.parametrize("shape", [(5, 4), (4, 6)], ids=str)
def test_a_mask_that_stores_every_coordinate_changes_nothing(text: str, shape: tuple[int, int], interpreted: None) -> None:
    rows, columns = shape
    mask, A, B = ns.from_torch(torch.full(shape, 5.0), ns.Format(text)), integers(rows, 3), integers(3, columns)
    S = ns.from_torch(A, ns.CSR)
    assert torch.equal(ns.einsum("ik,kj->ij", A, B, mask=mask), A @ B)
    assert torch.equal(ns.einsum("ik,kj->ij", S, B, mask=mask, format="dense"), A @ B)
    assert torch.equal(ns.einsum("ik,kj->ij", S, B, mask=mask, format=ns.CSR).to_dense(), A @ B)
    assert torch.equal(ns.einsum("ij->ij", A, mask=ns.from_torch(torch.full((rows, 3), 5.0), ns.Format(text))), A)
    assert torch.equal(ns.evaluate("R[i,j] = stored(M[i,j]) * A[i,k] * B[k,j]", M=mask, A=A, B=B), A @ B)
    with pytest.raises(ns.SizeError, match="mask has shape"):
        ns.einsum("ik,kj->ij", A, B[:, :-1], mask=mask)
