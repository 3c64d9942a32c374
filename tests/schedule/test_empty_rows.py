"""Empty rows are skipped if most rows are empty: results do not change, and no values are copied."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.schedule import tuning

ROWS = 60


def sparse_rows(fmt: ns.Format, filled: tuple[int, ...]) -> tuple[torch.Tensor, ns.SparseTensor]:
    """A matrix with entries in the given rows only, or columns for formats that store columns."""
    dense = torch.zeros(ROWS, 40)
    for at, row in enumerate(filled):
        dense[row, at : at + 2] = torch.tensor([at + 1.0, -2.0])
    dense = dense if fmt == ns.CSR else dense.T.contiguous()
    return dense, ns.from_torch(dense, fmt)


def order_chosen(*operands: object, expr: str = "ij,j->i") -> str:
    """The loop order that ``explain`` shows."""
    why = next(step.why for step in ns.explain(expr, *operands).steps if step.name == "order_loops")
    return why.split(";")[0]


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC], ids=str)
@pytest.mark.parametrize("filled", [(), (0,), (59,), (0, 59), (7, 8, 30)])
@pytest.mark.parametrize("least", [0, 1 << 13])
def test_products_and_sums(fmt: ns.Format, filled: tuple[int, ...], least: int, fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setattr(tuning, "PARALLEL_STEPS", least)
    dense, A = sparse_rows(fmt, filled)
    x, y = torch.arange(dense.shape[1]).float(), torch.arange(dense.shape[0]).float()
    assert torch.equal(ns.einsum("ij,j->i", A, x), dense @ x)
    assert torch.equal(ns.einsum("ij,i->j", A, y), y @ dense)
    assert torch.equal(ns.einsum("ij,i,j->i", A, y, x), y * (dense @ x))
    assert torch.equal(ns.sum(A, 1), dense.sum(1))
    assert torch.equal(ns.sum(A, 0), dense.sum(0))
    assert torch.equal(ns.amax(A, 1), dense.amax(1))
    assert torch.equal(ns.einsum("ij,jk->ik", A, x[:, None].expand(-1, 3).contiguous()), (dense @ x)[:, None].expand(-1, 3))


def test_only_rows_with_entries_are_walked() -> None:
    x = torch.ones(40)
    assert "A stored as DCSR" in order_chosen(sparse_rows(ns.CSR, (3, 9))[1], x)
    assert "A stored as" not in order_chosen(sparse_rows(ns.CSR, tuple(range(30)))[1], x)
    assert "A stored as DCSR" in order_chosen(sparse_rows(ns.CSR, (3, 9))[1], x, expr="ij,j->")


def test_values_are_not_copied() -> None:
    dense, A = sparse_rows(ns.CSR, (3, 9))
    x = torch.ones(40)
    ns.einsum("ij,j->i", A, x)
    A.values.mul_(2)
    with ns.ledger() as led:
        assert torch.equal(ns.einsum("ij,j->i", A, x), 2 * (dense @ x))
    assert not led


def test_gradients() -> None:
    dense, A = sparse_rows(ns.CSR, (3, 9))
    x, values = torch.arange(40.0).requires_grad_(), A.values.clone().requires_grad_()
    ns.einsum("ij,j->i", A.with_values(values), x).sum().backward()
    assert torch.equal(x.grad, dense.sum(0))
    assert torch.equal(values.grad, x.detach()[A.indices()[1].long()])


@pytest.mark.parametrize("text", ["ij,i,l->ij", "ij,i,il->ij", "ij,i,il->i", "ij,i,lk->ijk", "ij,i,lk->ik"])
def test_infinity_times_an_empty_sum_is_zero(text: str) -> None:
    sizes, terms = {"i": 3, "j": 3, "k": 2, "l": 0}, text.split("->")[0].split(",")
    factors = [torch.full([sizes[letter] for letter in term], torch.inf) for term in terms[1:]]
    result = ns.einsum(text, ns.from_torch(torch.eye(3)), *factors)
    assert not (result.to_dense() if isinstance(result, ns.SparseTensor) else result).any()
