"""Entries of a reduction without any term: their value, and results that store them.

The sum of no terms is 0, their product 1, the largest of them -inf. Places of a sparse result that are not stored are 0, so
a result whose entries have no terms is dense unless that value is 0. In a semiring a place without a term is not stored;
where a format stores it, as padding or in a dense level, it is the semiring's zero (inf for ``min_plus``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..convert.construct import from_coo, from_torch
from ..convert.dense import to_dense
from ..frontend.statements import Request
from ..ir.format import COO, Format
from ..ir.functions import REDUCTIONS
from ..tensors.packing import at_positions, coordinates
from ..tensors.sparse_tensor import SparseTensor


def semiring_zero(request: Request, dtype: torch.dtype) -> float:
    """The value of a stored place without a term: a semiring's zero, 0 for other requests.

    >>> from ..frontend.statements import einsum_request, reducing
    >>> rows = einsum_request("ij->i", (2,))
    >>> semiring_zero(reducing(rows.subscripts, "min plus="), torch.float32), semiring_zero(rows, torch.float32)
    (inf, 0.0)
    """
    if request.op not in REDUCTIONS or not REDUCTIONS[request.op].of_stored:
        return 0.0
    return REDUCTIONS[request.op].start(str(dtype).removeprefix("torch."))


def in_dense_format(result: SparseTensor, zero: float) -> Tensor:
    """A sparse result as a dense tensor, in which places that it does not store are ``zero``."""
    if zero == 0:
        return to_dense(result)
    is_stored = to_dense(result.with_values(torch.ones_like(result.values))) != 0
    return torch.where(is_stored, to_dense(result), zero)


def in_sparse_format(result: SparseTensor | Tensor, format: Format, zero: float) -> SparseTensor:
    """A result in a sparse format, in which places without a term are ``zero`` or not stored.

    >>> inf = float("inf")
    >>> made = in_sparse_format(torch.tensor([[0.0, inf], [inf, inf]]), Format("sd"), inf)
    >>> made.indices().tolist(), made.values.tolist()
    ([[0, 0], [0, 1]], [0.0, inf])
    """
    if zero == 0 and isinstance(result, SparseTensor):
        return result.to(format)
    if zero == 0:
        empty = from_torch(result.detach(), format)
        if not result.requires_grad:
            return empty
        # gradients reach stored zeros, too
        return empty.with_values(at_positions(empty.pattern, result[tuple(coordinates(empty.pattern))]))
    if isinstance(result, Tensor):
        there = result != zero
        result = from_coo(there.nonzero().T, result[there], tuple(result.shape), COO(result.ndim))
    empty = result.to(format)
    if empty.pattern.nnz == result.pattern.nnz:
        return empty
    is_entry = result.with_values(torch.ones_like(result.values)).to(format).values != 0
    return empty.with_values(torch.where(is_entry, empty.values, zero))
