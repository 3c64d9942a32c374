"""The interface of level formats: how one coordinate of a tensor's entries is stored.

A level is a small frozen class with three tasks. It declares properties, which the code generator consults instead of
the class. It implements the level functions in loop IR (Chou, Kjolstad, Amarasinghe, "Format Abstraction for Sparse
Tensor Algebra Compilers", OOPSLA 2018, section 3). It packs and unpacks its own arrays.

A *position* is an index into a level's arrays, a *coordinate* is a value of an index variable. The parent of a level is
a :class:`Segment` of positions: a single position or, below a level with repeated coordinates, the run of positions with
equal coordinates.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from numbers import Integral
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from ..errors import FormatError, SizeError
from .loop import Call, Expr, Var

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """The positions begin, ..., end - 1 of a level; ``end`` is None for a single position."""

    begin: Expr
    end: Expr | None = None

    @property
    def stop(self) -> Expr:
        """One past the last position."""
        return self.begin + 1 if self.end is None else self.end


@dataclass(frozen=True, slots=True)
class Mode:
    """One level of one access, at one place of a loop nest: the argument of the level functions.

    Args:
        name: the name of the access followed by the number of the level, from 1, such as ``A2``.
        at: the index of the level in ``sizes``, from 0.
        sizes: the extents of all levels.
        outer: the coordinates of the levels above.
        parent: the positions of the parent.
    """

    name: str
    at: int
    sizes: tuple[Expr, ...]
    outer: tuple[Expr, ...]
    parent: Segment

    @property
    def tensor(self) -> str:
        """The name of the access."""
        return self.name.rstrip("0123456789")

    @property
    def size(self) -> Expr:
        """The level's extent."""
        return self.sizes[self.at]

    def array(self, name: str) -> Var:
        """The level's index array that is called ``name``."""
        return Var(f"{self.name}_{name}")

    @property
    def values(self) -> Var:
        """The tensor's values."""
        return Var(f"{self.tensor}_vals")

    @property
    def pos(self) -> Var:
        """The array ``pos``: the first position below each parent, followed by the number of positions."""
        return self.array("pos")

    @property
    def crd(self) -> Var:
        """The array ``crd``: the coordinate at each position."""
        return self.array("crd")


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries that a level packs, in storage order.

    Args:
        coordinates: the coordinates in this level, of shape (entries,).
        first: marks the entries that get a new position; the other entries repeat the coordinates of their predecessor.
        parents: the positions in the level above, of shape (entries,).
        count: the number of positions in the level above.
        at: the index of the level in ``sizes``, from 0.
        sizes: the extents of all levels.
        outer: the coordinates in the levels above.
        below: the coordinates in the levels below.
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
        """The number of different coordinates below each parent."""
        return np.bincount(self.parents[self.first], minlength=self.count)


@dataclass(frozen=True, slots=True)
class Parents:
    """Parents to unpack: their positions, their coordinates (``outer``), and the extents of all levels."""

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
    """The children of parents: how many each parent has (or one number for all), and all their coordinates and positions in order."""

    counts: np.ndarray | int
    coordinates: np.ndarray
    positions: np.ndarray


