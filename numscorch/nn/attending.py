"""Attention at the entries of a pattern: scores, softmax over each row's entries, and the values' means."""

from __future__ import annotations

from math import prod

import torch

from ..api import einsum
from ..operators.elementwise import softmax
from ..sparse_tensor import SparseTensor


def attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pattern: SparseTensor, scale: float, dropout_p: float
) -> torch.Tensor:
    """``softmax(scale * query @ key.T) @ value`` at the pattern's entries alone; rows without entries give zeros.

    Args:
        query: shape (\\*, L, E); key: (\\*, S, E); value: (\\*, S, Ev), with the same leading dimensions.
        pattern: a matrix (L, S) in CSR; its values don't matter.
        scale: of the scores.
        dropout_p: share of the probabilities that is set to zero, while the others grow by 1 / (1 - dropout_p).
    """
    leading, rows = query.shape[:-2], (query.shape[-2], value.shape[-1])
    flat = [own.reshape(prod(leading), *own.shape[-2:]) for own in (query * scale, key, value)]
    heads = [_head(q, k, v, pattern, dropout_p) for q, k, v in zip(*flat, strict=True)]
    return torch.stack(heads).reshape(*leading, *rows) if heads else query.new_zeros(*leading, *rows)


def _head(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pattern: SparseTensor, dropout_p: float) -> torch.Tensor:
    scores = einsum("id,jd->ij", query, key, mask=pattern)
    probabilities = softmax(scores, 1)
    if dropout_p:
        probabilities = probabilities.with_values(torch.nn.functional.dropout(probabilities.values, dropout_p))
    made: torch.Tensor = einsum("ij,jd->id", probabilities, value)
    return made
