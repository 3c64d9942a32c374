"""Upper bounds of the number of entries of a result.

The bounds follow from the entries of the operands, or from the insertions into the rows. With a bound, the memory of a
result is allocated in advance, and a single pass appends the entries without counting them first.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import index as ix
from .lattice import make_lattice
from .scatter import can_be_placed, in_storage_order
from .workspace_levels import Flagged, Listed, Sorted


@dataclass(frozen=True, slots=True)
class Bound:
    """The operands whose entry counts bound a result; empty if every entry of the result may be stored.

    ``each``: the count of each operand alone is a bound; otherwise their sum is.
    """

    operands: tuple[str, ...]
    each: bool


def bound_of(stmt: ix.Stmt) -> Bound | None:
    """The bound of a result that is appended to in one pass; None if its entries are counted first.

    The result must have a single compressed level below dense levels. The operands that are iterated along this level
    must have the same structure, in the same order.

    >>> from ..ir.format import CSR
    >>> from ..ir.notation import parse_stmt
    >>> tensors = {name: ix.TensorVar(name, CSR) for name in "ABC"}
    >>> bound_of(parse_stmt("forall(i, forall(j, C[i,j] = A[i,j] + B[i,j]))", tensors))
    Bound(operands=('A', 'B'), each=False)
    >>> bound_of(parse_stmt("forall(i, forall(j, C[i,j] = A[i,j] * B[i,j]))", tensors))
    Bound(operands=('A', 'B'), each=True)
    """
    result = ix.result_of(stmt)
    if result.tensor.prunes:
        return _bound_of_pruned(stmt)
    loops, inner = ix.unwrap(stmt)
    order = [loop.var for loop in loops]
    has_flags = any(isinstance(level, Flagged) for a in ix.assignments(inner) for level in a.lhs.tensor.format.levels)
    if has_flags and not order:
        return Bound((), True)
    if not isinstance(inner, ix.Assignment) or set(order) != set(result.indices) or not _is_one_level(result):
        return None
    value = ix.value_of(stmt)
    sparse = [access for access in ix.operands_of(stmt) if not access.tensor.is_dense]
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


def _bound_of_pruned(stmt: ix.Stmt) -> Bound:
    """The bound of a result that prunes: the only operand whose rows the loop iterates; without one, every entry may be stored."""
    loops, written = around_result(stmt)
    lattice = make_lattice(loops[-1].var, written.rhs)
    rows = [access for access in ix.accesses_in(written.rhs) if access.tensor.name in lattice.iterated]
    if not lattice.whole and len({row.tensor.name for row in rows}) == 1 and _is_one_level(rows[0]) and not rows[0].tensor.is_row:
        return Bound((rows[0].tensor.name,), True)
    return Bound((), True)


def around_result(stmt: ix.Stmt) -> tuple[list[ix.Forall], ix.Assignment]:
    """The loops around the assignment to the result, and the assignment."""
    loops: list[ix.Forall] = []
    while not isinstance(stmt, ix.Assignment):
        if isinstance(stmt, ix.Forall):
            loops.append(stmt)
            stmt = stmt.body
        else:
            stmt = stmt.consumer
    return loops, stmt


def may_take_room(stmt: ix.Stmt) -> bool:
    """Whether a list workspace collects the rows of a result, so that the number of insertions bounds its entries.

    >>> from ..ir.format import CSR, Format
    >>> from ..ir.notation import parse_stmt
    >>> tensors = {name: ix.TensorVar(name, CSR) for name in "ABC"} | {"w": ix.TensorVar("w", Format((Listed(),)))}
    >>> row = "where(forall(k, C[i,k] = w[k]), forall(j, forall(k, w[k] += A[i,j] * B[j,k])))"
    >>> may_take_room(parse_stmt(f"forall(i, {row})", tensors))
    True
    """
    result, (loops, inner) = ix.result_of(stmt), ix.unwrap(stmt)
    outer = [loop.var for loop in loops]
    match inner:
        case ix.Where(ix.Forall(_, ix.Assignment(_, ix.Access() as space)), producer) if isinstance(
            space.tensor.format.levels[0], Listed | Sorted
        ):
            sparse = [access for access in ix.operands_of(stmt) if not access.tensor.is_dense]
            other_results = [a.lhs.tensor for a in ix.assignments(producer) if a.lhs.indices and a.lhs.tensor != space.tensor]
            in_order = outer == [result.level_var(at) for at in range(len(result.indices) - 1)]
            is_iterated_outside = any(access.sparse_levels(var) for access in sparse for var in outer)
            return in_order and not other_results and not is_iterated_outside and _is_one_level(result)
        case _:
            return False


def _is_one_level(access: ix.Access) -> bool:
    """Whether an access has a single sparse level, compressed and unique, below dense levels."""
    last = access.tensor.format.levels[-1:]
    return bool(last) and can_be_placed(access.tensor.format) and last[0].is_unique and last[0].appended and "pos" in last[0].arrays
