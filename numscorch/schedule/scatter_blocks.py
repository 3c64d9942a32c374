"""scatter_blocks: loops that add long sums in memory run in blocks, and the sums of the blocks are added as a tree.

The rounding error of a sum grows with the number of terms that a kernel adds sequentially to one place: the sum of a column of
10^7 terms of 0.1 in float32 has an error of 9 %. After each block, the kernel moves the sums to other places. The cost of these
moves limits the number of blocks. A matrix with many columns and one long column is summed in a wider type (``workspace.is_widened``), or
gets another loop order (``cost.is_uneven``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from ..ir.assembled import around_result
from ..ir.index import (
    Access,
    Assignment,
    Blocks,
    Each,
    Forall,
    IndexVar,
    Parallel,
    Serial,
    Stmt,
    Tile,
    Where,
    is_product,
    map_parts,
    operands_of,
    value_of,
)
from ..ir.workspace_levels import Flagged, Listed
from . import cost, tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target


def scatter_blocks(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Divide the outermost summed loop around a scattered long sum into blocks; returns None if no loop scatters a long sum.

    >>> from ..ir.format import CSR, dense
    >>> from ..ir.index import TensorVar
    >>> from ..ir.notation import parse_stmt
    >>> tensors = {"A": TensorVar("A", CSR), "y": TensorVar("y", dense(1), strides="1")}
    >>> stmt = parse_stmt("forall(i, forall(j, y[j] += A[i,j] * x[i]))", tensors)
    >>> tall = Facts(((IndexVar("i"), 10**6), (IndexVar("j"), 4)), (("A", CSR, (10**6, 4 * 10**6)),))
    >>> print(*scatter_blocks(stmt, tall) or (), sep="\\n")
    block_forall<8192>(i, forall(j, y[j] += A[i,j] * x[i]))
    sums of y have about 1e+06 terms: added in blocks of i
    >>> square = Facts(((IndexVar("i"), 1000), (IndexVar("j"), 1000)), (("A", CSR, (1000, 9000)),))
    >>> scatter_blocks(stmt, square)
    """
    reasons: list[str] = []
    blocked = _Pass(cost.walks_of(operands_of(stmt), facts), not is_product(value_of(stmt)), facts, reasons).blocked(stmt, facts)
    return (blocked, "; ".join(reasons)) if reasons else None


class _Pass:
    """Inserts blocks into a statement, given its sparse operands and facts, and lists the reason for each."""

    def __init__(self, walks: list[cost.SparseWalk], united: bool, facts: Facts, reasons: list[str]):
        self.walks, self.united, self.facts, self.reasons = walks, united, facts, reasons

    def blocked(self, stmt: Stmt, facts: Facts) -> Stmt:
        match stmt:
            case Where() | Forall(tag=Parallel()):
                return map_parts(stmt, partial(self.blocked, facts=facts))
            case Forall(var, body, Tile(size)):
                return replace(stmt, body=self.blocked(body, facts.narrowed(var, size)))
            case Forall(var, body, Serial() | Each()):
                steps, count = cost.iterations(var, self.walks, facts, self.united)[1], self._blocks(stmt, facts)
                if count is None or steps < tuning.SHORT_LOOP:
                    return replace(stmt, body=self.blocked(body, facts))
                body = self.blocked(body, facts) if steps * tuning.COARSE_LOOP < count else body
                return Forall(var, body, Blocks(count))
            case _:
                return stmt

    def _blocks(self, loop: Forall, facts: Facts) -> int | None:
        """The number of blocks of a loop, a power of two; None if the loop adds few terms to each place, or scatters nothing."""
        loops, assignment = around_result(loop)
        if not _is_scattered(assignment, loops):
            return None
        inner = dict.fromkeys(each.var for each in loops)
        places = prod(max(self.facts.extent(var), 1.0) for var in inner if var in assignment.lhs.indices)
        average = cost.executions(inner, self.walks, facts, self.united)[0] / places
        longest = cost.longest_sum([var for var in inner if var not in assignment.lhs.indices], self.walks, self.united, facts)
        longest = longest if longest > tuning.UNEVEN_SUMS * average else average
        most = average / tuning.TERMS_PER_MOVE
        if longest >= tuning.LONG_COLUMN:  # no wider type or other order keeps the sum exact, so moves may take as long as its terms
            most = max(most, min(longest / tuning.BLOCK_OF_LONGEST, average))
        count = int(min(longest / tuning.SCATTERED_BLOCK, most))
        if longest < tuning.LONG_SCATTERED_SUM or count < tuning.FEWEST_BLOCKS:
            return None
        self.reasons.append(f"sums of {assignment.lhs.tensor} have about {longest:.3g} terms: added in blocks of {loop.var}")
        return 1 << count.bit_length() - 1


def _is_scattered(assignment: Assignment, loops: list[Forall]) -> bool:
    """Whether the first of these loops is summed, and the loops add to several adjacent places in memory."""
    lhs = assignment.lhs
    inner = {loop.var for loop in loops}
    if assignment.op != "+=" or loops[0].var in lhs.indices or not inner & set(lhs.indices) or not lhs.tensor.type.is_rounded:
        return False
    if not lhs.tensor.is_dense:
        return isinstance(lhs.tensor.format.levels[0], Flagged | Listed)
    order = in_memory(lhs)
    outer = outer_of(lhs, inner)
    return not lhs.tensor.is_returned and order[: len(outer)] == outer


def in_memory(access: Access) -> list[int]:
    """The dimensions of a dense result that have more than one coordinate, from the largest stride to stride 1."""
    strides = access.tensor.strides
    return sorted((at for at in range(len(access.indices)) if strides[at] != "0"), key=lambda at: strides[at] == "1")


def outer_of(access: Access, inner: set[IndexVar]) -> list[int]:
    """The dimensions of a dense result whose variables are not in ``inner``."""
    return [at for at in in_memory(access) if access.indices[at] not in inner]
