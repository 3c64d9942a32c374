"""Dense operands of sharded computations: plain local rows, and ``DTensor`` with its placements.

Each rank computes its part. An index that is sharded in operands stays sharded in the result. If it is summed, the result is ``Partial``.
Dense operands are contracted before an exchange if ranks then send shorter rows: ``A @ (x @ W)`` instead of ``(A @ x) @ W``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from string import ascii_letters
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from ..errors import SizeError, UnsupportedError
from ..frontend.parser import Subscripts
from ..interface.api import einsum
from ..tensors.ledgers import is_strict, note
from .exchange import HaloExchange
from .partition import Partition
from .ranks import Ranks, agree
from .tensor import ShardedSparseTensor

Names = Sequence[str]
Operands = Sequence[tuple[Any, Names]]  # values and the names of their indices
PRECISE = (torch.float32, torch.float64, torch.complex64, torch.complex128)  # products of other types may overflow in one order only


@dataclass(frozen=True)
class SharedIndices:
    """The names of sharded indices in an expression with a sharded matrix.

    Args:
        matrix: the matrix.
        row: its row index.
        column: its column index.
        others: for each dimension of the mesh, the index that ``DTensor`` operands shard over it; None for the dimensions over which
            the matrix is distributed.
    """

    matrix: ShardedSparseTensor
    row: str
    column: str
    others: Sequence[str | None]

    def sharded(self, names: Names, what: str) -> str | None:
        """Which of both indices an operand has; None if it has neither.

        Raises:
            UnsupportedError: it has both.
        """
        if self.row in names and self.column in names:
            raise UnsupportedError(
                f"{what} has the row index and the column index of the sharded matrix, so that each rank would need all of it"
            )
        return self.row if self.row in names else self.column if self.column in names else None

    def exchange(self, index: str) -> HaloExchange:
        """The exchange of rows of operands and results with the row index or the column index."""
        return self.matrix.row_exchange if index == self.row else self.matrix.exchange


@dataclass(frozen=True)
class Whole:
    """A plain tensor that every rank holds completely, although it has an index of the sharded matrix."""

    value: torch.Tensor

    @property
    def ndim(self) -> int:
        return self.value.ndim


@dataclass(frozen=True)
class LocalOperand:
    """The local part of a dense operand.

    Args:
        value: this rank's rows along the sharded index; the whole operand if it has no sharded index, or ``is_whole``.
        index: the sharded index of the operand, at dimension ``at``; None if there is none.
        is_whole: whether every rank has all rows along the sharded index.
    """

    value: torch.Tensor
    index: str | None
    at: int
    is_whole: bool = False

    @property
    def first(self) -> torch.Tensor:
        """The value with the sharded dimension first."""
        return self.value.movedim(self.at, 0)

    def back(self, rows: torch.Tensor) -> torch.Tensor:
        """Undo :attr:`first`."""
        return rows.movedim(0, self.at)


Given = Sequence[ShardedSparseTensor | LocalOperand]


def local_operand(value: Any, names: Names, indices: SharedIndices, what: str) -> LocalOperand:
    """The local part of a dense operand.

    Raises:
        SizeError: it does not have this rank's number of rows, or a ``DTensor`` has another size or belongs to an uneven partition.
        UnsupportedError: it is not dense, its placement does not fit, or it has both indices of the matrix.
    """
    is_whole = isinstance(value, Whole)
    value = value.value if isinstance(value, Whole) else value
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise UnsupportedError(f"{what} is {type(value).__name__}: operands beside a sharded matrix are dense tensors, or matrices like it")
    index = indices.sharded(names, what)
    at = names.index(index) if index is not None else 0
    value = without_sums(value, what, indices.matrix.layout.ranks) if isinstance(value, DTensor) else value
    gradients = gradient_placements(value, names, indices.others, what)
    if isinstance(value, DTensor):
        value, is_whole = _of_dtensor(value, gradients, index, at, indices, what)
    if index is not None and not is_whole:
        exchange = indices.exchange(index)
        if value.shape[at] != exchange.owned:
            wanted, call = ("rows", "A.rows_of(x, 0)") if index == indices.row else ("columns", "A.rows_of(x)")
            raise SizeError(
                f"{what} has size {value.shape[at]} in dimension {at}, but this rank has {exchange.owned} of the {exchange.partition.size} "
                f"{wanted}: pass its rows, as {call} returns, or a DTensor"
            )
    return LocalOperand(value, index, at, is_whole)


def _of_dtensor(
    value: DTensor, gradients: list[Placement], index: str | None, at: int, indices: SharedIndices, what: str
) -> tuple[torch.Tensor, bool]:
    """The local part of a ``DTensor``, and whether it is the whole tensor although it has an index of the matrix.

    ``gradients`` are the placements of its gradient over dimensions of the mesh over which the matrix is replicated.
    """
    if index is not None and value.shape[at] != (size := indices.exchange(index).partition.size):
        wanted = "rows" if index == indices.row else "columns"
        raise SizeError(
            f"{what} is a DTensor of shape {tuple(value.shape)}, but the matrix has {size} {wanted}: "
            "DTensor.from_local needs shape= and stride= for parts of different sizes"
        )
    dims, by_rows = indices.matrix.layout.grid.dims, Shard(at)
    first, *later = [value.placements[dim] for dim in dims]
    part: Placement = Partial()  # of the gradient
    is_whole = False
    if all(isinstance(placement, Replicate) for placement in (first, *later)):
        is_whole = index is not None
    elif index is not None and first == by_rows and all(placement in (by_rows, Replicate()) for placement in later):
        check_chunks(indices.matrix, indices.exchange(index).partition, what)
        value = value.redistribute(placements=[by_rows if dim in dims else placement for dim, placement in enumerate(value.placements)])
        part = by_rows
    else:
        raise UnsupportedError(f"{what} has placements {list(value.placements)}, but {_supported(index, at, indices)}")
    return value.to_local(grad_placements=[part if dim in dims else placement for dim, placement in enumerate(gradients)]), is_whole


def _supported(index: str | None, at: int, indices: SharedIndices) -> str:
    """For error texts: the supported placements of an operand, and the call that redistributes it accordingly."""
    grid = indices.matrix.layout.grid
    over = " and ".join(map(str, grid.dims))
    place: Placement = Replicate() if index is None else Shard(at)
    wanted = [place if dim in grid.dims else Replicate() for dim in range(grid.mesh.ndim)]
    call = f"x.redistribute(mesh, {wanted})"
    if index is None:
        return f"it has neither index of the sharded matrix, so each rank needs all of it: pass {call}"
    return (
        f"the matrix is distributed over dimension {over} of the mesh, and shares {index} with dimension {at} of the operand: pass {call}, "
        "or replicate it"
    )


def check_chunks(matrix: ShardedSparseTensor, partition: Partition, what: str) -> None:
    """Check that ``DTensor`` can describe a partition of rows or columns.

    Raises:
        SizeError: the partition differs from torch's chunks.
    """
    if partition != matrix.layout.grid.chunks(partition.size):
        raise SizeError(f"{what} is a DTensor, which has torch's chunks, but the partition is uneven: pass local rows, or shard by 'rows'")


def without_sums(value: DTensor, what: str, ranks: Ranks) -> DTensor:
    """The operand with its sums over ranks (``Partial``) computed on every rank; the ledger lists them.

    Args:
        value: the operand.
        what: its description.
        ranks: the ranks of the operation in progress.

    Raises:
        UnsupportedError: there are sums, and ``numscorch.strict`` is on.
    """
    if not any(isinstance(placement, Partial) for placement in value.placements):
        return value
    if is_strict():
        raise UnsupportedError(f"{what} is a sum over ranks, which every rank would need: redistribute it before, or leave ns.strict()")
    note("copy", f"{what}, a sum over ranks, on every rank", value.numel() * value.element_size(), asked=False)
    agree(ranks, f"adds {what}")
    placements = [Replicate() if isinstance(placement, Partial) else placement for placement in value.placements]
    return value.redistribute(value.device_mesh, placements)


def sharded_indices(text: str, operands: Operands, mesh: DeviceMesh, skipped: Collection[int] = ()) -> list[str | None]:
    """The index that ``DTensor`` operands shard over each dimension of the mesh; None for the skipped dimensions.

    Raises:
        UnsupportedError: operands are sharded in different ways, or are on another mesh.
    """
    sharded: list[str | None] = [None] * mesh.ndim
    for value, names in operands:
        if not isinstance(value, DTensor):
            continue
        if value.device_mesh != mesh:
            raise UnsupportedError(f"operands of {text!r} are on different meshes, {mesh} and {value.device_mesh}: use one mesh")
        for dim, placement in enumerate(value.placements):
            if isinstance(placement, Shard) and dim not in skipped:
                name = names[placement.dim % len(names)]
                if sharded[dim] not in (None, name):
                    raise UnsupportedError(f"operands of {text!r} are sharded by {sharded[dim]} and by {name}: redistribute one of them")
                sharded[dim] = name
    return sharded


def gradient_placements(value: Any, names: Names, sharded: Sequence[str | None], text: str) -> list[Placement]:
    """The placements of the gradient of an operand.

    Raises:
        UnsupportedError: the operand has an index that is sharded in another operand, but is not sharded itself.
    """
    placements = value.placements if isinstance(value, DTensor) else [Replicate()] * len(sharded)
    for dim, (name, placement) in enumerate(zip(sharded, placements, strict=True)):
        if name in names and not isinstance(placement, Shard):
            if isinstance(value, ShardedSparseTensor):
                way_out = f"redistribute that operand, with Replicate() over dimension {dim}"
            else:
                way_out = "redistribute it" if isinstance(value, torch.Tensor) else "shard the matrix, as ns.sharding.shard does"
            raise UnsupportedError(
                f"{text!r}: {name} is sharded in one operand over dimension {dim} of the mesh, but another one has all of it: {way_out}"
            )
    return [
        placement if isinstance(placement, Shard) or name is None else Partial()
        for name, placement in zip(sharded, placements, strict=True)
    ]


def result_placement(name: str | None, result: Names) -> Placement:
    """The placement of the result over the dimension of the mesh that shards this index."""
    return Replicate() if name is None else Shard(result.index(name)) if name in result else Partial()


def dtensor_of(local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]) -> DTensor:
    """A ``DTensor`` of this shape with the local part of this rank."""
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local.contiguous(), mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


def text_of(subscripts: Subscripts) -> str:
    """The text of an einsum, in which letters stand for the dimensions of an ellipsis.

    >>> text_of(Subscripts((("e0", "a"), ("i", "a")), ("e0", "i")))
    'ba,ia->bi'
    """
    names = dict.fromkeys(name for operand in subscripts.operands for name in operand)
    free = (letter for letter in ascii_letters if letter not in names)
    letters = {name: name if len(name) == 1 else next(free) for name in names}
    terms = ["".join(letters[name] for name in names) for names in (*subscripts.operands, subscripts.result)]
    return f"{','.join(terms[:-1])}->{terms[-1]}"


def contract(subscripts: Subscripts, operands: Given, column: str) -> tuple[Subscripts, Given]:
    """Multiply dense operands first where this shortens the rows to send.

    All ranks choose the same products, because only sizes and data types matter.

    Args:
        subscripts: the names of the indices.
        operands: the local operands.
        column: the name of the matrix's columns.

    Raises:
        SizeError: the sizes of dense operands clash.

    >>> x, W = LocalOperand(torch.ones(5, 8), "j", 0), LocalOperand(torch.ones(2, 8), None, 0)
    >>> subscripts, operands = contract(Subscripts((("j", "k"), ("f", "k")), ("j", "f")), [x, W], "j")
    >>> subscripts, operands[0].value.shape
    (Subscripts(operands=(('j', 'f'),), result=('j', 'f')), torch.Size([5, 2]))
    """
    sizes = _sizes(subscripts, operands)
    dtypes = {operand.values.dtype if isinstance(operand, ShardedSparseTensor) else operand.value.dtype for operand in operands}
    if len(dtypes) > 1 or not dtypes.issubset(PRECISE):
        return subscripts, operands
    while (pair := _shortening_pair(subscripts, operands, column, sizes)) is not None:
        at, factor_at, kept = pair
        both = Subscripts((subscripts.operands[at], subscripts.operands[factor_at]), kept)
        product = LocalOperand(einsum(text_of(both), operands[at].value, operands[factor_at].value), column, kept.index(column))
        remaining = [place for place in range(len(operands)) if place != factor_at]
        names = tuple(kept if place == at else subscripts.operands[place] for place in remaining)
        operands = [product if place == at else operands[place] for place in remaining]
        subscripts = Subscripts(names, subscripts.result)
    return subscripts, operands


def _sizes(subscripts: Subscripts, operands: Given) -> dict[str, int]:
    """The sizes of the indices of dense operands; they are checked before anything is sent.

    Raises:
        SizeError: an index has different sizes in two operands, and neither size is 1.
    """
    sizes: dict[str, int] = {}
    for names, operand in zip(subscripts.operands, operands, strict=True):
        for name, size in zip(names, operand.value.shape, strict=True) if isinstance(operand, LocalOperand) else ():
            if name == operand.index or size == 1:
                sizes.setdefault(name, size)
            elif sizes.get(name, 1) not in (1, size):
                raise SizeError(f"{text_of(subscripts)!r}: index {name} has size {sizes[name]} in one operand, and {size} in another one")
            else:
                sizes[name] = size
    return sizes


def _shortening_pair(
    subscripts: Subscripts, operands: Given, column: str, sizes: dict[str, int]
) -> tuple[int, int, tuple[str, ...]] | None:
    """An operand whose rows are sent, and a factor such that the product has shorter rows; None if there is no such pair."""
    names = subscripts.operands
    for at, factor_at in permutations(range(len(operands)), 2):
        sent, factor = operands[at], operands[factor_at]
        if not isinstance(sent, LocalOperand) or not isinstance(factor, LocalOperand):
            continue
        if sent.index != column or sent.is_whole or factor.index is not None or not set(names[at]) & set(names[factor_at]):
            continue
        elsewhere = {*subscripts.result, *(name for place, others in enumerate(names) if place not in (at, factor_at) for name in others)}
        kept = tuple(dict.fromkeys(name for name in (*names[at], *names[factor_at]) if name in elsewhere))
        length = prod(sizes[name] for name in kept if name != column)
        if length < prod(size for name, size in zip(names[at], sent.value.shape, strict=True) if name != column):
            return at, factor_at, kept
    return None
