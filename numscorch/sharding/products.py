"""Einsums and statements with a sharded matrix and dense operands, of which each rank holds its rows.

With ``A[i,j]`` sharded by rows, an operand with index i is local, and one with index j needs the rows of the halo. A result with
index i is local. One with index j has contributions of several ranks, which are sent to the owners of their rows. One without
either is the sum over all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor, Partial, Shard

from ..api import einsum, evaluate
from ..compute.operands import call_form
from ..errors import ExpressionError, SizeError, UnsupportedError
from ..frontend.parser import Subscripts, parse_einsum
from ..frontend.requests import NAMES
from ..frontend.statements import ProgramPart, parse_program
from ..ir.functions import REDUCTIONS, is_zero, simplified
from ..tensors.sparse_tensor import SparseTensor
from .agreement import agree, collective, reporting_lost_ranks
from .dense_operands import LocalOperand, SharedIndices, local_operand
from .partition import Partition
from .tensor import ShardedSparseTensor

Given = Sequence[ShardedSparseTensor | LocalOperand]
ORDINALS = ("first", "second", "third", "fourth", "fifth")


def sharded_einsum(expr: Any, *operands: Any, **options: Any) -> Any:
    """:func:`numscorch.einsum` with a sharded matrix among the operands. A collective operation.

    Dense operands are ``DTensor`` or plain local rows; the result is a ``DTensor`` if one of them is. For plain tensors, the loss is the
    sum of the losses of all ranks: the gradient of an operand that every rank holds is this rank's part of a sum, as in data-parallel
    training. Double backward is not supported.

    Raises:
        ExpressionError: the text can't be parsed.
        SizeError: an operand does not have this rank's rows.
        UnsupportedError: an option is given (``format`` only for results with the pattern of the matrix), or the result or an operand
            would need all of a tensor on each rank.
    """
    matrix = next(operand for operand in (expr, *operands) if isinstance(operand, ShardedSparseTensor))
    with collective(matrix.layout.group, f"einsum {expr!r}" if isinstance(expr, str) else "einsum"):
        return _einsum(expr, operands, options)


def _einsum(expr: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if any(value not in (None, "sum") for name, value in options.items() if name != "format"):
        raise UnsupportedError("einsum of a sharded matrix takes no reduce=, mask=, out=, schedule= or sparsifier=")
    text, values = call_form(expr, operands)
    subscripts = parse_einsum(text, tuple(value.ndim for value in values))
    indices = _indices_of(text, values, subscripts)
    given = [
        value if isinstance(value, ShardedSparseTensor) else local_operand(value, names, indices, f"the {_ordinal(at)} operand of {text!r}")
        for at, (value, names) in enumerate(zip(values, subscripts.operands, strict=True))
    ]
    dense = [value for value in given if isinstance(value, LocalOperand)]
    matrix, result = indices.matrix, subscripts.result
    if indices.row in result and indices.column in result:
        is_in_order = result.index(indices.row) < result.index(indices.column)
        return _sampled(text, given, indices, options, is_in_order)
    if indices.row in result:
        at = result.index(indices.row)
        is_split = len(dense) == len(given) - 1 and any(_needs_halo(value, indices) for value in dense)
        local = _rows(text, at, given, indices) if is_split else _dense(text, _joined(given, indices))
        return _as_given(local, at, matrix.layout.rows, values)
    local = _dense(text, _joined(given, indices))
    if indices.column in result:
        at = result.index(indices.column)
        local = matrix.exchange.returned(local.movedim(at, 0)).movedim(0, at)
        return _as_given(local, at, matrix.layout.columns, values)
    if any(isinstance(value, DTensor) for value in values):
        return DTensor.from_local(local, matrix.mesh, [Partial()], run_check=False)
    total: torch.Tensor = _Sum.apply(local, matrix.layout.group)  # type: ignore[no-untyped-call]
    return total


def _dense(text: str, operands: Sequence[Any]) -> torch.Tensor:
    """The result as a dense tensor."""
    result: Any = einsum(text, *operands)
    return result.to_dense() if isinstance(result, SparseTensor) else result


def _indices_of(text: str, values: Sequence[Any], subscripts: Subscripts) -> SharedIndices:
    """The sharded matrix, and the names of its indices.

    Raises:
        UnsupportedError: sharded matrices have different patterns or indices, or one has a repeated index.
    """
    sharded = [(value, names) for value, names in zip(values, subscripts.operands, strict=True) if isinstance(value, ShardedSparseTensor)]
    matrix, names = sharded[0]
    if names[0] == names[1]:
        raise UnsupportedError(f"{text!r} reads the diagonal of a sharded matrix: use A.to_local()")
    if any(other.layout is not matrix.layout or other_names != names for other, other_names in sharded):
        raise UnsupportedError(f"{text!r}: several sharded matrices must have the same pattern and indices, as A and A.with_values(v)")
    return SharedIndices(matrix, names[0], names[1])


def _ordinal(at: int) -> str:
    return ORDINALS[at] if at < len(ORDINALS) else f"{at + 1}th"


def _joined(given: Given, indices: SharedIndices) -> list[Any]:
    """The local operands of the whole local matrix: those with the column index are extended by the halo."""
    return [value.local if isinstance(value, ShardedSparseTensor) else _extended(value, indices) for value in given]


def _extended(operand: LocalOperand, indices: SharedIndices) -> torch.Tensor:
    if operand.index is None:
        return operand.value
    matrix = indices.matrix
    if operand.is_whole:
        return operand.back(operand.first[_known(indices, operand.index)])
    return operand.value if operand.index == indices.row else operand.back(matrix.exchange.extended(operand.first))


def _known(indices: SharedIndices, index: str) -> torch.Tensor | slice:
    """The rows of a whole operand that this rank uses."""
    layout = indices.matrix.layout
    return slice(*layout.rows.range_of(layout.exchange.rank)) if index == indices.row else layout.numbers


def _rows(text: str, at_rows: int, given: Given, indices: SharedIndices) -> torch.Tensor:
    """A result of this rank's rows, at dimension ``at_rows``: the halo arrives while the product with owned columns is computed."""
    matrix = indices.matrix
    owned, halo = matrix.parts()
    exchange, layout = matrix.exchange, matrix.layout
    arrivals = {at: exchange.begin(v.first) for at, v in enumerate(given) if _needs_halo(v, indices)}
    own_operands: list[Any] = []
    for at, value in enumerate(given):
        if isinstance(value, ShardedSparseTensor):
            own_operands.append(owned)
        elif at in arrivals:
            own_operands.append(value.back(arrivals[at][0]))
        else:
            own_operands.append(_whole_part(value, indices, slice(*layout.columns.range_of(exchange.rank))))
    result: torch.Tensor = einsum(text, *own_operands)
    rows = layout.halo.rows
    halo_operands: list[Any] = []
    for at, value in enumerate(given):
        if isinstance(value, ShardedSparseTensor):
            halo_operands.append(halo)
        elif at in arrivals:
            halo_operands.append(value.back(arrivals[at][1].halo()))
        else:
            part = _whole_part(value, indices, exchange.halo)
            halo_operands.append(part.index_select(value.at, rows) if value.index == indices.row else part)
    added = einsum(text, *halo_operands)
    for _, arrival in arrivals.values():
        arrival.release(added)
    return result.index_add(at_rows, rows, added) if result.requires_grad else result.index_add_(at_rows, rows, added)


