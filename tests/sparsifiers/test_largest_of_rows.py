"""einsum with sparsifier=topk(k): kernels keep the largest entries of each row of a product when the row is complete."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.runtime.plans import PROCESS, uncompiled
from numscorch.sparsify import sparsify, topk

FORMATS = (ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.Format("(i, j) -> (i: dense, j: compressed(ordered=False))"))
TEXTS = {  # with the shapes of the operands
    "ij,jk->ik": ("nm", "mq"),
    "ij,kj->ik": ("nm", "qm"),
    "ji,kj->ik": ("mn", "qm"),
    "ij,jk->ki": ("qm", "mn"),
    "ij,ij->ij": ("nq", "nq"),
    "ij->ij": ("nq",),
    "ij->ji": ("qn",),
    "ij,jk,kl->il": ("nm", "mm", "mq"),
    "ij,i->ij": ("nq", "n"),
    "aij,jk->ik": ("2nm", "mq"),
}
WORKSPACES = {  # with the number of columns, and of entries in a row
    "dense rows": (40, 20),
    "short rows that are sorted": (5000, 2),
    "hash tables": (3_000_000, 3),
}


def operand(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype, zero_share: float) -> ns.SparseTensor:
    """A sparse tensor of integers, so that many magnitudes are equal, with stored zeros."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    values = torch.randint(-3, 4, shape, generator=generator).to(dtype)
    stored = torch.rand(shape, generator=generator) >= zero_share
    A = ns.from_torch(stored.to(dtype), ns.CSF(len(shape)))
    A = A.with_values(values[stored])
    return A.to(rng.choice(FORMATS)) if len(shape) == 2 else A


def kept_of(dense: torch.Tensor, k: int) -> torch.Tensor:
    """The matrix with its k largest entries of each row, of equal ones the last, and zeros elsewhere."""
    order = dense.abs().flip(1).sort(dim=1, descending=True, stable=True).indices
    kept = torch.zeros_like(dense, dtype=torch.bool).scatter_(1, dense.shape[1] - 1 - order[:, :k], True)
    return torch.where(kept, dense, 0)


def is_fused() -> bool:
    return any(getattr(getattr(getattr(plan, "problem", None), "result", None), "row_limit", 0) for plan in PROCESS.plans.values())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_largest_of_each_row_are_kept(text: str, seed: int, is_compiled: bool) -> None:
    rng = random.Random(f"{text} {seed}")
    sizes = {name: rng.choice((1, 3, 9, 17)) for name in "nmq"} | {"2": 2}
    shapes = [tuple(sizes[name] for name in names) for names in TEXTS[text]]
    dtype, k = rng.choice((torch.float32, torch.float64)), rng.randint(1, sizes["q"])
    operands = [operand(rng, shape, dtype, rng.choice((0.0, 0.5, 0.9))) for shape in shapes]
    whole = torch.einsum(text, *(A.to_dense() for A in operands))

    def check() -> None:
        result = ns.einsum(text, *operands, sparsifier=topk(k))
        assert torch.equal(result.to_dense(), kept_of(whole, k)) and result.dtype is dtype
        assert int((result.to(ns.CSR).to_scipy().indptr[1:] - result.to(ns.CSR).to_scipy().indptr[:-1]).max(initial=0)) <= k
        assert torch.equal(sparsify(ns.einsum(text, *operands, format=ns.CSR), topk(k)).to_dense(), result.to_dense())

    if is_compiled:
        check()
    else:
        with uncompiled():
            check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("workspace", WORKSPACES)
def test_rows_are_collected_in_any_workspace(workspace: str, dtype: torch.dtype) -> None:
    columns, each = WORKSPACES[workspace]
    generator = torch.Generator().manual_seed(1)
    rows = torch.arange(300).repeat_interleave(each)
    entries = torch.stack([rows, torch.randint(columns, (300 * each,), generator=generator)]).unique(dim=1)
    values = torch.randint(-9, 10, (entries.shape[1],), generator=generator).to(dtype)
    B = ns.from_coo(entries, values, (300, columns), format=ns.CSR)
    A = ns.from_torch((torch.rand(200, 300, generator=generator) < 0.02).to(dtype), ns.CSR)
    whole = ns.einsum("ij,jk->ik", A, B, format=ns.CSR)
    result = ns.einsum("ij,jk->ik", A, B, sparsifier=topk(3))
    kept = result.to(ns.CSR).to_scipy()
    assert is_fused()
    for row, expected in zip(kept, whole.to_scipy(), strict=True):
        order = sorted(zip(abs(expected.data), expected.indices, expected.data, strict=True))[-3:]
        assert sorted(zip(row.indices, row.data, strict=True)) == sorted((column, value) for _, column, value in order)


