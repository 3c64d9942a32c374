"""Level formats: how one coordinate of a tensor's entries is stored.

A level is a small frozen class.  It declares properties, which the code generator consults
instead of asking which class it has, answers the level functions in loop IR
(Chou, Kjolstad, Amarasinghe, "Format Abstraction for Sparse Tensor Algebra Compilers",
OOPSLA 2018, section 3), and packs and unpacks its own arrays.

A *position* is a place in a level's arrays, a *coordinate* the value of an index variable.
The parent of a level is a :class:`Segment` of positions: one position, or, below a level with
repeated coordinates, the run of positions that share them.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from numbers import Integral
from typing import ClassVar

import numpy as np

from ..errors import FormatError, SizeError
from .loop import Call, Expr, Var, call

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
Arrays = tuple[np.ndarray, ...]


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

    ``name`` is the access's name and the level's number from 1 (``A2``), ``sizes`` the extents of
    all its levels and ``at`` the place of this one among them, ``outer`` the coordinates of the levels
    above it, and ``parent`` its parent's positions.
    """

    name: str
    at: int
    sizes: tuple[Expr, ...]
    outer: tuple[Expr, ...]
    parent: Segment

    @property
    def tensor(self) -> str:
        """The access's name."""
        return self.name.rstrip("0123456789")

    @property
    def size(self) -> Expr:
        """The level's extent."""
        return self.sizes[self.at]

    def array(self, name: str) -> Var:
        """One of the level's index arrays."""
        return Var(f"{self.name}_{name}")

    @property
    def values(self) -> Var:
        """The tensor's values."""
        return Var(f"{self.tensor}_vals")

    @property
    def pos(self) -> Var:
        """Where each parent's positions start; one entry more than there are parents."""
        return self.array("pos")

    @property
    def crd(self) -> Var:
        """The coordinate at each position."""
        return self.array("crd")


@dataclass(frozen=True, slots=True)
class Entries:
    """What a level packs: entries in storage order.

    ``coordinates`` are theirs in this level, ``outer`` those in the levels above, and ``parents`` their
    positions in the level above, which has ``count``; ``first`` marks those that are the first with their
    coordinates, and so get a position of their own. ``below`` are the coordinates in the levels below.
    """

    coordinates: np.ndarray
    first: np.ndarray
    parents: np.ndarray
    count: int
    at: int
    sizes: tuple[int, ...]
    outer: tuple[np.ndarray, ...] = ()
    below: tuple[np.ndarray, ...] = ()

    @property
    def size(self) -> int:
        """The level's extent."""
        return self.sizes[self.at]

    @property
    def children(self) -> np.ndarray:
        """How many positions each parent has entries for."""
        return np.bincount(self.parents[self.first], minlength=self.count)


@dataclass(frozen=True, slots=True)
class Parents:
    """Parents to unpack: their positions, the coordinates that lead there, and the levels' extents."""

    parents: np.ndarray
    outer: tuple[np.ndarray, ...]
    at: int
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """The level's extent."""
        return self.sizes[self.at]


@dataclass(frozen=True, slots=True)
class Children:
    """What is below parents: how many each has (or all have), and the coordinates and positions of all, in order."""

    counts: np.ndarray | int
    coordinates: np.ndarray
    positions: np.ndarray


