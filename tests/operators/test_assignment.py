"""Assignments to sparse tensors by position, by mask and in place."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_graph import GAPS, matrix

import numscorch as ns
from numscorch.tensors.sparse_tensor import OPERATORS

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
@pytest.mark.parametrize("value", [0.5, 2, True, torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64)])
@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.filterwarnings("ignore::numscorch.DenseFallbackWarning")
def test_masked_fill_keeps_the_data_type(dtype: torch.dtype, value: Any, is_sparse: bool) -> None:
    A = matrix(torch.tensor([1, 2, 3, 4, 0, 6])).to(dtype)
    mask = ns.from_coo([[0, 0], [0, 1]], torch.tensor([True, True]), (4, 4))
    filled = torch.masked_fill(A, mask if is_sparse else mask.to_dense(), value)
    assert filled.dtype == dtype
    assert torch.equal(filled.to_dense(), A.to_dense().masked_fill(mask.to_dense(), value))


@pytest.mark.parametrize("format", [ns.CSR, *GAPS])
@pytest.mark.parametrize(
    "call",
    [
        lambda A: F.leaky_relu(A, 0.5, True),
        lambda A: F.leaky_relu(A, 0.5, inplace=True),
        lambda A: F.dropout(A, 0.0, True, True),
        lambda A: F.relu(A, True),
        lambda A: F.relu6(A, True),
        lambda A: F.celu(A, 1.0, True),
        lambda A: F.elu(A, 1.0, True),
        lambda A: F.silu(A, True),
    ],
)
def test_in_place_by_position(call: Callable[[Any], Any], format: Any) -> None:
    A = matrix(format=format)
    D = A.to_dense()
    result = call(A)
    assert result is A
    torch.testing.assert_close(A.to_dense(), call(D))


def test_assigned_values_are_truncated_to_the_data_type() -> None:
    A = matrix(torch.tensor([1, 2, 3, 4, 5, 6]))
    A[0, 0] = 0.5
    A[1] = torch.tensor([0.5, 0.1, 7.9, 0])
    A[2, 1:3] = 0.5
    assert A.values.tolist() == [1, 2, 7, 4, 5, 6]
    with pytest.raises(ns.UnsupportedError, match="would store 1 new"):
        A[0, 0] = 1.5


@pytest.mark.parametrize("format", [ns.CSR, *GAPS])
@pytest.mark.parametrize(("name", "args"), [("leaky_relu", (0.5, True)), ("relu", (True,)), ("elu", (1.0, True)), ("celu", (1.0, True))])
def test_operators_in_place_by_position(name: str, args: tuple[Any, ...], format: Any) -> None:
    A = matrix(format=format)
    D = A.to_dense()
    assert OPERATORS[name](A, *args) is A
    torch.testing.assert_close(A.to_dense(), getattr(F, name)(D, *args))


WRITES: list[Callable[[Any], Any]] = [
    lambda A: A.mul_(2),
    lambda A: A.div_(2),
    lambda A: A.add_(A),
    lambda A: A.copy_(A * 1),
    lambda A: A.__setitem__((0, 1), 3.0),
    lambda A: F.relu(A, inplace=True),
    lambda A: F.hardtanh(A, inplace=True),
]


@pytest.mark.parametrize("write", WRITES)
def test_leaves_are_not_replaced(write: Callable[[Any], Any]) -> None:
    leaf = torch.ones(6, requires_grad=True)
    A = matrix(leaf)
    with pytest.raises(RuntimeError, match=r"leaf.*\n?.*torch\.no_grad"):
        write(A)
    assert A.values is leaf
    with torch.no_grad():
        write(A)
    assert A.values is leaf
    B = matrix(leaf * 1)
    write(B)
    B.sum().backward()
    assert leaf.grad is not None


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float32])
@pytest.mark.parametrize("value", [300, 2**40, float("nan"), float("-inf"), 1j, 2.5, True, -7])
def test_numbers_are_assigned_or_refused_as_by_torch(dtype: torch.dtype, value: Any) -> None:
    A, dense = ns.from_coo([[0], [0]], torch.tensor([1], dtype=dtype), (2, 2), ns.CSR), torch.ones(1, dtype=dtype)
    try:
        dense[0] = value
    except RuntimeError as error:
        with pytest.raises(type(error), match="without overflow"):
            A[0, 0] = value
    else:
        A[0, 0] = value
    assert torch.equal(A.values.nan_to_num(), dense.nan_to_num())


@pytest.mark.parametrize("number", [np.complex64(7 + 2j), np.complex128(7 + 2j), np.float32(0.5), np.int8(-3), np.bool_(True)])
def test_numbers_of_numpy_are_assigned_whole(number: Any) -> None:
    A = ns.from_torch(torch.tensor([[0, 2]]).to(torch.complex64))
    A[0, 1] = number
    assert A.values.tolist() == [complex(number)]


@pytest.mark.parametrize("value", [None, Fraction(1, 2)])
def test_other_objects_are_no_values(value: Any) -> None:
    with pytest.raises(ns.errors.OperandError, match="as the value of entries"):
        ns.eye(2, format=ns.CSR)[0, 0] = value


def test_the_sign_plus_returns_the_values() -> None:
    A = ns.from_torch(torch.tensor([[1.0, 0.0], [-2.0, 3.0]]))
    assert torch.equal((+A).to_dense(), +A.to_dense())