def _needs_halo(value: ShardedSparseTensor | LocalOperand, indices: SharedIndices) -> bool:
    return isinstance(value, LocalOperand) and value.index == indices.column and not value.is_whole


def _whole_part(operand: LocalOperand, indices: SharedIndices, columns: Any) -> torch.Tensor:
    """The part of an operand that needs no exchange: its own rows, or those columns of a whole operand."""
    if not operand.is_whole:
        return operand.value
    return operand.back(operand.first[_known(indices, indices.row) if operand.index == indices.row else columns])


def _sampled(text: str, given: Given, indices: SharedIndices, options: dict[str, Any], is_in_order: bool) -> ShardedSparseTensor:
    """A result with the pattern of the matrix."""
    values = None
    if is_in_order:
        values = indices.matrix.values_of(einsum(text, *_joined(given, indices), format=options.get("format")))
    if values is None:
        raise UnsupportedError(f"{text!r} has a result with both indices of the sharded matrix, but not its pattern: multiply it with A")
    return indices.matrix.with_values(values)


def _summed(part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The sum over all ranks."""
    total = part.clone()
    step = f"adds {tuple(total.shape)} numbers of {total.dtype}"
    agree(group, step)
    with reporting_lost_ranks(group, step):
        dist.all_reduce(total, group=group)
    return total


class _Sum(torch.autograd.Function):
    """The sum over all ranks. The loss is the sum of the losses of all ranks, and so is the gradient."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return _summed(part, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _summed(gradient, ctx.group), None


def _as_given(local: torch.Tensor, at: int, partition: Partition, values: Sequence[Any]) -> torch.Tensor:
    """The result as a ``DTensor`` if an operand is one: with rows of the partition at dimension ``at``."""
    mesh = next((value.device_mesh for value in values if isinstance(value, DTensor)), None)
    if mesh is None:
        return local
    if not partition.is_even:
        raise SizeError(
            "the result is a DTensor, which has torch's chunks, but the partition is uneven: pass local rows, or shard by 'rows'"
        )
    shape = torch.Size((*local.shape[:at], partition.size, *local.shape[at + 1 :]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local.contiguous(), mesh, [Shard(at)], run_check=False, shape=shape, stride=stride)


def sharded_evaluate(statement: str, *, format: Any = None, sparsifier: Any = None, **operands: Any) -> Any:
    """:func:`numscorch.evaluate` with a sharded matrix among the operands: programs that compute each row of the result by itself.

    Raises:
        ExpressionError: a statement can't be parsed.
        UnsupportedError: a statement sums over the rows, or an operand is read with both indices of the matrix.
    """
    if sparsifier is not None:
        raise UnsupportedError("evaluate of a sharded matrix takes no sparsifier=")
    matrix = next(operand for operand in operands.values() if isinstance(operand, ShardedSparseTensor))
    with collective(matrix.layout.group, f"evaluate {statement}"):
        return _evaluate(statement, format, operands)


def _evaluate(statement: str, format: Any, operands: dict[str, Any]) -> Any:
    parts = parse_program(statement)
    uses: dict[str, set[tuple[str, ...]]] = {}
    for part in parts:
        for name, names in zip(part.operands, part.request.subscripts.operands, strict=True):
            uses.setdefault(name, set()).add(names)
    sharded = {name: value for name, value in operands.items() if isinstance(value, ShardedSparseTensor)}
    name, matrix = next(iter(sharded.items()))
    read = {names for other in sharded for names in uses.get(other, ())}
    if len(read) != 1 or any(value.layout is not matrix.layout for value in sharded.values()):
        raise UnsupportedError(
            f"{name} and other sharded matrices must have the same pattern, and be read with the same indices\n  {statement}"
        )
    (row, column) = next(iter(read))
    indices = SharedIndices(matrix, row, column)
    _check_statements(statement, parts, set(sharded), indices)
    local: dict[str, Any] = {key: value.local for key, value in sharded.items()}
    for key, value in operands.items():
        if key in sharded or not isinstance(value, torch.Tensor):
            local.setdefault(key, value)
            continue
        roles = {indices.sharded(names, key) for names in uses.get(key, {()})}
        if len(roles) > 1:
            raise UnsupportedError(f"{key} is read by the rows and by the columns of a sharded matrix: pass it by two names\n  {statement}")
        names = next(iter(uses.get(key, {()})))
        local[key] = _extended(local_operand(value, names, indices, key), indices)
    result = evaluate(statement, format=format, **local)
    if (values := matrix.values_of(result)) is not None:
        return matrix.with_values(values)
    final = parts[-1].request.subscripts.result
    if row not in final or column in final:
        raise ExpressionError(
            f"the result must have the index {row} of the rows, and {column} only with the pattern of {name}\n  {statement}"
        )
    result = result.to_dense() if isinstance(result, SparseTensor) else result
    return _as_given(result, final.index(row), matrix.layout.rows, list(operands.values()))


def _check_statements(statement: str, parts: Sequence[ProgramPart], zero: set[str], indices: SharedIndices) -> None:
    """Check that each part of a program is computed for each row by itself, and reads columns only where the matrix has entries.

    Args:
        statement: the text.
        parts: the parts.
        zero: the names of tensors that are 0 where the matrix has no entry; results are added.
        indices: the indices of the matrix.

    Raises:
        UnsupportedError: a part sums over the rows, or its value at other columns matters.
    """
    row, column = indices.row, indices.column
    for part in parts:
        request, names = part.request, part.request.subscripts
        read = {name for operand in names.operands for name in operand}
        if row not in names.result and (row in read or column in read):
            raise UnsupportedError(
                f"a statement sums over {row}, the rows of a sharded matrix, or lacks them: use einsum for sums\n  {statement}"
            )
        if column not in read:
            continue
        letters = {NAMES[at] for at, name in enumerate(part.operands) if name in zero}
        is_zero_elsewhere = bool(letters) if request.value is None else is_zero(simplified(request.value, letters))
        if column in names.result and is_zero_elsewhere:
            zero.add(part.name)
        elif column in names.result or not (is_zero_elsewhere if request.op in ("=", "+=") else REDUCTIONS[request.op].of_stored):
            raise UnsupportedError(
                f"a statement reads columns {column} where the sharded matrix has no entry, which no rank has all of: multiply by it, "
                f"or use to_local()\n  {statement}"
            )
