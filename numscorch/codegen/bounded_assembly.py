"""Bounded results: no more entries than the operands have, so that one pass appends them, and nothing is counted before.

Each worker appends from where as many entries would end as its predecessors can have; what they left free is closed up afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.loop import Assign, Block, Expr, Store, Var
from .result_assembly import Assembly


@dataclass(frozen=True, slots=True)
class Appending(Assembly):
    """How the result is appended to: ``starts`` has where each worker's entries start, and in the end, where they ended."""

    def enter(self, worker: Expr) -> Block:
        return (Assign(self.counters[0], Var("starts")[worker]),)

    def leave(self, worker: Expr) -> Block:
        return (Store(Var("starts"), worker, self.counters[0]),)

    def begin(self, block: Expr) -> Block:
        return ()

    def end(self, block: Expr) -> Block:
        return ()
