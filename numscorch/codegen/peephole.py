"""simplify: what lowering said more than was needed."""

from __future__ import annotations

from collections import Counter

from ..ir.loop import Accumulate, Assign, Block, Const, For, If, Stmt, Var, While, expressions, map_blocks, names_used, walk, walk_block


def simplify(block: Block) -> Block:
    """Join a register's clearing with the only sum added to it, and drop variables that nothing reads.

    >>> from numscorch.ir.loop import Store
    >>> t, y = Var("t"), Var("y")
    >>> clear, total, write = Assign(t, Const(0.0, "float32")), Accumulate(t, Var("s")), Store(y, Const(0), t)
    >>> simplify((clear, total, write)) == (Assign(t, Var("s")), write)
    True
    """
    return _without_unread(_joined(block), _reads(block))


def _joined(block: Block) -> Block:
    """``t = 0`` and, before any other use, ``t += s``: ``t = s``."""
    out: list[Stmt] = []
    for at, stmt in enumerate(block):
        if isinstance(stmt, For | While | If):
            stmt = map_blocks(stmt, _joined)
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
    """Whether the next statement that names the variable adds to it, in the same block."""
    if not isinstance(clear, Assign):
        return False
    for stmt in rest:
        if isinstance(stmt, Accumulate) and stmt.var == clear.var:
            return not any(e == clear.var for e in walk(stmt.value))
        if clear.var.name in names_used((stmt,)):
            return False
    return False


def _reads(block: Block) -> Counter[str]:
    """How often each variable is read."""
    exprs = (e for s in walk_block(block) for top in expressions(s) for e in walk(top))
    return Counter(e.name for e in exprs if isinstance(e, Var))


def _without_unread(block: Block, reads: Counter[str]) -> Block:
    """Assignments to variables that are never read go; no value has an effect of its own."""
    out: list[Stmt] = []
    for stmt in block:
        if isinstance(stmt, Assign | Accumulate) and not reads[stmt.var.name]:
            continue
        if isinstance(stmt, For | While | If):
            stmt = map_blocks(stmt, lambda inner: _without_unread(inner, reads))
            if not stmt.body and not (isinstance(stmt, If) and stmt.orelse):
                continue
        out.append(stmt)
    return tuple(out)
