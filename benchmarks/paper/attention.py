"""Sparse attention with the patterns of BigBird and Longformer: alone, and in the encoder layer of the paper's table 3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from math import sqrt
from typing import Any

import torch
from torch.nn import functional

import numscorch as ns
from numscorch.measuring.turns import Function
from numscorch.nn import patterns
from numscorch.nn.functional import scaled_dot_product_attention

from ..data import dense
from .runs import Run, told_error
from .tables import FLEX, FLEX_16, SDPA, SPARSE, TABLE_3

HEAD = 32  # features per head: hidden size over number of heads in table 3
WINDOW, FIRST = 128, 1  # Longformer in the reference benchmark: 64 tokens on each side and one global token
REST = 0.01  # seconds until the OpenMP threads of a compiled peer stop spinning
WIDTHS = {FLEX: 128, FLEX_16: 16}  # block sizes of flex_attention: its default, and the one of BigBird
NAMES = (
    "sparse attention block size",
    "sparse attention global tokens",
    "sparse attention random blocks",
    "sparse attention sliding blocks",
)
BIGBIRD: tuple[int, ...] = tuple(TABLE_3[name] for name in NAMES)

PATTERNS: Mapping[str, Callable[[int], ns.SparseTensor]] = {
    "BigBird": lambda n: patterns.bigbird(n, *BIGBIRD),
    f"Longformer {WINDOW}": lambda n: patterns.longformer(n, WINDOW, FIRST),
}


def attention(run: Run) -> None:
    """Measure attention alone at every length, then the encoder layer."""
    for name, length in product(PATTERNS, run.sizes.lengths):
        for batch, heads in run.sizes.heads:
            run.attempt(_alone, name, length, batch, heads)
    for name, length in product(PATTERNS, run.sizes.lengths):
        run.attempt(_layer, name, length)


@torch.no_grad()
def _alone(run: Run, name: str, length: int, batch: int, heads: int) -> None:
    pattern = PATTERNS[name](length)
    q, k, v = (dense(batch, heads, length, HEAD, seed=seed) for seed in range(3))
    mask, stored, places = pattern.to_dense() != 0, pattern.to_torch(), pattern.indices()
    added = torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))
    peers: dict[str, Function] = {
        f"{SDPA}: bool mask": lambda: functional.scaled_dot_product_attention(q, k, v, mask),
        f"{SDPA}: float mask": lambda: functional.scaled_dot_product_attention(q, k, v, added),
        f"{SPARSE}: sampled_addmm": lambda: by_sampled_addmm(q, k, v, stored),
        f"{SPARSE}: gathered": lambda: by_gathering(q, k, v, stored, places),
    }
    ours = lambda: scaled_dot_product_attention(q, k, v, pattern)  # noqa: E731
    facts: dict[str, Any] = {"pattern": name, "length": length, "batch": batch, "heads": heads}
    case = f"{name}, {length} tokens, {batch} x {heads} x {HEAD}"
    run.compare("attention", case, ours, peers, **facts)
    if run.sizes.has_flex and (batch, heads) == run.sizes.heads[0] and name == "BigBird":
        try:
            run.compare("attention", f"{case}, flex", ours, _flex(q, k, v, mask), rest=REST, **facts)
        except Exception as error:  # the compiler may raise anything: leave out the peer and report the reason
            run.tell(f"  {case}: no {FLEX}: {told_error(error)}")


def by_sampled_addmm(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """SDDMM, softmax and SpMM per head; the sparse softmax of torch supports COO only."""
    pos, crd = pattern.crow_indices(), pattern.col_indices()
    zeros = torch.sparse_csr_tensor(pos, crd, torch.zeros_like(pattern.values()), pattern.shape, check_invariants=False)

    def head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.sparse.sampled_addmm(zeros, q, k.t(), alpha=1 / sqrt(q.shape[-1]))
        weights = torch.sparse.softmax(scores.to_sparse_coo(), 1)
        return torch.sparse_csr_tensor(pos, crd, weights.values(), pattern.shape, check_invariants=False) @ v

    return _each_head(head, q, k, v)


def by_gathering(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pattern: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Attention as in the reference benchmark: scores of gathered rows, and a softmax with scatter operations."""
    rows, columns = places

    def head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q.index_select(0, rows) * k.index_select(0, columns)).sum(-1) / sqrt(q.shape[-1])
        most = torch.full((len(q),), float("-inf")).scatter_reduce_(0, rows, scores, "amax", include_self=False)
        powers = (scores - most.index_select(0, rows)).exp_()
        totals = torch.zeros(len(q)).index_add_(0, rows, powers)
        weights = powers / totals.index_select(0, rows)
        shares = torch.sparse_csr_tensor(pattern.crow_indices(), pattern.col_indices(), weights, pattern.shape, check_invariants=False)
        product: torch.Tensor = shares @ v
        return product

    return _each_head(head, q, k, v)


def _each_head(head: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    flat = (parts.flatten(0, 1) for parts in tensors)
    stacked = torch.stack([head(*parts) for parts in zip(*flat, strict=True)])
    return stacked.view(*tensors[0].shape[:2], *stacked.shape[1:])


def _flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> dict[str, Function]:
    """Compiled flex_attention with a block mask of each width; the first call compiles it."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def inside(batch: object, head: object, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        is_kept: torch.Tensor = mask[i, j]
        return is_kept

    compiled = torch.compile(flex_attention, dynamic=False)
    peers: dict[str, Function] = {}
    for name, width in WIDTHS.items():
        blocks = create_block_mask(inside, None, None, mask.shape[0], mask.shape[1], device="cpu", BLOCK_SIZE=width)
        peers[name] = partial(compiled, q, k, v, block_mask=blocks)
    return peers


@torch.no_grad()
def _layer(run: Run, name: str, length: int) -> None:
    pattern = PATTERNS[name](length)
    torch.manual_seed(0)
    size, heads, inner = (int(TABLE_3[setting]) for setting in ("hidden size", "number of attention heads", "intermediate size"))
    ours = ns.nn.SparseTransformerEncoderLayer(pattern, size, heads, inner, activation="gelu").eval()
    mask, x = pattern.to_dense() != 0, dense(1, length, size)
    case = f"{name}, {length} tokens, encoder layer"
    run.compare("layer", case, lambda: ours(x), {SDPA: lambda: in_torch(ours, x, mask)}, pattern=name, length=length)


def in_torch(layer: ns.nn.SparseTransformerEncoderLayer, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The layer with the same weights, computed by torch's scaled_dot_product_attention with a mask."""
    attention, heads = layer.self_attn, (layer.self_attn.num_heads, -1)
    q, k, v = (
        part.unflatten(-1, heads).transpose(1, 2)
        for part in functional.linear(x, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
    )
    attended = functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
    x = layer.norm1(x + attention.out_proj(attended))
    result: torch.Tensor = layer.norm2(x + layer.linear2(functional.gelu(layer.linear1(x))))
    return result