@dataclass(frozen=True, slots=True)
class Level:
    """What every level format answers.

    ==============  =====================================================================
    spelling        its name in the text of a format
    full            every coordinate of the dimension has a position: locate, don't iterate
    branchless      exactly one position for each position of the parent
    arrays          names of the index arrays it stores
    appended        coordinates may be appended below one parent after the other
    gaps            there may be positions that hold nothing
    padded          positions may be made for coordinates without an entry, and hold 0
    located         a position follows from its parent's and the coordinates, as in full levels
    ends            it stores nothing, and has every coordinate below some end: ``within`` tells which
    mark            name of the array that holds 1 where something is stored
    spaced          each parent has as much room as its number of coordinates says
    is_ordered      coordinates increase along a parent's positions
    is_unique       no coordinate repeats below one parent
    ==============  =====================================================================

    The first group of functions answers in loop IR, the second one works on numpy arrays.
    """

    spelling: ClassVar[str] = "?"
    letter: ClassVar[str] = "?"
    full: ClassVar[bool] = False
    branchless: ClassVar[bool] = False
    arrays: ClassVar[tuple[str, ...]] = ()
    appended: ClassVar[bool] = False
    gaps: ClassVar[bool] = False
    padded: ClassVar[bool] = True
    located: ClassVar[bool] = False
    ends: ClassVar[bool] = False
    mark: ClassVar[str | None] = None
    spaced: ClassVar[bool] = False

    @property
    def is_located(self) -> bool:
        """Whether a position follows from its parent's and the coordinates."""
        return self.full or self.located

    @property
    def is_ordered(self) -> bool:
        """Whether coordinates increase along a parent's positions."""
        return True

    @property
    def is_unique(self) -> bool:
        """Whether no coordinate repeats below one parent."""
        return True

    @property
    def extent(self) -> int | None:
        """The extent, where the level fixes it."""
        return None

    @property
    def constants(self) -> tuple[tuple[int, ...], ...]:
        """The coordinates below a position of each kind of the level above; none where these are known only as a kernel runs."""
        return ()

    @property
    def alone(self) -> Level:
        """What stores the same below any level, for one whose coordinates follow from how the level above it stores its own."""
        return self

    def __str__(self) -> str:
        listed: list[str] = []
        for at, field in enumerate(fields(self)):
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                named = isinstance(value, bool) or at > len(listed) or field.name == "bits"
                listed.append(f"{field.name}={value}" if named else str(value))
        return f"{self.spelling}({', '.join(listed)})" if listed else self.spelling

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        """First position below the parent, and one past the last, which is never less than the first."""
        raise NotImplementedError

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        """The coordinate at a position."""
        raise NotImplementedError

    def locate(self, mode: Mode, coordinate: Expr) -> Expr:
        """The position of a coordinate; only for located levels."""
        raise NotImplementedError

    @property
    def kind_chunk(self) -> int:
        """Of a level with positions of several kinds: how many of them lie in a chunk, in which all kinds have their share; else 0."""
        return 0

    def kind_starts(self, mode: Mode, chunk: Expr, whole: bool = False) -> list[Expr]:
        """Of a level with positions of several kinds: where each of these starts in a chunk, and the end of the last one."""
        raise NotImplementedError

    def determines(self, at: int, missing: frozenset[int]) -> bool:
        """Whether the coordinates of these levels follow from those of the others, this one, which is level ``at``, among them."""
        return False

    def present(self, mode: Mode, position: Expr) -> Expr | None:
        """Whether a position within the bounds holds anything; None where every one does."""
        return None

    def within(self, mode: Mode, coordinate: Expr) -> Expr:
        """Of a level that has every coordinate below some end: whether this is one of them."""
        raise NotImplementedError

    def opened(self, mode: Mode) -> Expr | None:
        """Of a spaced level: the position of a parent's first entry, from which on others are appended; None where each is entered."""
        return None

    def entered(self, mode: Mode, coordinate: Expr) -> Expr | None:
        """Of a spaced level: the position that a coordinate is entered at."""
        return None

    def closed(self, mode: Mode, end: Expr) -> Call | None:
        """Of a spaced level: the call that finishes a parent whose last entry is before ``end``."""
        return None

    def fitted(self, children: np.ndarray, size: int) -> Level:
        """Of a spaced level: the level for parents with so many different coordinates.

        Raises:
            FormatError: it can't store so many.
        """
        return self

    def places(self, children: np.ndarray) -> int:
        """Of a spaced level: how many positions there are for such parents."""
        raise NotImplementedError

    def spread(self, children: np.ndarray) -> Arrays:
        """Of a spaced level: its arrays for such parents, without entries."""
        raise NotImplementedError

    def tell(self, positions: int, entries: int) -> None:
        """Warn of what was stored with so many positions for so many entries, if the level wastes them."""

    def check(self, shape: str) -> None:
        """Refuse parameters that make no sense; ``shape`` is the text of the levels above, outermost first.

        Raises:
            FormatError: they don't.
        """

    def check_below(self, below: Level | None) -> None:
        """Refuse a level below that can't stand there; None is the values.

        Raises:
            FormatError: it can't.
        """

    def fits(self, at: int, sizes: tuple[int, ...]) -> str | None:
        """What is wrong with the extents of the levels, which any arrays have to go with; None if nothing is."""
        return None

    def room(self, entries: Entries) -> int:
        """How many positions packing makes, where they may be far more than the entries: so many are refused before they are made."""
        return 0

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        """The level (whose parameters may follow from the entries), its arrays, each entry's position, and how many there are.

        Raises:
            FormatError: the level can't store these entries.
        """
        raise NotImplementedError

    def count(self, arrays: Arrays, parents: int, size: int) -> int:
        """How many positions there are below so many parents."""
        raise NotImplementedError

    def length(self, parents: int, count: int) -> int:
        """Of a level without ``pos``: how many entries its last array has, for so many parents and positions; one for each position."""
        return count

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        """What is stored below some of the parents."""
        raise NotImplementedError

    def fan(self, size: float) -> float:
        """About how many coordinates a parent has, where no array says it."""
        return size

    def array_dtype(self, name: str) -> str | None:
        """The data type of an array that has one of its own; the others have the tensor's index type."""
        return None


def crd_at(mode: Mode, position: Expr, bits: int) -> Expr:
    """The coordinate stored at a position; narrow unsigned ones are widened, so that differences may be negative."""
    return call("int64", mode.crd[position]) if bits else mode.crd[position]


def check_parameters(level: Level) -> None:
    """Refuse parameters that no text of a format can hold.

    Raises:
        FormatError: one is neither a whole number nor True or False.
    """
    for field in fields(level):
        value = getattr(level, field.name)
        if value is not None and not isinstance(value, Integral):
            raise FormatError(f"{level} is no level: its {field.name} is {value!r}, but parameters are whole numbers, True and False")


def check_bits(level: Level, bits: int) -> None:
    """Refuse widths that no index array has.

    Raises:
        FormatError: it isn't 8 or 16, or 0 for the tensor's own index type.
    """
    if bits not in (0, 8, 16):
        raise FormatError(f"{level}: coordinates take bits=8 or bits=16, or, without it, the tensor's index type")


def check_width(bits: int, size: int) -> None:
    """Refuse a dimension whose coordinates don't fit.

    Raises:
        FormatError: it is too large.
    """
    if bits and size > 1 << bits:
        raise FormatError(f"has coordinates of {bits} bits, but a size of {size}: leave bits out")


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """start, start + 1, ... for each start, so many of each.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(counts)
    numbers: np.ndarray = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + counts, counts)
    return numbers


def times(count: int, size: int) -> int:
    """count * size positions.

    Raises:
        SizeError: int64 can't count them.
    """
    if count * size > INT64_MAX:
        raise SizeError(f"{count} x {size} positions are more than int64 counts: use compressed levels")
    return count * size
