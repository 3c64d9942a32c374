"""Scheduling passes: rewrites of index notation that choose loop order, workspaces, tiles, vectors and threads.

``PASSES`` lists the passes in the order in which :func:`schedule` runs them. Each pass is one function; passes with one
subject share a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..ir.index import Assignment, IndexVar, Stmt
from ..ir.verify import verify
from .block_sums import block_sums
from .facts import AUTOMATIC, Facts, Options, Target, by_answers
from .fuse import fuse, join_loops
from .loop_order import order_loops
from .parallel import divide, parallelize
from .scatter_blocks import scatter_blocks
from .scatter_rows import scatter_rows
from .specialize_table import specialize_table
from .tiles import tile
from .unroll_and_jam import unroll_and_jam
from .value_order import order_values
from .vector import gather_rows, vectorize
from .walks import flatten_sum, gallop, load_ahead, merge_without_branches, visit_positions
from .workspace import insert_workspaces


@dataclass(frozen=True, slots=True, repr=False)
class Step:
    """The name of a pass, the statement after it, and the reason for its decision."""

    name: str
    stmt: Stmt
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.stmt}   ({self.why})"

    __repr__ = __str__


Pass = Callable[[Any, Facts, Target, Options], tuple[Stmt, str] | None]
PASSES: tuple[Pass, ...] = (
    order_loops,
    visit_positions,
    insert_workspaces,
    tile,
    flatten_sum,
    vectorize,
    gather_rows,
    join_loops,
    specialize_table,
    unroll_and_jam,
    gallop,
    scatter_rows,
    merge_without_branches,
    parallelize,
    scatter_blocks,
    divide,
    order_values,
    block_sums,
    load_ahead,
)


@by_answers
def schedule(
    stmt: Assignment,
    facts: Facts,
    target: Target,
    options: Options = AUTOMATIC,
    members: tuple[Assignment, ...] = (),
    outer: tuple[IndexVar, ...] = (),
) -> tuple[Step, ...]:
    """Run the passes on an assignment whose result format is chosen; the last step holds the loop nest.

    ``members`` are fused statements that run before the assignment; all of them share the loops over ``outer``. Each pass returns
    a statement and the reason for its decision, or None if it does not apply.

    Raises:
        ScheduleError: the schedule of the options is impossible.
    """
    nest: Stmt = stmt
    steps = []
    if outer:
        nest, why = fuse((*members, stmt), outer, facts)
        steps.append(Step("fuse", verify(nest), why))
    for apply in PASSES:
        if (changed := apply(nest, facts, target, options)) is not None:
            nest, why = changed
            steps.append(Step(apply.__name__, verify(nest), why))
    return tuple(steps)
