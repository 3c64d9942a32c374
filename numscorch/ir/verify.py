"""verify: check the properties that every stage may assume of a statement."""

from __future__ import annotations

from ..errors import ScheduleError
from .index import Access, Assignment, Forall, IndexVar, Specialize, Stmt, Tile, Vector, Where, accesses_in, loops_of
from .scatter import is_placed
from .tag_rules import appends, why_not


def verify(stmt: Stmt) -> Stmt:
    """Return the statement if it is well formed.

    In a well-formed statement, every variable is bound once, before it is used. Loops reach the levels that must be iterated
    from the outermost level down, except for placed results. A tile loop binds no variable; the inner loop over its
    variable does. Each loop satisfies the conditions of its tag.

    Raises:
        ScheduleError: the statement is not well formed.
    """
    _check(stmt, (), is_placed(stmt))
    loops, is_appended = loops_of(stmt), appends(stmt)
    in_registers = [inner for loop in loops if isinstance(loop.tag, Vector) for inner in loops_of(loop.body)]
    for loop in loops:
        if (why := why_not(loop, is_appended, loop in in_registers)) is not None:
            raise ScheduleError(f"{loop.tag} over {loop.var}: {why}\n  {loop}")
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
