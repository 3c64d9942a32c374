"""SparseAttention and the encoder layer, against torch's modules with the pattern as a dense mask."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.nn import SparseAttention, SparseTransformerEncoderLayer, functional as F, patterns

L, D = 18, 8
PATTERN = patterns.union(patterns.sliding_window(L, 2), patterns.global_tokens(L, 1))
MASK = PATTERN.to_dense() == 0  # torch's modules say what is left out
close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def pair(bias: bool = True, batch_first: bool = True) -> tuple[torch.nn.MultiheadAttention, SparseAttention]:
    """torch's module, and ours with its weights."""
    torch.manual_seed(1)
    theirs = torch.nn.MultiheadAttention(D, 2, bias=bias, batch_first=batch_first)
    ours = SparseAttention(PATTERN, D, 2, bias=bias, batch_first=batch_first)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape, batch_first", [((3, L, D), True), ((L, 3, D), False), ((L, D), True), ((L, D), False)], ids=str)
def test_equals_multihead_attention(bias: bool, shape: tuple[int, ...], batch_first: bool) -> None:
    theirs, ours = pair(bias, batch_first)
    x = tokens(*shape)
    made, weights = ours(x, x, x)
    expected, _ = theirs(x, x, x, attn_mask=MASK, need_weights=False)
    assert weights is None
    close(made, expected)
    given = torch.autograd.grad(made.square().sum(), [x, *ours.parameters()])
    wanted = torch.autograd.grad(expected.square().sum(), [x, *theirs.parameters()])
    close(given, wanted)


def test_query_key_and_value_apart() -> None:
    theirs, ours = pair()
    q, k, v = (tokens(3, L, D, seed=seed) for seed in range(3))
    close(ours(q, k, v)[0], theirs(q, k, v, attn_mask=MASK)[0])


def test_padding() -> None:
    theirs, ours = pair()
    x, padding = tokens(3, L, D), torch.zeros(3, L, dtype=torch.bool)
    padding[1, 9:], padding[2, 5] = True, True
    made, expected = ours(x, x, x, key_padding_mask=padding)[0], theirs(x, x, x, attn_mask=MASK, key_padding_mask=padding)[0]
    close(made, expected)
    close(torch.autograd.grad(made.sum(), x)[0], torch.autograd.grad(expected.sum(), x)[0])
    added = torch.zeros(3, L).masked_fill(padding, -torch.inf) + 0.1
    close(ours(x, x, x, key_padding_mask=added)[0], expected)
    row = torch.zeros(L, dtype=torch.bool)
    row[5] = True
    close(ours(x[0], x[0], x[0], key_padding_mask=row)[0], theirs(x[0], x[0], x[0], attn_mask=MASK, key_padding_mask=row)[0])


@pytest.mark.parametrize("dropout", [0.0, 1e-9])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_padded_keys_are_left_out_however_large_their_scores(dtype: torch.dtype, dropout: float) -> None:
    q, k, v = ((20 * tokens(1, L, 4, seed=seed)).detach().to(dtype) for seed in range(3))
    padding = torch.zeros(1, L, dtype=torch.bool)
    padding[0, 3:] = True
    k[0, 3:] *= 1e30 if dtype != torch.float16 else 50
    everything = torch.ones(L, L)
    made = SparseAttention(everything.to_sparse(), dropout=dropout)(q, k, v, key_padding_mask=padding)
    expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), ~padding[:, None].expand(1, L, L))
    assert made.dtype == dtype
    torch.testing.assert_close(made, expected.to(dtype))
    added = torch.zeros(1, L).masked_fill(padding, -torch.inf)
    assert torch.equal(
        SparseAttention(everything.to_sparse())(q, k, v, key_padding_mask=added), SparseAttention(everything.to_sparse())(q, k, v, padding)
    )


def test_what_is_added_to_the_scores_of_keys_is_trained() -> None:
    theirs, ours = pair()
    x, added = tokens(3, L, D).detach(), tokens(3, L, seed=4)
    made = ours(x, x, x, key_padding_mask=added)[0]
    mask = (added[:, None, None] + torch.zeros(L, L).masked_fill(MASK, -torch.inf)).expand(3, 2, L, L).reshape(6, L, L)
    expected = theirs(x, x, x, attn_mask=mask)[0]
    close(made, expected)
    close(torch.autograd.grad(made.square().sum(), added)[0], torch.autograd.grad(expected.square().sum(), added)[0])


