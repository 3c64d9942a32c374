"""The description of an operand that the compiler sees; it excludes the values."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.format import Format


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
