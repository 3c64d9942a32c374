"""In what order, and where: passes from index notation to index notation.

``schedule`` is the compiler's table of contents; each pass is a function in a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..ir.index import Assignment, Stmt
from ..ir.verify import verify
from .branchless_merge import blend
from .facts import Facts, Target
from .flat_sums import walk_entries
from .gallop import gallop
from .loop_order import order_loops
from .options import AUTOMATIC, Options
from .parallel import parallelize
from .scatter_blocks import scatter_blocks
from .scatter_rows import lay_out
from .specialize_table import hold
from .tiles import tile
from .unroll_and_jam import jam
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


@lru_cache(maxsize=1024)
def schedule(stmt: Assignment, facts: Facts, target: Target, options: Options = AUTOMATIC) -> tuple[Step, ...]:
    """Run the passes on an assignment whose result has its format; the last step holds the loop nest.

    Raises:
        ScheduleError: the options ask for what can't be done.
    """
    steps = []

    def note(name: str, stmt: Stmt, why: str) -> Stmt:
        steps.append(Step(name, verify(stmt), why))
        return stmt

    nest = note("order_loops", *order_loops(stmt, facts, target, options.order))
    nest = note("insert_workspaces", *insert_workspaces(nest, facts, options.workspace))
    nest = note("tile", *tile(nest, facts, target, options.tile))
    if options.vector is None and (walked := walk_entries(nest, facts, target)):
        nest = note("walk_entries", *walked)
    else:
        nest = note("vectorize", *vectorize(nest, facts, target, options.vector))
    if held := hold(nest, facts, target, options.tile is None):
        nest = note("hold", *held)
    if options.order is None and options.tile is None and (jammed := jam(nest, facts, target)):
        nest = note("jam", *jammed)
    if steered := gallop(nest, facts):
        nest = note("gallop", *steered)
    if laid := lay_out(nest, facts):
        nest = note("lay_out", *laid)
    if merged := blend(nest, facts):
        nest = note("blend", *merged)
    nest = note("parallelize", *parallelize(nest, facts, options.parallel))
    if cut := scatter_blocks(nest, facts):
        nest = note("scatter_blocks", *cut)
    return tuple(steps)
