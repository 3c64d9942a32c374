"""scaled_dot_product_attention with a sparse pattern against torch's with a dense mask: values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from random_tensors import leaf

import numscorch as ns
from numscorch.nn import functional as F, patterns
from numscorch.nn.functional import program
from numscorch.runtime import plans

pytestmark = pytest.mark.usefixtures("interpreted")

dense_reference = torch.nn.functional.scaled_dot_product_attention


def dense_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pattern: Any, **options: Any) -> torch.Tensor:
    """torch's attention with the pattern as a mask. Rows without entries are 0 here; in torch they may be nan."""
    mask = patterns.union(pattern).to_dense() != 0
    result = dense_reference(query, key, value, mask | ~mask.any(1, keepdim=True), **options)
    return torch.where(mask.any(1, keepdim=True), result, torch.zeros(()).to(result))


def check(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pattern: Any, call: Callable[..., Any] | None = None, **options: Any
) -> None:
    """Values and gradients equal torch's."""
    result = (call or F.scaled_dot_product_attention)(query, key, value, pattern, **options)
    expected = dense_attention(query, key, value, pattern, **options)
    torch.testing.assert_close(result, expected)
    assert result.isfinite().all()
    upstream = leaf(*expected.shape, dtype=expected.dtype, seed=9).detach()
    gradients = torch.autograd.grad(result, (query, key, value), upstream)
    expected_gradients = torch.autograd.grad(expected, (query, key, value), upstream)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-4, atol=1e-5)


