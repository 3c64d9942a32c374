"""Batches of requests, for ``torch.func.vmap``: one request with a further index computes the results of all rows.

A batch of dense operands has the index first. A batch of sparse operands with one pattern is one sparse operand whose last level is
dense, so that each entry stores the values of all rows, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor

from ..frontend.gradient_requests import batched_request
from ..frontend.problem import make_problem
from ..frontend.requests import Operand, Request
from ..ir.format import Format
from ..ir.levels import Dense
from ..ir.parts import Part
from ..machine.target import host
from ..runtime.plans import describe_all, keep
from ..tensors.modes import made_outside
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor

MOST_SIZES = 16  # batch sizes whose patterns a pattern keeps


class BatchedCall(NamedTuple):
    """A request for a batch, its operands, the format of its result, and the dimension of the result that is the batch."""

    request: Request
    operands: list[Any]
    format: Format | str
    place: int


def batched_call(
    request: Request,
    format: Format | str | None,
    values: Sequence[Tensor],
    patterns: Sequence[Pattern | None],
    shapes: Sequence[tuple[int, ...]],
    size: int,
    batched: Sequence[bool],
) -> BatchedCall:
    """The call that computes the results of a request for a batch.

    If the results are sparse, all sparse operands are batched, so that a result keeps a pattern if it does so outside of ``vmap``.

    Args:
        request: the request for one row.
        format: the format of its result; None to infer it.
        values: the values of the operands; the first dimension of ``batched`` values is the batch.
        patterns: the pattern of each operand; None if it is dense.
        shapes: the shape of each operand, in one row.
        size: the number of rows.
        batched: for each operand, whether its values are a batch.
    """
    of_row = _format_of_row(request, format, values, patterns, shapes)
    operands: list[Any] = []
    places: list[int | None] = []
    for value, pattern, is_batch in zip(values, patterns, batched, strict=True):
        if pattern is None:
            operands.append(value)
            places.append(0 if is_batch else None)
        elif is_batch or not of_row.is_dense:
            rows = value.t() if is_batch else value[:, None].expand(-1, size)
            operands.append(SparseTensor(pattern_of_batch(pattern, size), rows.reshape(-1)))
            places.append(-1)
        else:
            operands.append(SparseTensor(pattern, value))
            places.append(None)
    place = -1 if -1 in places else 0
    batch = batched_request(request, (*places, place))
    return BatchedCall(batch, operands, "dense" if of_row.is_dense else _with_dense_level(of_row), place)


def pattern_of_batch(pattern: Pattern, size: int) -> Pattern:
    """The pattern of a batch of tensors that share a pattern; it has the same index arrays. The patterns of recent sizes are kept."""
    batches: dict[int, Pattern] = pattern.remember("batches", dict)
    if (known := batches.get(size)) is not None:
        return known
    format, shape, arrays = _with_dense_level(pattern.format), (*pattern.shape, size), (*pattern.arrays, ())
    return keep(batches, size, made_outside(lambda: Pattern(format, shape, arrays, pattern.index_dtype)), MOST_SIZES)


def pattern_of_row(pattern: Pattern, size: int, known: Sequence[Pattern | None]) -> Pattern:
    """The pattern of each row of a batch: one of the ``known`` patterns if possible."""
    shared = (row for row in known if row is not None and pattern_of_batch(row, size) is pattern)
    if (row := next(shared, None)) is not None:
        return row
    format = Format(pattern.format.levels[:-1], pattern.format.parts[:-1])
    return pattern.remember("row", lambda: Pattern(format, pattern.shape[:-1], pattern.arrays[:-1], pattern.index_dtype))


@lru_cache(maxsize=256)
def _with_dense_level(format: Format) -> Format:
    return Format((*format.levels, Dense()), (*format.parts, Part(format.order)))


def _format_of_row(
    request: Request,
    format: Format | str | None,
    values: Sequence[Tensor],
    patterns: Sequence[Pattern | None],
    shapes: Sequence[tuple[int, ...]],
) -> Format:
    """The format of the result for one row."""
    rows = zip(values, patterns, shapes, strict=True)
    row = [v.new_empty(shape) if pattern is None else SparseTensor.trusted(pattern, v) for v, pattern, shape in rows]
    return _format_of(request, format, tuple(describe_all(row)))


@lru_cache(maxsize=256)
def _format_of(request: Request, format: Format | str | None, operands: tuple[Operand, ...]) -> Format:
    problem = make_problem(request, operands, host(), format)
    return problem.requested or problem.format
