"""Bounds of results: no more entries than the operands have, or than are inserted into rows, so that one pass appends them."""

from __future__ import annotations

from dataclasses import dataclass

from . import index as ix
from .lattice import is_iterated, make_lattice
from .scatter import can_be_placed, in_storage_order
from .workspace_levels import Flagged, Listed


@dataclass(frozen=True, slots=True)
class Bound:
    """The operands that bound a result: each of them alone, or all together; none where there may be all entries."""

    operands: tuple[str, ...]
    each: bool


def bound_of(stmt: ix.Stmt) -> Bound | None:
    """What bounds the entries of a result that is appended to in one pass; None where they are counted first.

    The result has one compressed level, below dense ones, and so have the operands that are walked along it, in the same order.

    >>> from ..ir.format import CSR
    >>> from ..ir.notation import parse_stmt
    >>> tensors = {name: ix.TensorVar(name, CSR) for name in "ABC"}
    >>> bound_of(parse_stmt("forall(i, forall(j, C[i,j] = A[i,j] + B[i,j]))", tensors))
    Bound(operands=('A', 'B'), each=False)
    >>> bound_of(parse_stmt("forall(i, forall(j, C[i,j] = A[i,j] * B[i,j]))", tensors))
    Bound(operands=('A', 'B'), each=True)
    """
    result, order, inner = ix.result_of(stmt), list[ix.IndexVar](), stmt
    if result.tensor.prunes:
        return _bound_of_pruned(stmt)
    while isinstance(inner, ix.Forall):
        order.append(inner.var)
        inner = inner.body
    if isinstance(inner, ix.Where) and not order and _is_flagged(inner):
        return Bound((), True)
    if not isinstance(inner, ix.Assignment) or set(order) != set(result.indices) or not _is_one_level(result):
        return None
    value = ix.value_of(stmt)
    sparse = [access for access in ix.operands_of(stmt) if not access.tensor.is_dense]
    if not in_storage_order(result, sparse, order) or any(is_iterated(access, var) for access in sparse for var in order[:-1]):
        return None
    lattice = make_lattice(order[-1], value)
    walked = [access for access in sparse if access.tensor.name in lattice.iterated]
    if lattice.whole or not walked or not all(_is_one_level(access) and in_storage_order(access, (), order) for access in walked):
        return None
    if any(set(access.indices) != set(order) for access in walked):
        return None  # its entries are in several rows of the result
    least = lattice.least
    return Bound(tuple(sorted(least[0])), True) if len(least) == 1 else Bound(tuple(sorted(lattice.iterated)), False)


def _is_flagged(stmt: ix.Where) -> bool:
    """Whether the result is one row, which is collected where there is a place for every coordinate."""
    return any(isinstance(level, Flagged) for a in ix.assignments(stmt.producer) for level in a.lhs.tensor.format.levels)


def _bound_of_pruned(stmt: ix.Stmt) -> Bound:
    """What bounds a result that stores what isn't 0: the one operand whose rows it is made of, if there is one."""
    loops, written = around_result(stmt)
    walked = loops[-1].var
    lattice = make_lattice(walked, written.rhs)
    rows = [access for access in ix.accesses_in(written.rhs) if access.tensor.name in lattice.iterated]
    if not lattice.whole and len({row.tensor.name for row in rows}) == 1 and _is_one_level(rows[0]) and not rows[0].tensor.is_row:
        return Bound((rows[0].tensor.name,), True)
    return Bound((), True)


def around_result(stmt: ix.Stmt) -> tuple[list[ix.Forall], ix.Assignment]:
    """The loops around the assignment of the result, and the assignment."""
    loops: list[ix.Forall] = []
    while not isinstance(stmt, ix.Assignment):
        if isinstance(stmt, ix.Forall):
            loops.append(stmt)
            stmt = stmt.body
        else:
            stmt = stmt.consumer
    return loops, stmt


def may_take_room(stmt: ix.Stmt) -> bool:
    """Whether a result's rows are collected in a list, so that there are no more entries than are inserted.

    >>> from ..ir.format import CSR, Format
    >>> from ..ir.notation import parse_stmt
    >>> tensors = {name: ix.TensorVar(name, CSR) for name in "ABC"} | {"w": ix.TensorVar("w", Format((Listed(),)))}
    >>> row = "where(forall(k, C[i,k] = w[k]), forall(j, forall(k, w[k] += A[i,j] * B[j,k])))"
    >>> may_take_room(parse_stmt(f"forall(i, {row})", tensors))
    True
    """
    result, outer, inner = ix.result_of(stmt), list[ix.IndexVar](), stmt
    while isinstance(inner, ix.Forall):
        outer.append(inner.var)
        inner = inner.body
    if not isinstance(inner, ix.Where) or not isinstance(inner.consumer, ix.Forall) or not isinstance(inner.consumer.body, ix.Assignment):
        return False
    space = inner.consumer.body.rhs
    if not isinstance(space, ix.Access) or not isinstance(space.tensor.format.levels[0], Listed) or not _is_one_level(result):
        return False
    sparse = [access for access in ix.operands_of(stmt) if not access.tensor.is_dense]
    others = [a.lhs.tensor for a in ix.assignments(inner.producer) if a.lhs.indices and a.lhs.tensor != space.tensor]
    in_order = outer == [result.level_var(at) for at in range(len(result.indices) - 1)]
    return in_order and not others and not any(is_iterated(access, var) for access in sparse for var in outer)


def _is_one_level(access: ix.Access) -> bool:
    """Whether there is one compressed level, of unique coordinates, below dense ones."""
    last = access.tensor.format.levels[-1:]
    return bool(last) and can_be_placed(access.tensor.format) and last[0].is_unique and last[0].appended and "pos" in last[0].arrays
