"""Gradient hooks that return another pattern."""

from __future__ import annotations

import pytest

import numscorch as ns


def test_a_hook_of_another_pattern_is_refused(A: ns.SparseTensor) -> None:
    A.values.requires_grad_()
    handle = A.register_hook(lambda gradient: gradient.t().to(ns.CSR))
    with pytest.raises(ns.UnsupportedError, match="pattern"):
        A.sum().backward()
    handle.remove()
    A.register_hook(lambda gradient: ns.from_coo(A.indices(), 2 * gradient.values, (4, 4), format=ns.CSR))
    A.sum().backward()
    assert A.values.grad is not None
    assert A.values.grad.tolist() == [2.0] * 6
