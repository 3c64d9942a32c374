"""Dense operands of sharded computations: plain local rows, and ``DTensor`` with its placements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from ..errors import SizeError, UnsupportedError
from ..tensors.ledgers import is_strict, note
from .agreement import agree
from .tensor import ShardedSparseTensor


@dataclass(frozen=True)
class SharedIndices:
    """The names of the row index and the column index of a sharded matrix in an expression."""

    matrix: ShardedSparseTensor
    row: str
    column: str

    def sharded(self, names: Sequence[str], what: str) -> str | None:
        """Which of both indices an operand has; None if it has neither.

        Raises:
            UnsupportedError: it has both.
        """
        if self.row in names and self.column in names:
            raise UnsupportedError(
                f"{what} has the row index and the column index of the sharded matrix, so that each rank would need all of it"
            )
        return self.row if self.row in names else self.column if self.column in names else None


@dataclass(frozen=True)
class Whole:
    """A plain tensor of which every rank holds all, although it has an index of the sharded matrix."""

    value: torch.Tensor

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.value.ndim


@dataclass(frozen=True)
class LocalOperand:
    """The local part of a dense operand.

    Args:
        value: this rank's part: all of it without a sharded index, its own rows with one, or all rows if ``is_whole``.
        index: the sharded index that it has, at dimension ``at``.
        is_whole: whether every rank has all rows.
    """

    value: torch.Tensor
    index: str | None
    at: int
    is_whole: bool

    @property
    def first(self) -> torch.Tensor:
        """The value with the sharded dimension first."""
        return self.value.movedim(self.at, 0)

    def back(self, rows: torch.Tensor) -> torch.Tensor:
        """Undo :attr:`first`."""
        return rows.movedim(0, self.at)


def local_operand(value: Any, names: Sequence[str], indices: SharedIndices, what: str) -> LocalOperand:
    """The local part of a dense operand.

    Raises:
        SizeError: it does not have this rank's number of rows, or a ``DTensor`` belongs to an uneven partition.
        UnsupportedError: it is not dense, its placement does not fit, or it has both indices of the matrix.
    """
    is_whole = isinstance(value, Whole)
    value = value.value if isinstance(value, Whole) else value
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise UnsupportedError(f"{what} is {type(value).__name__}: operands beside a sharded matrix are dense tensors, or matrices like it")
    index = indices.sharded(names, what)
    at = names.index(index) if index is not None else 0
    if isinstance(value, DTensor):
        value, is_whole = _of_dtensor(value, index, at, indices, what)
    layout = indices.matrix.layout
    if index is not None and not is_whole:
        partition, wanted, call = (layout.rows, "rows", "A.rows_of(x, 0)")
        if index == indices.column:
            partition, wanted, call = (layout.columns, "columns", "A.rows_of(x)")
        count = partition.sizes[indices.matrix.exchange.rank]
        if value.shape[at] != count:
            raise SizeError(
                f"{what} has size {value.shape[at]} in dimension {at}, but this rank has {count} of the {partition.size} {wanted}: "
                f"pass its rows, as {call} returns, or a DTensor"
            )
    return LocalOperand(value, index, at, is_whole)


def _of_dtensor(value: DTensor, index: str | None, at: int, indices: SharedIndices, what: str) -> tuple[torch.Tensor, bool]:
    """The local part of a ``DTensor``, and whether it is the whole tensor although it has an index of the matrix."""
    matrix = indices.matrix
    if value.device_mesh != matrix.mesh:
        raise UnsupportedError(f"{what} is on {value.device_mesh}, but the matrix on {matrix.mesh}: use one mesh")
    value = without_sums(value, what)
    (placement,) = value.placements
    if isinstance(placement, Replicate):
        return value.to_local(grad_placements=[Partial()]), index is not None
    if isinstance(placement, Shard) and index is not None and placement.dim % value.ndim == at:
        partition = matrix.layout.rows if index == indices.row else matrix.layout.columns
        if not partition.is_even:
            raise SizeError(
                f"{what} is a DTensor, which has torch's chunks, but the partition is uneven: pass local rows, or shard by 'rows'"
            )
        return value.to_local(), False
    raise UnsupportedError(
        f"{what} has placement {placement}: operands are sharded in the dimension of the matrix's rows or columns, or replicated"
    )


def without_sums(value: DTensor, what: str) -> DTensor:
    """The operand, with sums over ranks (``Partial``) computed on every rank, which the ledger lists.

    Raises:
        UnsupportedError: there are sums, and ``numscorch.strict`` is on.
    """
    if not any(isinstance(placement, Partial) for placement in value.placements):
        return value
    if is_strict():
        raise UnsupportedError(f"{what} is a sum over ranks, which every rank would need: redistribute it before, or leave ns.strict()")
    note("copy", f"{what}, a sum over ranks, on every rank", value.numel() * value.element_size(), asked=False)
    for dim, placement in enumerate(value.placements):
        if isinstance(placement, Partial):
            agree(value.device_mesh.get_group(dim), f"adds {what}")
    placements = [Replicate() if isinstance(placement, Partial) else placement for placement in value.placements]
    return value.redistribute(value.device_mesh, placements)
