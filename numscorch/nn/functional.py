"""Functional interface of the modules; names that it does not define resolve to ``torch.nn.functional``."""

from __future__ import annotations

from functools import lru_cache
from math import prod, sqrt
from typing import Any

import numpy as np
import torch

from ..convert.construct import from_coo, from_csr
from ..errors import RangeError, SizeError, UnsupportedError
from ..frontend.broadcasting import broadcast_shape
from ..frontend.datatypes import computed_in
from ..interface.api import einsum
from ..ir.format import Format, as_format
from ..operators import reducing
from ..operators.elementwise import is_sparse
from ..operators.naming import fallback
from ..programs.evaluation import evaluate_parts
from ..programs.operands import in_autocast
from ..tensors.graph_breaks import graph_break, traced
from ..tensors.modes import as_numpy
from ..tensors.packing import index_dtype_for
from ..tensors.parameter import SparseParameter
from ..tensors.sparse_tensor import SparseTensor
from .csr_patterns import as_pattern, lower_part

__all__ = ["one_hot", "scaled_dot_product_attention"]

PRODUCT = "ni,id->nd"  # one-hot rows times a table
LEADING = "abdfghn"  # index names of leading dimensions such as batch and heads; c is the scale
PADDED = "stored(A[i,j]) * where({b} > -3e38, {t} + {b}, {b})"  # a bias of -3e38 or less masks the key and replaces its score


