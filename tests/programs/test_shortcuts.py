"""Shortcuts: a call like the previous ones runs their plan directly; all other calls are dispatched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.autograd import forward_ad

import numscorch as ns
from numscorch.frontend.requests import einsum_request
from numscorch.programs import fitting
from numscorch.runtime import plans
from numscorch.runtime.plans import SHORTCUTS, uncompiled

SPMM = "ij,jk->ik"
D = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
A, X = ns.from_torch(D, ns.CSR), torch.arange(6.0).reshape(3, 2)


@pytest.fixture(autouse=True)
def no_shortcuts() -> Iterator[None]:
    SHORTCUTS.clear()
    fitting._last.clear()
    yield
    SHORTCUTS.clear()


def learn() -> fitting.Shortcut:
    """The shortcut of SpMM, which the second of two equal calls creates."""
    for _ in range(2):
        assert SPMM not in SHORTCUTS
        ns.einsum(SPMM, A, X)
    shortcut: fitting.Shortcut = SHORTCUTS[SPMM]
    return shortcut


def test_two_equal_calls_create_a_shortcut() -> None:
    shortcut = learn()
    assert shortcut.run(shortcut, A, X).equal(D @ X)
    assert ns.einsum(SPMM, A, X).equal(D @ X)
    assert (A @ X).equal(D @ X)


@pytest.mark.parametrize("lazy", [torch._neg_view(X), torch._efficientzerotensor(X.shape)], ids=["negated", "zeros"])
def test_operands_without_values_in_memory_have_no_shortcut(lazy: torch.Tensor) -> None:
    for _ in range(4):
        assert ns.einsum(SPMM, A, lazy).equal(D @ lazy.clone())
    assert SPMM not in SHORTCUTS
    fitting._last.clear()
    shortcut = learn()
    assert shortcut.run(shortcut, A, lazy) is fitting.MISSED


def test_other_operands_are_dispatched() -> None:
    shortcut = learn()
    wide, swapped = torch.arange(12.0).reshape(3, 4), X.t().contiguous().t()
    for X_given in (wide, swapped, X.double(), X.to(torch.complex64), X[:, :1]):
        assert shortcut.run(shortcut, A, X_given) is fitting.MISSED
        torch.testing.assert_close(ns.einsum(SPMM, A, X_given), D.to(X_given.dtype) @ X_given)
    assert shortcut.run(shortcut, A, X, X) is fitting.MISSED
    assert shortcut.run(shortcut, A) is fitting.MISSED
    other = ns.from_torch(D, ns.CSC)
    assert ns.einsum(SPMM, other, X).equal(D @ X)
    with pytest.raises(ns.SizeError):
        ns.einsum(SPMM, A, X[:2])
    with pytest.raises(ns.ExpressionError):
        ns.einsum(SPMM, A)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch warns at its first dual level
def test_calls_in_modes_of_torch_are_dispatched() -> None:
    shortcut = learn()
    with torch.autocast("cpu", torch.bfloat16):
        assert shortcut.run(shortcut, A, X) is fitting.MISSED
        assert ns.einsum(SPMM, A, X).dtype is torch.bfloat16
    with forward_ad.dual_level():
        assert shortcut.run(shortcut, A, X) is fitting.MISSED
        with pytest.raises(ns.UnsupportedError, match="tangent"):
            ns.einsum(SPMM, A, forward_ad.make_dual(X, X))
    leaf = X.clone().requires_grad_()
    ns.einsum(SPMM, A, leaf).sum().backward()
    assert leaf.grad is not None and leaf.grad.equal(D.sum(0).unsqueeze(1).expand(3, 2))
    trained = ns.from_torch(D, ns.CSR)
    trained.values.requires_grad_()
    assert ns.einsum(SPMM, trained, X).requires_grad
    assert torch.func.vmap(lambda x: ns.einsum("ij,j->i", A, x))(X.t()).equal((D @ X).t())
    assert ns.einsum(SPMM, A, X).equal(D @ X)


def test_calls_with_arguments_are_dispatched() -> None:
    learn()
    assert ns.einsum(SPMM, A, X, format=ns.CSR).format == ns.CSR
    out = torch.empty(2, 2)
    assert ns.einsum(SPMM, A, X, out=out) is out and out.equal(D @ X)
    assert ns.einsum(SPMM, A, X, reduce="max").equal((D.unsqueeze(2) * X).amax(1))


def test_separate_tables_have_no_shortcuts() -> None:
    learn()
    with uncompiled():
        assert ns.einsum(SPMM, A, X).equal(D @ X)
        assert plans._tables().plans


def test_autotune_and_forget_drop_a_shortcut() -> None:
    learn()
    plans.forget(einsum_request("ij, jk -> ik", (2, 2)))
    assert SPMM not in SHORTCUTS


def test_shapes_that_change_with_each_call_remove_a_shortcut() -> None:
    learn()
    for size in range(3, fitting.MOST_MISSES + 5):
        ns.einsum(SPMM, A, torch.ones(3, size))
    assert SPMM not in SHORTCUTS
    for _ in range(3):
        assert ns.einsum(SPMM, A, X).equal(D @ X)
    assert SPMM not in SHORTCUTS


def test_two_kinds_of_alternating_calls_share_a_shortcut() -> None:
    wide = torch.arange(12.0).reshape(3, 4)
    for X_given in (X, X, wide, wide):
        ns.einsum(SPMM, A, X_given)
    shortcut = SHORTCUTS[SPMM]
    for X_given in (X, wide) * 3:
        assert shortcut.run(shortcut, A, X_given).equal(D @ X_given)
    assert shortcut.misses == 2


def test_native_sparse_tensors() -> None:
    T = D.to_sparse_csr()
    for _ in range(3):
        assert ns.einsum(SPMM, T, X).equal(D @ X)
    T.values().mul_(2)
    assert ns.einsum(SPMM, T, X).equal(2 * D @ X)
