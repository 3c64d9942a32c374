"""Assembly: the index arrays of a result whose pattern is new, written in the order of its levels.

The result's coordinates are visited in storage order, so each level is appended to.  Every block of
the outermost loop has a part of each array: one kernel counts what the blocks will append, and
another writes from where the blocks before end.  Before these, where rows are hashed, a third finds
how much may be inserted into one.  Levels form *runs*: a compressed
level with the singletons below it shares their positions, and so one counter.  ``pos`` arrays start
as zeros, and a parent's end is written where it was visited: the running maximum fills the others in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..ir.derived_formats import runs_of
from ..ir.format import Format
from ..ir.index import Access, IndexVar
from ..ir.level import Mode, Segment
from ..ir.loop import Accumulate, Assign, Block, Const, Expr, If, Stmt, Store, Var

Stage = Literal["bound", "room", "once", "count", "fill"]
MOST_ENTRIES = Var("most")
ONE = Const(1)


@dataclass(frozen=True, slots=True)
class Assembly:
    """How one result is assembled: while bounding what is inserted, while counting, or while filling."""

    access: Access
    stage: Stage

    @property
    def bounding(self) -> bool:
        """Whether only insertions are counted: those of the longest row, or, to make room for them, all of them."""
        return self.stage in ("bound", "room")

    @property
    def counting(self) -> bool:
        """Whether nothing is written yet."""
        return self.stage not in ("once", "fill")

    @property
    def format(self) -> Format:
        """The result's format."""
        return self.access.tensor.format

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Its runs, outermost first."""
        return runs_of(self.format)

    @property
    def counters(self) -> list[Var]:
        """The next position of each run, as pC2."""
        return [self._counter(run) for run in self.runs]

    def _counter(self, run: tuple[int, int]) -> Var:
        return Var(f"p{self.access.tensor.name}{run[1] + 1}")

    def _array(self, level: int, which: str) -> Var:
        return Var(f"{self.access.tensor.name}{level + 1}_{which}")

    def enter(self, worker: Expr) -> Block:
        """What is found once for all of a worker's blocks."""
        return ()

    def leave(self, worker: Expr) -> Block:
        """What is kept of all of a worker's blocks."""
        return ()

    def begin(self, block: Expr) -> Block:
        """Where this block's positions start."""
        if self.bounding:
            return (Assign(MOST_ENTRIES, Const(0)),)
        starts = [Const(0) if self.counting else Var("starts")[block * len(self.runs) + at] for at in range(len(self.runs))]
        return tuple(Assign(counter, start) for counter, start in zip(self.counters, starts, strict=True))

    def end(self, block: Expr) -> Block:
        """How many positions this block has."""
        if self.bounding:
            return (Store(Var("bounds"), block, MOST_ENTRIES),)
        if not self.counting:
            return ()
        return tuple(Store(Var("starts"), block * len(self.runs) + at, counter) for at, counter in enumerate(self.counters))

    def place(self, level: int, coords: Mapping[IndexVar, Expr]) -> Expr:
        """The position of the present coordinate in a level."""
        if level < 0:
            return Const(0)
        for run in self.runs:
            if run[0] <= level <= run[1]:
                return self._counter(run)
        return self.format.levels[level].locate(self.mode(level, coords), coords[self.access.level_var(level)])

    def mode(self, level: int, coords: Mapping[IndexVar, Expr]) -> Mode:
        """A level below the present coordinates, for its level functions."""
        variables = [self.access.level_var(at) for at in range(len(self.format.levels))]
        extents = zip(variables, self.format.levels, strict=True)
        sizes = tuple(Var(f"{var}_size") if lv.extent is None else Const(lv.extent) for var, lv in extents)
        outer = tuple(coords[var] for var in variables[:level])
        return Mode(f"{self.access.tensor.name}{level + 1}", level, sizes, outer, Segment(self.place(level - 1, coords)))

    @property
    def appends_values(self) -> bool:
        """Whether each value is appended: no other level lies below the last run."""
        return bool(self.runs) and self.runs[-1][1] == len(self.format.levels) - 1

    def locate_entry(self, coords: Mapping[IndexVar, Expr]) -> Block:
        """What finds the next entry's position, where it is no counter of the block."""
        return ()

    def append(self, coords: Mapping[IndexVar, Expr]) -> Block:
        """Take the last run's position, at the present coordinates."""
        return self._appended(self.runs[-1], coords)

    def append_if(self, is_kept: Expr, coords: Mapping[IndexVar, Expr]) -> Block:
        """The same; an entry that isn't kept leaves the position to the next one."""
        return self._appended(self.runs[-1], coords, is_kept)

    def _appended(self, run: tuple[int, int], coords: Mapping[IndexVar, Expr], step: Expr = ONE) -> Block:
        counter = self._counter(run)
        stores: list[Stmt] = []
        if not self.counting:
            levels = range(run[0], run[1] + 1)
            stores += [Store(self._array(level, "crd"), counter, coords[self.access.level_var(level)]) for level in levels]
        return (*stores, Accumulate(counter, step))

    def around(self, var: IndexVar, coords: Mapping[IndexVar, Expr], body: Block) -> Block:
        """The body of a loop over a variable of the result, with what its level must note before and after it."""
        if var not in self.access.indices or not body or self.bounding:
            return body
        level = self.format.mode_order.index(self.access.indices.index(var))
        body = (*body, *self._marked(level, coords))
        ending = [at for at, run in enumerate(self.runs) if run[1] == level]
        if not ending:
            return (*body, *self._write_pos(level, coords))
        if ending[0] == len(self.runs) - 1:
            return body if self.appends_values else (*body, *self.append(coords))
        if self.runs[ending[0] + 1][0] > level + 1:  # children of dense levels are noted before it is known whether there are any
            return (*body, *self._appended(self.runs[ending[0]], coords))
        below = self._counter(self.runs[ending[0] + 1])
        first = Var(f"{below.name}_first")
        stored = (*self._write_pos(level, coords), *self._appended(self.runs[ending[0]], coords))
        return (Assign(first, below), *body, If(first < below, stored))

    def _marked(self, level: int, coords: Mapping[IndexVar, Expr]) -> Block:
        """Note that there is something at the present position, if the level does."""
        mark = self.format.levels[level].mark
        return () if mark is None or self.counting else (Store(self._array(level, mark), self.place(level, coords), Const(1)),)

    def _write_pos(self, level: int, coords: Mapping[IndexVar, Expr]) -> Block:
        """Where the children of the present position end, if the next level is compressed."""
        for run in self.runs:
            if run[0] == level + 1 and not self.counting:
                return (Store(self._array(run[0], "pos"), self.place(level, coords) + 1, self._counter(run)),)
        return ()
