"""Attention at the entries of a pattern: scores, softmax over each row's entries, and the values' means."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import torch

from ..api import einsum
from ..errors import UnsupportedError
from ..operators.elementwise import softmax
from ..programs.evaluation import evaluate_parts
from ..tensors.sparse_tensor import SparseTensor

LEADING = "abdfghn"  # names of the leading dimensions, as batch and heads; c is the scale
PADDED = "stored(A[i,j]) * where({b} > -3e38, {t} + {b}, {b})"  # what is as low as that masks a key, whatever its score


def pattern_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparseTensor,
    scale: float,
    dropout_p: float,
    padding: torch.Tensor | None = None,
) -> torch.Tensor:
    """``softmax(scale * query @ key.T) @ value`` at the pattern's entries alone; rows without entries give zeros.

    One kernel, which keeps a row of scores; with dropout, kernels for each head, which keep the probabilities.

    Args:
        query: shape (\\*, L, E); key: (\\*, S, E); value: (\\*, S, Ev), with the same leading dimensions.
        pattern: a matrix (L, S) in CSR; its values don't matter.
        scale: of the scores; one kernel serves all.
        dropout_p: share of the probabilities that is set to zero, while the others grow by 1 / (1 - dropout_p).
        padding: (\\*, S), what is added to the scores of each key, and in place of them where it masks the key (:func:`added`).

    Raises:
        UnsupportedError: the scale isn't a number, or a gradient is to flow to it.
    """
    number = _number(scale)
    if not dropout_p and query.ndim <= len(LEADING) + 2:
        given = {"Q": query, "K": key, "V": value, "A": pattern, "c": number}  # a number takes the first one's data type
        if padding is not None:
            given["B"] = padding
        result: torch.Tensor = evaluate_parts(program(query.ndim - 2, padding is not None), given, None)
        return result
    leading, rows = query.shape[:-2], (query.shape[-2], value.shape[-1])
    flat = [operand.reshape(prod(leading), *operand.shape[-2:]) for operand in (query * number, key, value)]
    biases = [None] * prod(leading) if padding is None else list(padding.reshape(prod(leading), -1))
    heads = [_head(q, k, v, pattern, dropout_p, b) for q, k, v, b in zip(*flat, biases, strict=True)]
    return torch.stack(heads).reshape(*leading, *rows) if heads else query.new_zeros(*leading, *rows)


def _number(scale: Any) -> float:
    """The scale as Python's number, whether it comes from numpy or from torch.

    Raises:
        UnsupportedError: it is none, or wants a gradient.

    >>> _number(torch.tensor(0.5))
    0.5
    """
    if isinstance(scale, torch.Tensor) and scale.requires_grad:
        raise UnsupportedError("scale requires grad, but none flows to it: multiply the query by it, and pass scale=1.0")
    try:
        return float(scale)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnsupportedError(
            f"scale={scale!r}: the scale of attention is one number for all scores; multiply the query by others"
        ) from error


def mask_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What a mask adds to scores: the least number where it is True, or -inf, so that rows of masked keys alone have differences.

    >>> mask_bias(torch.tensor([False, True]), torch.float32)
    tensor([ 0.0000e+00, -3.4028e+38])
    """
    least = torch.finfo(dtype).min
    return mask.new_zeros(mask.shape, dtype=dtype).masked_fill(mask, least) if mask.dtype is torch.bool else mask.to(dtype).clamp(min=least)


@lru_cache(maxsize=256)
def program(leading: int, is_padded: bool = False) -> str:
    """Attention in index notation; c is the scale, and B what is added to the scores of each key.

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
    result: torch.Tensor = einsum("ij,jd->id", probabilities, value)
    return result
