"""Tensors of 2^63 elements and more: unstored zeros take part in every reduction, and what cannot be counted is refused."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import numscorch as ns

pytestmark = pytest.mark.usefixtures("interpreted")
SMALL = torch.tensor([[[-2.0, 0.0], [0.0, 0.0]], [[-3.0, -4.0], [0.0, -5.0]]])
SHAPES = [(2**22, 2**22, 2**22), (2**40, 2**30, 3), (3, 2**62, 2**62)]
FORMATS = [ns.COO(3), ns.CSF(3), ns.Format("(i, j, k) -> (k: compressed, i: compressed, j: compressed(ordered=False))")]


def huge(shape: tuple[int, ...], format: Any = None, values: torch.Tensor | None = None) -> ns.SparseTensor:
    """The entries of SMALL in a corner of a huge tensor; all values are negative, so that an unstored 0 is the largest."""
    indices = SMALL.nonzero().T
    return ns.from_coo(indices, SMALL[tuple(indices)] if values is None else values, shape, format)


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_searches_give_coordinates_in_order(shape: tuple[int, ...], format: ns.Format) -> None:
    assert torch.equal(torch.argwhere(huge(shape, format)), SMALL.nonzero())
    assert torch.equal(torch.nonzero(huge(shape, format)), SMALL.nonzero())


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["amax", "amin", "max", "min", "prod", "any", "all", "sum", "count_nonzero", "norm"])
def test_reductions_count_unstored_zeros(name: str, shape: tuple[int, ...], format: ns.Format) -> None:
    A, padded = huge(shape, format), F.pad(SMALL, (0, 1) * 3)
    assert torch.equal(getattr(torch, name)(A), getattr(torch, name)(padded))
    dims = next((tuple(d for d in range(3) if d != at) for at, size in enumerate(shape) if size == 3), None)
    if dims and name in ("amax", "amin", "any", "all", "sum"):
        torch.testing.assert_close(getattr(torch, name)(A, dims), getattr(torch, name)(padded, dims))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("reduce", ["max", "min", "prod", "any", "all", "sum", "mean", "min_plus", "max_plus"])
def test_reduced_einsums_count_unstored_zeros(reduce: str, shape: tuple[int, ...]) -> None:
    padded = F.pad(SMALL, (0, 1) * 3)
    expected = {"max": 0.0, "min": -5.0, "prod": 0.0, "any": 1.0, "all": 0.0, "sum": -14.0, "min_plus": -5.0, "max_plus": -2.0}
    result = ns.einsum("ijk->", huge(shape), reduce=reduce)
    assert float(result) == pytest.approx(expected.get(reduce, float(padded.double().sum()) / prod(shape)), rel=1e-6)


@pytest.mark.parametrize("reduce", ["amax", "amin", "prod", "mean"])
def test_gradients_of_reductions(reduce: str) -> None:
    values = SMALL[SMALL != 0].requires_grad_()
    getattr(torch, reduce)(huge(SHAPES[0], values=values)).backward()
    expected = {"amin": torch.tensor([0.0, 0.0, 0.0, 1.0]), "mean": torch.full((4,), 2.0**-66)}
    assert values.grad is not None
    torch.testing.assert_close(values.grad, expected.get(reduce, torch.zeros(4)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_statistics(shape: tuple[int, ...]) -> None:
    A, count = huge(shape), float(prod(shape))
    squares = float(SMALL.square().sum()) / count
    torch.testing.assert_close(A.var(), torch.tensor(squares), rtol=1e-5, atol=0)
    torch.testing.assert_close(A.std(), torch.tensor(squares).sqrt(), rtol=1e-5, atol=0)
    torch.testing.assert_close(torch.logsumexp(A, (0, 1, 2)), torch.tensor(count).log())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numbers_of_elements_do_not_wrap(shape: tuple[int, ...]) -> None:
    A = huge(shape)
    assert A.numel() == A.nelement() == prod(shape)
    assert 0 in A
    with pytest.raises(ns.SizeError, match=str(prod(shape))):
        A.item()


def test_places_of_extremes() -> None:
    A = ns.from_coo([[0, 1, 3], [0, 2, 2**62 - 1]], [1.0, 2.0, -3.0], (4, 2**62), ns.DCSR)
    assert A.argmax(1).tolist() == [0, 2, 0, 0]
    assert A.argmin(1).tolist() == [1, 0, 0, 2**62 - 1]
    assert A.topk(2, 1, largest=False).values.tolist() == [[0, 0], [0, 0], [0, 0], [-3, 0]]


def test_fractions_of_elements() -> None:
    """Magnitude pruning drops unstored zeros first."""
    A = huge(SHAPES[0])
    assert ns.sparsify.sparsify(A, ns.sparsify.magnitude(0.5)).nnz == A.nnz


REFUSED: dict[str, Callable[[ns.SparseTensor], Any]] = {
    "take": lambda A: A.take(torch.tensor([0])),
    "kron": lambda A: torch.kron(A, A),
    "pad": lambda A: F.pad(A, (2**62, 2**62)),
    "repeat_interleave": lambda A: A.repeat_interleave(2**30, 1),
    "flatten": lambda A: A.flatten(),
    "to_dense": lambda A: A.to_dense(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_results_that_cannot_be_counted_are_refused(name: str) -> None:
    with pytest.raises(ns.SizeError):
        REFUSED[name](huge(SHAPES[2]))


def test_coordinates_that_leave_int32_are_widened() -> None:
    size, small = 2**30, ns.from_coo([[1, 5]], [1.0, 2.0], (10,))
    A = ns.from_coo([[1, size - 1]], [1.0, 2.0], (size,))
    assert A.repeat(5).indices().tolist() == [[number + size * copy for copy in range(5) for number in (1, size - 1)]]
    for added in (2**31, 2**31 + 5):
        assert F.pad(small, (added, 0)).indices().tolist() == [[added + 1, added + 5]]
        assert F.pad(ns.from_torch(torch.eye(3), ns.CSR), (added, 0)).indices().tolist() == [[0, 1, 2], [added, added + 1, added + 2]]
    assert tuple(torch.kron(ns.zeros(0, format="s"), ns.zeros(2**34, format="s")).shape) == (0,)


def test_an_intersection_of_more_patterns_than_entries_is_empty() -> None:
    matrices = [ns.from_torch(torch.diag(torch.arange(3) == number).float(), ns.CSR) for number in range(5)]
    assert ns.nn.patterns.intersection(*matrices).nnz == 0