@dataclass(frozen=True, slots=True)
class Level:
    """The base class of level formats.

    The level functions from ``bounds`` to ``closed`` return loop IR. The functions below them work on NumPy arrays.

    A new level needs six members: ``arrays``, ``bounds``, ``coordinate``, ``pack``, ``unpack``, and ``locate`` if it is full or located.
    All others have defaults.

    Attributes:
        spelling: name in the text of a format; by default the name of the class in lower case.
        letter: name in the short text of a format, for dense, compressed and coordinate levels.
        full: every coordinate has a position, so that the level is located, not iterated.
        branchless: exactly one position lies below each position of the parent.
        arrays: names of the index arrays.
        appended: coordinates can be appended, one parent after another.
        gaps: some positions may hold no entry.
        padded: positions without an entry may be stored as zeros.
        located: positions are computed from the parent's position and the coordinates.
        ends: stores nothing and has every coordinate below a bound: see ``within``.
        mark: name of the array that is 1 where an entry is stored.
        spaced: the capacity of each parent depends on its number of coordinates.
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

    def __init_subclass__(cls) -> None:
        if "spelling" not in cls.__dict__:
            cls.spelling = cls.__name__.lower()

    @property
    def is_located(self) -> bool:
        """Whether positions are computed from the parent's position and the coordinates."""
        return self.full or self.located

    @property
    def is_ordered(self) -> bool:
        """Whether coordinates increase along the positions of a parent."""
        return True

    @property
    def is_unique(self) -> bool:
        """Whether the coordinates below one parent are all different."""
        return True

    @property
    def extent(self) -> int | None:
        """The extent, if the level fixes it."""
        return None

    @property
    def constants(self) -> tuple[tuple[int, ...], ...]:
        """For each kind of position in the level above, the coordinates below it; empty if they are known only at run time."""
        return ()

    @property
    def alone(self) -> Level:
        """An equivalent level that does not depend on how the level above stores its coordinates."""
        return self

    def __str__(self) -> str:
        arguments: list[str] = []
        for at, field in enumerate(fields(self)):
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                is_keyword = isinstance(value, bool) or at > len(arguments) or field.name == "bits"
                arguments.append(f"{field.name}={value}" if is_keyword else str(value))
        return f"{self.spelling}({', '.join(arguments)})" if arguments else self.spelling

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        """The first position below the parent, and one past the last position; the two are equal if there are no positions."""
        raise missing_method(self, "bounds")

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        """The coordinate at a position."""
        raise missing_method(self, "coordinate")

    def locate(self, mode: Mode, coordinate: Expr) -> Expr:
        """The position of a coordinate, for located levels."""
        raise missing_method(self, "locate")

    @property
    def kind_chunk(self) -> int:
        """The number of positions in a chunk, which contains positions of all kinds; 0 if the level has one kind only."""
        return 0

    def kind_starts(self, mode: Mode, chunk: Expr, whole: bool = False) -> list[Expr]:
        """The first position of each kind in a chunk, and the end of the last kind. ``whole``: the chunk is not the last, shorter one."""
        raise missing_method(self, "kind_starts")

    def determines(self, at: int, missing: frozenset[int]) -> bool:
        """Whether this level, number ``at``, computes the coordinates of the levels ``missing`` from the other levels' coordinates."""
        return False

    def present(self, mode: Mode, position: Expr) -> Expr | None:
        """Whether a position within the bounds holds an entry; None if every position does."""
        return None

    def within(self, mode: Mode, coordinate: Expr) -> Expr:
        """For a level with ``ends``: whether a coordinate is below the bound."""
        raise missing_method(self, "within")

    def entered(self, mode: Mode, coordinate: Expr) -> Expr | None:
        """For a spaced level: the call that inserts a coordinate and returns its position; None if entries are appended."""
        return None

    def closed(self, mode: Mode, end: Expr) -> Call | None:
        """For a spaced level: the call that pads a parent whose entries end at ``end``; None if ``entered`` chooses positions."""
        return None

    def fitted(self, children: np.ndarray, size: int) -> Level:
        """For a spaced level: the level with parameters that suit ``children``, the number of coordinates of each parent.

        Raises:
            FormatError: the level cannot store that many coordinates.
        """
        return self

    def places(self, children: np.ndarray) -> int:
        """For a spaced level: the number of positions, given the number of coordinates of each parent."""
        raise missing_method(self, "places")

    def spread(self, children: np.ndarray) -> Arrays:
        """For a spaced level: its arrays without entries, given the number of coordinates of each parent."""
        raise missing_method(self, "spread")

    def tell(self, positions: int, entries: int) -> None:
        """Warn if the level has far more positions than entries. Called after packing and converting."""

    def check(self, shape: str) -> None:
        """Check the parameters; ``shape`` is the text of the levels above, outermost first.

        Raises:
            FormatError: the parameters are invalid.
        """

    def fits(self, at: int, sizes: tuple[int, ...]) -> str | None:
        """The error text if the level does not support these extents, else None."""
        return None

    def room(self, entries: Entries) -> int:
        """The number of positions that packing allocates, if it may far exceed the entries; else 0. It is checked before packing."""
        return 0

    def check_entries(self, entries: Entries) -> None:
        """Check that the level supports the extents and has a position for each entry. Called before packing.

        Raises:
            FormatError: the level does not.
        """
        if (problem := self.fits(entries.at, entries.sizes)) is not None:
            raise FormatError(problem)

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        """Pack entries.

        Returns:
            The level, whose parameters may depend on the entries; its arrays; the position of each entry; the number of positions.

        Raises:
            FormatError: the level cannot store these entries.
        """
        raise missing_method(self, "pack")

    def count(self, arrays: Arrays, parents: int, size: int) -> int:
        """The number of positions below ``parents`` parents; by default, the length of the last array."""
        return len(arrays[-1])

    def length(self, parents: int, count: int) -> int:
        """For a level without ``pos``: the length of its last array, given the numbers of parents and of positions."""
        return count

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        """The children of the given parents."""
        raise missing_method(self, "unpack")

    def fan(self, size: float) -> float:
        """An estimate of the number of coordinates below a parent, for cost models."""
        return size

    def array_dtype(self, name: str) -> str | None:
        """The data type of an index array if the level fixes it; None if the array has the tensor's index type."""
        return None


def missing_method(level: Level, method: str) -> NotImplementedError:
    """The error for a level that lacks a method that the formats or loops with it need."""
    return NotImplementedError(f"{type(level).__name__} has no method {method}: a class derived from Level must define it")


def check_parameters(level: Level) -> None:
    """Check that the parameters of a level can be written in the text of a format.

    Raises:
        FormatError: a parameter is neither an integer nor a bool.
    """
    for field in fields(level):
        value = getattr(level, field.name)
        if value is not None and not isinstance(value, Integral):
            raise FormatError(f"{level} is not a level: its {field.name} is {value!r}, but parameters are whole numbers, True and False")


def check_width(bits: int, size: int) -> None:
    """Check that the coordinates of a dimension fit into a number of bits.

    Raises:
        FormatError: the dimension is too large.
    """
    if bits and size > 1 << bits:
        raise FormatError(f"has {bits}-bit coordinates, but a size of {size}: leave bits out")


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The concatenated ranges start, ..., start + count - 1, in the data type of ``starts``.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(counts, dtype=starts.dtype)  # may wrap if it is int32, but the sums below do not
    return np.repeat(starts - ends + counts, counts) + np.arange(counts.sum(), dtype=starts.dtype)


def starts_of_runs(lengths: np.ndarray, dtype: DTypeLike = np.int64) -> np.ndarray:
    """Where each run starts if runs with these lengths follow one another, and where the last run ends.

    >>> starts_of_runs(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    starts = np.zeros(len(lengths) + 1, dtype)
    np.cumsum(lengths, out=starts[1:])
    return starts


def times(count: int, size: int) -> int:
    """The number of positions, count * size.

    Raises:
        SizeError: it exceeds int64.
    """
    if count * size > INT64_MAX:
        raise SizeError(f"{count} x {size} positions exceed int64: use compressed levels")
    return count * size
