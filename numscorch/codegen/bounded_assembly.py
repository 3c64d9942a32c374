"""Bounded results: the operands bound the number of entries, so one pass appends the entries without counting them first.

Each worker starts at the upper bound of its predecessors' entry counts; a final pass closes the gaps.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.loop import Assign, Block, Expr, Store, Var
from .result_assembly import Assembly


@dataclass(frozen=True, slots=True)
class Appending(Assembly):
    """Assembly that appends. ``starts`` holds the first position of each worker, and afterwards one past its last position."""

    def in_worker(self, body: Block, worker: Expr) -> Block:
        return (Assign(self.counters[0], Var("starts")[worker]), *body, Store(Var("starts"), worker, self.counters[0]))

    def in_block(self, body: Block, block: Expr) -> Block:
        return body
