"""hoist_loads: what a loop loads anew each time, but never changes, is loaded once before it.

Numba passes arrays without saying that they don't overlap, so LLVM must assume that a store changes
every later load; the compiler knows that operands are only read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..ir.loop import (
    Accumulate,
    Assign,
    BinOp,
    Block,
    Call,
    Expr,
    For,
    If,
    Load,
    Stmt,
    Store,
    Var,
    While,
    expressions,
    names_used,
    walk,
    walk_block,
)

LOADS = ("load", "load_first")
MOST = 16  # vector registers that one loop may hold loaded


def hoist_loads(block: Block) -> Block:
    """Move invariant vector loads out of the innermost loops that hold them.

    >>> from numscorch.ir.loop import Const, call
    >>> row = call("load", Var("X_vals"), Var("i"), 8)
    >>> body = (Assign(Var("t"), call("fma", row, Var("y"), Var("t"))),)
    >>> hoist_loads((For(Var("p"), Const(0), Var("n"), body),))[0]
    Assign(var=Var(name='X0'), value=Call(function='load', args=(Var(name='X_vals'), Var(name='i'), Const(value=8, dtype=None))))
    """
    out: list[Stmt] = []
    for stmt in block:
        if isinstance(stmt, For | While | If):
            stmt = replace(stmt, body=hoist_loads(stmt.body))
        if isinstance(stmt, For) and not stmt.parallel:
            moved, stmt = _hoist_from(stmt)
            out += moved
        out.append(stmt)
    return tuple(out)


def _hoist_from(loop: For) -> tuple[list[Assign], For]:
    """Invariant loads of one loop as assignments, and the loop with their variables in place."""
    changed = _assigned(loop.body) | {loop.var.name}
    written = {s.array.name for s in walk_block(loop.body) if isinstance(s, Store)} | _stored_by_calls(loop.body)
    settled = {s.var.name: s.value for s in loop.body if isinstance(s, Assign) and _count(loop.body, s.var.name) == 1}
    found: dict[Expr, Expr] = {}
    for stmt in walk_block(loop.body):
        for expr in expressions(stmt):
            for node in walk(expr):
                if isinstance(node, Call) and node.function in LOADS and node not in found:
                    resolved = _resolve(node, settled)
                    names = {e.name for e in walk(resolved) if isinstance(e, Var)}
                    if not names & changed and not names & written:
                        found[node] = resolved
    if not found or len(found) > MOST:
        return [], loop
    names_of = _names(list(found), names_used(loop.body))
    moved = [Assign(names_of[node], resolved) for node, resolved in found.items()]
    return moved, replace(loop, body=_replaced(loop.body, dict(names_of)))


def _resolve(expr: Expr, settled: dict[str, Expr]) -> Expr:
    """The expression with variables that the loop sets just once replaced by their values, positions mostly."""
    match expr:
        case Var(name) if name in settled:
            return _resolve(settled[name], {k: v for k, v in settled.items() if k != name})
        case BinOp(op, left, right):
            return BinOp(op, _resolve(left, settled), _resolve(right, settled))
        case Call(function, args):
            return Call(function, tuple(_resolve(a, settled) for a in args))
        case Load(array, index):
            return Load(array, _resolve(index, settled))
        case _:
            return expr


def _assigned(block: Block) -> set[str]:
    return {s.var.name for s in walk_block(block) if isinstance(s, Assign | Accumulate | For)}


def _count(block: Block, name: str) -> int:
    return sum(1 for s in walk_block(block) if isinstance(s, Assign | Accumulate | For) and s.var.name == name)


def _stored_by_calls(block: Block) -> set[str]:
    calls = (node for s in walk_block(block) for e in expressions(s) for node in walk(e) if isinstance(node, Call))
    return {c.args[0].name for c in calls if c.function.startswith("store") and isinstance(c.args[0], Var)}


def _names(nodes: list[Expr], taken: set[str]) -> dict[Expr, Var]:
    """X0, X1, ... for loads from X_vals."""
    names: dict[Expr, Var] = {}
    for node in nodes:
        if isinstance(node, Call) and isinstance(node.args[0], Var):
            stem = node.args[0].name.removesuffix("_vals")
            fresh = next(n for n in _numbered(stem) if n not in taken)
            taken.add(fresh)
            names[node] = Var(fresh)
    return names


def _numbered(stem: str) -> Iterator[str]:
    at = 0
    while True:
        yield f"{stem}{at}"
        at += 1


def _replaced(block: Block, table: dict[Expr, Var]) -> Block:
    return tuple(_replace_in(stmt, table) for stmt in block)


def _replace_in(stmt: Stmt, table: dict[Expr, Var]) -> Stmt:
    def swap(e: Expr) -> Expr:
        if e in table:
            return table[e]
        match e:
            case BinOp(op, left, right):
                return BinOp(op, swap(left), swap(right))
            case Call(function, args):
                return Call(function, tuple(swap(a) for a in args))
            case Load(array, index):
                return Load(array, swap(index))
            case _:
                return e

    if isinstance(stmt, For | While | If):
        stmt = replace(stmt, body=_replaced(stmt.body, table))
    match stmt:
        case Assign(var, value):
            return Assign(var, swap(value))
        case Accumulate(var, value):
            return Accumulate(var, swap(value))
        case Store(array, index, value, add):
            return Store(array, swap(index), swap(value), add)
        case _:
            return replace(stmt, call=swap(stmt.call)) if hasattr(stmt, "call") else stmt