def test_rows_are_unordered_unless_a_format_is_requested() -> None:
    A = ns.from_torch(torch.rand(9, 9), ns.CSR)
    assert not ns.einsum("ij,jk->ik", A, A, sparsifier=topk(2)).format.is_ordered
    for format in (ns.CSR, ns.CSC, ns.COO(2)):
        assert ns.einsum("ij,jk->ik", A, A, sparsifier=topk(2), format=format).format == format


def test_threads_keep_the_same() -> None:
    A = ns.from_torch((torch.rand(3000, 3000) < 0.01) * torch.randn(3000, 3000), ns.CSR)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(ns.einsum("ij,kj->ik", A, A, sparsifier=topk(4), format=ns.CSR))
        assert torch.equal(results[0].to_dense(), results[1].to_dense())
        assert torch.equal(results[0].to_dense(), sparsify(ns.einsum("ij,kj->ik", A, A), topk(4)).to_dense())
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_refused_and_infinity_kept(value: float) -> None:
    A = ns.from_torch(torch.tensor([[1.0, value, 2.0], [3.0, 0.0, 4.0]]), ns.CSR)
    if value == value:
        assert torch.equal(ns.einsum("ij->ij", A, sparsifier=topk(1)).to_dense(), torch.tensor([[0, value, 0], [0, 0, 4.0]]))
    else:
        with pytest.raises(ns.OperandError, match="NaN"):
            ns.einsum("ij->ij", A, sparsifier=topk(1))


CASES: dict[str, tuple[Any, ...]] = {
    "of columns": ("ij,jk->ik", topk(1, dim=0)),
    "of none": ("ij,jk->ik", topk(0)),
    "of a sum": ("ij,ij->j", topk(1)),
}


@pytest.mark.parametrize("name", CASES)
def test_other_results_are_sparsified_afterwards(name: str) -> None:
    text, sparsifier = CASES[name]
    A = ns.from_torch(torch.arange(9.0).reshape(3, 3), ns.CSR)
    result = ns.einsum(text, A, A, sparsifier=sparsifier)
    assert torch.equal(result.to_dense(), sparsify(ns.einsum(text, A, A), sparsifier).to_dense())


def test_operands_may_be_torchs() -> None:
    D = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 0.0]])
    expected = kept_of(D @ D.t(), 1)
    for layout in (torch.sparse_csr, torch.sparse_coo):
        A = D.to_sparse(layout=layout)
        assert torch.equal(ns.einsum("ij,kj->ik", A, A, sparsifier=topk(1)).to_dense(), expected)
        assert torch.equal(
            ns.evaluate("C[i,k] = A[i,j] * A[k,j]", A=A, sparsifier=topk(1, dim=0)).to_dense(), kept_of((D @ D.t()).t(), 1).t()
        )


@pytest.mark.parametrize(
    ("text", "sparsifier", "reason"),
    [
        ("ij,jk->ik", topk(1, dim=0), "only of rows of a matrix"),
        ("ij,jk->ik", topk(4), "at most the 3 of a row"),
        ("ij,jk->ik", topk(0), "at least one entry"),
    ],
)
def test_explain_says_why_a_row_is_not_selected_in_the_kernel(text: str, sparsifier: Any, reason: str) -> None:
    A = ns.from_torch(torch.eye(3), ns.CSR)
    assert reason in str(ns.explain(text, A, A, sparsifier=sparsifier))


def test_more_entries_than_columns_are_refused() -> None:
    A = ns.from_torch(torch.eye(3), ns.CSR)
    with pytest.raises(ns.SizeError, match="k is at most 3"):
        ns.einsum("ij,jk->ik", A, A, sparsifier=topk(4))
