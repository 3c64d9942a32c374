"""Einsums and statements with a sharded matrix and dense operands; each rank holds its rows of the operands.

With ``A[i,j]`` sharded by rows, an operand with index i is local, and an operand with index j needs the rows of the halo. A result
with index i is local. For a result with index j, each rank sends its contributions to the owners of the rows. A result with neither
index is summed over all ranks. If the columns are distributed, too, index i is treated like j, with an exchange among the ranks that
share rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Shard

from ..errors import ExpressionError, UnsupportedError
from ..frontend.parser import Subscripts, parse_einsum
from ..frontend.requests import NAMES
from ..frontend.statements import ProgramPart, parse_program
from ..interface.api import einsum, evaluate
from ..ir.functions import REDUCTIONS, is_zero, simplified
from ..programs.operands import EinsumCall, call_form
from ..tensors.sparse_tensor import SparseTensor
from .exchange import linear_map
from .placements import (
    Given,
    LocalOperand,
    Names,
    Operands,
    SharedIndices,
    check_chunks,
    contract,
    dtensor_of,
    gradient_placements,
    local_operand,
    result_placement,
    sharded_indices,
    text_of,
)
from .ranks import Ranks, collective, reduce
from .tensor import ShardedSparseTensor

ORDINALS = ("first", "second", "third", "fourth", "fifth")


def sharded_einsum(call: EinsumCall) -> Any:
    """:func:`numscorch.einsum` with a sharded matrix among the operands. A collective operation.

    Dense operands are ``DTensor`` or plain local rows; the result is a ``DTensor`` if one of them is. For plain tensors, the loss is the
    sum of the losses of all ranks: the gradient of an operand that every rank holds is this rank's part of a sum, as in data-parallel
    training. If an operand requires grad, the backward pass is a collective operation, too. Double backward is not supported.

    Raises:
        ExpressionError: the text can't be parsed.
        SizeError: an operand does not have this rank's rows.
        UnsupportedError: an option is given (``format`` only for results with the pattern of the matrix), or the result or an operand
            would need all of a tensor on each rank.
    """
    matrix = next(operand for operand in (call.expr, *call.operands) if isinstance(operand, ShardedSparseTensor))
    with collective(matrix.layout.ranks, f"einsum {call.expr!r}" if isinstance(call.expr, str) else "einsum"):
        return _einsum(call)


def _einsum(call: EinsumCall) -> Any:
    if not call.takes_only("format"):
        raise UnsupportedError("einsum of a sharded matrix takes no reduce=, mask=, out=, schedule= or sparsifier=")
    text, values = call_form(call.expr, call.operands)
    subscripts = parse_einsum(text, tuple(value.ndim for value in values))
    indices = _indices_of(text, values, subscripts)
    given = [
        value
        if isinstance(value, ShardedSparseTensor)
        else _extended(local_operand(value, names, indices, f"the {_ordinal(at)} operand of {text!r}"), indices.row, indices)
        for at, (value, names) in enumerate(zip(values, subscripts.operands, strict=True))
    ]
    matrix, result = indices.matrix, subscripts.result
    if indices.row in result and indices.column in result:
        return _sampled(text, given, indices, call.format, is_in_order=result.index(indices.row) < result.index(indices.column))
    index = next((name for name in (indices.row, indices.column) if name in result), None)
    at = 0 if index is None else result.index(index)
    local = _of_rows(text, subscripts, given, indices) if index == indices.row else _dense(text, _joined(given, indices))
    if index is not None:
        local = indices.exchange(index).returned(local.movedim(at, 0)).movedim(0, at)
    elif not any(isinstance(value, DTensor) for value in values):
        return _summed(local, matrix.layout.ranks, matrix.layout.ranks, f"adds {tuple(local.shape)} numbers of {local.dtype}")
    return _as_given(local, result, indices, list(zip(values, subscripts.operands, strict=True)))


def _of_rows(text: str, subscripts: Subscripts, operands: Given, indices: SharedIndices) -> torch.Tensor:
    """A result with the matrix's rows."""
    shorter, operands = contract(subscripts, operands, indices.column)
    text = text if shorter is subscripts else text_of(shorter)
    dense = [value for value in operands if isinstance(value, LocalOperand)]
    if len(dense) == len(operands) - 1 and any(_needs_halo(value, indices) for value in dense):
        return _while_sending(text, subscripts.result.index(indices.row), operands, indices)
    return _dense(text, _joined(operands, indices))


def _dense(text: str, operands: Sequence[Any]) -> torch.Tensor:
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
        raise UnsupportedError(
            f"{text!r}: several sharded matrices must have the same pattern and the same indices, as A and A.with_values(v) in 'ij,ij->i'; "
            "products of sharded matrices, as A @ A, are not computed: use A.full_tensor()"
        )
    return _with_others(matrix, names, text, list(zip(values, subscripts.operands, strict=True)))


