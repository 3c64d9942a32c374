"""Assembly: write the index arrays of a result with a new pattern, in the order of its levels.

Loops visit the result's coordinates in storage order, so each level is appended to. Each block of the outermost loop owns a
part of each array. One kernel counts the entries of each block. The next kernel writes each block's entries after those of
the previous block. If rows are hashed, an earlier kernel finds the largest number of insertions into one row.

Levels form *runs*: a compressed level and the singletons below it share positions, and so one counter. ``pos`` arrays start
as zeros, and each visited parent stores its end. A running maximum then fills in the parents that were not visited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..ir.derived_formats import runs_of
from ..ir.format import Format
from ..ir.index import Access, IndexVar
from ..ir.level import Level, Mode, Segment
from ..ir.loop import Accumulate, Assign, Block, Const, Do, Expr, If, Store, Var, add

Stage = Literal["bound", "room", "once", "count", "fill"]
MOST_ENTRIES = Var("most")
ONE = Const(1)


def mode_of(access: Access, level: int, coords: Mapping[IndexVar, Expr], parent: Segment) -> Mode:
    """Return the argument of the level functions for a level of an access, below known coordinates."""
    variables = [access.level_var(at) for at in range(len(access.tensor.format.levels))]
    extents = zip(variables, access.tensor.format.levels, strict=True)
    sizes = tuple(Var(f"{var}_size") if lv.extent is None else Const(lv.extent) for var, lv in extents)
    return Mode(f"{access.tensor.name}{level + 1}", level, sizes, tuple(coords[var] for var in variables[:level]), parent)


@dataclass(frozen=True, slots=True)
class Assembly:
    """How one stage assembles a result: by bounding the insertions, counting the entries, or filling the arrays.

    A result without a new pattern needs no assembly: it has no runs, and the positions of its entries are known.
    """

    access: Access
    stage: Stage

    @property
    def bounding(self) -> bool:
        """Whether the stage only counts insertions: the maximum per row (``bound``), or the total (``room``)."""
        return self.stage in ("bound", "room")

    @property
    def counting(self) -> bool:
        """Whether the stage writes no entries."""
        return self.stage not in ("once", "fill")

    @property
    def format(self) -> Format:
        """The result's format."""
        return self.access.tensor.format

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The result's runs, outermost first; empty unless its pattern is new."""
        return runs_of(self.format) if self.access.tensor.is_assembled else []

    @property
    def counters(self) -> list[Var]:
        """The variables with the next position of each run, such as pC2."""
        return [self._counter(run) for run in self.runs]

    def _counter(self, run: tuple[int, int]) -> Var:
        return Var(f"p{self.access.tensor.name}{run[1] + 1}")

    def _array(self, level: int, which: str) -> Var:
        return Var(f"{self.access.tensor.name}{level + 1}_{which}")

    def in_block(self, body: Block, block: Expr) -> Block:
        """Wrap the body of a block in code that initialises the counters and, in the counting stage, stores them at the end."""
        if self.bounding:
            return (Assign(MOST_ENTRIES, Const(0)), *body, Store(Var("bounds"), block, MOST_ENTRIES))
        slots = [(counter, block * len(self.runs) + at) for at, counter in enumerate(self.counters)]
        if self.counting:
            stores = (Store(Var("starts"), slot, counter) for counter, slot in slots)
            return (*(Assign(counter, Const(0)) for counter in self.counters), *body, *stores)
        return (*(Assign(counter, Var("starts")[slot]) for counter, slot in slots), *body)

    def place(self, level: int, coords: Mapping[IndexVar, Expr]) -> Expr:
        """Return the position of the current coordinate in a level."""
        if level < 0:
            return Const(0)
        for run in self.runs:
            if run[0] <= level <= run[1]:
                return self._counter(run)
        return self.format.levels[level].locate(self.mode(level, coords), coords[self.access.level_var(level)])

    def mode(self, level: int, coords: Mapping[IndexVar, Expr]) -> Mode:
        """Return the argument of the level functions for a level, below the current coordinates."""
        return mode_of(self.access, level, coords, Segment(self.place(level - 1, coords)))

    @property
    def appends_values(self) -> bool:
        """Whether each value is appended, because no other level lies below the last run."""
        return bool(self.runs) and self.runs[-1][1] == len(self.format.levels) - 1

    def locate_entry(self, coords: Mapping[IndexVar, Expr]) -> Block:
        """Return the code that computes the next entry's position; empty if one of the block's counters is that position."""
        return ()

    def append(self, coords: Mapping[IndexVar, Expr], is_kept: Expr = ONE) -> Block:
        """Append an entry to the last run, at the current coordinates. If ``is_kept`` is 0, the next entry overwrites this one."""
        return self._append_to(self.runs[-1], coords, is_kept)

    def _append_to(self, run: tuple[int, int], coords: Mapping[IndexVar, Expr], step: Expr = ONE) -> Block:
        stores = () if self.counting else self._store_coordinates(run, coords)
        return (*stores, Accumulate(self._counter(run), step))

    def _store_coordinates(self, run: tuple[int, int], coords: Mapping[IndexVar, Expr]) -> Block:
        """Store the current coordinates at the next position of a run."""
        levels = range(run[0], run[1] + 1)
        return tuple(Store(self._array(level, "crd"), self._counter(run), coords[self.access.level_var(level)]) for level in levels)

    def around(self, var: IndexVar, coords: Mapping[IndexVar, Expr], body: Block) -> Block:
        """Wrap the body of a loop over a variable of the result in the code that its level needs."""
        if var not in self.access.indices or not body or self.bounding or not self.access.tensor.is_assembled:
            return body
        level = self.format.mode_order.index(self.access.indices.index(var))
        body = (*body, *self._mark(level, coords))
        run_ends = [at for at, run in enumerate(self.runs) if run[1] == level]
        if not run_ends:
            return (*body, *self._write_pos(level, coords))
        if run_ends[0] == len(self.runs) - 1:
            return body if self.appends_values else (*body, *self.append(coords))
        if self.runs[run_ends[0] + 1][0] > level + 1:  # a dense level stores its coordinates even without entries
            return (*body, *self._append_to(self.runs[run_ends[0]], coords))
        below = self._counter(self.runs[run_ends[0] + 1])
        first = Var(f"{below.name}_first")
        stores = (*self._write_pos(level, coords), *self._append_to(self.runs[run_ends[0]], coords))
        return (Assign(first, below), *body, If(first < below, stores))

    def _mark(self, level: int, coords: Mapping[IndexVar, Expr]) -> Block:
        """Mark the current position as stored, if the level has a mark array."""
        mark = self.format.levels[level].mark
        return () if mark is None or self.counting else (Store(self._array(level, mark), self.place(level, coords), Const(1)),)

    def _write_pos(self, level: int, coords: Mapping[IndexVar, Expr]) -> Block:
        """Store the end of the current position's children, if the next level is compressed."""
        for run in self.runs:
            if run[0] == level + 1 and not self.counting:
                return (Store(self._array(run[0], "pos"), self.place(level, coords) + 1, self._counter(run)),)
        return ()


