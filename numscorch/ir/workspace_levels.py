"""The levels of workspaces: a list of what was inserted, and how a coordinate is found in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .level import Level, Mode
from .loop import BinOp, Const, Expr, Var, call


@dataclass(frozen=True, slots=True)
class Listed(Level):
    """A workspace's only level: the coordinates that were inserted are listed, and values lie at their coordinates.

    ``mark`` says of each coordinate whether it is in the list. Where the level ``counts``, the array ``seen`` holds the
    number of terms of each value.
    """

    counts: bool = False
    spelling: ClassVar[str] = "listed"
    arrays: ClassVar[tuple[str, ...]] = ("list", "mark")
    letter: ClassVar[str] = "w"

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        return Const(0), Var(f"{mode.tensor}_count")

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return Var(f"{mode.tensor}_list")[position]


@dataclass(frozen=True, slots=True)
class Flagged(Level):
    """A workspace's only level, of one row in all: values lie at their coordinates, and ``flag`` says which of these were inserted.

    Flags start as zeros and values as the reduction's identity, so that inserting branches on nothing, and the row is read in
    order. Where the level ``counts``, the array ``seen`` holds the number of terms of each value.
    """

    counts: bool = False
    spelling: ClassVar[str] = "flagged"
    gaps: ClassVar[bool] = True
    arrays: ClassVar[tuple[str, ...]] = ("flag",)
    letter: ClassVar[str] = "f"

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        return Const(0), mode.size

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return position

    def present(self, mode: Mode, position: Expr) -> Expr | None:
        return BinOp("!=", Var(f"{mode.tensor}_flag")[position], Const(0))

    def array_dtype(self, name: str) -> str | None:
        return "uint8"


@dataclass(frozen=True, slots=True)
class Cleared(Level):
    """A workspace's only level, of a dense result's row: values lie at their coordinates, and all are read.

    Each row starts as the reduction's identity, so that inserting branches on nothing. Where the level ``counts``, the array
    ``seen`` holds the number of terms of each value.
    """

    counts: bool = False
    spelling: ClassVar[str] = "cleared"
    letter: ClassVar[str] = "c"

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        return Const(0), mode.size

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return position


@dataclass(frozen=True, slots=True)
class Marked(Level):
    """A workspace's only level: values lie at their coordinates, where ``mark`` has the stamp of the row that is laid out."""

    spelling: ClassVar[str] = "marked"
    full: ClassVar[bool] = True
    arrays: ClassVar[tuple[str, ...]] = ("mark",)
    letter: ClassVar[str] = "m"

    def locate(self, mode: Mode, coordinate: Expr) -> Expr:
        return coordinate

    def here(self, mode: Mode, coordinate: Expr) -> Expr:
        """A mask that has all bits set where the row has the coordinate: rows before it have lower stamps."""
        return call("at_most", Var(f"{mode.tensor}_stamp"), Var(f"{mode.tensor}_mark")[coordinate])


@dataclass(frozen=True, slots=True)
class Hashed(Level):
    """A workspace's only level: the coordinates that were inserted are listed, and values lie in the order of the list.

    ``table`` is a hash table of places in the list: it is as long as a row may need, however large the dimension is.
    Where the level ``counts``, the array ``seen`` holds the number of terms of each value.
    """

    counts: bool = False
    spelling: ClassVar[str] = "hashed"
    arrays: ClassVar[tuple[str, ...]] = ("list", "table")
    letter: ClassVar[str] = "h"

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        return Const(0), Var(f"{mode.tensor}_count")

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return Var(f"{mode.tensor}_list")[position]


@dataclass(frozen=True, slots=True)
class Beside(Level):
    """A workspace's only level: values lie beside the positions of one row of a pattern, counted from where the row starts.

    Its tensor ``shares`` the pattern's operand.
    """

    spelling: ClassVar[str] = "beside"
    full: ClassVar[bool] = True
    letter: ClassVar[str] = "b"


@dataclass(frozen=True, slots=True)
class Held(Level):
    """A workspace's only level: a register for each of ``size`` coordinates, which are known when a kernel is made."""

    size: int
    spelling: ClassVar[str] = "held"
    full: ClassVar[bool] = True
    letter: ClassVar[str] = "r"
