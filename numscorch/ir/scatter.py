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
from .index import Access, Forall, IndexVar, Specialize, Stmt, Tile, is_relation, operands_of, result_of


def can_be_placed(fmt: Format) -> bool:
    """Whether a format is a run of sparse levels below dense ones.

    >>> [can_be_placed(Format(text)) for text in ("ds", "dds", "dd", "ss", "sd", "oo", "doo")]
    [True, True, False, False, False, False, True]
    """
    runs = runs_of(fmt)
    if len(runs) != 1 or runs[0][0] == 0 or runs[0][1] < len(fmt.levels) - 1:
        return False
    return fmt.levels[runs[0][0]].appended and all(level.full for level in fmt.levels[: runs[0][0]])


def is_placed(stmt: Stmt) -> bool:
    """Whether the loops reach a result's levels in another order than they are stored in, in which they may be placed."""
    result, order = result_of(stmt), list[IndexVar]()
    if not result.tensor.is_assembled or not can_be_placed(result.tensor.format):
        return False
    inner = stmt
    while isinstance(inner, Forall):
        order += [] if isinstance(inner.tag, Tile) or inner.tag == Specialize("tiles") else [inner.var]
        inner = inner.body
    sparse = [access for access in operands_of(stmt) if not access.tensor.is_dense]
    return may_be_placed(result, sparse, order) and not in_storage_order(result, sparse, order)


def may_be_placed(result: Access, operands: Sequence[Access], order: Sequence[IndexVar]) -> bool:
    """Whether loops that visit each of the result's entries once reach those below each parent in their order."""
    if not visits_once(result, operands, order) or not can_be_placed(result.tensor.format):
        return False
    run = run_to_place(result)
    if [var for var in order if var in run] != run:
        return False
    known = set(result.indices)
    known |= _determined(operands, known - set(run))
    read = [(a, at, level) for a in operands for at, level in enumerate(a.tensor.format.levels) if a.level_var(at) in run]
    return all(level.is_ordered and (level.branchless or known >= _above(a, at)) for a, at, level in read)


def _above(access: Access, level: int) -> set[IndexVar]:
    """The variables of the levels above a level."""
    return {access.level_var(at) for at in range(level)}


def run_to_place(result: Access) -> list[IndexVar]:
    """The variables whose coordinates come in order below a parent: those of the sparse levels, unless these have none."""
    levels = result.tensor.format.levels
    sparse = [at for at, level in enumerate(levels) if not level.full]
    return [result.level_var(at) for at in sparse] if all(levels[at].is_ordered for at in sparse) else []


def visits_once(result: Access, operands: Sequence[Access], variables: Sequence[IndexVar]) -> bool:
    """Whether loops over these variables visit each entry of the result once: the other variables follow from its own."""
    known, used = set(result.indices), set(variables)
    return known <= used and used - known <= _determined(operands, known)


def _determined(operands: Sequence[Access], known: set[IndexVar]) -> set[IndexVar]:
    """The variables that follow from known ones, as a diagonal from its row and column."""
    determined: set[IndexVar] = set()
    for access in operands:
        levels = access.tensor.format.levels
        missing = frozenset(at for at in range(len(levels)) if access.level_var(at) not in known)
        if missing and any(level.determines(at, missing) for at, level in enumerate(levels)):
            determined |= {access.level_var(at) for at in missing}
    return determined


def in_storage_order(result: Access, operands: Sequence[Access], order: Sequence[IndexVar]) -> bool:
    """Whether loops in this order, which visit each entry once, reach a result's levels from the top down.

    Only the last one's coordinates may be out of order below a parent: they can be sorted there.
    """
    walked = list(order)
    loose = {access.level_var(at) for access in operands for at, level in enumerate(access.tensor.format.levels) if not level.is_ordered}
    for access in filter(is_relation, operands):
        walked = _renamed(access, set(result.indices), walked)
        loose |= set(access.indices) if loose & set(access.indices) else set()
    wanted = [result.level_var(at) for at in range(len(result.indices))]
    return walked == wanted and not loose & set(wanted[:-1])


def _renamed(access: Access, known: set[IndexVar], order: list[IndexVar]) -> list[IndexVar]:
    """The loops without what follows from others; if the result has that instead, in the place of these, where they are side by side."""
    levels = [(access.level_var(at), level.branchless) for at, level in enumerate(access.tensor.format.levels)]
    given, followed = [var for var, follows in levels if not follows], [var for var, follows in levels if follows]
    if not given or not set(given) <= set(order):
        return order
    left = [var for var in order if var not in followed]
    at = left.index(given[0])
    if followed and not known & set(given) and left[at : at + len(given)] == given:
        return [*left[:at], *followed, *left[at + len(given) :]]
    return left
