"""The description of an operand that the compiler sees; it excludes the values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import prod

from ..ir.format import Format
from ..schedule.facts import rounded


@dataclass(frozen=True, slots=True)
class Operand:
    """Format, shape, data types and statistics of an operand.

    Attributes:
        format: storage format.
        shape: size of each dimension.
        dtype: data type of the values.
        index_dtype: data type of the index arrays.
        strides: strides of a dense operand, in values.
        counts: number of positions in each level of a sparse operand.
        spreads: imbalance of a sparse operand's rows, see ``Pattern.spreads``.
        has_long_rows: whether one row holds a large share of all entries.
        peaks: frequency of the most frequent coordinate in each level, see ``peaks_of``.
        beside: position of the first operand that has the same pattern object, if an earlier one has.
    """

    format: Format
    shape: tuple[int, ...]
    dtype: str
    index_dtype: str = "int64"
    strides: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    spreads: tuple[int, ...] = ()
    has_long_rows: bool = False
    peaks: tuple[int, ...] = ()
    beside: int | None = None

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} ({self.format.name})"

    @property
    def is_row_major(self) -> bool:
        """Whether it is a dense operand that is contiguous."""
        return self.strides == row_major(self.shape)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in values, of a contiguous tensor.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(shape[at + 1 :]) for at in range(len(shape)))


def sizes_of(operands: Sequence[Operand]) -> tuple[int, ...]:
    """The sizes of operands: of each one its shape, and then its strides unless it is sparse or contiguous."""
    return tuple(chain.from_iterable(op.shape if op.is_row_major else (*op.shape, *op.strides) for op in operands))


def with_sizes(operands: Sequence[Operand], sizes: Iterable[int]) -> list[Operand]:
    """The operands with other sizes, in the order of :func:`sizes_of`, and rounded counts."""
    remaining, described = iter(sizes), []
    for operand in operands:
        shape = tuple(islice(remaining, len(operand.shape)))
        strides = row_major(shape) if operand.is_row_major else tuple(islice(remaining, len(shape)))
        described.append(replace(operand, shape=shape, strides=strides, counts=tuple(map(rounded, operand.counts))))
    return described
