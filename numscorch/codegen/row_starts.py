"""reuse_starts: load the start and end of a row once, even if several loops walk the row.

In a fused kernel, each loop over a row loads the row's start and end. Between these loops, the kernel stores values, so LLVM
must assume that the start and end have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial

from ..ir.loop import Assign, Block, Expr, For, If, Load, Stmt, Var, While, map_expr, map_stmt, names_in, names_written

Held = Mapping[Load, Var]  # variables that hold the values of loads


def reuse_starts(block: Block, starts: Container[str]) -> Block:
    """Replace loads whose values are in variables by these variables, and drop repeated loads.

    Args:
        block: a kernel's body.
        starts: the names of the arrays that hold where rows start.

    >>> i, p, pos, first = (Var(name) for name in ("i", "p", "pos", "p_start"))
    >>> load = Assign(first, pos[i])
    >>> reuse_starts((load, Assign(p, pos[i] + 1), load), {"pos"}) == (load, Assign(p, first + 1))
    True
    """
    written = names_written(block)
    return _reuse(block, {}, lambda load: load.array.name in starts and load.array.name not in written)


def _reuse(block: Block, held: Held, is_start: Callable[[Load], bool]) -> Block:
    out: list[Stmt] = []
    for stmt in block:
        changed = names_written((stmt,))
        unchanged = {load: var for load, var in held.items() if not changed & {var.name, *names_in(load)}}
        match stmt:
            case Assign(var, Load() as load) if is_start(load):
                if held.get(load) == var:
                    continue
                out.append(Assign(var, _read_held(load, held)))
                held = unchanged if var.name in names_in(load) else {**unchanged, load: var}
                continue
            case For(_, start, stop, body):
                inner = {} if stmt.parallel else unchanged  # each thread loads the values again
                out.append(replace(stmt, start=_read_held(start, held), stop=_read_held(stop, held), body=_reuse(body, inner, is_start)))
            case While(condition, body):
                out.append(While(_read_held(condition, unchanged), _reuse(body, unchanged, is_start)))
            case If(condition, body, orelse):
                out.append(If(_read_held(condition, held), _reuse(body, held, is_start), _reuse(orelse, held, is_start)))
            case _:
                out.append(map_stmt(stmt, partial(_held, held)))
        held = unchanged
    return tuple(out)


def _read_held(expr: Expr, held: Held) -> Expr:
    return map_expr(expr, partial(_held, held))


def _held(held: Held, part: Expr) -> Expr | None:
    return held.get(part) if isinstance(part, Load) else None
