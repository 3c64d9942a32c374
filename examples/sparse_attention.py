"""Attention over a sliding window: scores only where the pattern is, softmax over them, then the product.

Two einsums, an SDDMM and an SpMM, around a softmax over rows.
"""

from __future__ import annotations

import torch

import numscorch as ns


def sliding_window(length: int, width: int) -> ns.SparseTensor:
    """A pattern of ones where |i - j| <= width."""
    i, j = torch.meshgrid(torch.arange(length), torch.arange(length), indexing="ij")
    return ns.from_torch(((i - j).abs() <= width).float())


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pattern: ns.SparseTensor) -> torch.Tensor:
    """softmax(q kᵀ / √d) v over the pattern's entries; q, k, v: (length, d)."""
    scores = ns.einsum("ij,id,jd->ij", pattern, q, k).values / q.shape[1] ** 0.5
    rows, length = pattern.indices()[0], pattern.shape[0]
    largest = torch.full((length,), -torch.inf).scatter_reduce(0, rows, scores, "amax")
    weights = torch.exp(scores - largest[rows])
    total = torch.zeros(length).index_add(0, rows, weights)
    return ns.einsum("ij,jd->id", pattern.with_values(weights), v) / total[:, None]


if __name__ == "__main__":
    torch.manual_seed(0)
    q, k, v = (torch.randn(1024, 64) for _ in range(3))
    window = sliding_window(1024, 32)
    ours = attention(q, k, v, window)
    mask = window.to_dense().bool()
    theirs = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]
    print(window)
    print(f"largest difference to dense attention with a mask: {(ours - theirs).abs().max():.2g}")
