"""Spaced results: each parent has room for its entries, whose number is known before they are copied.

A padded level appends the entries of each parent and then fills the rest of its room. A hash table enters entries one by one.
The result has one such level, below a dense level; any levels below it are dense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..ir.format import Format
from ..ir.index import IndexVar
from ..ir.level import Level, Mode
from ..ir.loop import Accumulate, Assign, Block, Const, Do, Expr, Store
from .result_assembly import Assembly


def is_spaced(format: Format) -> bool:
    """Whether a format has a level that reserves room for each parent.

    >>> is_spaced(Format("(i, j) -> (i: dense, j: hash)")), is_spaced(Format("ds"))
    (True, False)
    """
    return any(level.spaced for level in format.levels)


@dataclass(frozen=True, slots=True)
class Spacing(Assembly):
    """Assembly that writes the entries of each parent into its room."""

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

    def append(self, coords: Mapping[IndexVar, Expr]) -> Block:
        mode, coordinate = self._current(coords)
        if self._level.entered(mode, coordinate) is not None:
            return ()
        return (Store(mode.crd, self.counters[0], coordinate), Accumulate(self.counters[0], Const(1)))

    @property
    def _level(self) -> Level:
        return self.format.levels[1]

    def _current(self, coords: Mapping[IndexVar, Expr]) -> tuple[Mode, Expr]:
        return self.mode(1, coords), coords[self.access.level_var(1)]