PATTERNS: dict[str, Callable[[int], ns.SparseTensor]] = {
    "window": lambda n: patterns.sliding_window(n, 3),
    "causal": patterns.causal,
    "bigbird": lambda n: patterns.bigbird(n, block=4),
    "empty rows": lambda n: patterns.block(torch.tensor([[0, 0, 0], [1, 0, 1], [0, 0, 0]]), n // 3),
    "nothing": lambda n: patterns.random_blocks(n, 1, 0),
    "everything": lambda n: patterns.sliding_window(n, n),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", PATTERNS)
def test_values_and_gradients_equal_torchs_with_a_mask(name: str, dtype: torch.dtype) -> None:
    check(*(leaf(2, 3, 18, 8, dtype=dtype, seed=seed) for seed in range(3)), PATTERNS[name](18))


@pytest.mark.parametrize("leading", [(), (3,), (2, 1, 2)], ids=str)
def test_leading_dimensions(leading: tuple[int, ...]) -> None:
    check(*(leaf(*leading, 18, 8, seed=seed) for seed in range(3)), PATTERNS["window"](18))


def test_leading_dimensions_broadcast() -> None:
    check(leaf(2, 3, 18, 8), leaf(3, 18, 8, seed=1), leaf(1, 1, 18, 8, seed=2), PATTERNS["window"](18))


def test_queries_keys_and_values_of_different_sizes() -> None:
    mask = torch.rand(12, 18, generator=torch.Generator().manual_seed(0)) < 0.3
    check(leaf(2, 12, 8), leaf(2, 18, 8, seed=1), leaf(2, 18, 5, seed=2), patterns.block(mask, 1))


def test_no_heads_and_no_tokens() -> None:
    pattern = patterns.causal(18)
    assert F.scaled_dot_product_attention(*(torch.ones(2, 0, 18, 8) for _ in "qkv"), pattern).shape == (2, 0, 18, 8)
    assert F.scaled_dot_product_attention(*(torch.ones(2, 0, 8) for _ in "qkv"), patterns.causal(0)).shape == (2, 0, 8)


@pytest.mark.parametrize("form", ["CSC", "COO(2)", "DCSR", "BCSR(3, 3)", "torch COO", "torch CSR", "bool False", "parameter"])
def test_patterns_in_every_format(form: str) -> None:
    pattern = patterns.block(torch.eye(6), 3)
    given: dict[str, Callable[[], Any]] = {
        "torch COO": lambda: pattern.to_dense().to_sparse_coo(),
        "torch CSR": lambda: pattern.to_torch(),
        "bool False": lambda: pattern.with_values(torch.zeros(pattern.nnz, dtype=torch.bool)),
        "parameter": lambda: ns.nn.Parameter(pattern),
    }
    check(*(leaf(2, 18, 8, seed=seed) for seed in range(3)), given[form]() if form in given else pattern.to(form))


def test_keywords_and_scale() -> None:
    q, k, v = (leaf(18, 8, seed=seed) for seed in range(3))
    check(q, k, v, PATTERNS["window"](18), scale=0.5)
    check(q, k, v, PATTERNS["window"](18), lambda q, k, v, p: F.scaled_dot_product_attention(q, k, v, pattern=p))
    check(q, k, v, PATTERNS["window"](18), lambda q, k, v, p: F.scaled_dot_product_attention(q, k, v, attn_mask=p))


@pytest.mark.parametrize("scale", [np.float64(0.5), np.float32(0.5), torch.tensor(0.5), torch.tensor([0.5]), Fraction(1, 2)], ids=repr)
@pytest.mark.parametrize("dropout_p", [0.0, 1e-9])
def test_a_scale_is_any_number(scale: Any, dropout_p: float) -> None:
    q, k, v = (leaf(18, 8, seed=seed) for seed in range(3))
    result = F.scaled_dot_product_attention(q, k, v, PATTERNS["window"](18), dropout_p, scale=scale)
    torch.testing.assert_close(result, dense_attention(q, k, v, PATTERNS["window"](18), scale=0.5))


def test_infinite_scales_give_nan_as_in_torch() -> None:
    q, k, v = (leaf(18, 8, seed=seed) for seed in range(3))
    mask = patterns.causal(18).to_dense() != 0
    for scale in (float("inf"), float("nan")):
        result = F.scaled_dot_product_attention(q, k, v, patterns.causal(18), scale=scale)
        assert torch.equal(result.isnan(), dense_reference(q, k, v, mask, scale=scale).isnan())


def test_other_scales_run_the_same_kernels() -> None:
    q, k, v = (leaf(2, 18, 8, seed=seed) for seed in range(3))

    def run(scale: float) -> int:
        F.scaled_dot_product_attention(q, k, v, PATTERNS["window"](18), scale=scale).sum().backward()
        return len(plans._tables().kernels)

    known = run(0.5)
    assert run(0.25) == run(3.0) == known


def test_scaled_scores_stay_in_registers_and_gradients_fuse() -> None:
    given = {name: leaf(2, 18, 8, seed=seed) for seed, name in enumerate("QKV")}
    text = str(ns.explain(program(1), A=PATTERNS["window"](18), c=torch.tensor(0.5), **given))
    assert "unroll_forall<4>(j, where(S_row[j] = stored(A[i,j]) * D * t, vector_forall<" in text
    assert "gradient          fused: " in text


def test_is_causal_drops_later_keys() -> None:
    q, k, v = (leaf(18, 8, seed=seed) for seed in range(3))
    pattern = PATTERNS["window"](18)
    result = F.scaled_dot_product_attention(q, k, v, pattern, is_causal=True)
    torch.testing.assert_close(result, dense_attention(q, k, v, patterns.intersection(pattern, patterns.causal(18))))


def test_fewer_heads_of_keys_than_of_queries() -> None:
    check(
        leaf(2, 4, 18, 8),
        leaf(2, 2, 18, 8, seed=1),
        leaf(2, 2, 18, 8, seed=2),
        PATTERNS["window"](18),
        enable_gqa=True,
    )


def test_dropout_drops_probabilities() -> None:
    """With the identity as values, the result contains the probabilities."""
    q, k = leaf(18, 8), leaf(18, 8, seed=1)
    pattern = patterns.sliding_window(18, 3)
    whole = F.scaled_dot_product_attention(q, k, torch.eye(18), pattern)
    torch.manual_seed(0)
    results = torch.stack([F.scaled_dot_product_attention(q, k, torch.eye(18), pattern, dropout_p=0.25) for _ in range(40)])
    is_dropped = (results == 0) & (pattern.to_dense() != 0)
    share = float(is_dropped.sum() / (40 * pattern.nnz))
    assert 0.22 < share < 0.28
    torch.testing.assert_close(results, torch.where(is_dropped, torch.zeros(()), whole / 0.75).expand_as(results))


def test_without_a_pattern_it_is_torchs_function() -> None:
    q, k, v = (leaf(2, 18, 8, seed=seed) for seed in range(3))
    mask = torch.ones(18, 18).tril().bool()
    assert torch.equal(F.scaled_dot_product_attention(q, k, v), dense_reference(q, k, v))
    assert torch.equal(F.scaled_dot_product_attention(q, k, v, mask, scale=0.1), dense_reference(q, k, v, mask, scale=0.1))
    assert torch.equal(F.scaled_dot_product_attention(q, k, v, is_causal=True), dense_reference(q, k, v, is_causal=True))


def test_second_gradients() -> None:
    q, k, v = (leaf(6, 3, dtype=torch.float64, seed=seed) for seed in range(3))
    call = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, patterns.sliding_window(6, 1))  # noqa: E731
    assert torch.autograd.gradgradcheck(call, (q, k, v))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 0.01), (torch.bfloat16, 0.05)], ids=str)