def test_a_query_whose_keys_all_are_padding_gets_their_mean() -> None:
    x = tokens(L, D)
    made = SparseAttention(PATTERN)(x, x, x, key_padding_mask=torch.ones(L, dtype=torch.bool))
    close(made, (~MASK).float() @ x / (~MASK).sum(1, keepdim=True))


def test_without_projections_it_is_the_function() -> None:
    q, k, v = (tokens(3, 2, L, D, seed=seed) for seed in range(3))
    module = SparseAttention(PATTERN)
    assert torch.equal(module(q, k, v), F.scaled_dot_product_attention(q, k, v, PATTERN))
    assert not list(module.parameters())
    assert not module.state_dict()
    padding = torch.zeros(L, dtype=torch.bool)
    padding[4] = True
    close(module(q, k, v, key_padding_mask=padding), F.scaled_dot_product_attention(q, k, v, ~MASK & ~padding))


def test_it_starts_as_torchs_does() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(D, 2)
    torch.manual_seed(0)
    ours = SparseAttention(PATTERN, D, 2)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    bounds = [float(own.state_dict()["in_proj_weight"].abs().max()) for own in (ours, theirs)]
    assert abs(bounds[0] - bounds[1]) < 0.05
    assert not ours.in_proj_bias.any()
    assert not ours.out_proj.bias.any()


def test_from_dense() -> None:
    theirs, _ = pair(bias=False)
    ours = SparseAttention.from_dense(theirs.double().eval(), PATTERN)
    x = tokens(3, L, D).double()
    close(ours(x, x, x)[0], theirs(x, x, x, attn_mask=MASK)[0])
    assert not ours.training
    with pytest.raises(ns.UnsupportedError, match="kdim"):
        SparseAttention.from_dense(torch.nn.MultiheadAttention(D, 2, kdim=4), PATTERN)
    with pytest.raises(ns.OperandError, match=r"takes a torch\.nn\.MultiheadAttention, not Linear"):
        SparseAttention.from_dense(torch.nn.Linear(D, D), PATTERN)


def test_from_dense_keeps_the_settings_of_each_module() -> None:
    theirs = torch.nn.TransformerEncoderLayer(D, 2, 16, dropout=0.3, batch_first=True)
    theirs.self_attn.dropout, theirs.dropout1.p, theirs.norm2.eps = 0.0, 0.5, 1e-2
    theirs.norm1.eval()
    for name in ("linear1.weight", "norm2.bias", "self_attn.in_proj_weight", "self_attn.out_proj.bias"):
        theirs.get_parameter(name).requires_grad_(False)
    ours = SparseTransformerEncoderLayer.from_dense(theirs, PATTERN)
    assert (ours.self_attn.dropout, ours.dropout.p, ours.dropout1.p, ours.dropout2.p) == (0.0, 0.3, 0.5, 0.3)
    assert (ours.norm1.eps, ours.norm2.eps) == (1e-5, 1e-2)
    assert {name: own.training for name, own in ours.named_modules()} == {name: own.training for name, own in theirs.named_modules()}
    frozen = [{name for name, own in layer.named_parameters() if not own.requires_grad} for layer in (ours, theirs)]
    assert frozen[0] == frozen[1] and len(frozen[0]) == 4
    attention = SparseAttention.from_dense(theirs.self_attn, PATTERN)
    assert not attention.in_proj_weight.requires_grad and attention.out_proj.weight.requires_grad


def test_from_dense_of_modules_that_are_shared_or_others() -> None:
    theirs = torch.nn.TransformerEncoderLayer(D, 2, 16, batch_first=True)
    theirs.dropout2 = theirs.dropout1
    theirs.dropout1.p = 0.5
    assert SparseTransformerEncoderLayer.from_dense(theirs, PATTERN).dropout2.p == 0.5
    theirs.dropout1 = torch.nn.Identity()
    theirs.self_attn.dropout = theirs.dropout.p = theirs.dropout2.p = 0.0
    ours, x = SparseTransformerEncoderLayer.from_dense(theirs, PATTERN), tokens(2, L, D)
    assert isinstance(ours.dropout1, torch.nn.Identity)
    close(ours(x), theirs(x, src_mask=MASK))


