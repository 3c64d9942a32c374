"""Edge cases of operators: sizes of 1, padding, large shapes, indices, norms, promotion, in-place writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dense_values import as_dense

import numscorch as ns


@pytest.fixture
def padded(interpreted: None) -> ns.SparseTensor:
    """A tensor whose blocks extend beyond its edge: 54 stored positions, 35 entries."""
    return ns.from_torch(torch.rand(7, 5) + 1, ns.BCSR(3, 2))


@pytest.mark.parametrize(
    "call",
    [
        lambda: ns.from_torch(torch.ones(3, 1)) @ torch.ones(5, 4),
        lambda: F.linear(torch.ones(2, 5), ns.from_torch(torch.ones(3, 1))),
        lambda: torch.tensordot(ns.from_torch(torch.ones(3, 1)), torch.ones(5, 4), 1),
    ],
)
def test_a_contracted_size_of_1_is_not_repeated(call: Callable[[], Any]) -> None:
    with pytest.raises(ns.SizeError, match=r"size 1 of dim 1 must equal size 5 of dim 0|has to be in_features=1"):
        call()


def test_padding_of_blocks_does_not_count(padded: ns.SparseTensor) -> None:
    torch.testing.assert_close(padded.norm(), padded.to_dense().norm())
    assert torch.ones_like(padded).norm() == torch.ones(7, 5).norm()
    values = padded.values.clone().requires_grad_()
    root, quotient = padded.with_values(values) ** 0.5, padded.with_values(values) / padded.clone()
    (root.sum() + quotient.sum()).backward()
    assert values.grad is not None
    assert not values.grad.isnan().any()


def test_division_in_place_broadcasts() -> None:
    B = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    torch.testing.assert_close(B.div_(torch.tensor([1.0, 10.0])).to_dense(), torch.tensor([[0.0, 0.2], [3.0, 0.0]]))


def test_shapes_with_more_positions_than_int64_holds() -> None:
    huge = ns.from_coo([[2**40 - 1], [2**40 - 3]], [1.0], (2**40, 2**40))
    assert huge.unsqueeze(0).indices().tolist() == [[0], [2**40 - 1], [2**40 - 3]]
    assert huge.unsqueeze(0).squeeze(0).shape == huge.shape
    with pytest.raises(ns.SizeError, match="it has more elements than int64 can count"):
        huge.reshape(2**80)


def test_a_parameter_freezes_and_has_operators(A: ns.SparseTensor, D: torch.Tensor) -> None:
    P = ns.nn.Parameter(A.clone())
    P.requires_grad = False
    assert not P.values.requires_grad
    P.requires_grad, P.grad = True, None
    assert torch.equal((P == 0), D == 0)
    assert torch.equal((P**2).to_dense(), D**2)
    assert torch.equal(P[0].to_dense(), D[0])
    assert torch.equal(torch.cat([P, P]).to_dense(), torch.cat([D, D]))
    assert torch.equal(torch.stack([P, P]).to_dense(), torch.stack([D, D]))
    assert len({P: 1}) == 1


def test_the_cache_of_rearrangements_is_bounded(A: ns.SparseTensor) -> None:
    for at in range(100):
        A[torch.randint(0, 4, (3,))]
        A.tril(at)
    assert len(A.pattern.derived["moves"]) <= 32


def test_indices_of_all_kinds() -> None:
    whole = ns.from_torch(torch.tensor([[0, 2], [3, 0]], dtype=torch.int32))
    assert whole[0, 1].dtype == torch.int32
    assert whole[torch.tensor(1), None].shape == (1, 2)
    assert whole[np.int64(0), np.int64(1)] == whole[torch.tensor(0), torch.tensor(1)] == 2
    assert whole[[]].shape == (0, 2)


def test_hardtanh_with_bounds_that_exclude_zero(A: ns.SparseTensor, D: torch.Tensor) -> None:
    assert torch.equal(F.hardtanh(A, 0.5, 1.0), F.hardtanh(D, 0.5, 1.0))


def test_the_mean_of_many_halves() -> None:
    full = torch.ones(300, 300, dtype=torch.float16)
    assert ns.from_torch(full).mean() == full.mean()


def test_transforms_without_gradients_and_through_softmax(A: ns.SparseTensor) -> None:
    with torch.no_grad():
        assert torch.vmap(lambda x: A @ x)(torch.ones(3, 4)).shape == (3, 4)
    values = torch.rand(3, 6)
    rows = torch.func.vmap(lambda v: torch.softmax(A.with_values(v), 1).values)(values)
    torch.testing.assert_close(rows[1], torch.softmax(A.with_values(values[1]), 1).values)
    assert torch.func.grad(lambda v: torch.log_softmax(A.with_values(v), 1).sum())(values[0]).shape == (6,)


def test_equal_infinities_are_close() -> None:
    B = ns.from_torch(torch.tensor([[0.0, float("inf")], [3.0, 0.0]]))
    assert ns.allclose(B, B)


def test_data_types_are_promoted() -> None:
    whole = ns.from_torch(torch.tensor([[0, 2], [3, 0]], dtype=torch.int32))
    assert (whole + ns.from_torch(torch.eye(2))).dtype == torch.float32
    assert (ns.from_torch(torch.eye(2)) * torch.ones(2, 2, dtype=torch.float64)).dtype == torch.float64
    assert (whole / whole).dtype == torch.float32
    assert ns.from_torch(torch.rand(2, 3, 4)).sum(2, keepdim=True).shape == (2, 3, 1)
    assert torch.permute(whole, dims=(1, 0)).shape == (2, 2)
    assert whole[:1].permute(torch.tensor([1, 0])).shape == whole[:1].permute(torch.arange(2).numpy()[::-1]).shape == (2, 1)


@pytest.mark.parametrize("order", [None, 1, 2, float("inf"), "fro", "nuc", -1])
def test_norms_of_matrices(order: Any, A: ns.SparseTensor, D: torch.Tensor) -> None:
    torch.testing.assert_close(torch.linalg.norm(A, order), torch.linalg.norm(D, order))


def test_writing_in_place(A: ns.SparseTensor, D: torch.Tensor) -> None:
    alias = result = A.clone()
    result *= 2
    result += A
    assert alias is result
    assert torch.equal(alias.to_dense(), 3 * D)
    total = torch.zeros(4, 4)
    total += A
    assert torch.equal(total, D)
    values = torch.ones(6, requires_grad=True)
    A.with_values(values).clone().mul_(D + 1).sum().backward()
    assert torch.equal(values.grad, A.values + 1)


def test_numbers_of_numpy_and_masks(A: ns.SparseTensor, D: torch.Tensor) -> None:
    assert torch.equal((A * np.float32(2)).to_dense(), D * 2)
    assert (A > 2).sum() == (D > 2).sum()
    assert torch.equal((A > 0).sum(1), (D > 0).sum(1))
    assert torch.count_nonzero(A) == 6
    assert torch.equal(((A > 2) & (A < 5)).to_dense(), (D > 2) & (D < 5))
    assert torch.equal(~(A > 0), ~(D > 0))
    assert torch.equal(torch.nonzero(A), D.nonzero())


@pytest.mark.parametrize("n", [2, 9])
@pytest.mark.parametrize("format", [ns.CSR, "dd"])
def test_differences_of_higher_order(n: int, format: Any) -> None:
    D = torch.rand(4, 6)
    torch.testing.assert_close(as_dense(ns.diff(ns.from_torch(D, format), n)), torch.diff(D, n))
