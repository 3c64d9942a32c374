"""SparseEmbeddingBag against torch.nn.EmbeddingBag."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from random_tensors import generator

import numscorch as ns
from numscorch.nn import SparseEmbeddingBag

# empty bags, a bag with an item twice, unsorted items
ITEMS, STARTS = torch.tensor([4, 1, 1, 5, 0, 2, 4, 3]), torch.tensor([0, 0, 3, 3, 7])


def twins(**arguments: Any) -> tuple[SparseEmbeddingBag, torch.nn.EmbeddingBag]:
    bags, reference = SparseEmbeddingBag(6, 5, **arguments), torch.nn.EmbeddingBag(6, 5, **arguments)
    assert bags.load_state_dict(reference.state_dict()) == ([], [])
    assert reference.load_state_dict(bags.state_dict()) == ([], [])
    return bags, reference


def check_twins(bags: SparseEmbeddingBag, reference: torch.nn.EmbeddingBag, *args: Any) -> None:
    result, expected = bags(*args), reference(*args)
    torch.testing.assert_close(result, expected)
    upstream = torch.randn(result.shape, generator=generator(9), dtype=result.dtype)
    result.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(bags.weight.grad, reference.weight.grad)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 1, -2])
def test_results_and_gradients_equal_torchs(mode: str, padding: int | None, interpreted: None) -> None:
    check_twins(*twins(mode=mode, padding_idx=padding), ITEMS, STARTS)
    check_twins(*twins(mode=mode, padding_idx=padding), ITEMS.reshape(2, 4))
    check_twins(*twins(mode=mode, padding_idx=padding, dtype=torch.float64), ITEMS.int(), STARTS.int())
    check_twins(*twins(mode=mode, padding_idx=padding, include_last_offset=True), ITEMS[:7], STARTS)


@pytest.mark.parametrize("shape", [(8,), (2, 4)])
@pytest.mark.parametrize("padding", [None, 1])
def test_weights_of_items(shape: tuple[int, ...], padding: int | None, interpreted: None) -> None:
    layers = twins(mode="sum", padding_idx=padding)
    weights = [torch.randn(shape, generator=generator()).requires_grad_() for _ in range(2)]
    starts = STARTS if len(shape) == 1 else None
    result, expected = (layer(ITEMS.reshape(shape), starts, weight) for layer, weight in zip(layers, weights, strict=True))
    torch.testing.assert_close(result, expected)
    result.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(weights[0].grad, weights[1].grad)
    torch.testing.assert_close(layers[0].weight.grad, layers[1].weight.grad)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_no_bags_and_no_items(mode: str, interpreted: None) -> None:
    bags, reference = twins(mode=mode)
    nothing = torch.empty(0, dtype=torch.int64)
    assert bags(nothing, nothing).shape == reference(nothing, nothing).shape == (0, 5)
    assert torch.equal(bags(nothing, torch.tensor([0, 0])), torch.zeros(2, 5))
    assert torch.equal(bags(nothing.reshape(3, 0)), torch.zeros(3, 5))


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2)], ids=lambda f: f.name)
def test_a_sparse_matrix_of_bags(format: ns.Format, interpreted: None) -> None:
    full = torch.randn(4, 6, generator=generator()) * (torch.rand(4, 6, generator=generator(1)) < 0.5)
    values = ns.from_torch(full, format).values.clone().requires_grad_()
    A = ns.from_torch(full, format).with_values(values)
    bags, _ = twins(mode="sum")
    torch.testing.assert_close(bags(A), full @ bags.weight)
    bags(A).sum().backward()
    torch.testing.assert_close(A.grad.to_dense(), bags.weight.detach().sum(1).expand(4, 6) * (full != 0))
    ones = ns.from_torch((full != 0).float(), format)
    rows, items = (full != 0).nonzero().t()
    starts = torch.searchsorted(rows, torch.arange(4))
    for mode in ("mean", "max"):
        bags, reference = twins(mode=mode)
        torch.testing.assert_close(bags(ones), reference(items, starts))
        with pytest.raises(ns.UnsupportedError, match="values other than 1: weights require mode='sum'"):
            bags(A)


def test_equal_maxima_share_the_gradient(interpreted: None) -> None:
    bags = SparseEmbeddingBag(3, 1, mode="max", _weight=torch.tensor([[1.0], [1.0], [0.0]]))
    bags(torch.tensor([[0, 1, 2]])).backward(torch.ones(1, 1))
    assert bags.weight.grad.flatten().tolist() == [0.5, 0.5, 0.0]


def test_autocast_keeps_tables_in_float32(interpreted: None) -> None:
    bags, reference = twins(mode="mean")
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(bags(ITEMS, STARTS), reference(ITEMS, STARTS))


def test_indices_out_of_range_are_refused() -> None:
    bags = SparseEmbeddingBag(6, 5)
    for item in (6, -1):
        with pytest.raises(ns.RangeError, match=rf"item 1 of the input is {item}: with num_embeddings=6, indices go from 0 to 5"):
            bags(torch.tensor([0, item, 2]), torch.tensor([0]))
    for starts in ([1, 2], [0, 3, 2], [0, 9]):
        with pytest.raises(ns.RangeError, match="start at 0, don't decrease, and lie below 9"):
            bags(ITEMS, torch.tensor(starts))
    with pytest.raises(ns.RangeError, match=r"offsets \[0, 2, 7\]: for 8 items, .* end at 8"):
        SparseEmbeddingBag(6, 5, include_last_offset=True)(ITEMS, torch.tensor([0, 2, 7]))
    with pytest.raises(ns.RangeError, match="padding_idx=6"):
        SparseEmbeddingBag(6, 5, padding_idx=6)


def test_unsupported_arguments_are_refused() -> None:
    bags = SparseEmbeddingBag(6, 5)
    with pytest.raises(ns.OperandError, match=r"input is a tensor \(8,\) of torch.float32: indices"):
        bags(ITEMS.float(), STARTS)
    with pytest.raises(ns.SizeError, match="without offsets"):
        bags(ITEMS)
    with pytest.raises(ns.SizeError, match="leave offsets out"):
        bags(ITEMS.reshape(2, 4), STARTS)
    with pytest.raises(ns.UnsupportedError, match="weights require mode='sum'"):
        bags(ITEMS, STARTS, torch.ones(8))
    with pytest.raises(ns.SizeError, match=r"per_sample_weights has shape \(7,\), but input has \(8,\)"):
        SparseEmbeddingBag(6, 5, mode="sum")(ITEMS, STARTS, torch.ones(7))
    with pytest.raises(ns.SizeError, match="rows with num_embeddings=6 columns"):
        bags(ns.from_torch(torch.eye(5)))
    with pytest.raises(ns.SizeError, match="mode='prod'"):
        SparseEmbeddingBag(6, 5, mode="prod")
    for arguments, text in (({"max_norm": 1.0}, "renorm_"), ({"scale_grad_by_freq": True}, "weight.grad"), ({"sparse": True}, "dense")):
        with pytest.raises(ns.UnsupportedError, match=text):
            SparseEmbeddingBag(6, 5, **arguments)


@pytest.mark.parametrize("index", [-1, 6, -7])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("table", ["bags", "table", "compiled"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
def test_an_index_out_of_range_is_an_index_error(index: int, dtype: torch.dtype, table: str, interpreted: None) -> None:
    """The error names the index and the valid range, also for negative indices, which count from no end."""
    layer: Any = SparseEmbeddingBag(6, 5) if table == "bags" else ns.nn.SparseEmbedding(6, 5, density=0.5)
    layer = torch.compile(layer, backend="eager") if table == "compiled" else layer
    with pytest.raises(IndexError, match=f"item 2 of the input is {index}: with num_embeddings=6, indices go from 0 to 5") as error:
        layer(torch.tensor([[1, 2], [index, 0]], dtype=dtype))
    assert isinstance(error.value, ns.RangeError)