@dataclass(frozen=True, slots=True)
class Appending(Assembly):
    """Assembly of a result whose number of entries is bounded in advance: one pass appends them without counting them first.

    Each worker runs one block. ``starts`` first holds an upper bound of the block's first position; afterwards, it holds one past
    the block's last position.
    The gaps between blocks are closed at the end.
    """

    def in_block(self, body: Block, block: Expr) -> Block:
        start, (counter,) = Var("starts")[block], self.counters
        return (Assign(counter, start), *body, Store(Var("starts"), block, counter))


@dataclass(frozen=True, slots=True)
class Placement(Assembly):
    """Assembly of entries that arrive out of storage order: each is written to its final position.

    ``heads`` has an element for each worker and each parent of the result's sparse levels. In the counting stage, the element is
    the number of the worker's entries below the parent; in the filling stage, it is the position of the next such entry. Each
    worker runs the same blocks in both stages.
    """

    def in_block(self, body: Block, block: Expr) -> Block:
        return body

    def around(self, var: IndexVar, coords: Mapping[IndexVar, Expr], body: Block) -> Block:
        return body

    @property
    def heads(self) -> Var:
        """The worker's part of the array, such as C_next."""
        return Var(f"{self.access.tensor.name}_next")

    def locate_entry(self, coords: Mapping[IndexVar, Expr]) -> Block:
        """Load the position of the next entry below its parent."""
        ((first, _),) = self.runs
        return () if self.counting else (Assign(self.counters[0], self.heads[self.place(first - 1, coords)]),)

    def append(self, coords: Mapping[IndexVar, Expr], is_kept: Expr = ONE) -> Block:
        (run,) = self.runs
        parent = self.place(run[0] - 1, coords)
        if self.counting:
            return (Store(self.heads, parent, is_kept, add=True),)
        return (*self._store_coordinates(run, coords), Store(self.heads, parent, add(self._counter(run), is_kept)))


def is_spaced(format: Format) -> bool:
    """Whether a format has a level that reserves room for each parent.

    >>> is_spaced(Format("(i, j) -> (i: dense, j: hash)")), is_spaced(Format("ds"))
    (True, False)
    """
    return any(level.spaced for level in format.levels)


@dataclass(frozen=True, slots=True)
class Spacing(Assembly):
    """Assembly of copies to levels that reserve room for each parent, since the number of entries is known.

    A padded level appends the entries of each parent and then fills the rest of its room. A hash table enters entries one by
    one. The result has one such level, below a dense level; any levels below it are dense.
    """

    def in_block(self, body: Block, block: Expr) -> Block:
        return body

    def around(self, var: IndexVar, coords: Mapping[IndexVar, Expr], body: Block) -> Block:
        at = self.access.indices.index(var)
        if at == 1:
            return body if self.appends_values else (*self.locate_entry(coords), *body, *self.append(coords))
        if at > 1:
            return body
        mode = self.mode(1, coords)
        closing = self._level.closed(mode, self.counters[0])
        return body if closing is None else (Assign(self.counters[0], self._level.bounds(mode)[0]), *body, Do(closing))

    def locate_entry(self, coords: Mapping[IndexVar, Expr]) -> Block:
        """Enter the next entry into a hash table and assign its position. A padded level needs no such code."""
        place = self._level.entered(*self._current(coords))
        return () if place is None else (Assign(self.counters[0], place),)

    def append(self, coords: Mapping[IndexVar, Expr], is_kept: Expr = ONE) -> Block:
        mode, coordinate = self._current(coords)
        if self._level.entered(mode, coordinate) is not None:
            return ()
        return (Store(mode.crd, self.counters[0], coordinate), Accumulate(self.counters[0], is_kept))

    @property
    def _level(self) -> Level:
        return self.format.levels[1]

    def _current(self, coords: Mapping[IndexVar, Expr]) -> tuple[Mode, Expr]:
        return self.mode(1, coords), coords[self.access.level_var(1)]
