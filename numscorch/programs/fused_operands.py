"""Operands as fused kernels take them, and results as the parts of a program would leave them, were they computed alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..compute.dispatch import converted, stored_as
from ..compute.gradients import attached
from ..compute.operands import STRIDED
from ..frontend.datatypes import WIDENED
from ..frontend.fused_problem import FusedRequest, valued
from ..frontend.statements import NAMES
from ..ir.format import COO, CSR
from ..ir.index import accesses_in
from ..tensors.sparse_tensor import SparseTensor


def widened_operand(operand: SparseTensor | Tensor) -> SparseTensor | Tensor:
    """A tensor as a fused kernel takes it: torch's sparse ones wrapped, by rows, and 16 bits widened; gradients flow to it."""
    if isinstance(operand, SparseTensor):
        operand = attached(operand)
    elif operand.layout is not STRIDED:
        operand = by_rows(attached(operand))
    operand_: SparseTensor | Tensor = converted(operand, WIDENED.get(operand.dtype, operand.dtype))
    return operand_


def by_rows(operand: SparseTensor) -> SparseTensor:
    """A matrix that torch stores by coordinates, by rows; the values, and one index array, are shared.

    >>> by_rows(attached(torch.eye(2).to_sparse())).format.name
    'CSR'
    """
    return operand.to(CSR) if operand.format == COO(2) else operand


def returned(request: FusedRequest, given: Sequence[Any], result: SparseTensor | Tensor) -> Any:
    """The result, rounded once if the operands that were ``given`` have 16 bits, in the owner's layout, and torch's where they are."""
    narrow = given[valued(request)[0]].dtype
    result = result if result.dtype is narrow else result.to(narrow)
    if not isinstance(result, SparseTensor) or request.owner is None or request.form.prunes:
        return result
    owner = given[NAMES.index(request.owner.tensor.name)]
    listed = isinstance(owner, Tensor) and owner.layout is torch.sparse_coo
    return stored_as(result, COO(2) if listed and result.format == CSR else None, is_native(request, given), asked=False)


def is_native(request: FusedRequest, given: Sequence[Any]) -> bool:
    """Whether the parts alone would return a tensor of torch's: whatever sparse tensor the last one reads is torch's, or made of such."""
    native = {NAMES[at]: not isinstance(operand, SparseTensor) for at, operand in enumerate(given)}
    for member in request.members:
        native[member.name] = not member.is_stored or all(native[a.tensor.name] for a in accesses_in(member.value))
    return request.value is not None and all(native[a.tensor.name] for a in accesses_in(request.value))
