"""verify: check the properties that every stage may assume of a statement, among them the conditions under which a loop has a tag.

Passes check the condition of a tag before they set it, and ``verify`` checks it afterwards.
"""

from __future__ import annotations

from itertools import pairwise

from ..errors import ScheduleError
from .assembled import bound_of, is_placed, may_take_room
from .functions import may_raise
from .index import (
    Access,
    Ahead,
    Assignment,
    Blend,
    Divide,
    Each,
    Forall,
    IndexVar,
    Positions,
    Serial,
    Specialize,
    Stmt,
    Tile,
    Unroll,
    Vector,
    Where,
    accesses_in,
    assignments,
    loops_of,
    operands_of,
    result_of,
    unwrap,
    value_of,
)
from .lattice import make_lattice
from .level import Level
from .levels import Compressed, Singleton
from .workspace_levels import Cleared, Held


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
    iterated = _iterated(loop)
    level = None if iterated is None else iterated[0].tensor.format.levels[iterated[1]]
    return iterated if level is not None and level.is_unique and type(level).present is Level.present else None


def _iterated(loop: Forall) -> tuple[Access, int] | None:
    """The access and level that a loop iterates; None unless there is exactly one."""
    lattice = make_lattice(loop.var, value_of(loop.body))
    sparse = [access for access in operands_of(loop.body) if access.tensor.name in lattice.iterated]
    iterated = [(access, at) for access in sparse for at in access.sparse_levels(loop.var)]
    return iterated[0] if len(iterated) == 1 and not lattice.whole else None


def runs_of(loop: Forall) -> tuple[Access, int] | None:
    """The access and level whose positions a loop may visit one by one, although they repeat coordinates; None if it must find runs.

    The loop adds terms to a place that its variable does not index, so that equal coordinates may take several steps. No two
    positions of the last level may have all coordinates in common, since a term is a function of their sum.

    >>> from .format import COO
    >>> from .index import TensorVar
    >>> from .notation import parse_stmt
    >>> nest = parse_stmt("forall(i, forall(j, forall(k, y[i] += A[i,j,k] * x[j])))", {"A": TensorVar("A", COO(3))})
    >>> [loop.var.name for loop in loops_of(nest) if runs_of(loop)]
    ['j']
    """
    body = unwrap(loop)[1]
    if not isinstance(body, Assignment) or body.op != "+=" or loop.var in body.lhs.indices or body.lhs.tensor.is_assembled:
        return None
    iterated = _iterated(loop)
    if iterated is None:
        return None
    access, at = iterated
    levels = access.tensor.format.levels
    return iterated if at and not levels[at].is_unique and levels[-1].is_unique else None


def chosen_rows(loop: Forall) -> list[tuple[Access, int]]:
    """The accesses whose rows the loop's coordinates choose, and the levels that hold the rows.

    The loop walks the last level of another operand, so that its coordinates can be read ahead. The levels above the rows are
    reached before the loop.

    >>> from .format import CSR
    >>> from .index import TensorVar
    >>> from .notation import parse_stmt
    >>> nest = parse_stmt("forall(i, forall(j, forall(k, t += A[i,j] * B[j,k])))", {name: TensorVar(name, CSR) for name in "AB"})
    >>> [[f"{access} {at}" for access, at in chosen_rows(loop)] for loop in loops_of(nest)]
    [[], ['B[j,k] 1'], []]
    """
    access, at = walked(loop) or (None, 0)
    if access is None or not isinstance(access.tensor.format.levels[-1], Compressed | Singleton) or at + 1 < len(access.indices):
        return []
    later = {inner.var for inner in loops_of(loop.body)}
    return [
        (other, up + 1)
        for other in operands_of(loop.body)
        for up, (level, below) in enumerate(pairwise(other.tensor.format.levels))
        if other.level_var(up) == loop.var and level.full and isinstance(below, Compressed) and other.tensor.shares is None
        if not later & {other.level_var(above) for above in range(up)}
    ]


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
    """Whether the dot products of several positions can be reduced together. Each must be stored at its position of the pattern."""
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


def can_divide(loop: Forall, name: str, blocks: int = 0) -> bool:
    """Whether workers can share a loop that scatters: each runs it for its part of the coordinates of a variable.

    The variable indexes a dense result, and its loop inside walks the last level of one operand, in order and by parents that have
    one position each.
    """
    inner, assignment = unwrap(loop.body)
    divided = next((each for each in inner if each.var.name == name), None)
    if (
        divided is None
        or not isinstance(divided.tag, Serial | Ahead)
        or not isinstance(assignment, Assignment)
        or not (assignment.lhs.tensor.is_dense or isinstance(assignment.lhs.tensor.format.levels[0], Cleared))
    ):
        return False
    if blocks and assignment.lhs.indices != (divided.var,):  # each worker moves the sums of a range of places
        return False
    if divided.var not in assignment.lhs.indices or (iterated := walked(divided)) is None:
        return False
    access, at = iterated
    *above, level = access.tensor.format.levels[: at + 1]
    is_last = at == len(access.tensor.format.levels) - 1 > 0
    return is_last and isinstance(level, Compressed) and level.is_ordered and all(outer.is_unique for outer in above)


