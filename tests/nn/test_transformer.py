"""SparseAttention and SparseTransformerEncoderLayer against torch's modules with the pattern as a dense mask."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.nn import SparseAttention, SparseTransformerEncoderLayer, functional as F, patterns

pytestmark = pytest.mark.usefixtures("interpreted")

L, D = 18, 8
PATTERN = patterns.union(patterns.sliding_window(L, 2), patterns.global_tokens(L, 1))
MASK = PATTERN.to_dense() == 0  # torch's modules mask True entries out
close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def pair(bias: bool = True, batch_first: bool = True) -> tuple[torch.nn.MultiheadAttention, SparseAttention]:
    """torch's module, and SparseAttention with its weights."""
    torch.manual_seed(1)
    reference = torch.nn.MultiheadAttention(D, 2, bias=bias, batch_first=batch_first)
    layer = SparseAttention(PATTERN, D, 2, bias=bias, batch_first=batch_first)
    layer.load_state_dict(reference.state_dict())
    return reference, layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape, batch_first", [((3, L, D), True), ((L, 3, D), False), ((L, D), True), ((L, D), False)], ids=str)
def test_results_and_gradients_equal_multihead_attention(bias: bool, shape: tuple[int, ...], batch_first: bool) -> None:
    reference, layer = pair(bias, batch_first)
    x = tokens(*shape)
    result, weights = layer(x, x, x)
    expected, _ = reference(x, x, x, attn_mask=MASK, need_weights=False)
    assert weights is None
    close(result, expected)
    gradients = torch.autograd.grad(result.square().sum(), [x, *layer.parameters()])
    expected_gradients = torch.autograd.grad(expected.square().sum(), [x, *reference.parameters()])
    close(gradients, expected_gradients)


def test_different_queries_keys_and_values() -> None:
    reference, layer = pair()
    q, k, v = (tokens(3, L, D, seed=seed) for seed in range(3))
    close(layer(q, k, v)[0], reference(q, k, v, attn_mask=MASK)[0])


def test_padding() -> None:
    reference, layer = pair()
    x, padding = tokens(3, L, D), torch.zeros(3, L, dtype=torch.bool)
    padding[1, 9:], padding[2, 5] = True, True
    result, expected = layer(x, x, x, key_padding_mask=padding)[0], reference(x, x, x, attn_mask=MASK, key_padding_mask=padding)[0]
    close(result, expected)
    close(torch.autograd.grad(result.sum(), x)[0], torch.autograd.grad(expected.sum(), x)[0])
    added = torch.zeros(3, L).masked_fill(padding, -torch.inf) + 0.1
    close(layer(x, x, x, key_padding_mask=added)[0], expected)
    row = torch.zeros(L, dtype=torch.bool)
    row[5] = True
    close(layer(x[0], x[0], x[0], key_padding_mask=row)[0], reference(x[0], x[0], x[0], attn_mask=MASK, key_padding_mask=row)[0])


@pytest.mark.parametrize("dropout", [0.0, 1e-9])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_padded_keys_are_ignored_however_large_their_scores(dtype: torch.dtype, dropout: float) -> None:
    q, k, v = ((20 * tokens(1, L, 4, seed=seed)).detach().to(dtype) for seed in range(3))
    padding = torch.zeros(1, L, dtype=torch.bool)
    padding[0, 3:] = True
    k[0, 3:] *= 1e30 if dtype != torch.float16 else 50
    everything = torch.ones(L, L)
    result = SparseAttention(everything.to_sparse(), dropout=dropout)(q, k, v, key_padding_mask=padding)
    expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), ~padding[:, None].expand(1, L, L))
    assert result.dtype == dtype
    torch.testing.assert_close(result, expected.to(dtype))
    added = torch.zeros(1, L).masked_fill(padding, -torch.inf)
    assert torch.equal(
        SparseAttention(everything.to_sparse())(q, k, v, key_padding_mask=added), SparseAttention(everything.to_sparse())(q, k, v, padding)
    )


