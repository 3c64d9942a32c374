"""Shortcuts: a call like one of the previous ones runs its plan directly; all other calls are dispatched."""

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
    yield
    SHORTCUTS.clear()


def learn() -> fitting.Shortcut:
    """The shortcut of SpMM, which the second of two equal calls adds its plan to."""
    for _ in range(2):
        assert fitting.quick_result(SPMM, (A, X)) is fitting.MISSED
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
    assert not SHORTCUTS[SPMM].fittings.known
    SHORTCUTS.clear()
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
        tangent = forward_ad.unpack_dual(ns.einsum(SPMM, A, forward_ad.make_dual(X, 2 * X))).tangent
        assert tangent is not None and tangent.equal(2 * D @ X)
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


def sizes_in_turn() -> list[tuple[ns.SparseTensor, torch.Tensor]]:
    """Matrices of 80 sizes with features: contiguous ones, columns of a larger tensor, and one column."""
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for size in range(1, 81):
        dense = torch.rand(size, size + 1, generator=generator)
        X = torch.rand(size + 1, 6, generator=generator)
        pairs.append((ns.from_torch(dense * (dense < 0.3), ns.CSR), (X, X[:, ::2], X[:, 1:2])[size % 3]))
    return pairs


def test_shapes_that_change_with_each_call_share_a_shortcut(interpreted: None) -> None:
    learn()
    pairs = sizes_in_turn()
    for _ in range(2):
        for S, Y in pairs:
            torch.testing.assert_close(ns.einsum(SPMM, S, Y), S.to_dense() @ Y)
    shortcut = SHORTCUTS[SPMM]
    assert len(shortcut.fittings.known) == 1
    for S, Y in pairs:
        assert shortcut.run(shortcut, S, Y) is not fitting.MISSED
        assert shortcut.run(shortcut, S, torch.empty(len(Y), 7)) is fitting.MISSED
    with pytest.raises(ns.SizeError):
        ns.einsum(SPMM, pairs[5][0], pairs[8][1])


def test_the_number_of_plans_and_fittings_is_bounded(monkeypatch: pytest.MonkeyPatch, interpreted: None) -> None:
    monkeypatch.setattr(fitting, "MOST_PLANS", 3)
    monkeypatch.setattr(fitting, "MOST_FITTINGS", 2)
    learn()
    for size in range(3, 9):
        for dtype in (torch.float32, torch.float64, torch.int32):
            Y = torch.ones(3, size, dtype=dtype)
            assert ns.einsum(SPMM, A.to(dtype), Y).equal(D.to(dtype) @ Y)
    known = SHORTCUTS[SPMM].fittings.known
    assert len(known) == 2
    assert all(len(each.plans) <= 3 for each in known)


def test_two_kinds_of_alternating_calls_share_a_shortcut() -> None:
    wide = torch.arange(12.0).reshape(3, 4)
    for X_given in (X, X, wide, wide):
        ns.einsum(SPMM, A, X_given)
    shortcut = SHORTCUTS[SPMM]
    for X_given in (X, wide) * 3:
        assert shortcut.run(shortcut, A, X_given).equal(D @ X_given)


def test_functions_have_separate_shortcuts() -> None:
    row = ns.from_torch(D[:, :1].contiguous(), ns.CSR)
    for _ in range(3):
        assert ns.einsum(SPMM, row, X).equal(D[:, :1] @ X.sum(0, keepdim=True))  # broadcasts; a matrix product refuses the sizes
        with pytest.raises(ns.SizeError):
            row @ X
        assert torch.mm(A, X).equal(D @ X)
        assert (A @ X[:, 0]).equal(D @ X[:, 0])
        with pytest.raises(ns.SizeError, match="mm of"):
            torch.mm(A, X[:, 0])
        with pytest.raises(ns.ExpressionError):
            ns.einsum("mm", A, X)
        with pytest.raises(ns.UnsupportedError, match="data types"):
            A @ X.double()
    assert ns.einsum(SPMM, A, X.double()).dtype is torch.float64


def test_requests_have_shortcuts() -> None:
    """Operators without a text, with formats, and with several kernels find their plans in the same way."""
    square = D @ D.t()
    S = ns.from_torch(square, ns.CSR)
    for _ in range(3):
        assert A.sum().equal(D.sum())
        assert A.sum(1).equal(D.sum(1))
        assert (S + A @ A.t()).to_dense().equal(2 * square)
        assert ns.einsum("ij,jk,kl->il", S, S, S, format="dense").equal(square @ square @ square)
        assert ns.einsum("ij,kj->ik", A, A, format=ns.CSC).format == ns.CSC
    keys = {key[0] if isinstance(key, tuple) else key for key in SHORTCUTS}
    assert {"ij,jk,kl->il", "matmul"} <= keys


def test_native_sparse_tensors() -> None:
    T = D.to_sparse_csr()
    for _ in range(3):
        assert ns.einsum(SPMM, T, X).equal(D @ X)
    T.values().mul_(2)
    assert ns.einsum(SPMM, T, X).equal(2 * D @ X)


def test_products_of_other_ranks_have_shortcuts_of_their_own(plain: pytest.MonkeyPatch) -> None:
    """``forget`` drops the shortcut of one request, as after autotune, also where a vector was multiplied first."""
    A, x = ns.from_torch(torch.eye(4), ns.CSR), torch.rand(4)
    for right in (x, torch.rand(4, 2)):
        for _ in range(3):
            A @ right
    keys = [key for key in plans.SHORTCUTS if isinstance(key, tuple) and key[0] == "matmul"]
    assert sorted(keys) == [("matmul", (2, 1)), ("matmul", (2, 2))]
    plans.forget(einsum_request("ij,jk->ik", (2, 2)))
    assert [key for key in plans.SHORTCUTS if isinstance(key, tuple) and key[0] == "matmul"] == [("matmul", (2, 1))]


def test_the_oldest_fitting_goes_when_there_are_too_many(plain: pytest.MonkeyPatch) -> None:
    plain.setattr(fitting, "MOST_FITTINGS", 2)
    A = ns.from_torch(torch.eye(4), ns.CSR)
    for dtype in (torch.float32, torch.float64, torch.int64, torch.complex64):
        for _ in range(3):
            assert torch.equal(A.to(dtype) @ torch.ones(4, dtype=dtype), torch.ones(4, dtype=dtype))
    known = plans.SHORTCUTS["matmul", (2, 1)].fittings.known
    assert len(known) == 2
    assert known[0].find(A.to(torch.complex64), torch.ones(4, dtype=torch.complex64)) not in (None, fitting.ABSENT)
