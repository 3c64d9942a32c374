"""hoist_loads: load loop-invariant values once, before the loop.

LLVM hoists such loads too, since arrays don't overlap, but repeats them before each of several loops over a row. Here, one load
serves all of these loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from ..ir.loop import (
    Accumulate,
    Assign,
    Block,
    Call,
    Expr,
    For,
    If,
    Stmt,
    Var,
    While,
    expressions_in,
    has_threads,
    map_blocks,
    map_expr,
    map_stmt,
    names_in,
    names_used,
    names_written,
    registers_of,
    walk_block,
)


def hoist_loads(block: Block, most: int) -> Block:
    """Move invariant vector loads out of the innermost loops that contain them, unless they need more than ``most`` registers.

    >>> from numscorch.ir.loop import Const, call
    >>> row = call("load", Var("X_vals"), Var("i"), 8)
    >>> body = (Assign(Var("t"), call("fma", row, Var("y"), Var("t"))),)
    >>> hoist_loads((For(Var("p"), Const(0), Var("n"), body),), 8)[0]
    Assign(var=Var(name='X0'), value=Call(function='load', args=(Var(name='X_vals'), Var(name='i'), Const(value=8, dtype=None))))
    """
    out: list[Stmt] = []
    for stmt in block:
        if isinstance(stmt, For | While | If):
            stmt = map_blocks(stmt, lambda inner: hoist_loads(inner, most))
        if isinstance(stmt, For) and not has_threads((stmt,)):
            moved, stmt = _hoist_from(stmt, most)
            out += [assign for assign in moved if not _still_holds(assign, out)]
        out.append(stmt)
    return tuple(out)


def _still_holds(assign: Assign, before: list[Stmt]) -> bool:
    """Whether the same load was hoisted out of an earlier loop, and its variables have not changed since."""
    if assign not in before:
        return False
    since = tuple(before[before.index(assign) + 1 :])
    return not _changed(since) & {assign.var.name, *names_in(assign.value)}


def _hoist_from(loop: For, most: int) -> tuple[list[Assign], For]:
    """Return the invariant loads of a loop as assignments, and the loop that reads their variables."""
    loads = [node for node in _calls(loop.body) if node.function == "load"]
    if not loads:
        return [], loop
    changing = _changed(loop.body) | {loop.var.name}
    values = _set_once(loop.body)
    resolved: dict[Expr, Expr] = {node: _resolve(node, values) for node in loads}
    hoisted = {node: load for node, load in resolved.items() if not changing & names_in(load)}
    if not hoisted or sum(map(registers_of, hoisted)) > most:
        return [], loop
    names = _names(hoisted, names_used(loop.body))
    moved = [Assign(names[node], load) for node, load in hoisted.items()]
    return moved, replace(loop, body=tuple(map_stmt(stmt, names.get) for stmt in loop.body))


def _resolve(expr: Expr, values: dict[str, Expr]) -> Expr:
    """Replace variables to which the loop assigns a single value, mostly positions, by this value."""

    def value(e: Expr) -> Expr | None:
        return _resolve(values[e.name], values) if isinstance(e, Var) and e.name in values else None

    return map_expr(expr, value)


def _set_once(block: Block) -> dict[str, Expr]:
    """Map each variable to its value, if all its assignments have this value and are at the top level of the loop."""
    values: dict[str, set[Expr | None]] = {}
    for stmt in walk_block(block):
        if isinstance(stmt, Assign | Accumulate | For):
            values.setdefault(stmt.var.name, set()).add(stmt.value if isinstance(stmt, Assign) and stmt in block else None)
    return {name: value for name, (value, *others) in values.items() if value is not None and not others}


def _changed(block: Block) -> set[str]:
    """Return the variables and arrays that a block writes, including arrays that it stores registers into."""
    return names_written(block).union(*(names_in(node.args[0]) for node in _calls(block) if node.function == "store"))


def _calls(block: Block) -> Iterator[Call]:
    return (expr for expr in expressions_in(block) if isinstance(expr, Call))


def _names(nodes: dict[Expr, Expr], used_names: set[str]) -> dict[Expr, Var]:
    """Name loads from X_vals as X0, X1, ..."""
    names: dict[Expr, Var] = {}
    for node in nodes:
        if isinstance(node, Call) and isinstance(node.args[0], Var):
            stem = node.args[0].name.removesuffix("_vals")
            fresh = next(name for name in (f"{stem}{number}" for number in count()) if name not in used_names)
            used_names.add(fresh)
            names[node] = Var(fresh)
    return names
