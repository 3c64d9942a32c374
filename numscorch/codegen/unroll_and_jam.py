"""Several coordinates of a loop at once: its body once for each, statement by statement, with what they share done once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir import index as ix
from ..ir.loop import Assign, Block, Const, Expr, For, If, Stmt, Var, While
from .address_cse import share_positions
from .environment import Env

Lower = Callable[[ix.Stmt, Env], Block]
LETTERS = "abcdefghijklmnop"


def lower_jam(stmt: ix.Forall, tag: ix.Jam, env: Env, lower: Lower, serial: Callable[[ix.Forall, Env, tuple[Expr, Expr]], Block]) -> Block:
    """So many coordinates at once; the rest one by one."""
    (first, stop), base = env.bounds(stmt.var), Var(stmt.var.name)
    if (first, stop) == (Const(0), Const(tag.times)):
        return interleaved([_copy(stmt, number, Const(number), env, lower) for number in range(tag.times)])
    split = (stop - first) // tag.times * tag.times + first if tag.rest else stop
    jammed = For(base, first, split, interleaved(_named(stmt, tag.times, env, lower)), step=Const(tag.times))
    return (jammed, *serial(replace(stmt, tag=ix.Serial()), env, (split, stop))) if tag.rest else (jammed,)


def _named(stmt: ix.Forall, times: int, env: Env, lower: Lower) -> list[Block]:
    """The body at each coordinate, which has a name."""
    names = [Var(f"{stmt.var}_u{number}") for number in range(times)]  # no index has such a name
    blocks = [_copy(stmt, number, names[number], env, lower) for number in range(times)]
    return [(Assign(names[number], Var(stmt.var.name) + number), *blocks[number]) for number in range(times)]


def _copy(stmt: ix.Forall, number: int, coordinate: Expr, env: Env, lower: Lower) -> Block:
    """The body at one coordinate, its registers and what else depends on the coordinate having names of their own."""
    result = ix.result_of(stmt).tensor
    registers = {a.lhs.tensor for a in ix.assignments(stmt)} - {result}
    body = ix.map_expr(stmt.body, lambda access: _renamed(access, number) if access.tensor in registers else access)
    return lower(body, replace(env.bind(stmt.var, coordinate), copy=(stmt.var, number)))


def _renamed(access: ix.Access, number: int) -> ix.Access:
    return replace(access, tensor=replace(access.tensor, name=f"{access.tensor.name}{LETTERS[number]}"))


def interleaved(blocks: list[Block]) -> Block:
    """Blocks of the same shape as one: what they share is done once, the rest statement by statement.

    Raises:
        TypeError: a ``while`` differs, which what is done once before it can't start more than once.

    >>> from numscorch.ir.loop import Accumulate, Load
    >>> x = Load(Var("X"), Var("p"))
    >>> a, b = (Assign(Var("x"), x), Accumulate(Var("s"), x)), (Assign(Var("x"), x), Accumulate(Var("t"), x))
    >>> interleaved([a, b]) == (a[0], a[1], b[1])
    True
    """
    out: list[Stmt] = []
    for row in zip(*blocks, strict=True):
        first = row[0]
        if all(stmt == first for stmt in row):
            out.append(first)
        elif isinstance(first, For) and all(isinstance(stmt, For) and _same_range(stmt, first) for stmt in row):
            out.append(replace(first, body=interleaved([stmt.body for stmt in row if isinstance(stmt, For)])))
        elif isinstance(first, If) and all(isinstance(stmt, If) and stmt.condition == first.condition and not stmt.orelse for stmt in row):
            out.append(replace(first, body=interleaved([stmt.body for stmt in row if isinstance(stmt, If)])))
        elif isinstance(first, While):
            raise TypeError(f"copies of {first} can't be interleaved")
        else:
            out += share_positions(row)
    return tuple(out)


def _same_range(one: For, other: For) -> bool:
    return (one.var, one.start, one.stop, one.step) == (other.var, other.start, other.stop, other.step)
