"""Renaming levels: they store nothing, and say of coordinates what others follow from them: parts, what parts make up, diagonals.

A pattern of them is a factor by which a statement's operands and result name the same entries in different ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .level import Level, Mode
from .loop import BinOp, Const, Expr


@dataclass(frozen=True, slots=True)
class Renaming(Level):
    """One coordinate for each position of the parent, which follows from those above."""

    branchless: ClassVar[bool] = True

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        return mode.parent.begin, mode.parent.stop

    def determines(self, at: int, missing: frozenset[int]) -> bool:
        return len(missing) == 1

    def fan(self, size: float) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Quotient(Renaming):
    """The part ``i // divisor``, or ``i % modulus // divisor``, of the first level's coordinate i."""

    divisor: int
    modulus: int = 0
    spelling: ClassVar[str] = "quotient"

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        whole = mode.outer[0]
        rest = whole % self.modulus if self.modulus else whole
        return rest // self.divisor if self.divisor > 1 else rest


@dataclass(frozen=True, slots=True)
class Joined(Renaming):
    """The coordinate whose parts are those of the levels above, the innermost of which has ``sizes[-1]`` of them.

    Where the dimension is ``uneven``, not a whole number of blocks, what lies outside isn't there.
    """

    sizes: tuple[int, ...]
    uneven: bool = False
    spelling: ClassVar[str] = "joined"

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        whole = mode.outer[0]
        for size, part in zip(self.sizes, mode.outer[1:], strict=True):
            whole = whole * size + part
        return whole

    def present(self, mode: Mode, position: Expr) -> Expr | None:
        return self.coordinate(mode, position) < mode.size if self.uneven else None

    def determines(self, at: int, missing: frozenset[int]) -> bool:
        return at not in missing or missing == {at}


@dataclass(frozen=True, slots=True)
class Difference(Renaming):
    """The diagonal of a row, the first level's coordinate, and a column, the second's; the lowest one is 0."""

    spelling: ClassVar[str] = "difference"

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        row, column = mode.outer
        return BinOp("-", column + mode.sizes[0] - Const(1), row)
