"""Attention at the stored entries of a pattern: scores, softmax over each row, and weighted sums of the values."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import torch

from ..errors import UnsupportedError
from ..interface.api import einsum
from ..operators.reducing import softmax
from ..programs.evaluation import evaluate_parts
from ..tensors.sparse_tensor import SparseTensor

LEADING = "abdfghn"  # index names of leading dimensions such as batch and heads; c is the scale
PADDED = "stored(A[i,j]) * where({b} > -3e38, {t} + {b}, {b})"  # a bias of -3e38 or less masks the key and replaces its score


def pattern_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparseTensor,
    scale: float,
    dropout_p: float,
    padding: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute ``softmax(scale * query @ key.T) @ value`` at the pattern's entries only; rows without entries give zeros.

    Without dropout, one fused kernel stores one row of scores at a time. With dropout, or with more than 7 leading dimensions,
    each head runs separate kernels and stores its probabilities.

    Args:
        query, key, value: shapes (\\*, L, E), (\\*, S, E) and (\\*, S, Ev), with equal leading dimensions.
        pattern: matrix (L, S) in CSR; its values are ignored.
        scale: factor of the scores. It is an operand of the kernel, so one kernel serves all scales.
        dropout_p: share of the probabilities that dropout sets to 0; the others are multiplied by 1 / (1 - dropout_p).
        padding: bias on the scores of each key, (\\*, S), from :func:`mask_bias`; at masked keys it replaces the scores.

    Raises:
        UnsupportedError: the scale is not a number, or it requires grad.
    """
    number = _number(scale)
    if not dropout_p and query.ndim <= len(LEADING) + 2:
        operands = {"Q": query, "K": key, "V": value, "A": pattern, "c": number}  # c takes the data type of the first operand
        if padding is not None:
            operands["B"] = padding
        return evaluate_parts(program(query.ndim - 2, padding is not None), operands, None)
    leading, rows = query.shape[:-2], (query.shape[-2], value.shape[-1])
    flat = [operand.reshape(prod(leading), *operand.shape[-2:]) for operand in (query * number, key, value)]
    biases = [None] * prod(leading) if padding is None else list(padding.reshape(prod(leading), -1))
    heads = [_head(q, k, v, pattern, dropout_p, b) for q, k, v, b in zip(*flat, biases, strict=True)]
    return torch.stack(heads).reshape(*leading, *rows) if heads else query.new_zeros(*leading, *rows)


def _number(scale: Any) -> float:
    """Convert the scale, a number of Python, numpy or torch, to a float.

    Raises:
        UnsupportedError: the scale is not a number, or it requires grad.

    >>> _number(torch.tensor(0.5))
    0.5
    """
    if isinstance(scale, torch.Tensor) and scale.requires_grad:
        raise UnsupportedError("scale requires grad, but no gradient flows to it: multiply the query by it, and pass scale=1.0")
    try:
        return float(scale)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnsupportedError(
            f"scale={scale!r}: the scale of attention is one number for all scores; multiply the query by any other scale"
        ) from error


def mask_bias(mask: torch.Tensor, dtype: torch.dtype, minimum: float = -torch.inf) -> torch.Tensor:
    """Convert a mask to a bias on the scores: ``minimum`` where a boolean mask is True, else 0; floats are clamped to ``minimum``.

    A finite minimum keeps score differences defined in rows whose keys are all masked.

    >>> mask_bias(torch.tensor([False, True]), torch.float32)
    tensor([0., -inf])
    """
    if mask.dtype is torch.bool:
        return mask.new_zeros(mask.shape, dtype=dtype).masked_fill(mask, minimum)
    return mask.to(dtype).clamp(min=minimum)


@lru_cache(maxsize=256)
def program(leading: int, is_padded: bool = False) -> str:
    """Return attention in index notation; ``c`` is the scale, and ``B`` the bias on the scores of each key.

    >>> print(program(0))
    S[i,j] = stored(A[i,j]) * (Q[i,k] * K[j,k]) * c
    m[i] stored max= stored(A[i,j]) * S[i,j]
    E[i,j] = stored(A[i,j]) * exp(S[i,j] - m[i])
    l[i] = stored(A[i,j]) * E[i,j]
    P[i,j] = stored(A[i,j]) * E[i,j] / l[i]
    O[i,e] = stored(A[i,j]) * P[i,j] * V[j,e]
    >>> print(program(1, True).split("m[")[0])
    T[a,i,j] = stored(A[i,j]) * (Q[a,i,k] * K[a,j,k]) * c
    S[a,i,j] = stored(A[i,j]) * where(B[a,j] > -3e38, T[a,i,j] + B[a,j], B[a,j])
    <BLANKLINE>
    """
    h = "".join(f"{name}," for name in LEADING[:leading])
    scores = f"stored(A[i,j]) * (Q[{h}i,k] * K[{h}j,k]) * c"
    if is_padded:
        scores = f"{scores}\nS[{h}i,j] = {PADDED.format(b=f'B[{h}j]', t=f'T[{h}i,j]')}"
    return f"""{"T" if is_padded else "S"}[{h}i,j] = {scores}
m[{h}i] stored max= stored(A[i,j]) * S[{h}i,j]
E[{h}i,j] = stored(A[i,j]) * exp(S[{h}i,j] - m[{h}i])
l[{h}i] = stored(A[i,j]) * E[{h}i,j]
P[{h}i,j] = stored(A[i,j]) * E[{h}i,j] / l[{h}i]
O[{h}i,e] = stored(A[i,j]) * P[{h}i,j] * V[{h}j,e]"""


def _head(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pattern: SparseTensor, dropout_p: float, padding: torch.Tensor | None
) -> torch.Tensor:
    scores = einsum("id,jd->ij", query, key, mask=pattern)
    if padding is not None:
        scores = evaluate_parts(f"S[i,j] = {PADDED.format(b='B[j]', t='A[i,j]')}", {"A": scores, "B": padding}, None)
    probabilities = softmax(scores, 1)
    if dropout_p:
        probabilities = probabilities.with_values(torch.nn.functional.dropout(probabilities.values, dropout_p))
    return einsum("ij,jd->id", probabilities, value)
