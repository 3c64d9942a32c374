"""Assembled results: whether the entries of a sparse result are placed out of storage order, or appended below a bound.

A placed result has dense levels followed by one run of sparse levels. Two passes visit its entries. The first pass counts
the entries below each parent, and the prefix sum of the counts is the start of each parent. The second pass stores each
entry at the next position of its parent. The entries below one parent come in the order of the loops, so that no sorting
is needed (Gustavson, "Two Fast Algorithms for Sparse Matrices: Multiplication and Permuted Transposition", 1978).

Bounds of the number of entries follow from the entries of the operands, or from the insertions into the rows. With a bound, the memory
of a result is allocated in advance, and a single pass appends the entries without counting them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .derived_formats import can_be_empty, runs_of
from .format import Format
from .functions import is_intersection
from .index import (
    Access,
    Assignment,
    Forall,
    IndexVar,
    Specialize,
    Stmt,
    Tile,
    Where,
    accesses_in,
    assignments,
    is_relation,
    operands_of,
    result_of,
    unwrap,
    value_of,
)
from .lattice import make_lattice
from .level import Level
from .levels import Singleton
from .workspace_levels import Flagged, Listed, Sorted


def can_be_placed(fmt: Format) -> bool:
    """Whether a format consists of dense levels followed by one run of sparse levels, which may be empty below some positions.

    >>> [can_be_placed(Format(text)) for text in ("ds", "dds", "dd", "ss", "sd", "oo", "doo")]
    [True, True, False, False, False, False, True]
    """
    runs = runs_of(fmt)
    if len(runs) != 1 or runs[0][0] == 0 or runs[0][1] < len(fmt.levels) - 1:
        return False
    return can_be_empty(fmt) and fmt.levels[runs[0][0]].appended and all(level.full for level in fmt.levels[: runs[0][0]])


def position_dtype(format: Format, index_dtype: str) -> str:
    """The data type of counts of a placed result: the index type, unless the list below one parent may exceed it."""
    return index_dtype if format.levels[-2].full else "int64"


def is_placed(stmt: Stmt) -> bool:
    """Whether the loops produce the result's entries out of storage order, in an order in which they can be placed."""
    result = result_of(stmt)
    if not result.tensor.is_assembled or not can_be_placed(result.tensor.format):
        return False
    order = [loop.var for loop in unwrap(stmt)[0] if not isinstance(loop.tag, Tile) and loop.tag != Specialize("tiles")]
    sparse = [access for access in operands_of(stmt) if not access.tensor.is_dense]
    united = not is_intersection(value_of(stmt))
    return may_be_placed(result, sparse, order, united) and not in_storage_order(result, sparse, order, united)


def may_be_placed(result: Access, operands: Sequence[Access], order: Sequence[IndexVar], united: bool = False) -> bool:
    """Whether loops visit each entry of the result once, and the entries below each parent in order; ``united`` as in ``visits_once``."""
    if not visits_once(result, operands, order, united) or not can_be_placed(result.tensor.format):
        return False
    run = run_to_place(result)
    if [var for var in order if var in run] != run:
        return False
    known = set(result.indices)
    known |= _determined(operands, known - set(run), united)
    read = [(a, at, level) for a in operands for at, level in enumerate(a.tensor.format.levels) if a.level_var(at) in run]
    return all(level.is_ordered and (level.branchless or known >= {a.level_var(above) for above in range(at)}) for a, at, level in read)


def run_to_place(result: Access) -> list[IndexVar]:
    """The variables of the sparse levels, whose coordinates must ascend below each parent; empty if a sparse level is unordered."""
    levels = result.tensor.format.levels
    sparse = [at for at, level in enumerate(levels) if not level.full]
    return [result.level_var(at) for at in sparse] if all(levels[at].is_ordered for at in sparse) else []


def visits_once(result: Access, operands: Sequence[Access], variables: Sequence[IndexVar], united: bool = False) -> bool:
    """Whether loops over these variables visit each entry of the result once, to store it.

    This holds if the result's variables determine all other variables, and it stores all entries of a row. If ``united``, the right
    side is not 0 where an operand is absent, so that the loop over the coordinate of a singleton level takes further steps.
    """
    known, used = set(result.indices), set(variables)
    return not result.tensor.row_limit and known <= used and used - known <= _determined(operands, known, united)