def test_scores_added_to_keys_have_gradients() -> None:
    reference, layer = pair()
    x, added = tokens(3, L, D).detach(), tokens(3, L, seed=4)
    result = layer(x, x, x, key_padding_mask=added)[0]
    mask = (added[:, None, None] + torch.zeros(L, L).masked_fill(MASK, -torch.inf)).expand(3, 2, L, L).reshape(6, L, L)
    expected = reference(x, x, x, attn_mask=mask)[0]
    close(result, expected)
    close(torch.autograd.grad(result.square().sum(), added)[0], torch.autograd.grad(expected.square().sum(), added)[0])


def test_a_query_with_padded_keys_only_gets_their_mean() -> None:
    x = tokens(L, D)
    result = SparseAttention(PATTERN)(x, x, x, key_padding_mask=torch.ones(L, dtype=torch.bool))
    close(result, (~MASK).float() @ x / (~MASK).sum(1, keepdim=True))


def test_without_projections_it_is_the_function() -> None:
    q, k, v = (tokens(3, 2, L, D, seed=seed) for seed in range(3))
    module = SparseAttention(PATTERN)
    assert torch.equal(module(q, k, v), F.scaled_dot_product_attention(q, k, v, PATTERN))
    assert not list(module.parameters())
    assert not module.state_dict()
    padding = torch.zeros(L, dtype=torch.bool)
    padding[4] = True
    close(module(q, k, v, key_padding_mask=padding), F.scaled_dot_product_attention(q, k, v, ~MASK & ~padding))


def test_initial_weights_have_torchs_range() -> None:
    torch.manual_seed(0)
    reference = torch.nn.MultiheadAttention(D, 2)
    torch.manual_seed(0)
    layer = SparseAttention(PATTERN, D, 2)
    assert layer.state_dict().keys() == reference.state_dict().keys()
    bounds = [float(module.state_dict()["in_proj_weight"].abs().max()) for module in (layer, reference)]
    assert abs(bounds[0] - bounds[1]) < 0.05
    assert not layer.in_proj_bias.any()
    assert not layer.out_proj.bias.any()


def test_from_dense() -> None:
    reference, _ = pair(bias=False)
    layer = SparseAttention.from_dense(reference.double().eval(), PATTERN)
    x = tokens(3, L, D).double()
    close(layer(x, x, x)[0], reference(x, x, x, attn_mask=MASK)[0])
    assert not layer.training
    with pytest.raises(ns.UnsupportedError, match="kdim"):
        SparseAttention.from_dense(torch.nn.MultiheadAttention(D, 2, kdim=4), PATTERN)
    with pytest.raises(ns.OperandError, match=r"takes a torch\.nn\.MultiheadAttention, not Linear"):
        SparseAttention.from_dense(torch.nn.Linear(D, D), PATTERN)


def test_from_dense_of_another_layer_is_refused() -> None:
    with pytest.raises(ns.OperandError, match=r"from_dense takes a torch\.nn\.TransformerEncoderLayer, not Linear"):
        SparseTransformerEncoderLayer.from_dense(torch.nn.Linear(D, D), PATTERN)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", [{"kdim": 4}, {"vdim": 4}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_options_without_a_sparse_version_are_refused_at_construction(option: dict[str, Any]) -> None:
    with pytest.raises(ns.UnsupportedError, match="SparseMultiheadAttention has no kdim, vdim, add_bias_kv and add_zero_attn"):
        ns.nn.SparseMultiheadAttention(D, 2, **option)
    assert ns.nn.SparseMultiheadAttention(D, 2, kdim=D, batch_first=True)(*[tokens(2, L, D)] * 3)[0].shape == (2, L, D)


