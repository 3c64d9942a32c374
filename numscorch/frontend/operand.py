"""What the compiler knows of an operand: never its values."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.format import Format


@dataclass(frozen=True, slots=True)
class Operand:
    """Format, shape and data types of an operand.

    ``strides`` (in values) belongs to dense operands, ``counts`` (positions in each level), ``spreads`` (how uneven
    its rows are) and ``has_long_rows`` (of which one holds much of it all) and ``peaks``
    (``peaks_of``) to sparse ones. One that has the very pattern of an
    operand before it is ``beside`` the first such one, whose number that is.
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
