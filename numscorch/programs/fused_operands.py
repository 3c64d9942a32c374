"""Conversion of operands for fused kernels, and of results to the type and layout that separate parts would return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..frontend.datatypes import computed_in
from ..frontend.fused_problem import FusedRequest, valued
from ..frontend.requests import NAMES
from ..ir.format import COO, CSR
from ..ir.index import accesses_in
from ..tensors.sparse_tensor import SparseTensor
from .dispatch import converted, stored_as
from .gradients import attached
from .operands import STRIDED


def widened_operand(operand: SparseTensor | Tensor) -> SparseTensor | Tensor:
    """Convert an operand for fused kernels: wrap sparse torch tensors by rows, and widen 16-bit types. Differentiable."""
    if isinstance(operand, SparseTensor):
        operand = attached(operand)
    elif operand.layout is not STRIDED:
        operand = by_rows(attached(operand))
    return converted(operand, computed_in(operand.dtype))


def by_rows(operand: SparseTensor) -> SparseTensor:
    """Convert a COO matrix to CSR, sharing its values and column indices; return other formats unchanged.

    >>> by_rows(attached(torch.eye(2).to_sparse())).format.name
    'CSR'
    """
    return operand.to(CSR) if operand.format == COO(2) else operand


def returned(request: FusedRequest, operands: Sequence[Any], result: SparseTensor | Tensor) -> Any:
    """Convert a result to the operands' data type and to the owner's layout, and to a torch tensor if the operands are."""
    dtype = operands[valued(request)[0]].dtype
    result = result if result.dtype is dtype else result.to(dtype)
    if not isinstance(result, SparseTensor) or request.owner is None or request.form.prunes:
        return result
    owner = operands[NAMES.index(request.owner.tensor.name)]
    is_coo = isinstance(owner, Tensor) and owner.layout is torch.sparse_coo
    return stored_as(result, COO(2) if is_coo and result.format == CSR else None, is_native(request, operands), asked=False)


def is_native(request: FusedRequest, operands: Sequence[Any]) -> bool:
    """Return whether separate parts would return a torch tensor: all sparse inputs of the last part derive from torch tensors."""
    native = {NAMES[at]: not isinstance(operand, SparseTensor) for at, operand in enumerate(operands)}
    for member in request.members:
        native[member.name] = not member.is_stored or all(native[a.tensor.name] for a in accesses_in(member.value))
    return request.value is not None and all(native[a.tensor.name] for a in accesses_in(request.value))