def can_merge_without_branches(loop: Forall, appends: bool) -> bool:
    """Whether a merge can run without branches.

    A step without an entry writes a value that the next step overwrites. So the result must be a scalar, or be appended to
    without counting first (``appends``), or every step must have an entry. The value is also computed where operands are
    absent, so it must not raise.
    """
    value = value_of(loop.body)
    lattice = make_lattice(loop.var, value)
    if lattice.whole or len(lattice.iterated) < 2 or may_raise(value):
        return False
    return appends or result_of(loop).tensor.is_scalar or is_certain(loop)


def adds_to_register(loop: Forall) -> bool:
    """Whether a loop adds floating-point terms to a scalar, or to one of several registers that its variable does not index."""
    assignment = next(assignments(loop))
    space = assignment.lhs.tensor
    is_register = space.is_scalar or isinstance(space.format.levels[0], Held)
    return is_register and assignment.op == "+=" and space.type.is_rounded and loop.var not in assignment.lhs.indices


def is_certain(loop: Forall) -> bool:
    """Whether a merge has an entry at every step: each operand alone makes the value nonzero."""
    lattice = make_lattice(loop.var, value_of(loop.body))
    return set(lattice.least) == {frozenset({name}) for name in lattice.iterated}


def appends(stmt: Stmt) -> bool:
    """Whether a stage appends to the result without counting its entries first."""
    return bound_of(stmt) is not None or may_take_room(stmt)


def why_not(loop: Forall, is_appended: bool, in_registers: bool) -> str | None:
    """The condition that the tag or the sums of a loop violate; None if they are valid. ``in_registers``: a vector loop is around it."""
    if loop.sums is not None and not adds_to_register(loop):
        return "only loops that add to a register take partial sums"
    match loop.tag:
        case Unroll() if isinstance(loop.body, Where):
            holds = not in_registers and can_join_dot_products(loop)
            return None if holds else "only dot products that are stored at the positions of one level are unrolled together"
        case Unroll():
            return None if can_unroll(loop) else "only sums over one level are unrolled"
        case Positions():
            return None if can_take_positions(loop) else "only the last level of a single sparse operand is loaded into registers"
        case Divide(var, blocks):
            return None if can_divide(loop, var, blocks) else "only loops that scatter along the last level of an operand are divided"
        case Each():
            return None if runs_of(loop) else "only sums over one level with repeated coordinates visit each position"
        case Ahead():
            return None if chosen_rows(loop) else "only loops whose coordinates choose rows of other operands prefetch them"
        case Blend():
            holds = can_merge_without_branches(loop, is_appended)
            return None if holds else "only merges into a scalar or an appended result need no branches"
        case _:
            return None


def verify(stmt: Stmt) -> Stmt:
    """Return the statement if it is well formed.

    In a well-formed statement, every variable is bound once, before it is used. Loops reach the levels that must be iterated
    from the outermost level down, except for placed results. A tile loop binds no variable; the inner loop over its
    variable does. Each loop satisfies the conditions of its tag and of its partial sums.

    Raises:
        ScheduleError: the statement is not well formed.
    """
    _check(stmt, (), is_placed(stmt))
    loops, is_appended = loops_of(stmt), appends(stmt)
    in_registers = [inner for loop in loops if isinstance(loop.tag, Vector) for inner in loops_of(loop.body)]
    for loop in loops:
        if (why := why_not(loop, is_appended, loop in in_registers)) is not None:
            raise ScheduleError(f"{loop.tag} over {loop.var}{'' if loop.sums is None else f': {loop.sums}'}: {why}\n  {loop}")
    return stmt


def _check(stmt: Stmt, bound: tuple[IndexVar, ...], placed: bool) -> None:
    match stmt:
        case Forall(var, body, Tile()):
            _check_tiled(stmt, bound)
            _check(body, bound, placed)
        case Forall(_, body, Specialize("tiles")):
            _check(body, bound, placed)
        case Forall(var, body):
            if var in bound:
                raise ScheduleError(f"{var} is bound twice in {stmt}")
            _check(body, (*bound, var), placed)
        case Where(consumer, producer):
            _check(consumer, bound, placed)
            _check(producer, bound, placed)
        case Assignment(lhs, rhs):
            if bound or not lhs.indices:
                for access in [*([] if placed else [lhs]), *accesses_in(rhs)]:
                    _check_access(access, bound)


def _check_tiled(stmt: Forall, bound: tuple[IndexVar, ...]) -> None:
    inner = [loop.tag for loop in loops_of(stmt.body) if loop.var == stmt.var]
    if stmt.var in bound:
        raise ScheduleError(f"{stmt.var} is bound outside of its tiles in {stmt}")
    if not inner:
        raise ScheduleError(f"no loop runs over the tiles of {stmt.var} in {stmt}")
    if any(isinstance(tag, Tile) for tag in inner):
        raise ScheduleError(f"{stmt.var} is tiled twice in {stmt}")


def _check_access(access: Access, bound: tuple[IndexVar, ...]) -> None:
    strides = access.tensor.strides or "n" * len(access.indices)  # a broadcast dimension needs no coordinate
    free = [str(var) for var, stride in zip(access.indices, strides, strict=True) if var not in bound and stride != "0"]
    if free:
        raise ScheduleError(f"{access} uses {', '.join(free)}, which no loop binds")
    if access.tensor.is_dense or access.tensor.shares is not None:
        return
    places = [bound.index(access.level_var(level)) for level in range(len(access.indices))]
    for at, level in enumerate(access.tensor.format.levels):
        if not level.full and at and places[at] <= max(places[:at]):
            raise ScheduleError(f"{access} ({access.tensor.format}) can't be read in the order {', '.join(map(str, bound))}")