def _determined(operands: Sequence[Access], known: set[IndexVar], united: bool) -> set[IndexVar]:
    """The variables whose values follow from the known ones: a row and a column, for example, determine a diagonal."""
    determined: set[IndexVar] = set()
    for access in operands:
        levels = access.tensor.format.levels
        missing = frozenset(at for at in range(len(levels)) if access.level_var(at) not in known)
        if missing and any(_computes(levels, at, missing, united) for at in range(len(levels))):
            determined |= {access.level_var(at) for at in missing}
    return determined


def _computes(levels: Sequence[Level], at: int, missing: frozenset[int], united: bool) -> bool:
    """Whether a level computes the coordinates of the levels ``missing``. A singleton level does below levels without repeated rows."""
    if united and isinstance(levels[at], Singleton):
        return False
    return levels[at].determines(at, missing) and all(level.is_unique for level in levels[:at])


def in_storage_order(result: Access, operands: Sequence[Access], order: Sequence[IndexVar], united: bool = False) -> bool:
    """Whether loops in this order, which visit each entry once, produce the result in storage order.

    Only the coordinates of the last level may be unordered, since they can be sorted below each parent. ``united`` as in
    :func:`visits_once`.
    """
    walked = list(order)
    unordered = {
        access.level_var(at) for access in operands for at, level in enumerate(access.tensor.format.levels) if not level.is_ordered
    }
    for access in operands:
        if not is_relation(access):
            walked = walked if united else _without_single(access, set(result.indices), walked)
            continue
        walked = _renamed(access, set(result.indices), walked)
        unordered |= set(access.indices) if unordered & set(access.indices) else set()
    storage_order = [result.level_var(at) for at in range(len(result.indices))]
    return walked == storage_order and not unordered & set(storage_order[:-1])


def _without_single(access: Access, known: set[IndexVar], order: list[IndexVar]) -> list[IndexVar]:
    """The loop order without loops of one iteration. The coordinates of the loops around such a loop determine its coordinate."""
    levels, variables = access.tensor.format.levels, [access.level_var(at) for at in range(len(access.indices))]
    for at, var in enumerate(variables):
        if (
            var in order
            and var not in known
            and _computes(levels, at, frozenset({at}), False)
            and set(variables[:at]) <= set(order[: order.index(var)])
        ):
            order = [other for other in order if other != var]
    return order


def _renamed(access: Access, known: set[IndexVar], order: list[IndexVar]) -> list[IndexVar]:
    """The loop order without the variables that a relation computes.

    If the result has none of the relation's inputs, and the inputs are adjacent loops, the computed variables take their place.
    """
    levels = [(access.level_var(at), level.branchless) for at, level in enumerate(access.tensor.format.levels)]
    inputs, computed = [var for var, is_computed in levels if not is_computed], [var for var, is_computed in levels if is_computed]
    if not inputs or not set(inputs) <= set(order):
        return order
    remaining = [var for var in order if var not in computed]
    at = remaining.index(inputs[0])
    if computed and not known & set(inputs) and remaining[at : at + len(inputs)] == inputs:
        return [*remaining[:at], *computed, *remaining[at + len(inputs) :]]
    return remaining


# -- bounds


@dataclass(frozen=True, slots=True)
class Bound:
    """The operands whose entry counts bound a result; empty if every entry of the result may be stored.

    ``each``: the count of each operand alone is a bound; otherwise their sum is.
    """

    operands: tuple[str, ...]
    each: bool


