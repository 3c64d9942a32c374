"""Gradients at stored zeros are torch's, infinite or NaN: quotients, powers, logarithms and roots, in all formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from dense_values import as_dense
from format_families import FORMATS, packed

import numscorch as ns

ALL = [(order, text) for order in (1, 2, 3) for texts in FORMATS[order].values() for text in dict.fromkeys(texts)]
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "c / A": lambda A: 3.0 / A,
    "-c / A": lambda A: -3.0 / A,
    "D / A": lambda A: torch.full(A.shape, 2.0) / A,
    "x / A": lambda A: torch.arange(1.0, 1 + A.shape[-1]) / A,
    "c / (2 * A)": lambda A: 1.0 / (2 * A),
    "c / A + A": lambda A: 2.0 / A + A,
    "(c / A).sum(0)": lambda A: (2.0 / A).sum(0),
    "A ** -1": lambda A: A**-1,
    "A ** -2.0": lambda A: A**-2.0,
    "A ** 0.5": lambda A: A**0.5,
    **{name: getattr(torch, name) for name in ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal")},
}


def at_entries(A: ns.SparseTensor, values: torch.Tensor) -> torch.Tensor:
    return A.detach().with_values(values).to_dense()


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("order", "text"), ALL)
def test_gradients_at_stored_zeros(order: int, text: str) -> None:
    generator = torch.Generator().manual_seed(order)
    shape = (4, 4, 4)[:order]
    full = torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.5)
    pattern = packed(full, ns.Format(text), np.random.default_rng(order))
    for name, function in FUNCTIONS.items():
        A = pattern.with_values(pattern.values.clone().requires_grad_())
        dense = pattern.to_dense().requires_grad_()
        result, expected = function(A), function(dense)
        upstream = torch.rand(expected.shape, generator=generator) + 0.5
        torch.autograd.backward(as_dense(result), upstream)
        torch.autograd.backward(expected, upstream)
        assert A.values.grad is not None and dense.grad is not None
        inside = at_entries(A, torch.ones_like(A.values.detach())) != 0
        gradient = at_entries(A, A.values.grad)
        torch.testing.assert_close(gradient[inside], dense.grad[inside], equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")


def test_gradients_of_quotients_by_small_numbers_do_not_overflow() -> None:
    A = ns.from_torch(torch.tensor([1e-25, 0.0, 2e-25]), ns.Format("s"))
    A.values.requires_grad_()
    dense = A.to_dense().detach().requires_grad_()
    numerators = torch.full((3,), 1e-20)
    (numerators / A).backward(torch.ones(3))
    (numerators / dense).backward(torch.ones(3))
    assert A.values.grad is not None and dense.grad is not None
    torch.testing.assert_close(A.values.grad, dense.grad[[0, 2]])
