"""Unroll and jam: run a loop's body for several coordinates at once, interleaved by statement, with shared statements run once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir import index as ix
from ..ir.loop import Assign, Block, Const, Expr, For, If, Stmt, Var, While
from .address_cse import share_positions
from .environment import Env, Lower

LETTERS = "abcdefghijklmnop"


def lower_jam(stmt: ix.Forall, tag: ix.Jam, env: Env, lower: Lower, serial: Callable[[ix.Forall, Env, tuple[Expr, Expr]], Block]) -> Block:
    """Process ``tag.times`` coordinates at once, and the remaining coordinates one by one."""
    (first, stop), base = env.bounds(stmt.var), Var(stmt.var.name)
    if (first, stop) == (Const(0), Const(tag.times)):
        return interleaved([_copy(stmt, number, Const(number), env, lower) for number in range(tag.times)])
    split = (stop - first) // tag.times * tag.times + first if tag.rest else stop
    jammed = For(base, first, split, interleaved(_copies(stmt, tag.times, env, lower)), step=Const(tag.times))
    return (jammed, *serial(replace(stmt, tag=ix.Serial()), env, (split, stop))) if tag.rest else (jammed,)


def _copies(stmt: ix.Forall, times: int, env: Env, lower: Lower) -> list[Block]:
    """Lower the body for each coordinate, assigned to a variable."""
    names = [Var(f"{stmt.var}_u{number}") for number in range(times)]  # no index variable has such a name
    blocks = [_copy(stmt, number, names[number], env, lower) for number in range(times)]
    return [(Assign(names[number], Var(stmt.var.name) + number), *blocks[number]) for number in range(times)]


def _copy(stmt: ix.Forall, number: int, coordinate: Expr, env: Env, lower: Lower) -> Block:
    """Lower the body for one coordinate, with distinct names for its registers and other values that depend on the coordinate."""
    result = ix.result_of(stmt).tensor
    registers = {a.lhs.tensor for a in ix.assignments(stmt)} - {result}
    body = ix.map_expr(stmt.body, lambda access: _rename(access, number) if access.tensor in registers else access)
    return lower(body, replace(env.bind(stmt.var, coordinate), copy=(stmt.var, number)))


def _rename(access: ix.Access, number: int) -> ix.Access:
    return replace(access, tensor=replace(access.tensor, name=f"{access.tensor.name}{LETTERS[number]}"))


def interleaved(blocks: list[Block]) -> Block:
    """Interleave blocks of the same shape, statement by statement. Statements that all blocks share run once.

    Raises:
        TypeError: a ``while`` differs between blocks. Shared statements before it run once, and can't start several loops.

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
        elif isinstance(first, For) and all(isinstance(stmt, For) and replace(stmt, body=first.body) == first for stmt in row):
            out.append(replace(first, body=interleaved([stmt.body for stmt in row if isinstance(stmt, For)])))
        elif isinstance(first, If) and all(isinstance(stmt, If) and stmt.condition == first.condition and not stmt.orelse for stmt in row):
            out.append(replace(first, body=interleaved([stmt.body for stmt in row if isinstance(stmt, If)])))
        elif isinstance(first, While):
            raise TypeError(f"copies of {first} can't be interleaved")
        else:
            out += share_positions(row)
    return tuple(out)