def one_hot(*args: Any, sparse: bool = False, format: Format | str | None = None, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
    """``torch.nn.functional.one_hot``; with ``sparse=True`` or ``format=``, a SparseTensor that stores only the ones. O(numel).

    Args:
        args, kwargs: ``tensor``, the int64 classes, and ``num_classes``, by default the largest class plus 1.
        sparse: whether to return a SparseTensor of shape (\\*tensor.shape, num_classes).
        format: format of the SparseTensor; by default CSR in two dimensions, else COO(n).
        dtype: data type of the result; int64 by default, as in torch. All operands of an einsum need the same data type.

    Returns:
        A dense tensor or a SparseTensor of shape (*tensor.shape, num_classes).

    Raises:
        SizeError: a class is negative or too large, or the tensor is empty without ``num_classes``. It is a RuntimeError, too.

    >>> one_hot(torch.tensor([2, 0]), 3, sparse=True)
    SparseTensor(CSR, shape=(2, 3), nnz=2, density=0.333, int64, int32 indices)
    >>> one_hot(torch.tensor([2, 0]), 3)
    tensor([[0, 0, 1],
            [1, 0, 0]])
    """
    if sparse or format is not None:
        arguments = {"tensor" if name == "input" else name: value for name, value in kwargs.items()}
        return _sparse_one_hot(*args, format=None if format is None else as_format(format), dtype=dtype, **arguments)
    full = torch.nn.functional.one_hot(*args, **kwargs)
    return full if dtype is None else full.to(dtype)


@graph_break
def _sparse_one_hot(tensor: torch.Tensor, num_classes: int = -1, *, format: Format | None, dtype: torch.dtype | None) -> SparseTensor:
    """Build the one-hot tensor; the coordinates are already in lexicographic order, so nothing is sorted."""
    classes = as_numpy(_check_classes(tensor, num_classes).detach().reshape(-1))
    shape = (*tensor.shape, num_classes if num_classes != -1 else int(classes.max()) + 1)
    ones, index = torch.ones(len(classes), dtype=torch.int64 if dtype is None else dtype), index_dtype_for(shape, len(classes))
    if len(shape) == 2:
        pos, crd = np.arange(len(classes) + 1, dtype=index), classes.astype(index)
        encoded = from_csr(pos, crd, ones, shape, assume_sorted=True, copy=False, check_invariants=False)
    else:
        places = np.indices(tensor.shape, dtype=index).reshape(tensor.ndim, len(classes))
        places = np.concatenate([places, classes[None].astype(index)])
        encoded = from_coo(places, ones, shape, assume_sorted=True, copy=False, check_invariants=False)
    return encoded if format is None else encoded.to(format)


def _check_classes(tensor: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Check that the classes are int64 and in range, and return them."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.int64:
        kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise SizeError(f"one_hot takes a tensor of int64 classes, not {kind}: convert it with .to(torch.int64)")
    if num_classes == -1 and not tensor.numel():
        raise SizeError("one_hot of an empty tensor needs num_classes=")
    if tensor.numel() and int(tensor.min()) < 0:
        raise SizeError(f"one_hot of class {int(tensor.min())}: classes start at 0")
    largest = int(tensor.max()) if tensor.numel() else 0
    if num_classes != -1 and (num_classes <= largest or num_classes < 1):
        raise SizeError(f"one_hot of class {largest} with num_classes={num_classes}: classes lie below it")
    return tensor


def ones_at(numbers: torch.Tensor, table: SparseTensor) -> SparseTensor:
    """Return the one-hot matrix (n, num_embeddings) of row indices (n,).

    Raises:
        RangeError: an index is out of range.
    """
    try:
        return one_hot(numbers.long(), table.shape[0], sparse=True, dtype=table.dtype)
    except SizeError:
        check_items(numbers, table.shape[0])
        raise


def check_items(items: torch.Tensor, count: int) -> None:
    """Check that indices of embeddings are in range.

    Raises:
        RangeError: an index is out of range.
    """
    if items.numel() and (int(items.min()) < 0 or int(items.max()) >= count):
        at = int(((items < 0) | (items >= count)).nonzero()[0])
        raise RangeError(f"item {at} of the input is {int(items[at])}: with num_embeddings={count}, indices go from 0 to {count - 1}")


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    pattern: Any = None,
) -> torch.Tensor:
    """``torch.nn.functional.scaled_dot_product_attention``, and attention at the stored entries of a sparse pattern.

    With a pattern, only the scores at its stored entries are computed. Time and memory are proportional to the number of these entries
    instead of L * S. The softmax of a row is over its stored entries. Rows without entries give zeros.

    Args:
        query, key, value: tensors of one floating data type; leading dimensions broadcast.
        attn_mask: a dense mask, with which torch's function is called; or a sparse pattern, like ``pattern``.
        dropout_p: dropout probability of the attention probabilities.
        is_causal: whether to drop the pattern's entries above the diagonal (``patterns.causal``).
        scale: factor of the scores, by default 1 / sqrt(E).
        enable_gqa: whether key and value have fewer heads than query (grouped-query attention).
        pattern: a SparseTensor or a sparse torch tensor. Only the positions of stored entries matter, not their values: queries
            attend to stored zeros and stored False, including the padding of ELL and block formats.

    Shape:
        query (\\*, L, E), key (\\*, S, E), value (\\*, S, Ev), pattern (L, S), result (\\*, L, Ev).

    Returns:
        A dense tensor of shape (..., queries, value features), in the data type of ``query``.

    Raises:
        SizeError: the shapes of the tensors or the pattern do not match.
        UnsupportedError: data types differ, or both attn_mask and pattern are given.

    Source: Vaswani and others, "Attention Is All You Need", 2017, section 3.2.1; Scorch, appendix E.4.

    >>> from numscorch.nn import patterns
    >>> x = torch.ones(1, 2, 6, 4)
    >>> scaled_dot_product_attention(x, x, x, patterns.sliding_window(6, 1)).shape
    torch.Size([1, 2, 6, 4])
    """
    if pattern is None and not isinstance(attn_mask, SparseParameter) and not is_sparse(attn_mask):
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if pattern is not None and attn_mask is not None:
        raise UnsupportedError("attn_mask and pattern are both given: join them with patterns.intersection, and pass one")
    return _sparse_attention(query, key, value, attn_mask if pattern is None else pattern, dropout_p, is_causal, scale, enable_gqa)


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
    probabilities = reducing.softmax(scores, 1)
    if dropout_p:
        probabilities = probabilities.with_values(torch.nn.functional.dropout(probabilities.values, dropout_p))
    return einsum("ij,jd->id", probabilities, value)


def _attention_shape(query: Any, key: Any, value: Any, pattern: Any, dropout: Any, is_causal: Any, scale: Any, gqa: Any, *more: Any) -> Any:
    leading = query[:-2] if gqa else torch.broadcast_shapes(query[:-2], key[:-2], value[:-2])
    return *leading, query[-2], value[-1]


@traced("nn.attention", _attention_shape, dropout=4)
def _sparse_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    padding: torch.Tensor | None = None,
) -> torch.Tensor:
    pattern = as_pattern(pattern)
    if torch.is_autocast_enabled("cpu"):
        query, key, value = in_autocast((query, key, value))
    _check_attention(query, key, value, pattern)
    if not 0 <= dropout_p <= 1:
        raise SizeError(f"dropout_p={dropout_p}: the dropout probability lies between 0 and 1")
    if is_causal:
        pattern = lower_part(pattern)
    if enable_gqa and key.ndim > 2:
        key, value = (tensor.repeat_interleave(query.shape[-3] // tensor.shape[-3], -3) for tensor in (key, value))
    try:
        leading = broadcast_shape("attention", query.shape[:-2], key.shape[:-2], value.shape[:-2])
    except SizeError as error:
        raise SizeError(f"leading dimensions don't broadcast\n  {_shapes_text(query, key, value)}") from error
    query, key, value = (tensor.expand(*leading, *tensor.shape[-2:]) for tensor in (query, key, value))
    scale = 1 / sqrt(max(query.shape[-1], 1)) if scale is None else scale
    if padding is None:
        return pattern_attention(query, key, value, pattern, scale, dropout_p)
    dtype = query.dtype
    wide = computed_in(dtype)  # the minimum of a 16-bit type may not lie below every score
    bias = mask_bias(padding, wide, torch.finfo(wide).min).expand(*leading, key.shape[-2])
    return pattern_attention(query.to(wide), key.to(wide), value.to(wide), pattern, scale, dropout_p, bias).to(dtype)


def _shapes_text(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> str:
    return f"query: {tuple(query.shape)}   key: {tuple(key.shape)}   value: {tuple(value.shape)}"


def _check_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pattern: SparseTensor) -> None:
    """Check that the shapes and data types of tensors and pattern match.

    Raises:
        SizeError: the shapes do not match.
        UnsupportedError: the data types differ or are not floating.
    """
    shapes = _shapes_text(query, key, value)
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise SizeError(f"attention takes tensors of two dimensions or more\n  {shapes}")
    if query.shape[-1] != key.shape[-1]:
        raise SizeError(f"the last dimensions of query and key differ: {query.shape[-1]} and {key.shape[-1]}\n  {shapes}")
    if key.shape[-2] != value.shape[-2]:
        raise SizeError(f"key and value have different lengths: {key.shape[-2]} and {value.shape[-2]}\n  {shapes}")
    lengths = (query.shape[-2], key.shape[-2])
    if tuple(pattern.shape) != lengths:
        suggestion = (
            f"make it for this length, such as patterns.bigbird({lengths[0]})"
            if lengths[0] == lengths[1]
            else f"make one of shape {lengths}"
        )
        raise SizeError(
            f"pattern has shape {tuple(pattern.shape)}, but there are {lengths[0]} queries and {lengths[1]} keys\n"
            f"  {shapes}\n  {suggestion}"
        )
    if not query.dtype == key.dtype == value.dtype or not query.is_floating_point():
        raise UnsupportedError(
            f"attention of {query.dtype}, {key.dtype} and {value.dtype}: convert them to one floating data type with .to(...)"
        )


__getattr__, __dir__ = fallback(globals(), torch.nn.functional)
