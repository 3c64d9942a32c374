"""Shortcuts: calls like an earlier one go straight to its plan, and all others the long way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.autograd import forward_ad

import numscorch as ns
from numscorch.compute import shortcuts
from numscorch.frontend.requests import einsum_request
from numscorch.runtime import plans as dispatch
from numscorch.runtime.plans import SHORTCUTS, uncompiled

SPMM = "ij,jk->ik"
D = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
A, X = ns.from_torch(D, ns.CSR), torch.arange(6.0).reshape(3, 2)


@pytest.fixture(autouse=True)
def no_shortcuts() -> Iterator[None]:
    SHORTCUTS.clear()
    shortcuts._last.clear()
    yield
    SHORTCUTS.clear()


def learn() -> shortcuts.Shortcut:
    """The shortcut of SpMM, which takes the first call's plan, and the same once more."""
    for _ in range(2):
        assert SPMM not in SHORTCUTS
        ns.einsum(SPMM, A, X)
    found: shortcuts.Shortcut = SHORTCUTS[SPMM]
    return found


def test_two_calls_in_a_row_make_one() -> None:
    shortcut = learn()
    assert shortcut.run(shortcut, A, X).equal(D @ X)
    assert ns.einsum(SPMM, A, X).equal(D @ X)
    assert (A @ X).equal(D @ X)


def test_other_operands_take_the_long_way() -> None:
    shortcut = learn()
    wide, swapped = torch.arange(12.0).reshape(3, 4), X.t().contiguous().t()
    for given in (wide, swapped, X.double(), X.to(torch.complex64), X[:, :1]):
        assert shortcut.run(shortcut, A, given) is shortcuts.MISSED
        torch.testing.assert_close(ns.einsum(SPMM, A, given), D.to(given.dtype) @ given)
    assert shortcut.run(shortcut, A, X, X) is shortcuts.MISSED
    assert shortcut.run(shortcut, A) is shortcuts.MISSED
    other = ns.from_torch(D, ns.CSC)
    assert ns.einsum(SPMM, other, X).equal(D @ X)
    with pytest.raises(ns.SizeError):
        ns.einsum(SPMM, A, X[:2])
    with pytest.raises(ns.ExpressionError):
        ns.einsum(SPMM, A)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of torch, at its first dual level
def test_modes_of_torch_take_the_long_way() -> None:
    shortcut = learn()
    with torch.autocast("cpu", torch.bfloat16):
        assert shortcut.run(shortcut, A, X) is shortcuts.MISSED
        assert ns.einsum(SPMM, A, X).dtype is torch.bfloat16
    with forward_ad.dual_level():
        assert shortcut.run(shortcut, A, X) is shortcuts.MISSED
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


def test_arguments_take_the_long_way() -> None:
    learn()
    assert ns.einsum(SPMM, A, X, format=ns.CSR).format == ns.CSR
    out = torch.empty(2, 2)
    assert ns.einsum(SPMM, A, X, out=out) is out and out.equal(D @ X)
    assert ns.einsum(SPMM, A, X, reduce="max").equal((D.unsqueeze(2) * X).amax(1))


def test_tables_apart_know_none() -> None:
    learn()
    with uncompiled():
        assert ns.einsum(SPMM, A, X).equal(D @ X)
        assert dispatch._tables().plans


def test_autotune_and_forget_drop_it() -> None:
    learn()
    dispatch.forget(einsum_request("ij, jk -> ik", (2, 2)))
    assert SPMM not in SHORTCUTS


def test_shapes_that_change_with_each_call_end_it() -> None:
    learn()
    for size in range(3, shortcuts.MOST_MISSES + 5):
        ns.einsum(SPMM, A, torch.ones(3, size))
    assert SPMM not in SHORTCUTS
    for _ in range(3):
        assert ns.einsum(SPMM, A, X).equal(D @ X)
    assert SPMM not in SHORTCUTS


def test_two_kinds_of_calls_in_turns_share_one() -> None:
    wide = torch.arange(12.0).reshape(3, 4)
    for given in (X, X, wide, wide):
        ns.einsum(SPMM, A, given)
    shortcut = SHORTCUTS[SPMM]
    for given in (X, wide) * 3:
        assert shortcut.run(shortcut, A, given).equal(D @ given)
    assert shortcut.misses == 2


def test_torchs_own_tensors() -> None:
    T = D.to_sparse_csr()
    for _ in range(3):
        assert ns.einsum(SPMM, T, X).equal(D @ X)
    T.values().mul_(2)
    assert ns.einsum(SPMM, T, X).equal(2 * D @ X)
