"""simplify and shorten: remove redundant statements that lowering produces, and reduce the overhead of loops over short rows."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from ..ir.loop import (
    NESTED,
    Accumulate,
    Assign,
    BinOp,
    Block,
    Call,
    Choose,
    Const,
    Expr,
    For,
    If,
    Load,
    Stmt,
    Store,
    Var,
    call,
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
    """Replace clearing a register and adding one value by an assignment, drop unread variables, and fuse loops over consecutive runs.

    >>> from numscorch.ir.loop import Store
    >>> t, y = Var("t"), Var("y")
    >>> clear, total, write = Assign(t, Const(0.0, "float32")), Accumulate(t, Var("s")), Store(y, Const(0), t)
    >>> simplify((clear, total, write)) == (Assign(t, Var("s")), write)
    True
    >>> simplify((clear, total, total, write)) == (Assign(t, Var("s")), total, write)
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
    cleared: set[Var] = set()
    for at, stmt in enumerate(block):
        if isinstance(stmt, NESTED):
            stmt = map_blocks(stmt, _merge_clears)
        if isinstance(stmt, Assign) and _is_zero(stmt.value) and _next_use_adds(stmt.var, block[at + 1 :]):
            cleared.add(stmt.var)
        elif isinstance(stmt, Accumulate) and stmt.var in cleared:
            cleared.remove(stmt.var)
            out.append(Assign(stmt.var, stmt.value))
        else:
            out.append(stmt)
    return tuple(out)


def _is_zero(value: Expr) -> bool:
    return isinstance(value, Const) and value.dtype is not None and value.value == 0


def _next_use_adds(var: Var, rest: Block) -> bool:
    """Whether the next statement of the block that names the variable adds to it."""
    for stmt in rest:
        if isinstance(stmt, Accumulate) and stmt.var == var:
            return not any(e == var for e in walk(stmt.value))
        if var.name in names_used((stmt,)):
            return False
    return False


def _without_unread(stmt: Stmt, read: set[str]) -> Block:
    """Drop an assignment to a variable that is never read, or an empty statement; values have no side effects."""
    if isinstance(stmt, Assign | Accumulate):
        return (stmt,) if stmt.var.name in read else ()
    if isinstance(stmt, NESTED):
        return (stmt,) if stmt.body or (isinstance(stmt, If) and stmt.orelse) else ()
    return (stmt,)


def shorten(block: Block, starts: Container[str]) -> Block:
    """Carry each row's end over to the next row as its start, and mark loops that sum or scatter a row as not to be unrolled.

    Otherwise the overhead of a short row costs as much as its values. A row starts where the previous row ended, so only its
    end is loaded, as an int64. An empty row loads nothing else. A loop that sums one row is not unrolled: most rows would
    only run the remainder loop, and each further loop has an end that may be mispredicted.

    Args:
        block: a kernel's body.
        starts: the names of the arrays that hold where rows start.

    >>> from numscorch.ir.loop import Store
    >>> i, p, n, pos, y = (Var(name) for name in ("i", "p", "n", "pos", "y"))
    >>> rows = For(i, Const(0), n, (For(p, pos[i], pos[i + 1], (Store(y, p, i),)),))
    >>> first, loop = shorten((rows,), {"pos"})
    >>> first
    Assign(var=Var(name='p_start'), value=Call(function='int64', args=(Load(array=Var(name='pos'), index=Const(value=0, dtype=None)),)))
    >>> [type(stmt).__name__ for stmt in loop.body], loop.body[-1]
    (['Assign', 'For', 'Assign'], Assign(var=Var(name='p_start'), value=Var(name='p_end')))
    """

    def shortened(stmt: Stmt) -> Block:
        if isinstance(stmt, For) and (rows := _rows_of(stmt)) is not None and rows[2].name in starts:
            start, end, pos = rows
            return (Assign(start, call("int64", pos[stmt.start])), _carry_ends(stmt, start, end, pos))
        return _scattered_rolled(stmt)

    return rewrite(block, shortened)


def _keep_rolled(stmt: Stmt) -> Stmt:
    """Mark a loop that sums a row, or its remainder, as not to be unrolled; return any other statement unchanged."""
    match stmt:
        case For(p, _, _, (Assign(var, Load(crd, index)), *terms), Const(1), False) if index == p and _adds_up(terms):
            return replace(stmt, body=(Assign(var, call("rolled", Load(crd, index))), *terms))
        case _:
            return stmt