def _with_others(matrix: ShardedSparseTensor, names: Names, text: str, operands: Operands) -> SharedIndices:
    """The names of the matrix's indices, and of the indices that operands shard over other dimensions of the mesh."""
    others = sharded_indices(text, operands, matrix.mesh, matrix.layout.grid.dims)
    gradient_placements(matrix, names, others, text)
    return SharedIndices(matrix, names[0], names[1], others)


def _ordinal(at: int) -> str:
    return ORDINALS[at] if at < len(ORDINALS) else f"{at + 1}th"


def _joined(given: Given, indices: SharedIndices) -> list[Any]:
    """The local operands for the product with the whole local matrix: operands with the column index include the halo."""
    return [value.local if isinstance(value, ShardedSparseTensor) else _extended(value, indices.column, indices).value for value in given]


def _extended(operand: LocalOperand, index: str, indices: SharedIndices) -> LocalOperand:
    """Extend an operand with this index to all rows or columns of the local matrix, owned ones first; other operands are unchanged."""
    if operand.index != index:
        return operand
    exchange = indices.exchange(index)
    value = operand.back(operand.first[exchange.known] if operand.is_whole else exchange.extended(operand.first))
    return replace(operand, value=value, is_whole=False)


def _while_sending(text: str, at_rows: int, given: Given, indices: SharedIndices) -> torch.Tensor:
    """A result of the local matrix's rows, at dimension ``at_rows``: the halo arrives while the product with owned columns is computed."""
    matrix = indices.matrix
    owned, halo = matrix.parts()
    exchange = matrix.exchange
    arrivals = {at: exchange.begin(v.first, f" in {text!r}") for at, v in enumerate(given) if _needs_halo(v, indices)}

    def product(part: SparseTensor, columns: Any, sent: dict[int, torch.Tensor], rows: torch.Tensor | None = None) -> torch.Tensor:
        """The product of the entries in some columns; ``sent`` has the operands' rows for these columns, by the operand's position."""
        operands: list[Any] = []
        for at, value in enumerate(given):
            if isinstance(value, ShardedSparseTensor):
                operands.append(part)
            elif at in sent:
                operands.append(value.back(sent[at]))
            else:
                whole = value.back(value.first[columns]) if value.is_whole else value.value  # needs no exchange
                operands.append(whole if rows is None or value.index != indices.row else whole.index_select(value.at, rows))
        return einsum(text, *operands)

    rows = matrix.layout.halo.rows
    result = product(owned, slice(*exchange.range), {at: x for at, (x, _) in arrivals.items()})
    added = product(halo, exchange.halo, {at: arrival.halo() for at, (_, arrival) in arrivals.items()}, rows)
    for _, arrival in arrivals.values():
        arrival.release(added)
    # a transposed result is a view; autograd forbids in-place writes to it
    return result.index_add(at_rows, rows, added) if at_rows else result.index_add_(0, rows, added)


def _needs_halo(value: ShardedSparseTensor | LocalOperand, indices: SharedIndices) -> bool:
    return isinstance(value, LocalOperand) and value.index == indices.column and not value.is_whole


def _sampled(text: str, given: Given, indices: SharedIndices, format: Any, is_in_order: bool) -> ShardedSparseTensor:
    """A result with the pattern of the matrix."""
    matrix = indices.matrix
    values = matrix.values_of(einsum(text, *_joined(given, indices), format=format)) if is_in_order else None
    if values is None:
        raise UnsupportedError(f"{text!r} has a result with both indices of the sharded matrix, but not its pattern: multiply it with A")
    summed = [dim for dim, name in enumerate(indices.others) if name is not None]
    if summed:
        values = _summed(values, Ranks.of(matrix.mesh, summed), matrix.layout.ranks, f"adds values of matrix {matrix.exchange.number}")
    return matrix.with_values(values)


def _summed(part: torch.Tensor, ranks: Ranks, agreeing: Ranks, step: str) -> torch.Tensor:
    """The sum over ``ranks``; the ranks ``agreeing`` take this step together. The loss is a sum over ranks, so the gradient is, too."""

    def add(part: torch.Tensor) -> torch.Tensor:
        return reduce(ranks, part.clone(), step, agreeing=agreeing)

    return linear_map(part, add, add)