def test_16_bits(dtype: torch.dtype, tolerance: float) -> None:
    q, k, v = (leaf(2, 18, 8, seed=seed).detach() for seed in range(3))
    result = F.scaled_dot_product_attention(q.to(dtype), k.to(dtype), v.to(dtype), PATTERNS["window"](18))
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), dense_attention(q, k, v, PATTERNS["window"](18)), rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
def test_torch_compiles_around_attention() -> None:
    pattern = patterns.sliding_window(18, 3)
    call = lambda q: F.scaled_dot_product_attention(q * 2, q, q, pattern) + 1  # noqa: E731
    q = leaf(2, 18, 8)
    torch.testing.assert_close(torch.compile(call, backend="eager")(q), call(q))


x = torch.ones(2, 18, 8)
BAD: dict[str, tuple[Callable[[], Any], type[Exception], list[str]]] = {
    "a pattern of another length": (
        lambda: F.scaled_dot_product_attention(x, x, x, patterns.causal(17)),
        ns.SizeError,
        ["pattern has shape (17, 17), but there are 18 queries and 18 keys", "query: (2, 18, 8)   key: (2, 18, 8)   value: (2, 18, 8)"],
    ),
    "query and key": (lambda: F.scaled_dot_product_attention(x, x[..., 1:], x, patterns.causal(18)), ns.SizeError, ["8 and 7", "query: "]),
    "key and value": (lambda: F.scaled_dot_product_attention(x, x, x[:, 1:], patterns.causal(18)), ns.SizeError, ["18 and 17"]),
    "leading dimensions": (
        lambda: F.scaled_dot_product_attention(x, x, x.expand(3, 2, 18, 8)[:, :1].expand(3, 5, 18, 8), patterns.causal(18)),
        ns.SizeError,
        ["broadcast"],
    ),
    "a vector": (lambda: F.scaled_dot_product_attention(x[0, 0], x, x, patterns.causal(18)), ns.SizeError, ["two dimensions"]),
    "dtypes": (
        lambda: F.scaled_dot_product_attention(x, x.double(), x, patterns.causal(18)),
        ns.UnsupportedError,
        ["torch.float64", ".to("],
    ),
    "whole numbers": (lambda: F.scaled_dot_product_attention(*[x.long()] * 3, patterns.causal(18)), ns.UnsupportedError, ["int64"]),
    "mask and pattern": (
        lambda: F.scaled_dot_product_attention(x, x, x, torch.ones(18, 18), pattern=patterns.causal(18)),
        ns.UnsupportedError,
        ["patterns.intersection"],
    ),
    "dropout": (lambda: F.scaled_dot_product_attention(x, x, x, patterns.causal(18), dropout_p=2), ns.SizeError, ["dropout_p=2"]),
    "a pattern for each batch": (
        lambda: F.scaled_dot_product_attention(x, x, x, torch.ones(2, 18, 18).to_sparse()),
        ns.SizeError,
        ["pattern has shape (2, 18, 18)", "for all batches and heads"],
    ),
    "a scale that is trained": (
        lambda: F.scaled_dot_product_attention(x, x, x, patterns.causal(18), scale=torch.tensor(0.5, requires_grad=True)),
        ns.UnsupportedError,
        ["multiply the query by it"],
    ),
    "a scale for each head": (
        lambda: F.scaled_dot_product_attention(x, x, x, patterns.causal(18), scale=torch.ones(2)),
        ns.UnsupportedError,
        ["one number"],
    ),
    "a list": (lambda: F.scaled_dot_product_attention(x, x, x, pattern=[1]), ns.UnsupportedError, ["not list"]),
}


@pytest.mark.parametrize("name", BAD)
def test_errors(name: str) -> None:
    call, kind, texts = BAD[name]
    with pytest.raises(kind) as error:
        call()
    assert all(text in str(error.value) for text in texts), error.value


def test_integers_are_no_padding() -> None:
    layer, x = ns.nn.SparseAttention(ns.nn.patterns.sliding_window(4, 1)), torch.ones(1, 4, 2)
    with pytest.raises(ns.UnsupportedError, match=r"torch\.int64"):
        layer(x, x, x, key_padding_mask=torch.zeros(1, 4, dtype=torch.int64))


def test_autocast_accepts_queries_keys_and_values_of_different_types() -> None:
    x, weight = torch.randn(1, 4, 8), torch.randn(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        result = ns.nn.functional.scaled_dot_product_attention(x @ weight, x, x, pattern=ns.nn.patterns.sliding_window(4, 4))
        expected = torch.nn.functional.scaled_dot_product_attention(x @ weight, x, x)
    assert result.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=0.05, atol=0.05)
