"""Sparse attention: alone, and in the encoder layer of the paper's table 3, in patterns of BigBird and Longformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import sqrt

import torch
from torch.nn import functional

import numscorch as ns
from numscorch.nn import patterns
from numscorch.nn.functional import scaled_dot_product_attention

from .data import dense
from .harness import Function
from .paper_runs import Run
from .paper_tables import FLEX, SDPA, SPARSE, TABLE_3

HEAD = 32  # features: table 3's hidden size over its heads
WINDOW = 64  # tokens, about as many as BigBird's window of blocks and its random blocks
REST = 0.01  # seconds after which the threads of a compiled peer's own OpenMP no longer spin
WIDTHS = (128, 16)  # of flex_attention's blocks: its default, and BigBird's
NAMES = (
    "sparse attention block size",
    "sparse attention global tokens",
    "sparse attention random blocks",
    "sparse attention sliding blocks",
)
BIGBIRD: tuple[int, ...] = tuple(TABLE_3[name] for name in NAMES)  # type: ignore[misc]

PATTERNS: Mapping[str, Callable[[int], ns.SparseTensor]] = {
    "BigBird": lambda n: patterns.bigbird(n, *BIGBIRD),
    f"Longformer {WINDOW}": lambda n: patterns.longformer(n, WINDOW, global_=2),
}


def attention(run: Run) -> None:
    """Every length: attention alone, then the encoder layer."""
    for (name, make), length in product(PATTERNS.items(), run.sizes.lengths):
        pattern = make(length)
        for batch, heads in run.sizes.heads:
            _alone(run, name, pattern, batch, heads)
    for (name, make), length in product(PATTERNS.items(), run.sizes.lengths):
        _layer(run, name, make(length))


@torch.no_grad()
def _alone(run: Run, name: str, pattern: ns.SparseTensor, batch: int, heads: int) -> None:
    length = pattern.shape[0]
    q, k, v = (dense(batch, heads, length, HEAD, seed=seed) for seed in range(3))
    mask = pattern.to_dense() != 0
    added = torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))
    peers: dict[str, Function] = {
        f"{SDPA}: bool mask": lambda: functional.scaled_dot_product_attention(q, k, v, mask),
        f"{SDPA}: float mask": lambda: functional.scaled_dot_product_attention(q, k, v, added),
        f"{SPARSE}: sampled_addmm": lambda: by_sampled_addmm(q, k, v, pattern.to_torch()),
        f"{SPARSE}: gathered": lambda: by_gathering(q, k, v, places),
    }
    places = pattern.indices()
    ours = lambda: scaled_dot_product_attention(q, k, v, pattern)  # noqa: E731
    facts = {"pattern": name, "length": length, "batch": batch, "heads": heads}
    case = f"{name}, {length} tokens, {batch} x {heads} x {HEAD}"
    run.compare("attention", case, ours, peers, **facts)
    if run.sizes.has_flex and (batch, heads) == run.sizes.heads[0] and name == "BigBird":
        try:
            run.compare("attention", f"{case}, flex", ours, _flex(q, k, v, mask), rest=REST, **facts)
        except Exception as error:  # whatever its compiler raises: the peer is absent, and the reason is told
            run.tell(f"  {case}: no {FLEX}: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")


def by_sampled_addmm(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """SDDMM, softmax and SpMM of each head; torch's softmax takes COO alone."""
    zeros = torch.sparse_csr_tensor(pattern.crow_indices(), pattern.col_indices(), torch.zeros_like(pattern.values()), pattern.shape)

    def head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.sparse.sampled_addmm(zeros, q, k.t(), alpha=1 / sqrt(q.shape[-1]))
        weights = torch.sparse.softmax(scores.to_sparse_coo(), 1)
        return torch.sparse_csr_tensor(pattern.crow_indices(), pattern.col_indices(), weights.values(), pattern.shape) @ v

    return _each_head(head, q, k, v)


def by_gathering(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The same with the scores of gathered rows, in COO throughout."""
    shape = (q.shape[-2], k.shape[-2])

    def head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q.index_select(0, places[0]) * k.index_select(0, places[1])).sum(-1) / sqrt(q.shape[-1])
        stored = torch.sparse_coo_tensor(places, scores, shape, is_coalesced=True, check_invariants=False)
        return torch.sparse.mm(torch.sparse.softmax(stored, 1), v)

    return _each_head(head, q, k, v)


def _each_head(head: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    flat = (own.flatten(0, 1) for own in tensors)
    return torch.stack([head(*own) for own in zip(*flat, strict=True)]).unflatten(0, tensors[0].shape[:2])


def _flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> dict[str, Function]:
    """flex_attention compiled, with a mask of blocks of each width; its first call compiles."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    made: dict[str, Function] = {}
    for width in WIDTHS:
        blocks = create_block_mask(lambda b, h, i, j: mask[i, j], None, None, *mask.shape, device="cpu", BLOCK_SIZE=width)
        made[f"{FLEX}: blocks of {width}"] = lambda blocks=blocks: compiled(q, k, v, block_mask=blocks)
    return made


@torch.no_grad()
def _layer(run: Run, name: str, pattern: ns.SparseTensor) -> None:
    torch.manual_seed(0)
    size, heads, inner = (int(TABLE_3[own]) for own in ("hidden size", "number of attention heads", "intermediate size"))  # type: ignore[call-overload]
    ours = ns.nn.SparseTransformerEncoderLayer(pattern, size, heads, inner, activation="gelu").eval()
    mask, x = pattern.to_dense() != 0, dense(1, pattern.shape[0], size)
    case = f"{name}, {len(mask)} tokens, encoder layer"
    run.compare("layer", case, lambda: ours(x), {SDPA: lambda: in_torch(ours, x, mask)}, pattern=name, length=len(mask))


def in_torch(layer: ns.nn.SparseTransformerEncoderLayer, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The same layer, with the same weights, written with scaled_dot_product_attention and a mask."""
    own, heads = layer.self_attn, (layer.self_attn.num_heads, -1)
    q, k, v = (
        part.unflatten(-1, heads).transpose(1, 2) for part in functional.linear(x, own.in_proj_weight, own.in_proj_bias).chunk(3, -1)
    )
    attended = functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
    x = layer.norm1(x + own.out_proj(attended))
    made: torch.Tensor = layer.norm2(x + layer.linear2(functional.gelu(layer.linear1(x))))
    return made