def test_from_dense_keeps_the_settings_of_each_part() -> None:
    reference = torch.nn.TransformerEncoderLayer(D, 2, 16, dropout=0.3, batch_first=True)
    reference.self_attn.dropout, reference.dropout1.p, reference.norm2.eps = 0.0, 0.5, 1e-2
    reference.norm1.eval()
    for name in ("linear1.weight", "norm2.bias", "self_attn.in_proj_weight", "self_attn.out_proj.bias"):
        reference.get_parameter(name).requires_grad_(False)
    sparse = SparseTransformerEncoderLayer.from_dense(reference, PATTERN)
    assert (sparse.self_attn.dropout, sparse.dropout.p, sparse.dropout1.p, sparse.dropout2.p) == (0.0, 0.3, 0.5, 0.3)
    assert (sparse.norm1.eps, sparse.norm2.eps) == (1e-5, 1e-2)
    modes = [{name: module.training for name, module in layer.named_modules()} for layer in (sparse, reference)]
    assert modes[0] == modes[1]
    frozen = [{name for name, p in layer.named_parameters() if not p.requires_grad} for layer in (sparse, reference)]
    assert frozen[0] == frozen[1] and len(frozen[0]) == 4
    attention = SparseAttention.from_dense(reference.self_attn, PATTERN)
    assert not attention.in_proj_weight.requires_grad and attention.out_proj.weight.requires_grad


def test_from_dense_of_shared_and_replaced_parts() -> None:
    reference = torch.nn.TransformerEncoderLayer(D, 2, 16, batch_first=True)
    reference.dropout2 = reference.dropout1
    reference.dropout1.p = 0.5
    assert SparseTransformerEncoderLayer.from_dense(reference, PATTERN).dropout2.p == 0.5
    reference.dropout1 = torch.nn.Identity()
    reference.self_attn.dropout = reference.dropout.p = reference.dropout2.p = 0.0
    layer, x = SparseTransformerEncoderLayer.from_dense(reference, PATTERN), tokens(2, L, D)
    assert isinstance(layer.dropout1, torch.nn.Identity)
    close(layer(x), reference(x, src_mask=MASK))


def test_a_function_gives_patterns_of_any_length() -> None:
    calls: list[int] = []

    def window(n: int) -> ns.SparseTensor:
        calls.append(n)
        return patterns.sliding_window(n, 4)

    module = SparseAttention(window, D, 2)
    for n in (1, 3, L, 3):  # the window may be longer than the sequence
        x = tokens(2, n, D)
        assert module(x, x, x)[0].shape == (2, n, D)
    assert calls == [1, 3, L]
    assert module.pattern_for(L).pattern is patterns.sliding_window(L, 4).pattern
    short = SparseAttention(partial(patterns.bigbird, block=16), D, 2)
    assert short(*[tokens(2, 5, D)] * 3)[0].shape == (2, 5, D)


def test_dropout_in_training_only() -> None:
    module = SparseAttention(PATTERN, dropout=0.5)
    x = tokens(L, D)
    assert not torch.equal(module(x, x, x), module(x, x, x))
    module.eval()
    assert torch.equal(module(x, x, x), F.scaled_dot_product_attention(x, x, x, PATTERN))


def test_a_pattern_is_neither_buffer_nor_state() -> None:
    module = SparseAttention(PATTERN, D, 2)
    assert not list(module.buffers())
    assert not any("pattern" in name for name in module.state_dict())
    assert f"density={PATTERN.density:.3g}" in repr(module)
    assert "pattern=bigbird" in repr(SparseAttention(partial(patterns.bigbird, block=4)))
    x = tokens(L, D)
    assert torch.equal(copy.deepcopy(module)(x, x, x)[0], module(x, x, x)[0])


