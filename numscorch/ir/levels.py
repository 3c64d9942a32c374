"""Level formats: how one dimension of a tensor is stored.

A level is a small frozen class.  It declares properties, which the code generator consults
instead of asking which class it has, and answers the level functions in loop IR
(Chou, Kjolstad, Amarasinghe, "Format Abstraction for Sparse Tensor Algebra Compilers",
OOPSLA 2018, section 3).

A *position* is a place in a level's arrays, a *coordinate* the value of an index variable.
The parent of a level is a :class:`Segment` of positions: one position, or, below a level with
repeated coordinates, the run of positions that share them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .loop import Const, Expr, Var


@dataclass(frozen=True, slots=True)
class Segment:
    """Positions begin, begin + 1, ... end - 1 of one level; end is None for a single position."""

    begin: Expr
    end: Expr | None = None

    @property
    def stop(self) -> Expr:
        """One past the last position."""
        return self.begin + 1 if self.end is None else self.end


@dataclass(frozen=True, slots=True)
class Mode:
    """One level of one access, as the level functions see it.

    ``name`` is the access's name and the level's number from 1 (``A2``), ``size`` the
    dimension's extent, ``outer`` the coordinate of the level above.
    """

    name: str
    size: Expr
    outer: Expr | None = None

    @property
    def tensor(self) -> str:
        """The access's name."""
        return self.name.rstrip("0123456789")

    @property
    def pos(self) -> Var:
        """Where each parent's positions start; one entry more than there are parents."""
        return Var(f"{self.name}_pos")

    @property
    def crd(self) -> Var:
        """The coordinate at each position."""
        return Var(f"{self.name}_crd")


@dataclass(frozen=True, slots=True)
class Level:
    """What every level format answers.

    ==============  =====================================================================
    full            every coordinate of the dimension has a position: locate, don't iterate
    ordered         coordinates increase along a parent's positions
    unique          no coordinate repeats below one parent
    branchless      exactly one position for each position of the parent
    compact         no unused positions between two parents
    arrays          names of the index arrays it stores
    ==============  =====================================================================
    """

    full: ClassVar[bool] = False
    branchless: ClassVar[bool] = False
    compact: ClassVar[bool] = True
    arrays: ClassVar[tuple[str, ...]] = ()
    letter: ClassVar[str] = "?"

    @property
    def is_ordered(self) -> bool:
        """Whether coordinates increase along a parent's positions."""
        return True

    @property
    def is_unique(self) -> bool:
        """Whether no coordinate repeats below one parent."""
        return True

    def bounds(self, mode: Mode, parent: Segment) -> tuple[Expr, Expr]:
        """First position below ``parent``, and one past the last."""
        raise NotImplementedError

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        """The coordinate at a position."""
        raise NotImplementedError

    def locate(self, mode: Mode, parent: Segment, coordinate: Expr) -> Expr:
        """The position of a coordinate; only for full levels."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Dense(Level):
    """Every coordinate is stored; position = parent position * size + coordinate."""

    full: ClassVar[bool] = True
    letter: ClassVar[str] = "d"

    def bounds(self, mode: Mode, parent: Segment) -> tuple[Expr, Expr]:
        start = parent.begin * mode.size
        return start, start + mode.size

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return position % mode.size

    def locate(self, mode: Mode, parent: Segment, coordinate: Expr) -> Expr:
        return parent.begin * mode.size + coordinate

    def __str__(self) -> str:
        return "dense"


@dataclass(frozen=True, slots=True)
class Compressed(Level):
    """Stored coordinates in ``crd``; those of parent p lie from ``pos[p]`` to ``pos[p + 1]``."""

    unique: bool = True
    ordered: bool = True
    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")
    letter: ClassVar[str] = "s"

    @property
    def is_unique(self) -> bool:
        return self.unique

    @property
    def is_ordered(self) -> bool:
        return self.ordered

    def bounds(self, mode: Mode, parent: Segment) -> tuple[Expr, Expr]:
        return mode.pos[parent.begin], mode.pos[parent.begin + 1]

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return mode.crd[position]

    def __str__(self) -> str:
        differing = [f"{name}=False" for name in ("unique", "ordered") if not getattr(self, name)]
        return f"compressed({', '.join(differing)})" if differing else "compressed"


@dataclass(frozen=True, slots=True)
class Singleton(Level):
    """One coordinate for each position of the parent, in ``crd``."""

    unique: bool = True
    branchless: ClassVar[bool] = True
    arrays: ClassVar[tuple[str, ...]] = ("crd",)
    letter: ClassVar[str] = "o"

    @property
    def is_unique(self) -> bool:
        return self.unique

    def bounds(self, mode: Mode, parent: Segment) -> tuple[Expr, Expr]:
        return parent.begin, parent.stop

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return mode.crd[position]

    def __str__(self) -> str:
        return "singleton" if self.unique else "singleton(unique=False)"


@dataclass(frozen=True, slots=True)
class Identity(Level):
    """A pattern level that stores nothing: its only coordinate is the parent's."""

    branchless: ClassVar[bool] = True
    letter: ClassVar[str] = "i"

    def bounds(self, mode: Mode, parent: Segment) -> tuple[Expr, Expr]:
        return Const(0), Const(1)

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        if mode.outer is None:
            raise ValueError("an identity level needs a level above it")
        return mode.outer

    def __str__(self) -> str:
        return "identity"


@dataclass(frozen=True, slots=True)
class Listed(Level):
    """A workspace's only level: the coordinates that were inserted are listed, and values lie at their coordinates.

    ``mark`` says of each coordinate whether it is in the list.
    """

    arrays: ClassVar[tuple[str, ...]] = ("list", "mark")
    letter: ClassVar[str] = "w"

    def bounds(self, mode: Mode, parent: Segment) -> tuple[Expr, Expr]:
        return Const(0), Var(f"{mode.tensor}_count")

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return Var(f"{mode.tensor}_list")[position]

    def __str__(self) -> str:
        return "listed"


@dataclass(frozen=True, slots=True)
class Hashed(Level):
    """A workspace's only level: the coordinates that were inserted are listed, and values lie in the order of the list.

    ``table`` is a hash table of places in the list: it is as long as a row may need, however large the dimension is.
    """

    arrays: ClassVar[tuple[str, ...]] = ("list", "table")
    letter: ClassVar[str] = "h"

    def bounds(self, mode: Mode, parent: Segment) -> tuple[Expr, Expr]:
        return Const(0), Var(f"{mode.tensor}_count")

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return Var(f"{mode.tensor}_list")[position]

    def __str__(self) -> str:
        return "hashed"
