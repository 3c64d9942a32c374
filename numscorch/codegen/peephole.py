"""simplify: remove redundant statements that lowering produces."""

from __future__ import annotations

from dataclasses import replace

from ..ir.loop import (
    NESTED,
    Accumulate,
    Assign,
    Block,
    Call,
    Const,
    Expr,
    For,
    If,
    Stmt,
    Var,
    While,
    map_blocks,
    map_expr,
    names_in,
    names_read,
    names_used,
    names_written,
    rewrite,
    walk,
)


def simplify(block: Block) -> Block:
    """Assign a register's only sum instead of clearing and adding, drop unread variables, and fuse loops over consecutive runs.

    >>> from numscorch.ir.loop import Store
    >>> t, y = Var("t"), Var("y")
    >>> clear, total, write = Assign(t, Const(0.0, "float32")), Accumulate(t, Var("s")), Store(y, Const(0), t)
    >>> simplify((clear, total, write)) == (Assign(t, Var("s")), write)
    True
    """
    read = names_read(block)
    return rewrite(rewrite(_merge_clears(block), lambda stmt: _without_unread(stmt, read)), _fuse_runs)


def _fuse_runs(stmt: Stmt) -> Block:
    """Fuse a loop over consecutive runs, such as rows of a matrix, into one loop with a predictable end.

    >>> from numscorch.ir.loop import Store
    >>> i, p, pos, y = Var("i"), Var("p"), Var("pos"), Var("y")
    >>> rows = For(i, Const(2), Var("n"), (For(p, pos[i], pos[i + 1], (Store(y, Const(0), p),)),))
    >>> _fuse_runs(rows) == (For(p, pos[Const(2)], pos[Var("n")], (Store(y, Const(0), p),)),)
    True
    """
    match stmt:
        case For(var, start, stop, (For() as run,), Const(1), False) if _are_consecutive(var, run):
            return (replace(run, start=_at(run.start, var, start), stop=_at(run.start, var, stop)),)
        case _:
            return (stmt,)


def _are_consecutive(var: Var, run: For) -> bool:
    """Whether each run starts where the previous run ended, and its body doesn't read the variable of the loop over runs."""
    read = names_in(run.start)
    plain = run.step == Const(1) and not run.parallel and not any(isinstance(e, Call) for e in walk(run.start))
    return (
        plain
        and var.name in read
        and not read & names_written(run.body)
        and run.stop == _at(run.start, var, var + 1)
        and var.name not in names_used(run.body)
    )


def _at(expr: Expr, var: Var, value: Expr) -> Expr:
    return map_expr(expr, lambda part: value if part == var else None)


def _merge_clears(block: Block) -> Block:
    """Replace ``t = 0`` and ``t += s``, without another use of t between them, by ``t = s``."""
    out: list[Stmt] = []
    for at, stmt in enumerate(block):
        if isinstance(stmt, For | While | If):
            stmt = map_blocks(stmt, _merge_clears)
        if _clears(stmt) and _next_use_adds(stmt, block[at + 1 :]):
            continue
        cleared = isinstance(stmt, Accumulate) and any(
            _clears(before) and before.var == stmt.var and _next_use_adds(before, block[n + 1 :])
            for n, before in enumerate(block[:at])
            if isinstance(before, Assign)
        )
        out.append(Assign(stmt.var, stmt.value) if cleared and isinstance(stmt, Accumulate) else stmt)
    return tuple(out)


def _clears(stmt: Stmt) -> bool:
    return isinstance(stmt, Assign) and isinstance(stmt.value, Const) and stmt.value.dtype is not None and stmt.value.value == 0


def _next_use_adds(clear: Stmt, rest: Block) -> bool:
    """Whether the next statement of the block that names the variable adds to it."""
    if not isinstance(clear, Assign):
        return False
    for stmt in rest:
        if isinstance(stmt, Accumulate) and stmt.var == clear.var:
            return not any(e == clear.var for e in walk(stmt.value))
        if clear.var.name in names_used((stmt,)):
            return False
    return False


def _without_unread(stmt: Stmt, read: set[str]) -> Block:
    """Drop an assignment to a variable that is never read, or an empty statement; values have no side effects."""
    if isinstance(stmt, Assign | Accumulate):
        return (stmt,) if stmt.var.name in read else ()
    if isinstance(stmt, NESTED):
        return (stmt,) if stmt.body or (isinstance(stmt, If) and stmt.orelse) else ()
    return (stmt,)
