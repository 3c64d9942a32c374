"""In what order, and where: passes from index notation to index notation.

``schedule`` is the compiler's table of contents; each pass is a function in a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..ir.index import Assignment, Stmt
from ..ir.verify import verify
from .branchless_merge import merge_without_branches
from .facts import Facts, Target
from .flat_sums import flatten_sum
from .gallop import gallop
from .loop_order import order_loops
from .options import AUTOMATIC, Options
from .parallel import parallelize
from .scatter_blocks import scatter_blocks
from .scatter_rows import scatter_rows
from .specialize_table import specialize_table
from .tiles import tile
from .unroll_and_jam import unroll_and_jam
from .vector import vectorize
from .workspace import insert_workspaces


@dataclass(frozen=True, slots=True, repr=False)
class Step:
    """A pass, the statement after it, and why it decided so."""

    name: str
    stmt: Stmt
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.stmt}   ({self.why})"

    __repr__ = __str__


Pass = Callable[[Any, Facts, Target, Options], tuple[Stmt, str] | None]
PASSES: tuple[Pass, ...] = (
    order_loops,
    insert_workspaces,
    tile,
    flatten_sum,
    vectorize,
    specialize_table,
    unroll_and_jam,
    gallop,
    scatter_rows,
    merge_without_branches,
    parallelize,
    scatter_blocks,
)


@lru_cache(maxsize=1024)
def schedule(stmt: Assignment, facts: Facts, target: Target, options: Options = AUTOMATIC) -> tuple[Step, ...]:
    """Run the passes on an assignment whose result has its format; the last step holds the loop nest.

    Each pass returns the statement and the reason for what it did or left, or None where it has no say.

    Raises:
        ScheduleError: the options ask for what can't be done.
    """
    nest: Stmt = stmt
    steps = []
    for apply in PASSES:
        if (changed := apply(nest, facts, target, options)) is not None:
            nest, why = changed
            steps.append(Step(apply.__name__, verify(nest), why))
    return tuple(steps)