def test_deep_copies_of_a_layer_share_one_pattern() -> None:
    layer = SparseTransformerEncoderLayer(PATTERN, D, 2, dim_feedforward=8)
    layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).layers
    assert all(copied.self_attn.pattern.pattern is PATTERN.pattern for copied in layers)
    assert layers[0].self_attn.in_proj_weight is not layers[1].self_attn.in_proj_weight
    function = partial(patterns.bigbird, block=4)
    assert copy.deepcopy(SparseAttention(function, D, 2)).pattern_for(L).pattern is function(L).pattern


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation, bias", [("relu", True), ("gelu", False), (torch.tanh, True)])
def test_the_encoder_layer_equals_torchs(norm_first: bool, activation: Any, bias: bool) -> None:
    torch.manual_seed(2)
    reference = torch.nn.TransformerEncoderLayer(D, 2, 16, 0.0, activation, 1e-3, batch_first=True, norm_first=norm_first, bias=bias)
    layer = SparseTransformerEncoderLayer(PATTERN, D, 2, 16, 0.0, activation, 1e-3, norm_first=norm_first, bias=bias)
    layer.load_state_dict(reference.state_dict())
    x = tokens(3, L, D)
    for result in (layer(x), SparseTransformerEncoderLayer.from_dense(reference, PATTERN)(x)):
        close(result, reference(x, src_mask=MASK))
    padding = torch.zeros(3, L, dtype=torch.bool)
    padding[0, -3:] = True
    close(layer(x, src_key_padding_mask=padding), reference(x, src_mask=MASK, src_key_padding_mask=padding))
    gradients = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    expected_gradients = torch.autograd.grad(reference(x, src_mask=MASK).square().sum(), list(reference.parameters()))
    close(gradients, expected_gradients)


def test_torchs_encoder_stacks_the_layer() -> None:
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(D, 2, 16, 0.0, batch_first=True)
    reference = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    sparse = SparseTransformerEncoderLayer.from_dense(layer, PATTERN)
    encoder = torch.nn.TransformerEncoder(sparse, 2, enable_nested_tensor=False)
    encoder.load_state_dict(reference.state_dict())
    x = tokens(3, L, D)
    close(encoder(x), reference(x, mask=MASK))
    close(encoder.eval()(x), reference.eval()(x, mask=MASK))


def test_the_layer_learns() -> None:
    """Every token learns the sign of the first token, which is global."""
    torch.manual_seed(0)
    layer, head = SparseTransformerEncoderLayer(PATTERN, D, 2, 16, dropout=0.0), torch.nn.Linear(D, 1)
    x = torch.randn(64, L, D)
    targets = x[:, :1, 0].sign().expand(64, L)
    adam = torch.optim.Adam([*layer.parameters(), *head.parameters()], 0.02)
    losses = []
    for _ in range(15):
        loss = torch.nn.functional.mse_loss(head(layer(x)).squeeze(-1), targets)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


x = torch.ones(2, 17, D)
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "another length": (
        lambda: SparseAttention(PATTERN, D, 2)(x, x, x),
        ns.SizeError,
        r"shape \(18, 18\), but there are 17 queries and 17 keys\n  give a function .*functools.partial",
    ),
    "more keys than queries": (lambda: SparseAttention(patterns.causal)(x[:, 1:], x, x), ns.SizeError, "16 queries and 17 keys"),
    "weights": (lambda: SparseAttention(PATTERN, D, 2)(x, x, x, need_weights=True), ns.UnsupportedError, "ns.softmax"),
    "a mask": (lambda: SparseAttention(PATTERN, D, 2)(x, x, x, attn_mask=MASK), ns.UnsupportedError, "intersection"),
    "padding of other keys": (
        lambda: SparseAttention(patterns.causal, D, 2)(x, x, x, key_padding_mask=torch.zeros(2, 4, dtype=torch.bool)),
        ns.SizeError,
        "key_padding_mask has 4 entries for 17 keys: give one for each",
    ),
    "tokens of another size": (lambda: SparseAttention(patterns.causal, 4, 2)(x, x, x), ns.SizeError, r"query has shape \(2, 17, 8\)"),
    "uneven heads": (lambda: SparseAttention(PATTERN, 9, 2), ns.SizeError, "embed_dim=9 is not divisible by num_heads=2"),
    "heads of nothing": (lambda: SparseAttention(PATTERN, num_heads=2), ns.UnsupportedError, "give embed_dim="),
    "no pattern": (lambda: SparseAttention(3, D, 2), ns.UnsupportedError, "not int"),
    "an activation": (
        lambda: SparseTransformerEncoderLayer(PATTERN, D, 2, activation="swish"),
        ns.UnsupportedError,
        "'relu', 'gelu', or a function",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_errors(name: str) -> None:
    call, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        call()