def bound_of(stmt: Stmt) -> Bound | None:
    """The bound of a result that is appended to in one pass; None if its entries are counted first.

    The result must have a single compressed level below dense levels. The operands that are iterated along this level
    must have the same structure, in the same order.

    >>> from ..ir.format import CSR
    >>> from ..ir.index import TensorVar
    >>> from ..ir.notation import parse_stmt
    >>> tensors = {name: TensorVar(name, CSR) for name in "ABC"}
    >>> bound_of(parse_stmt("forall(i, forall(j, C[i,j] = A[i,j] + B[i,j]))", tensors))
    Bound(operands=('A', 'B'), each=False)
    >>> bound_of(parse_stmt("forall(i, forall(j, C[i,j] = A[i,j] * B[i,j]))", tensors))
    Bound(operands=('A', 'B'), each=True)
    """
    result = result_of(stmt)
    if result.tensor.prunes:
        return _bound_of_pruned(stmt)
    loops, inner = unwrap(stmt)
    order = [loop.var for loop in loops]
    has_flags = any(isinstance(level, Flagged) for a in assignments(inner) for level in a.lhs.tensor.format.levels)
    if has_flags and not order:
        return Bound((), True)
    if not isinstance(inner, Assignment) or set(order) != set(result.indices) or not _is_one_level(result):
        return None
    value = value_of(stmt)
    sparse = [access for access in operands_of(stmt) if not access.tensor.is_dense]
    if not in_storage_order(result, sparse, order) or any(access.sparse_levels(var) for access in sparse for var in order[:-1]):
        return None
    lattice = make_lattice(order[-1], value)
    iterated = [access for access in sparse if access.tensor.name in lattice.iterated]
    if lattice.whole or not iterated or not all(_is_one_level(access) and in_storage_order(access, (), order) for access in iterated):
        return None
    if any(set(access.indices) != set(order) for access in iterated):
        return None  # its entries contribute to several rows of the result
    least = lattice.least
    return Bound(tuple(sorted(least[0])), True) if len(least) == 1 else Bound(tuple(sorted(lattice.iterated)), False)


def _bound_of_pruned(stmt: Stmt) -> Bound:
    """The bound of a result that prunes: the only operand whose rows the loop iterates; without one, every entry may be stored."""
    loops, written = around_result(stmt)
    lattice = make_lattice(loops[-1].var, written.rhs)
    rows = [access for access in accesses_in(written.rhs) if access.tensor.name in lattice.iterated]
    if not lattice.whole and len({row.tensor.name for row in rows}) == 1 and _is_one_level(rows[0]) and not rows[0].tensor.is_row:
        return Bound((rows[0].tensor.name,), True)
    return Bound((), True)


def around_result(stmt: Stmt) -> tuple[list[Forall], Assignment]:
    """The loops around the assignment to the result, and the assignment."""
    loops: list[Forall] = []
    while not isinstance(stmt, Assignment):
        if isinstance(stmt, Forall):
            loops.append(stmt)
            stmt = stmt.body
        else:
            stmt = stmt.consumer
    return loops, stmt


def may_take_room(stmt: Stmt) -> bool:
    """Whether a list workspace collects the rows of a result, so that the number of insertions bounds its entries.

    >>> from ..ir.format import CSR, Format
    >>> from ..ir.index import TensorVar
    >>> from ..ir.notation import parse_stmt
    >>> tensors = {name: TensorVar(name, CSR) for name in "ABC"} | {"w": TensorVar("w", Format((Listed(),)))}
    >>> row = "where(forall(k, C[i,k] = w[k]), forall(j, forall(k, w[k] += A[i,j] * B[j,k])))"
    >>> may_take_room(parse_stmt(f"forall(i, {row})", tensors))
    True
    """
    result, (loops, inner) = result_of(stmt), unwrap(stmt)
    outer = [loop.var for loop in loops]
    match inner:
        case Where(Forall(_, Assignment(_, Access() as space)), producer) if isinstance(space.tensor.format.levels[0], Listed | Sorted):
            sparse = [access for access in operands_of(stmt) if not access.tensor.is_dense]
            other_results = [a.lhs.tensor for a in assignments(producer) if a.lhs.indices and a.lhs.tensor != space.tensor]
            in_order = outer == [result.level_var(at) for at in range(len(result.indices) - 1)]
            is_iterated_outside = any(access.sparse_levels(var) for access in sparse for var in outer)
            return in_order and not other_results and not is_iterated_outside and _is_one_level(result)
        case _:
            return False


def _is_one_level(access: Access) -> bool:
    """Whether an access has a single sparse level, compressed and unique, below dense levels."""
    last = access.tensor.format.levels[-1:]
    return bool(last) and can_be_placed(access.tensor.format) and last[0].is_unique and last[0].appended and "pos" in last[0].arrays
