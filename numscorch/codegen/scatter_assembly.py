"""Placed results: entries arrive out of storage order, and each is written to its final position.

``heads`` has a number for each worker and each parent of the result's sparse levels. While counting, it is the number of the
worker's entries below the parent. While filling, it is the position of the next such entry. Each worker runs the same blocks
in both stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..ir.index import IndexVar
from ..ir.loop import Assign, Block, Const, Expr, Stmt, Store, Var
from .result_assembly import Assembly


@dataclass(frozen=True, slots=True)
class Placement(Assembly):
    """Assembly that places the entries of a result, while counting or while filling."""

    def in_block(self, body: Block, block: Expr) -> Block:
        return body

    def around(self, var: IndexVar, coords: Mapping[IndexVar, Expr], body: Block) -> Block:
        return body

    @property
    def heads(self) -> Var:
        """The worker's part of the array, such as C_heads."""
        return Var(f"{self.access.tensor.name}_heads")

    def locate_entry(self, coords: Mapping[IndexVar, Expr]) -> Block:
        """Load the position of the next entry below its parent."""
        ((first, _),) = self.runs
        return () if self.counting else (Assign(self.counters[0], self.heads[self.place(first - 1, coords)]),)

    def append(self, coords: Mapping[IndexVar, Expr]) -> Block:
        ((first, last),) = self.runs
        parent = self.place(first - 1, coords)
        if self.counting:
            return (Store(self.heads, parent, Const(1), add=True),)
        stores: list[Stmt] = [
            Store(self._array(at, "crd"), self.counters[0], coords[self.access.level_var(at)]) for at in range(first, last + 1)
        ]
        return (*stores, Store(self.heads, parent, self.counters[0] + 1))
