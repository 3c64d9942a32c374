"""Renaming levels: levels without arrays that compute one coordinate from the coordinates above them.

They split a coordinate into its parts, join parts into a coordinate, or compute a diagonal. Conversions multiply by a
pattern of such levels if source and target split the dimensions differently.
"""

from __future__ import annotations

from dataclasses import dataclass

from .level import Mode
from .levels import Branchless
from .loop import BinOp, Const, Expr


@dataclass(frozen=True, slots=True)
class Renaming(Branchless):
    """One coordinate for each position of the parent, computed from the coordinates of the levels above."""

    def determines(self, at: int, missing: frozenset[int]) -> bool:
        return len(missing) == 1


@dataclass(frozen=True, slots=True)
class Quotient(Renaming):
    """The part ``i // divisor`` or ``i % modulus // divisor`` of the first level's coordinate ``i``."""

    divisor: int
    modulus: int = 0

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        dividend = mode.outer[0] % self.modulus if self.modulus else mode.outer[0]
        return dividend // self.divisor if self.divisor > 1 else dividend


@dataclass(frozen=True, slots=True)
class Joined(Renaming):
    """The coordinate that the parts in the levels above make up.

    Args:
        sizes: the extents of all parts but the first, outermost first.
        uneven: whether the dimension is not a whole number of blocks; coordinates past its end are then absent.
    """

    sizes: tuple[int, ...]
    uneven: bool = False

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        joined = mode.outer[0]
        for size, part in zip(self.sizes, mode.outer[1:], strict=True):
            joined = joined * size + part
        return joined

    def present(self, mode: Mode, position: Expr) -> Expr | None:
        return self.coordinate(mode, position) < mode.size if self.uneven else None

    def determines(self, at: int, missing: frozenset[int]) -> bool:
        return at not in missing or missing == {at}


@dataclass(frozen=True, slots=True)
class Difference(Renaming):
    """The diagonal that a row (the first level) and a column (the second level) lie on, counted from the lowest diagonal."""

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        row, column = mode.outer
        return BinOp("-", column + mode.sizes[0] - Const(1), row)