def _as_given(local: torch.Tensor, result: Names, indices: SharedIndices, operands: Operands) -> torch.Tensor:
    """The result as a ``DTensor`` if an operand is one."""
    given = [(value, names) for value, names in operands if isinstance(value, DTensor)]
    if not given:
        return local
    matrix = indices.matrix
    of_operands = [pair for value, names in given for pair in zip(names, value.shape, strict=True)]
    sizes = dict(zip(result, local.shape, strict=True)) | {name: size for name, size in of_operands if name in indices.others}
    over_grid: Placement = Partial()
    if (index := indices.sharded(result, "the result")) is not None:
        partition = indices.exchange(index).partition
        check_chunks(matrix, partition, "the result")
        over_grid, sizes[index] = Shard(result.index(index)), partition.size
    dims = matrix.layout.grid.dims
    placements = [over_grid if dim in dims else result_placement(name, result) for dim, name in enumerate(indices.others)]
    return dtensor_of(local, matrix.mesh, placements, [sizes[name] for name in result])


def sharded_evaluate(statement: str, *, format: Any = None, sparsifier: Any = None, **operands: Any) -> Any:
    """:func:`numscorch.evaluate` with a sharded matrix among the operands: programs that compute each row of the result by itself.

    Raises:
        ExpressionError: a statement can't be parsed.
        UnsupportedError: a statement sums over the rows, an operand is read with both indices of the matrix, or a rank does not have whole
            rows.
    """
    if sparsifier is not None:
        raise UnsupportedError("evaluate of a sharded matrix takes no sparsifier=")
    matrix = next(operand for operand in operands.values() if isinstance(operand, ShardedSparseTensor))
    with collective(matrix.layout.ranks, f"evaluate {statement}"):
        return _evaluate(statement, format, operands, matrix)


def _evaluate(statement: str, format: Any, operands: dict[str, Any], matrix: ShardedSparseTensor) -> Any:
    matrix.check_whole_rows("evaluate")
    parts = parse_program(statement)
    uses: dict[str, set[tuple[str, ...]]] = {}
    for part in parts:
        for name, names in zip(part.operands, part.request.subscripts.operands, strict=True):
            uses.setdefault(name, set()).add(names)
    sharded = {name: value for name, value in operands.items() if isinstance(value, ShardedSparseTensor)}
    name = next(iter(sharded))
    read = {names for other in sharded for names in uses.get(other, ())}
    if len(read) != 1 or any(value.layout is not matrix.layout for value in sharded.values()):
        raise UnsupportedError(
            f"{name} and other sharded matrices must have the same pattern, and be read with the same indices\n  {statement}"
        )
    (row, column) = next(iter(read))
    dense = [(operands[key], names) for key in uses if key in operands and key not in sharded for names in uses[key]]
    indices = _with_others(matrix, (row, column), statement, dense)
    _check_statements(statement, parts, set(sharded), indices)
    local = operands | {key: value.local for key, value in sharded.items()}
    for key, value in operands.items():
        if isinstance(value, torch.Tensor):
            read_as = uses.get(key, {()})
            if len({indices.sharded(names, key) for names in read_as}) > 1:
                raise UnsupportedError(
                    f"{key} is read by the rows and by the columns of a sharded matrix: pass it by two names\n  {statement}"
                )
            operand = local_operand(value, next(iter(read_as)), indices, key)
            local[key] = _extended(_extended(operand, row, indices), column, indices).value
    result = evaluate(statement, format=format, **local)
    if (values := matrix.values_of(result)) is not None:
        return matrix.with_values(values)
    final = parts[-1].request.subscripts.result
    if row not in final or column in final:
        raise ExpressionError(
            f"the result must have the index {row} of the rows, and {column} only with the pattern of {name}\n  {statement}"
        )
    result = result.to_dense() if isinstance(result, SparseTensor) else result
    return _as_given(result, final, indices, dense)


def _check_statements(statement: str, parts: Sequence[ProgramPart], zero: set[str], indices: SharedIndices) -> None:
    """Check that each part of a program is computed for each row by itself, and reads columns only where the matrix has entries.

    Args:
        statement: the text.
        parts: the parts.
        zero: the names of tensors that are 0 where the matrix has no entry; the function adds names of results to it.
        indices: the indices of the matrix.

    Raises:
        UnsupportedError: a part sums over the rows, or depends on values at columns without entries.
    """
    row, column = indices.row, indices.column
    for part in parts:
        request, names = part.request, part.request.subscripts
        read = {name for operand in names.operands for name in operand}
        if row not in names.result and (row in read or column in read):
            raise UnsupportedError(
                f"a statement sums over {row}, the rows of a sharded matrix, or lacks them: use einsum for sums\n  {statement}"
            )
        if over := [name for name in indices.others if name in read and name not in names.result]:
            raise UnsupportedError(f"a statement sums over {over[0]}, which is sharded: use einsum, or redistribute\n  {statement}")
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
