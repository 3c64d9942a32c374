"""The conditions under which a loop can have a tag. Passes check them before they set a tag, and ``verify`` checks them afterwards."""

from __future__ import annotations

from .functions import may_raise
from .index import (
    Access,
    Assignment,
    Blend,
    Forall,
    Positions,
    Stmt,
    Unroll,
    Vector,
    Where,
    accesses_in,
    operands_of,
    result_of,
    value_of,
)
from .lattice import make_lattice
from .level import Level
from .result_bounds import bound_of, may_take_room
from .workspace_levels import Marked


def walked(loop: Forall) -> tuple[Access, int] | None:
    """The access and level that a loop iterates; None unless there is exactly one.

    The level must have an entry at each position, and unique coordinates.

    >>> from .format import CSR
    >>> from .index import TensorVar
    >>> from .notation import parse_stmt
    >>> tensors = {name: TensorVar(name, CSR) for name in "AB"}
    >>> loops = (parse_stmt(f"forall(j, t += {value})", tensors) for value in ("A[i,j] * x[j]", "A[i,j] * B[i,j]", "A[i,j] + x[j]"))
    >>> [None if (found := walked(loop)) is None else str(found[0]) for loop in loops]
    ['A[i,j]', None, None]
    """
    lattice = make_lattice(loop.var, value_of(loop.body))
    if lattice.whole:
        return None
    sparse = [access for access in operands_of(loop.body) if access.tensor.name in lattice.iterated]
    iterated = [(access, at) for access in sparse for at in access.sparse_levels(loop.var)]
    if len(iterated) != 1:
        return None
    access, at = iterated[0]
    level = access.tensor.format.levels[at]
    return iterated[0] if level.is_unique and type(level).present is Level.present else None


def can_unroll(loop: Forall) -> bool:
    """Whether a loop can accumulate several positions at once: it iterates one level, and its body is an assignment."""
    return isinstance(loop.body, Assignment) and walked(loop) is not None


def can_take_positions(loop: Forall) -> bool:
    """Whether consecutive positions of the loop can be the lanes of a register.

    All other operands that the variable indexes must be dense. The result must be a scalar, or share the pattern of the
    iterated operand.
    """
    if not isinstance(loop.body, Assignment) or (iterated := walked(loop)) is None:
        return False
    lhs, (access, at) = loop.body.lhs, iterated
    is_aligned = not lhs.indices or lhs.tensor.shares == access.tensor.name
    return is_aligned and _moves_dense(loop, loop.body, access, at)


def can_join_dot_products(loop: Forall) -> bool:
    """Whether the dot products of several positions can be reduced together: each is stored at its position of the pattern."""
    match loop.body:
        case Where(Assignment(lhs, _, "=" | "+=") as consumer, Forall(_, Assignment(), Vector())):
            iterated = walked(loop)
            return iterated is not None and lhs.tensor.shares == iterated[0].tensor.name and _moves_dense(loop, consumer, *iterated)
        case _:
            return False


def _moves_dense(loop: Forall, assignment: Assignment, access: Access, at: int) -> bool:
    """Whether the level is the last of its operand and stores coordinates, and all other operands of the loop are dense."""
    read, name = accesses_in(assignment.rhs), access.tensor.name
    if "crd" not in access.tensor.format.levels[at].arrays or not any(a.tensor.has_values for a in read):
        return False
    gathered = [a for a in read if loop.var in a.indices and name not in (a.tensor.name, a.tensor.shares)]
    return at == len(access.tensor.format.levels) - 1 and all(a.tensor.is_dense for a in gathered)


def can_merge_without_branches(loop: Forall, appends: bool) -> bool:
    """Whether a merge can run without branches.

    A step without an entry writes a value that the next step overwrites. This requires a scalar result, a result that
    ``appends``, that is, whose entries are not counted first, or an entry at every step. The value of absent operands is
    computed as well, so it must not raise.
    """
    value = value_of(loop.body)
    lattice = make_lattice(loop.var, value)
    is_looked_up = any(isinstance(level, Marked) for access in accesses_in(value) for level in access.tensor.format.levels)
    if lattice.whole or len(lattice.iterated) < 2 or is_looked_up or may_raise(value):
        return False
    return appends or result_of(loop).tensor.is_scalar or is_certain(loop)


def is_certain(loop: Forall) -> bool:
    """Whether a merge has an entry at every step: each operand alone makes the value nonzero."""
    lattice = make_lattice(loop.var, value_of(loop.body))
    return set(lattice.least) == {frozenset({name}) for name in lattice.iterated}


def appends(stmt: Stmt) -> bool:
    """Whether a stage appends to the result without counting its entries first."""
    return bound_of(stmt) is not None or may_take_room(stmt)


def why_not(loop: Forall, is_appended: bool, in_registers: bool) -> str | None:
    """The condition that the tag of a loop violates; None if it is valid. ``in_registers``: the loop is inside a vector loop."""
    match loop.tag:
        case Unroll() if isinstance(loop.body, Where):
            holds = not in_registers and can_join_dot_products(loop)
            return None if holds else "only dot products that are stored at the positions of one level are unrolled together"
        case Unroll():
            return None if can_unroll(loop) else "only sums over one level are unrolled"
        case Positions():
            return None if can_take_positions(loop) else "only the last level of a single sparse operand is loaded into registers"
        case Blend():
            holds = can_merge_without_branches(loop, is_appended)
            return None if holds else "only merges into a scalar or an appended result need no branches"
        case _:
            return None
