"""Tag rules: which loops may run by which tag. Passes ask before they set one, ``verify`` asks afterwards, and lowering obeys."""

from __future__ import annotations

from .index import (
    Access,
    Assignment,
    Blend,
    Forall,
    IndexVar,
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
    """The one level that a loop iterates, with an entry at each position, each coordinate once; None if there are others or none.

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
    iterated = [(access, at) for access in sparse for at in _iterated(access, loop.var)]
    if len(iterated) != 1:
        return None
    access, at = iterated[0]
    level = access.tensor.format.levels[at]
    return iterated[0] if level.is_unique and type(level).present is Level.present else None


def _iterated(access: Access, var: IndexVar) -> list[int]:
    levels = access.tensor.format.levels
    return [at for at, level in enumerate(levels) if not level.full and access.level_var(at) == var]


def can_unroll(loop: Forall) -> bool:
    """Whether several positions at once may add to sums of their own: one level is iterated around an assignment."""
    return isinstance(loop.body, Assignment) and walked(loop) is not None


def can_take_positions(loop: Forall) -> bool:
    """Whether several positions at once may be lanes of a register: what the variable moves besides the level is dense.

    The result is a register, or lies beside the positions.
    """
    if not isinstance(loop.body, Assignment) or (iterated := walked(loop)) is None:
        return False
    lhs, (access, at) = loop.body.lhs, iterated
    beside = not lhs.indices or lhs.tensor.shares == access.tensor.name
    return beside and _moves_dense(loop, loop.body, access, at)


def can_join_dot_products(loop: Forall) -> bool:
    """Whether the vector sums of several positions at once may be added up together: each is written where its position says."""
    match loop.body:
        case Where(Assignment(lhs, _, "=" | "+=") as consumer, Forall(_, Assignment(), Vector())):
            iterated = walked(loop)
            return iterated is not None and lhs.tensor.shares == iterated[0].tensor.name and _moves_dense(loop, consumer, *iterated)
        case _:
            return False


def _moves_dense(loop: Forall, assignment: Assignment, access: Access, at: int) -> bool:
    """Whether the level is its operand's last, stores coordinates, and moves nothing else that is sparse."""
    read, name = accesses_in(assignment.rhs), access.tensor.name
    if "crd" not in access.tensor.format.levels[at].arrays or not any(a.tensor.has_values for a in read):
        return False
    others = [a for a in read if loop.var in a.indices and name not in (a.tensor.name, a.tensor.shares)]
    return at == len(access.tensor.format.levels) - 1 and all(a.tensor.is_dense for a in others)


def can_merge_without_branches(loop: Forall, appends: bool) -> bool:
    """Whether a step without an entry may write where the next one goes: into a register, or to a result that ``appends``.

    A result appends if nothing counts its entries before. Where every step has an entry, it writes nowhere else.
    """
    lattice = make_lattice(loop.var, value_of(loop.body))
    if lattice.whole or len(lattice.iterated) < 2 or any(map(_is_looked_up, accesses_in(value_of(loop.body)))):
        return False
    return appends or result_of(loop).tensor.is_scalar or is_certain(loop)


def is_certain(loop: Forall) -> bool:
    """Whether a merge has an entry at every step: each operand alone is enough."""
    lattice = make_lattice(loop.var, value_of(loop.body))
    return set(lattice.least) == {frozenset({name}) for name in lattice.iterated}


def _is_looked_up(access: Access) -> bool:
    return not access.tensor.is_scalar and any(isinstance(level, Marked) for level in access.tensor.format.levels)


def appends(stmt: Stmt) -> bool:
    """Whether the result of a statement is appended to by a stage that nothing counts for."""
    return bound_of(stmt) is not None or may_take_room(stmt)


def why_not(loop: Forall, is_appended: bool, in_registers: bool) -> str | None:
    """Which rule a loop's tag breaks; None where it breaks none. ``in_registers`` says whether a vector loop is around it."""
    match loop.tag:
        case Unroll() if isinstance(loop.body, Where):
            holds = not in_registers and can_join_dot_products(loop)
            return None if holds else "only vector sums at the positions of one level are joined, and written beside them"
        case Unroll():
            return None if can_unroll(loop) else "only sums over one level are unrolled"
        case Positions():
            return None if can_take_positions(loop) else "only the last level of one operand is taken in registers, beside dense ones"
        case Blend():
            holds = can_merge_without_branches(loop, is_appended)
            return None if holds else "only merges into a register, or a result that is appended to, need no branches"
        case _:
            return None
