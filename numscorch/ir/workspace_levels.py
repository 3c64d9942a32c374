"""The levels of workspaces. Each workspace has a single level, which keeps track of the inserted coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .level import Level, Mode
from .levels import Dense
from .loop import BinOp, Const, Expr, Var


@dataclass(frozen=True, slots=True)
class Workspace(Level):
    """A dense array of values. If ``counts``, the array ``seen`` holds the number of terms of each value."""

    counts: bool = False

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        return Const(0), mode.size

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return position


class ListWorkspace(Workspace):
    """A workspace with a list of the inserted coordinates."""

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        return Const(0), Var(f"{mode.tensor}_count")

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return Var(f"{mode.tensor}_list")[position]


@dataclass(frozen=True, slots=True)
class Listed(ListWorkspace):
    """A dense array of values with a list of the inserted coordinates.

    ``mark`` tells whether a coordinate is in the list.
    """

    arrays: ClassVar[tuple[str, ...]] = ("list", "mark")


@dataclass(frozen=True, slots=True)
class Flagged(Workspace):
    """A dense array of values with a flag for each coordinate: 1 if the coordinate was inserted. Used for results of one row.

    Flags start as 0 and values as the reduction's identity, so that insertion needs no branch. The row is read in order.
    """

    gaps: ClassVar[bool] = True
    arrays: ClassVar[tuple[str, ...]] = ("flag",)

    def present(self, mode: Mode, position: Expr) -> Expr | None:
        return BinOp("!=", Var(f"{mode.tensor}_flag")[position], Const(0))

    def array_dtype(self, name: str) -> str | None:
        return "uint8"


@dataclass(frozen=True, slots=True)
class Cleared(Workspace):
    """A dense array of values for a row of a dense result. All values are read.

    Each row starts as the reduction's identity, so that insertion needs no branch.
    """


@dataclass(frozen=True, slots=True)
class Scattered(Dense):
    """A dense array with the values of one row at their coordinates, and 0.0 elsewhere. It is cleared when the row has been read.

    In a floating-point row, a stored zero is -0.0, so that 0.0 means that there is no entry: an absent entry times infinity is 0.
    """


class PackedWorkspace(ListWorkspace):
    """A list of the inserted coordinates, with the values in the order of the list.

    Its size depends on the maximum number of insertions into a row, not on the extent of the dimension.
    """


@dataclass(frozen=True, slots=True)
class Hashed(PackedWorkspace):
    """A list of distinct coordinates; ``table`` is a hash table of their positions in the list."""

    arrays: ClassVar[tuple[str, ...]] = ("list", "table")


@dataclass(frozen=True, slots=True)
class Sorted(PackedWorkspace):
    """A list to which each insertion appends. When a row is complete, it is sorted, and values of equal coordinates are summed.

    A short row is sorted by comparing all pairs of coordinates in SIMD registers, without branches.
    """

    arrays: ClassVar[tuple[str, ...]] = ("list",)


@dataclass(frozen=True, slots=True)
class Beside(Level):
    """One value for each position of a row of a pattern, counted from the start of the row.

    The field ``shares`` of the workspace's tensor names the operand that has the pattern.
    """

    full: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Held(Level):
    """One register for each of ``size`` coordinates, which are known when the kernel is generated."""

    size: int
    full: ClassVar[bool] = True
