"""In-place functions: the values that they write, and the calls that they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import numscorch as ns

pytestmark = pytest.mark.usefixtures("interpreted")
FORMATS = {"CSR": ns.CSR, "COO": ns.COO(2), "CSC": ns.CSC, "BCSR": ns.BCSR(2, 2), "ELL": ns.ELL}
FULL = torch.tensor([[0.0, 0.5, 0.0], [-0.25, 0.0, 1.5]])
x = torch.tensor([2.0, -4.0, 3.0])
WRITTEN: dict[str, Callable[[Any], Any]] = {
    "sin_": lambda A: A.sin_(),
    "relu_": lambda A: torch.relu_(A),
    "clamp_": lambda A: A.clamp_(-1, 1),
    "clamp_max_": lambda A: A.clamp_max_(1),
    "pow_": lambda A: A.pow_(2),
    "mul_": lambda A: A.mul_(x),
    "div_": lambda A: A.div_(x),
    "div_, truncated": lambda A: A.div_(0.3, rounding_mode="trunc"),
    "remainder_": lambda A: A.remainder_(0.4),
    "add_": lambda A: A.add_(A, alpha=3),
    "sub_": lambda A: A.sub_(A * 2),
    "gt_": lambda A: A.gt_(0),
    "masked_fill_": lambda A: A.masked_fill_(x > 2.5, 0),
    "masked_fill_, sparse mask": lambda A: A.masked_fill_(A > 1, 3),
    "lerp_": lambda A: A.lerp_(A * 2, 0.5),
    "lerp_, by name": lambda A: A.lerp_(end=A * 2, weight=0.5),
    "addcmul_": lambda A: A.addcmul_(A, A, value=2),
    "nan_to_num_": lambda A: A.nan_to_num_(),
    "multiply_": lambda A: A.multiply_(2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("format", [*FORMATS.values(), ns.BCSR(2, 2), ns.DIA, ns.Format("dd")], ids=str)
def test_copies_of_a_strided_tensor_write_stored_entries(format: ns.Format, dtype: torch.dtype) -> None:
    A = ns.from_torch(FULL.clone(), format).to(dtype)
    inside = A.with_values(torch.ones_like(A.values)).to_dense()
    for full in (torch.full(FULL.shape, 7, dtype=torch.int8), torch.arange(FULL.numel()).reshape(FULL.shape) % 3):
        A.copy_(full)
        assert torch.equal(A.to_dense(), full.to(dtype) * inside)


@pytest.mark.parametrize("name", ["copy_", "add_", "sub_"])
def test_equal_entries_may_be_stored_in_another_format(name: str) -> None:
    A = ns.from_torch(FULL.clone())
    for format in (ns.CSC, ns.COO(2), ns.DCSR):
        expected = getattr(A.clone(), name)(2 * A)
        assert torch.equal(getattr(A.clone(), name)(2 * A.to(format)).to_dense(), expected.to_dense())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", WRITTEN)
def test_values_are_torchs(name: str, format: str) -> None:
    A, full = ns.from_torch(FULL, FORMATS[format]), FULL.clone()
    values, address = A.values, A.values.data_ptr()
    result = WRITTEN[name](A)
    torch.testing.assert_close(A.to_dense(), WRITTEN[name](full))
    assert result is A
    assert A.values is values
    assert A.values.data_ptr() == address


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a dense result": (lambda A: A.exp_(), ns.SizeError, "exp_ of SparseTensor.*the result is dense"),
    "another pattern": (lambda A: A.tril_(), ns.SizeError, "tril_ of .*\n  gives .*: their patterns differ"),
    "another shape": (lambda A: A.t_(), ns.SizeError, "patterns differ"),
    "fractions": (lambda A: A.long().mul_(0.5), ns.UnsupportedError, "can't be written into"),
    "a leaf": (lambda A: A.with_values(A.values.clone().requires_grad_()).sin_(), ns.UnsupportedError, "leaf that requires grad"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_results_that_do_not_fit_are_refused(name: str) -> None:
    call, kind, text = REFUSED[name]
    A = ns.from_torch(FULL)
    with pytest.raises(kind, match=text):
        call(A)
    assert torch.equal(A.to_dense(), FULL)


def test_a_dense_tensor_is_multiplied_in_place_by_a_sparse_one() -> None:
    full, A = torch.ones(2, 3), ns.from_torch(FULL)
    assert full.mul_(A) is full
    assert torch.equal(full, FULL)


def test_gradients_flow_through_in_place_functions() -> None:
    values = torch.tensor([0.5, -0.25, 1.5], requires_grad=True)
    A = ns.from_torch(FULL).with_values(values * 2)
    A.sin_().sum().backward()
    torch.testing.assert_close(values.grad, 2 * torch.cos(2 * values.detach()))
