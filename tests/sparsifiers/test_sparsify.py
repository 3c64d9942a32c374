"""magnitude, block_magnitude and sparsify: exact counts, order of equal entries, formats, gradients and errors."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
import torch
from torch.nn.utils import prune

import numscorch as ns
from numscorch.sparsify import block_magnitude, magnitude, sparsify

pytestmark = pytest.mark.usefixtures("interpreted")

W = torch.randn(7, 9, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("fraction", [0, 0.1, 0.5, 0.77, 1.0])
def test_magnitude_keeps_the_entries_that_torchs_pruning_keeps(fraction: float) -> None:
    expected = prune.L1Unstructured(fraction).compute_mask(W, torch.ones_like(W)) if fraction else torch.ones_like(W)
    assert torch.equal(magnitude(fraction)(W), expected.bool())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_counts_are_exact_for_equal_entries_and_the_first_are_dropped(dtype: torch.dtype) -> None:
    mask = magnitude(0.4)(torch.ones(5, 5, dtype=dtype))
    assert mask.flatten().tolist() == [False] * 10 + [True] * 15
    assert magnitude(0.5)(torch.tensor([torch.inf, -torch.inf, 1, 0], dtype=dtype)).tolist() == [True, True, False, False]


@pytest.mark.parametrize("block", [(1, 1), (2, 3), (7, 9), (4, 4), (10, 2)])
@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.75, 1.0])
def test_blocks_with_the_smallest_norm_are_dropped(block: tuple[int, int], fraction: float) -> None:
    mask = block_magnitude(*block, fraction)(W)
    norms = []
    for rows in W.abs().split(block[0], 0):
        norms += [tile.sum() for tile in rows.split(block[1], 1)]
    tiles = [tile for rows in mask.split(block[0], 0) for tile in rows.split(block[1], 1)]
    assert all(bool(tile.all()) or not tile.any() for tile in tiles)
    least = torch.stack(norms).argsort(stable=True)[: round(fraction * len(norms))]
    assert {at for at, tile in enumerate(tiles) if not tile.any()} == set(least.tolist())


def test_tensors_of_any_shape() -> None:
    assert int(magnitude(0.25)(torch.rand(2, 3, 4)).sum()) == 18
    for empty in (torch.empty(0, 3), torch.empty(3, 0)):
        assert magnitude(0.5)(empty).shape == block_magnitude(2, 2, 0.5)(empty).shape == empty.shape
    with pytest.raises(ns.SizeError, match=r"block_magnitude\(2, 2, 0\.5\) of a tensor of shape \(4,\): blocks divide a matrix"):
        block_magnitude(2, 2, 0.5)(torch.ones(4))


@pytest.mark.parametrize("fraction", [-0.1, 1.1, 90, float("nan")])
def test_shares_lie_between_0_and_1(fraction: Any) -> None:
    with pytest.raises(ns.SizeError, match=rf"magnitude\({fraction}\): the share that becomes zero lies between 0 and 1"):
        magnitude(fraction)
    with pytest.raises(ns.SizeError, match="the share that becomes zero lies between 0 and 1"):
        block_magnitude(2, 2, fraction)
    with pytest.raises(ns.FormatError, match="block_magnitude"):
        block_magnitude(0, 2, 0.5)


@pytest.mark.parametrize("sparsifier", [magnitude(0.5), block_magnitude(2, 2, 0.5)], ids=repr)
def test_nan_and_integers_are_refused(sparsifier: Any) -> None:
    with pytest.raises(ns.OperandError, match=r"of a tensor with NaN at \(0, 1\)"):
        sparsifier(torch.tensor([[1.0, torch.nan]]))
    with pytest.raises(ns.OperandError, match=r"of a tensor of torch\.int64: it takes floating-point numbers"):
        sparsifier(torch.ones(2, 2, dtype=torch.int64))


def test_sparsifiers_compare_by_value() -> None:
    assert repr([magnitude(0.9), block_magnitude(4, 1, 0.5)]) == "[magnitude(0.9), block_magnitude(4, 1, 0.5)]"
    assert pickle.loads(pickle.dumps(magnitude(0.9))) == magnitude(0.9) != magnitude(0.8)
    assert (magnitude(0.9).format, block_magnitude(4, 1, 0.5).format) == (ns.CSR, ns.BCSR(4, 1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        magnitude(0.9).fraction = 0.5  # type: ignore[misc]


def test_formats_follow_the_sparsifier_or_the_request() -> None:
    expected = torch.where(magnitude(0.5)(W), W, 0)
    for format, name in ((None, "CSR"), ("CSC", "CSC"), (ns.BCSR(2, 2), "BCSR(2, 2)"), (ns.ELL, "ELL")):
        result = sparsify(W, magnitude(0.5), format)
        assert result.format.name.startswith(name)
        assert torch.equal(result.to_dense(), expected)
    result = sparsify(W, block_magnitude(2, 4, 0.5))
    assert result.format == ns.BCSR(2, 4)
    assert torch.equal(result.to_dense(), torch.where(block_magnitude(2, 4, 0.5)(W), W, 0))
    assert sparsify(torch.ones(2, 3, 4), magnitude(0.5)).format == ns.COO(3)


def test_dropped_entries_may_be_nan_or_infinite() -> None:
    full = torch.tensor([[torch.nan, 2.0], [3.0, torch.inf]])
    result = sparsify(full, lambda t: t.isfinite(), ns.BCSR(2, 2))
    assert result.to_dense().tolist() == [[0, 2], [3, 0]]


def test_gradients_flow_to_the_tensor() -> None:
    full = W.clone().requires_grad_()
    result = sparsify(full, magnitude(0.5))
    result.values.square().sum().backward()
    assert full.grad is not None
    torch.testing.assert_close(full.grad, torch.where(magnitude(0.5)(W), 2 * W, 0))


def test_invalid_masks_and_tensors_are_refused() -> None:
    with pytest.raises(ns.OperandError, match=r"returned a tensor of torch\.float32: a mask is a bool tensor"):
        sparsify(W, lambda t: t.abs())
    with pytest.raises(ns.OperandError, match=r"sparsify takes a dense tensor or a SparseTensor, not torch\.sparse_coo"):
        sparsify(W.to_sparse(), magnitude(0.5))
    with pytest.raises(ns.OperandError, match=r"sparsify takes a dense tensor or a SparseTensor, not list"):
        sparsify([1.0], magnitude(0.5))  # type: ignore[arg-type]
