"""Long sums: loops that add many terms to a register run in blocks, each with a separate sum.

The rounding error of a sequential sum grows with its number of terms: the sum of 10^7 terms of 0.1 in float32 is wrong by 0.6
%. So a long loop runs in blocks of ``SUM_BLOCK`` terms. The loop over blocks is split in the same way, so the sums form a
tree. Short loops do not change. A loop over a run of positions gets both forms, because a few rows may be long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from ..ir.dtype import DTYPES
from ..ir.loop import (
    NESTED,
    Accumulate,
    Assign,
    BinOp,
    Block,
    Call,
    Const,
    Expr,
    For,
    If,
    Load,
    Stmt,
    Var,
    While,
    call,
    expressions,
    map_blocks,
    map_stmt,
    names_in,
    names_used,
    names_written,
    registers_of,
    rewrite,
    until,
    walk,
    walk_block,
    walked_by,
)
from ..schedule import tuning

LONG = 4 * tuning.SUM_BLOCK  # number of terms from which a sum is split into blocks
APART = tuning.SUM_BLOCK // 2  # number of terms from which an inner loop gets a separate sum
Lengths = Mapping[str, float]  # approximate lengths of loops, keyed by the loop variable
Sums = Mapping[str, Expr]  # initial zeros of registers, keyed by the register
Names = Mapping[str, str]  # registers of partial sums, keyed by the register of the sum


def block_sums(block: Block, lengths: Lengths, cleared: Sums | None = None) -> Block:
    """Split long sums into blocks. ``lengths`` maps loop variables to approximate lengths.

    ``cleared`` maps registers that are zero before the block to their zeros.

    >>> t, p, n, x = (Var(name) for name in ("t", "p", "n", "x"))
    >>> summed = (Assign(t, Const(0.0, "float32")), For(p, Const(0), n, (Accumulate(t, x[p]),)))
    >>> block_sums(summed, {"p": 100}) == summed
    True
    >>> *_, loop = block_sums(summed, {"p": 10**4})
    >>> loop.step, [stmt.var.name for stmt in loop.body]
    (Const(value=64, dtype=None), ['t_part1', 'p', 't'])
    """
    out: list[Stmt] = []
    cleared = dict(cleared or {})
    for stmt in block:
        if isinstance(stmt, Assign):
            if _is_zero(stmt.value):
                cleared[stmt.var.name] = stmt.value
            else:
                cleared.pop(stmt.var.name, None)
        if isinstance(stmt, If):
            stmt = map_blocks(stmt, partial(block_sums, lengths=lengths, cleared=dict(cleared)))
        elif isinstance(stmt, For | While):
            counter = _counter(stmt)
            sums = {name: zero for name, zero in cleared.items() if _is_summed(name, stmt.body)} if counter else {}
            stmt = map_blocks(map_blocks(stmt, partial(_separate_sums, sums=sums, lengths=lengths)), partial(block_sums, lengths=lengths))
            stmt = _in_blocks(stmt, *counter, sums, lengths) if counter and sums else stmt
        out.append(stmt)
    return tuple(out)


def _is_zero(value: Expr) -> bool:
    """Whether a value is a floating-point zero, in a scalar or a register."""
    match value:
        case Const(0.0, str(dtype)) | Call("splat", (Const(0.0, str(dtype)), *_)):
            return DTYPES[dtype].is_rounded
        case _:
            return False


def _counter(loop: For | While) -> tuple[Var, int] | None:
    """Return the variable that a loop counts and its increment; None if the loop is parallel or counts no variable."""
    match loop:
        case For(var, _, _, _, Const(int(step)), False):
            return var, step
        case While(BinOp("<", Var() as var, _), (*_, Assign(last, BinOp("+", again, Const(int(step)))))) if var == last == again:
            return var, step
        case While(BinOp("<", Var() as var, _), (*_, Accumulate(last, Const(int(step))))) if var == last:
            return var, step
        case While(condition, body) if (walked := walked_by(condition)) is not None and walked[0].name in names_written(body):
            return walked[0], 1
        case _:
            return None


def _steps(loop: For | While, lengths: Lengths) -> float:
    """Estimate the number of steps of a loop; a loop over consecutive runs covers all of them. An unknown length counts as one step."""
    if (counter := _counter(loop)) is None:
        return 1.0
    var, step = counter
    length = lengths.get(var.name, 1.0)
    match loop:
        case For(_, Load(_, Load(Var(above), _))):
            length *= lengths.get(f"p{above.removesuffix('_pos')}", 1.0)
    return length / step


def _terms(loop: For | While, sums: Sums, lengths: Lengths) -> float:
    """Estimate the number of terms that a loop adds to a register."""
    return max(_steps(loop, lengths), 1.0) * _terms_of_block(loop.body, sums, lengths)


def _terms_of_block(block: Block, sums: Sums, lengths: Lengths) -> float:
    """Estimate the number of terms that a block adds to a register; an inner loop of many terms adds one separate sum."""
    terms = (_terms(loop, sums, lengths) for loop in _loops(block, sums))
    added: Counter[str] = Counter()
    for stmt in block:
        if isinstance(stmt, Assign | Accumulate):
            added[stmt.var.name] += _terms_of(stmt.value)
    return max([1.0, *(float(added[name]) for name in sums), *(1.0 if length >= APART else length for length in terms)])


def _terms_of(value: Expr) -> int:
    """Return how many terms a value adds to one register: one, or the number of registers of a tile that are added in order.

    >>> x, total = call("load", Var("x_vals"), Var("p"), 8, 4), Var("t")
    >>> _terms_of(call("accumulate", total, x)), _terms_of(call("add", total, x))
    (4, 1)
    """
    match value:
        case Call("accumulate" | "dot" | "dots", args):
            return max((registers_of(part) for arg in args for part in walk(arg)), default=1)
        case _:
            return 1


def _loops(block: Block, sums: Sums) -> Iterator[For | While]:
    """Yield the outermost loops of a block that add to some of these registers."""
    for stmt in block:
        if isinstance(stmt, For | While) and sums and not names_written(stmt.body).isdisjoint(sums):
            yield stmt
        elif isinstance(stmt, If):
            yield from _loops((*stmt.body, *stmt.orelse), sums)


def _is_summed(name: str, block: Block) -> bool:
    """Whether a block adds to a register, but doesn't read or write it otherwise."""
    added = 0
    for stmt in walk_block(block):
        if isinstance(stmt, Accumulate) and stmt.var.name == name:
            added += 1
            if name in names_used((replace(stmt, var=Var("")),)):
                return False
        elif isinstance(stmt, Assign) and stmt.var.name == name:
            if not _adds_to(name, stmt.value):
                return False
            added += 1
        elif any(name in names_in(expr) for expr in expressions(stmt)):
            return False
    return added > 0


