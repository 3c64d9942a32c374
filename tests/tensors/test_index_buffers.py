"""Index arrays that something else writes to, as DistributedDataParallel does to the buffers of its processes."""

from __future__ import annotations

import pytest
import torch
from weights import drawn

import numscorch as ns


def overwritten(layer: ns.nn.SparseLinear, pattern: torch.Tensor) -> None:
    """Another pattern of as many entries, written over the arrays."""
    other = ns.from_torch(pattern.float(), ns.CSR)
    for own, new in zip(layer.weight.pattern.arrays[1], other.pattern.arrays[1], strict=True):
        own.copy_(new)


def test_what_was_derived_of_them_is_forgotten() -> None:
    first, second = torch.eye(6).roll(1, 0), torch.eye(6).roll(2, 0)
    layer = ns.nn.SparseLinear(6, 6, pattern=first, bias=False)
    x = drawn(3, 6).requires_grad_()
    layer(x).sum().backward()
    layer.weight.to_dense()
    overwritten(layer, second)
    dense = torch.zeros(6, 6)
    dense[second.bool()] = layer.weight.values.detach()
    x.grad = None
    with pytest.warns(ns.PatternWarning):
        y = layer(x)
    y.sum().backward()
    torch.testing.assert_close(y, x @ dense.T)
    torch.testing.assert_close(x.grad, torch.ones(3, 6) @ dense)
    assert torch.equal(layer.weight.to_dense(), dense)


def test_the_same_numbers_again_keep_what_is_known() -> None:
    layer = ns.nn.SparseLinear(6, 6, pattern=torch.eye(6), bias=False)
    for _ in range(2):
        layer(torch.ones(1, 6))
        overwritten(layer, torch.eye(6))
    layer(torch.ones(1, 6))
    known = layer.weight.pattern
    overwritten(layer, torch.eye(6))
    layer(torch.ones(1, 6))
    assert layer.weight.pattern is known
