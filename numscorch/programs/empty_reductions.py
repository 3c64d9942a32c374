"""Reductions without terms: their value, and results that store such entries.

The sum of no terms is 0, their product 1, and their maximum -inf. Unstored entries of a sparse result are 0, so a result with
entries without terms is dense unless their value is 0. In a semiring, entries without terms are not stored. If a format stores
them as padding or in a dense level, they are the semiring's zero (inf for ``min_plus``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..convert.construct import from_coo, from_torch
from ..convert.values import strided
from ..frontend.requests import Request
from ..ir.format import COO, Format
from ..ir.functions import REDUCTIONS
from ..tensors.packing import at_positions, coordinates
from ..tensors.sparse_tensor import SparseTensor


def semiring_zero(request: Request, dtype: torch.dtype) -> float:
    """The value of a stored entry without terms: the semiring's zero, or 0 for other requests.

    >>> from ..frontend.requests import einsum_request, reducing
    >>> rows = einsum_request("ij->i", (2,))
    >>> semiring_zero(reducing(rows.subscripts, "min plus="), torch.float32), semiring_zero(rows, torch.float32)
    (inf, 0.0)
    """
    if request.op not in REDUCTIONS or not REDUCTIONS[request.op].of_stored:
        return 0.0
    return REDUCTIONS[request.op].start(str(dtype).removeprefix("torch."))


def in_format(result: SparseTensor | Tensor, format: Format | None, zero: float) -> SparseTensor | Tensor:
    """Convert a result to the requested format, if any; ``zero`` is the value of entries without terms."""
    if format is None:
        return result
    if not format.is_dense:
        return in_sparse_format(result, format, zero)
    if isinstance(result, Tensor) or zero == 0:
        return strided(result)
    is_stored = strided(result.with_values(torch.ones_like(result.values))) != 0
    return torch.where(is_stored, strided(result), zero)


def in_sparse_format(result: SparseTensor | Tensor, format: Format, zero: float) -> SparseTensor:
    """Convert a result to a sparse format; entries without terms become ``zero`` or are not stored.

    >>> inf = float("inf")
    >>> result = in_sparse_format(torch.tensor([[0.0, inf], [inf, inf]]), Format("sd"), inf)
    >>> result.indices().tolist(), result.values.tolist()
    ([[0, 0], [0, 1]], [0.0, inf])
    """
    if zero == 0 and isinstance(result, SparseTensor):
        return result.to(format)
    if zero == 0:
        tensor = from_torch(result.detach(), format, copy=False)
        if not result.requires_grad:
            return tensor
        # stored zeros receive gradients, too
        return tensor.with_values(at_positions(tensor.pattern, result[tuple(coordinates(tensor.pattern))]))
    if isinstance(result, Tensor):
        is_stored = result != zero
        result = from_coo(is_stored.nonzero().T, result[is_stored], tuple(result.shape), COO(result.ndim))
    tensor = result.to(format)
    if tensor.pattern.nnz == result.pattern.nnz:
        return tensor
    is_entry = result.with_values(torch.ones_like(result.values)).to(format).values != 0
    return tensor.with_values(torch.where(is_entry, tensor.values, zero))
