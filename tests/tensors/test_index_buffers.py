"""Index arrays that other code overwrites, as DistributedDataParallel overwrites buffers."""

from __future__ import annotations

import pytest
import torch
from random_tensors import drawn

import numscorch as ns


def overwrite(layer: ns.nn.SparseLinear, pattern: torch.Tensor) -> None:
    """Writes another pattern with the same number of entries to the index arrays."""
    other = ns.from_torch(pattern.float(), ns.CSR)
    for array, new in zip(layer.weight.pattern.arrays[1], other.pattern.arrays[1], strict=True):
        array.copy_(new)


def test_derived_data_of_overwritten_arrays_is_dropped() -> None:
    first, second = torch.eye(6).roll(1, 0), torch.eye(6).roll(2, 0)
    layer = ns.nn.SparseLinear(6, 6, pattern=first, bias=False)
    x = drawn(3, 6).requires_grad_()
    layer(x).sum().backward()
    layer.weight.to_dense()
    overwrite(layer, second)
    dense = torch.zeros(6, 6)
    dense[second.bool()] = layer.weight.values.detach()
    x.grad = None
    with pytest.warns(ns.PatternWarning):
        y = layer(x)
    y.sum().backward()
    torch.testing.assert_close(y, x @ dense.T)
    torch.testing.assert_close(x.grad, torch.ones(3, 6) @ dense)
    assert torch.equal(layer.weight.to_dense(), dense)


def test_equal_contents_keep_derived_data() -> None:
    layer = ns.nn.SparseLinear(6, 6, pattern=torch.eye(6), bias=False)
    for _ in range(2):
        layer(torch.ones(1, 6))
        overwrite(layer, torch.eye(6))
    layer(torch.ones(1, 6))
    before = layer.weight.pattern
    overwrite(layer, torch.eye(6))
    layer(torch.ones(1, 6))
    assert layer.weight.pattern is before
