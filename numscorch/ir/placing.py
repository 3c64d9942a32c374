"""Placed results: sparse results whose entries come in another order than they are stored in.

Such a result has dense levels, and below them one run of sparse ones. Its entries are visited twice: the first time,
those below each parent are counted, and from where they then start, each one is put in its place the second time.
Below one parent they come in the order of the loops, so nothing needs to be sorted (Gustavson, "Two Fast Algorithms
for Sparse Matrices: Multiplication and Permuted Transposition", 1978).
"""

from __future__ import annotations

from collections.abc import Sequence

from .derived_formats import runs_of
from .format import Format
from .index import Access, Forall, IndexVar, Stmt, Tile, operands_of, result_of


def can_be_placed(fmt: Format) -> bool:
    """Whether a format is a run of sparse levels below dense ones.

    >>> [can_be_placed(Format(text)) for text in ("ds", "dds", "dd", "ss", "sd", "oo", "doo")]
    [True, True, False, False, False, False, True]
    """
    runs = runs_of(fmt)
    return len(runs) == 1 and runs[0][0] > 0 and runs[0][1] == len(fmt.levels) - 1


def is_placed(stmt: Stmt) -> bool:
    """Whether the loops reach a result's levels in another order than they are stored in, in which they may be placed."""
    result, order = result_of(stmt), list[IndexVar]()
    if not result.tensor.is_assembled or not can_be_placed(result.tensor.format):
        return False
    inner = stmt
    while isinstance(inner, Forall):
        order += [] if isinstance(inner.tag, Tile) else [inner.var]
        inner = inner.body
    sparse = [access for access in operands_of(stmt) if not access.tensor.is_dense]
    return not in_storage_order(result, order) and may_be_placed(result, sparse, order)


def may_be_placed(result: Access, operands: Sequence[Access], order: Sequence[IndexVar]) -> bool:
    """Whether loops over just the result's variables reach its entries below each parent in their order."""
    levels = result.tensor.format.levels
    if set(order) != set(result.indices) or not can_be_placed(result.tensor.format):
        return False
    run = [result.level_var(at) for at, level in enumerate(levels) if not level.full]
    if [var for var in order if var in run] != run:
        return False
    read = [level for a in operands for at, level in enumerate(a.tensor.format.levels) if a.level_var(at) in run]
    return all(level.is_ordered for level in read) or not levels[-1].is_ordered


def in_storage_order(result: Access, order: Sequence[IndexVar]) -> bool:
    """Whether loops in this order reach a result's levels from the top down."""
    own = [var for var in order if var in result.indices]
    return own == [result.level_var(at) for at in range(len(result.indices))]