def test_a_function_makes_patterns_for_any_length() -> None:
    calls: list[int] = []

    def window(n: int) -> ns.SparseTensor:
        calls.append(n)
        return patterns.sliding_window(n, 4)

    module = SparseAttention(window, D, 2)
    for n in (1, 3, L, 3):  # a sequence may be shorter than the window
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


def test_a_pattern_is_no_buffer_and_no_state() -> None:
    module = SparseAttention(PATTERN, D, 2)
    assert not list(module.buffers())
    assert not any("pattern" in name for name in module.state_dict())
    assert f"density={PATTERN.density:.3g}" in repr(module)
    assert "pattern=bigbird" in repr(SparseAttention(partial(patterns.bigbird, block=4)))
    x = tokens(L, D)
    assert torch.equal(copy.deepcopy(module)(x, x, x)[0], module(x, x, x)[0])


def test_layers_that_are_deep_copies_share_one_pattern() -> None:
    layer = SparseTransformerEncoderLayer(PATTERN, D, 2, dim_feedforward=8)
    layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).layers
    assert all(own.self_attn.pattern.pattern is PATTERN.pattern for own in layers)
    assert layers[0].self_attn.in_proj_weight is not layers[1].self_attn.in_proj_weight
    function = partial(patterns.bigbird, block=4)
    assert copy.deepcopy(SparseAttention(function, D, 2)).pattern_for(L).pattern is function(L).pattern


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation, bias", [("relu", True), ("gelu", False), (torch.tanh, True)])
def test_the_encoder_layer_equals_torchs(norm_first: bool, activation: Any, bias: bool) -> None:
    torch.manual_seed(2)
    theirs = torch.nn.TransformerEncoderLayer(D, 2, 16, 0.0, activation, 1e-3, batch_first=True, norm_first=norm_first, bias=bias)
    ours = SparseTransformerEncoderLayer(PATTERN, D, 2, 16, 0.0, activation, 1e-3, norm_first=norm_first, bias=bias)
    ours.load_state_dict(theirs.state_dict())
    x = tokens(3, L, D)
    for made in (ours(x), SparseTransformerEncoderLayer.from_dense(theirs, PATTERN)(x)):
        close(made, theirs(x, src_mask=MASK))
    padding = torch.zeros(3, L, dtype=torch.bool)
    padding[0, -3:] = True
    close(ours(x, src_key_padding_mask=padding), theirs(x, src_mask=MASK, src_key_padding_mask=padding))
    given = torch.autograd.grad(ours(x).square().sum(), list(ours.parameters()))
    wanted = torch.autograd.grad(theirs(x, src_mask=MASK).square().sum(), list(theirs.parameters()))
    close(given, wanted)


def test_torchs_encoder_stacks_it() -> None:
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(D, 2, 16, 0.0, batch_first=True)
    theirs = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    sparse = SparseTransformerEncoderLayer.from_dense(layer, PATTERN)
    ours = torch.nn.TransformerEncoder(sparse, 2, enable_nested_tensor=False)
    ours.load_state_dict(theirs.state_dict())
    x = tokens(3, L, D)
    close(ours(x), theirs(x, mask=MASK))
    close(ours.eval()(x), theirs.eval()(x, mask=MASK))


def test_it_learns() -> None:
    """To say, everywhere, the mark of the first token, which is global."""
    torch.manual_seed(0)
    layer, head = SparseTransformerEncoderLayer(PATTERN, D, 2, 16, dropout=0.0), torch.nn.Linear(D, 1)
    x = torch.randn(64, L, D)
    wanted = x[:, :1, 0].sign().expand(64, L)
    adam = torch.optim.Adam([*layer.parameters(), *head.parameters()], 0.02)
    losses = []
    for _ in range(15):
        loss = torch.nn.functional.mse_loss(head(layer(x)).squeeze(-1), wanted)
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