def _adds_to(name: str, value: Expr) -> bool:
    """Whether a value is a register plus something else."""
    match value:
        case Call("add" | "accumulate", (Var(first), *rest)) | Call("fma" | "dot" | "dots", (*rest, Var(first))) if first == name:
            return all(name not in names_in(operand) for operand in rest)
        case _:
            return False


def _in_blocks(loop: For | While, var: Var, step: int, sums: Sums, lengths: Lengths) -> Stmt:
    """Split a loop into blocks of ``SUM_BLOCK`` terms, and blocks of ``SUM_BLOCK`` blocks, and so on; short runs stay one loop."""
    per_step, terms, widths = _terms_of_block(loop.body, sums, lengths), _terms(loop, sums, lengths), list[int]()
    width = max(int(tuning.SUM_BLOCK / per_step), 1) * step
    while terms >= LONG:
        widths.append(width)
        width, terms = width * tuning.SUM_BLOCK, terms / tuning.SUM_BLOCK
    nest = _nest(loop, var, sums, widths)
    if isinstance(loop, For) and widths and not isinstance(loop.start, Const):
        return If(loop.start + widths[0] * (LONG // tuning.SUM_BLOCK) < loop.stop, (nest,), (loop,))
    return nest


def _nest(loop: For | While, var: Var, sums: Sums, widths: list[int]) -> For | While:
    """Nest a loop in blocks of these widths; the last width is outermost."""
    if not widths:
        return loop
    *inner, width = widths
    names = {name: _part(name) for name in sums}
    parts = {names[name]: zero for name, zero in sums.items()}
    body = _rename(loop.body, names)
    match loop:
        case For(_, start, stop):
            block = Var(f"{var.name}_block{len(widths)}")
            layer = replace(loop, start=block, stop=call("min", block + width, stop), body=body)
            return For(block, start, stop, (*_clear(parts), _nest(layer, var, parts, inner), *_add_parts(sums, names)), step=Const(width))
        case While(condition) if (walked := walked_by(condition)) is not None:
            last = Var(f"{var.name}_last{len(widths)}")
            first = Assign(last, call("min", var + width, walked[1]))
            inner_loop = While(until(condition, last), body)
            return replace(loop, body=(*_clear(parts), first, _nest(inner_loop, var, parts, inner), *_add_parts(sums, names)))
        case _:
            raise TypeError(f"expected a loop that counts a variable, found {loop}")


def _separate_sums(block: Block, sums: Sums, lengths: Lengths) -> Block:
    """Give each loop of many terms in a block separate sums, and add them to the outer sums after the loop."""
    out: list[Stmt] = []
    for stmt in block:
        written = names_written((stmt,)) if sums else set()
        zeros = {name: zero for name, zero in sums.items() if name in written}
        if zeros and isinstance(stmt, For | While) and _counter(stmt) and _terms(stmt, zeros, lengths) >= APART:
            names = {name: f"{name}_apart" for name in zeros}
            out += [*_clear({names[name]: zero for name, zero in zeros.items()}), *_rename((stmt,), names), *_add_parts(zeros, names)]
        elif zeros and isinstance(stmt, For | While | If):
            out.append(map_blocks(stmt, partial(_separate_sums, sums=zeros, lengths=lengths)))
        else:
            out.append(stmt)
    return tuple(out)


def _part(name: str) -> str:
    """Return the register of a partial sum.

    >>> _part("t"), _part("t_part1")
    ('t_part1', 't_part2')
    """
    base, _, number = name.partition("_part")
    return f"{base}_part{int(number or 0) + 1}"


def _clear(sums: Sums) -> Block:
    return tuple(Assign(Var(name), zero) for name, zero in sums.items())


def _add_parts(sums: Sums, names: Names) -> Block:
    pairs = [(Var(name), Var(names[name]), isinstance(zero, Call)) for name, zero in sums.items()]
    return tuple(Assign(total, call("add", total, part)) if register else Accumulate(total, part) for total, part, register in pairs)


def _rename(block: Block, names: Names) -> Block:
    """Make a block add to the registers of partial sums."""

    def change(expr: Expr) -> Expr | None:
        return Var(names[expr.name]) if isinstance(expr, Var) and expr.name in names else None

    def renamed(stmt: Stmt) -> Block:
        if isinstance(stmt, Assign | Accumulate) and stmt.var.name in names:
            stmt = replace(stmt, var=Var(names[stmt.var.name]))
        return (stmt if isinstance(stmt, NESTED) else map_stmt(stmt, change),)

    return rewrite(block, renamed)