def _scattered_rolled(stmt: Stmt) -> Block:
    """Mark a loop that scatters a row as not to be unrolled, and load values that its steps share before it.

    The steps depend on each other through memory, so that copies gain nothing. In a marked loop, LLVM would load the values at each step.

    >>> a, b, p, q, y = (Var(name) for name in "abpqy")
    >>> term = BinOp("+", a[q], Choose(q < Var("end"), b[q], Const(0.0)))
    >>> loop = For(p, Const(0), Var("n"), (Assign(Var("j"), Var("crd")[p]), Store(y, Var("j"), term, True)))
    >>> [stmt.value for stmt in _scattered_rolled(loop)[:-1]] == [a[q], Choose(q < Var("end"), b[q], Const(0.0))]
    True
    """
    match stmt:
        case For(p, _, _, (Assign(var, Load(crd, index)), Store(values, _, term, True) as store), Const(1), False) if index == p:
            value, shared = _with_shared_loads(term, {p.name, var.name, values.name})
            return (*shared, replace(stmt, body=(Assign(var, call("rolled", Load(crd, index))), replace(store, value=value))))
        case _:
            return (stmt,)


def _with_shared_loads(term: Expr, changing: set[str]) -> tuple[Expr, list[Assign]]:
    """Replace loads that contain no changing name by variables; return the term and the assignments to these variables.

    A load in a choice is valid only under the choice's condition, because an absent operand may be at its end. The choice moves as a whole.
    """
    names: dict[Expr, Var] = {}

    def shared(part: Expr) -> Expr | None:
        match part:
            case Load(array) | Choose(_, Load(array), Const()) if not changing & names_in(part):
                return names.setdefault(part, Var(f"{array.name}{len(names)}"))
            case Choose():
                return part
            case _:
                return None

    value = map_expr(term, shared)
    return value, [Assign(name, part) for part, name in names.items()]


def _adds_up(block: list[Stmt]) -> bool:
    return all(isinstance(stmt, Assign | Accumulate) for stmt in block) and any(isinstance(stmt, Accumulate) for stmt in block)


def _rows_of(loop: For) -> tuple[Var, Var, Var] | None:
    """Return the start and end of a row and the array that holds them, if each step of the loop walks the next row; else None."""
    if loop.step != Const(1) or loop.parallel:
        return None
    for stmt in loop.body:
        match stmt:
            case For(p, Load(pos, at), Load(also, after)) if pos == also and (at, after) == (loop.var, loop.var + 1):
                start, end = Var(f"{p.name}_start"), Var(f"{p.name}_end")
                return None if {start.name, end.name, pos.name} & names_written(loop.body) else (start, end, pos)
    heads = {stmt.value: stmt.var for stmt in loop.body if isinstance(stmt, Assign)}
    for value, start in heads.items():
        if isinstance(value, Load) and value.index == loop.var and value.array[loop.var + 1] in heads:
            end = heads[value.array[loop.var + 1]]
            rest = list(loop.body)
            for bound in (Assign(start, value), Assign(end, value.array[loop.var + 1])):
                rest.remove(bound)  # a bound that is assigned again is needed within the body
            return None if {start.name, end.name, value.array.name} & names_written(tuple(rest)) else (start, end, value.array)
    return None


def _carry_ends(loop: For, start: Var, end: Var, pos: Var) -> For:
    """Make each row of a loop load its end and pass it to the next row as the start."""
    first, last = pos[loop.var], pos[loop.var + 1]
    statements = (stmt for stmt in loop.body if stmt not in (Assign(start, first), Assign(end, last)))
    body = tuple(replace(s, start=start, stop=end) if isinstance(s, For) and (s.start, s.stop) == (first, last) else s for s in statements)
    body = tuple(map(_keep_rolled, body))
    if _only_walks(body, start, end):
        body = (If(start < end, body),)
    return replace(loop, body=(Assign(end, call("int64", last)), *body, Assign(start, end)))


def _only_walks(body: Block, start: Var, end: Var) -> bool:
    """Whether a body only loads registers and walks the entries of its row, so that an empty row can skip it."""
    loads = [s for s in body if isinstance(s, Assign) and isinstance(s.value, Call) and s.value.function == "load"]
    ends = {start, end} | {s.var for s in body if isinstance(s, Assign) and _is_split(s.value, start, end)}
    walks = [s for s in body if _walks(s, ends, end)]
    rest = [s for s in body if not isinstance(s, For | If)]
    names = {s.var.name for s in rest if isinstance(s, Assign)}
    known = all(isinstance(s, Assign) and not names_in(s.value) & names - {var.name for var in ends} for s in rest)
    return bool(loads) and known and len(walks) + len(rest) == len(body)


def _walks(stmt: Stmt, ends: set[Var], end: Var) -> bool:
    """Whether a statement is a loop over entries of a row, or handles one entry if the row has it."""
    match stmt:
        case For(_, start, stop):
            return {start, stop} <= ends
        case If(BinOp("<", position, stop), _, ()):
            return stop == end and bool(names_in(position) & {var.name for var in ends})
        case _:
            return False


def _is_split(value: Expr, start: Var, end: Var) -> bool:
    """Whether an expression is the start of a row's remainder. In an empty row, this is the row's start."""
    return isinstance(value, BinOp) and value.op == "+" and value.left == start and names_in(value.right) == {start.name, end.name}
