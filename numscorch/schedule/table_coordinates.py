"""Coordinates that are constants: which operand of a statement has some, in which order of its loops."""

from __future__ import annotations

from ..ir.index import Access, Assignment, IndexVar, accesses_in, factors_of, is_product
from . import tuning
from .workspace import moved_by


def chosen_by_table(stmt: Assignment, order: tuple[IndexVar, ...]) -> Access | None:
    """The operand of a sum of products whose last level's coordinates are constants, for each kind of positions of the level
    above, where these two are the loops around the innermost one, over columns that are summed and rows of the result; None if
    there is none, or another operand leaves out some of the same coordinates.
    """
    if len(order) < 3 or not is_product(stmt.rhs) or not stmt.lhs.tensor.is_dense:
        return None
    columns, rows, lanes = order[-3:]
    result, read = stmt.lhs.indices, accesses_in(stmt.rhs)
    walked = [a for a in read if not a.tensor.is_dense and {columns, rows, lanes} & set(a.indices)]
    if columns in result or rows not in result or lanes not in result or len(walked) != 1 or lanes in walked[0].indices:
        return None
    levels = walked[0].tensor.format.levels
    own = len(levels) >= 2 and (walked[0].level_var(len(levels) - 2), walked[0].level_var(len(levels) - 1)) == (columns, rows)
    apart = all(rows not in moved_by(factor) for factor in factors_of(stmt.rhs) if factor != walked[0])
    return walked[0] if own and apart and 0 < sum(map(len, levels[-1].constants)) <= tuning.MOST_COPIES else None
