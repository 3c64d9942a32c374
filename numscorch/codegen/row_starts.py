"""reuse_starts: where a row starts and ends is loaded once, however many loops walk the row.

The loops of a fused kernel that walk one row have each found its ends. Between them the kernel stores into rows, so that LLVM must
assume that the ends have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial

from ..ir.loop import Accumulate, Assign, Block, Expr, For, If, Load, Stmt, Store, Var, While, map_expr, map_stmt, walk, walk_block

Held = Mapping[Load, Var]  # loads whose values variables have


def reuse_starts(block: Block, starts: Container[str]) -> Block:
    """Read variables rather than what they were loaded from, and drop loads of what they have already.

    Args:
        block: a kernel's body.
        starts: the names of the arrays that hold where rows start.

    >>> i, p, pos, first = (Var(name) for name in ("i", "p", "pos", "p_start"))
    >>> load = Assign(first, pos[i])
    >>> reuse_starts((load, Assign(p, pos[i] + 1), load), {"pos"}) == (load, Assign(p, first + 1))
    True
    """
    written = {stmt.array.name for stmt in walk_block(block) if isinstance(stmt, Store)}
    return _reused(block, {}, lambda load: load.array.name in starts and load.array.name not in written)


def _reused(block: Block, held: Held, is_start: Callable[[Load], bool]) -> Block:
    out: list[Stmt] = []
    for stmt in block:
        changed = {s.var.name for s in walk_block((stmt,)) if isinstance(s, Assign | Accumulate | For)}
        kept = {load: var for load, var in held.items() if not changed & {var.name, *_read(load)}}
        match stmt:
            case Assign(var, Load() as load) if is_start(load):
                if held.get(load) == var:
                    continue
                out.append(Assign(var, _read_held(load, held)))
                held = kept if var.name in _read(load) else {**kept, load: var}
                continue
            case For(_, start, stop, body):
                inner = {} if stmt.parallel else kept  # each thread loads them
                out.append(replace(stmt, start=_read_held(start, held), stop=_read_held(stop, held), body=_reused(body, inner, is_start)))
            case While(condition, body):
                out.append(While(_read_held(condition, kept), _reused(body, kept, is_start)))
            case If(condition, body, orelse):
                out.append(If(_read_held(condition, held), _reused(body, held, is_start), _reused(orelse, held, is_start)))
            case _:
                out.append(map_stmt(stmt, partial(_held, held)))
        held = kept
    return tuple(out)


def _read_held(expr: Expr, held: Held) -> Expr:
    return map_expr(expr, partial(_held, held))


def _held(held: Held, part: Expr) -> Expr | None:
    return held.get(part) if isinstance(part, Load) else None


def _read(expr: Expr) -> set[str]:
    return {part.name for part in walk(expr) if isinstance(part, Var)}
