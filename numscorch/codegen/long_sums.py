"""Long sums: registers that a loop adds many terms to are added up in blocks.

The error of a sum grows with the number of terms that one register takes one after the other: 10^7 terms of 0.1 in float32 are
wrong by 0.6 %. So a long loop runs in blocks of ``SUM_BLOCK`` terms, and each block has a separate sum. The pass treats the loop over
blocks like any other loop, so the sums form a tree. Short loops do not change. A loop over a run of positions has both forms, since
a few rows may be long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from ..ir.loop import (
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
    map_expr,
    map_stmt,
    names_used,
    registers_of,
    until,
    walk,
    walk_block,
    walked_by,
)
from ..schedule import tuning

LONG = 4 * tuning.SUM_BLOCK  # terms of a sum from which it is taken in blocks
APART = tuning.SUM_BLOCK // 2  # terms of a loop within another one from which it has a sum of its own
Lengths = Mapping[str, float]  # by a loop's variable
Sums = Mapping[str, Expr]  # the zeros that registers start from, by their names
Names = Mapping[str, str]  # of the registers of parts, by those of the sums


def block_sums(block: Block, lengths: Lengths, cleared: Sums | None = None) -> Block:
    """Take long sums in blocks, where ``lengths`` says about how many steps loops over a variable have.

    The registers that are ``cleared`` start from zeros before the block.

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
            sums = {name: zero for name, zero in cleared.items() if _is_summed(name, stmt.body)} if _step_of(stmt) else {}
            stmt = map_blocks(map_blocks(stmt, partial(_apart, sums=sums, lengths=lengths)), partial(block_sums, lengths=lengths))
            stmt = _in_blocks(stmt, sums, lengths) if sums else stmt
        out.append(stmt)
    return tuple(out)


def _is_zero(value: Expr) -> bool:
    """Whether it is a zero that rounding errors matter beside, in a scalar or a register."""
    match value:
        case Const(0.0, str(dtype)):
            return dtype.startswith(("float", "complex"))
        case Call("splat", (Const(0.0, str(dtype)), *_)):
            return dtype.startswith("float")
        case _:
            return False


def _step_of(loop: For | While) -> int:
    """By how much a loop's variable grows at each step; 0 where it is no such loop, or runs in threads."""
    match loop:
        case For(_, _, _, _, Const(int(step)), False):
            return step
        case While(BinOp("<", Var(name), _), (*_, Assign(Var(last), BinOp("+", Var(again), Const(int(step)))))) if name == last == again:
            return step
        case While(BinOp("<", Var(name), _), (*_, Accumulate(Var(last), Const(int(step))))) if name == last:
            return step
        case While(condition, body) if (walked := walked_by(condition)) is not None:
            return int(_writes(walked[0].name, body))
        case _:
            return 0


def _variable(loop: For | While) -> Var:
    """The variable that a loop counts."""
    match loop:
        case For(var):
            return var
        case While(condition) if (walked := walked_by(condition)) is not None:
            return walked[0]
        case _:
            raise TypeError(f"a loop that counts no variable: {loop}")


def _steps(loop: For | While, lengths: Lengths) -> float:
    """About how many coordinates or positions a loop passes: of runs that follow one another, those of all."""
    length = lengths.get(_variable(loop).name, 1.0)
    match loop:
        case For(_, Load(_, Load(Var(above), _))):
            return length * lengths.get(f"p{above.removesuffix('_pos')}", 1.0)
        case _:
            return length


def _terms(loop: For | While, sums: Sums, lengths: Lengths) -> float:
    """About how many terms a loop adds to each of these registers; as if it had one step where that isn't known."""
    step = _step_of(loop)
    return max(_steps(loop, lengths) / step if step else 1.0, 1.0) * _inside(loop.body, sums, lengths)


def _inside(block: Block, sums: Sums, lengths: Lengths) -> float:
    """About how many terms a block adds to each of these registers, where loops of many terms add their sum."""
    terms = (_terms(loop, sums, lengths) for loop in _loops(block, sums))
    added: Counter[str] = Counter()
    for stmt in block:
        if isinstance(stmt, Assign | Accumulate):
            added[stmt.var.name] += _terms_of(stmt.value)
    return max([1.0, *(float(added[name]) for name in sums), *(1.0 if length >= APART else length for length in terms)])


def _terms_of(value: Expr) -> int:
    """How many terms a value adds to one register: those of a tile, which are added one after the other, or one.

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
    """The outermost loops of a block that add to some of these registers."""
    for stmt in block:
        if isinstance(stmt, For | While) and any(_writes(name, stmt.body) for name in sums):
            yield stmt
        elif isinstance(stmt, If):
            yield from _loops((*stmt.body, *stmt.orelse), sums)


def _writes(name: str, block: Block) -> bool:
    """Whether a block writes a variable."""
    return any(isinstance(stmt, Assign | Accumulate | For) and stmt.var.name == name for stmt in walk_block(block))


def _is_summed(name: str, block: Block) -> bool:
    """Whether a block adds to a register, and neither reads nor writes it otherwise."""
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
        elif any(part == Var(name) for expr in expressions(stmt) for part in walk(expr)):
            return False
    return added > 0


def _adds_to(name: str, value: Expr) -> bool:
    """Whether a value is a register plus something else."""
    match value:
        case Call("add" | "accumulate", (Var(first), *rest)) | Call("fma" | "dot" | "dots", (*rest, Var(first))) if first == name:
            return all(part != Var(name) for operand in rest for part in walk(operand))
        case _:
            return False


def _in_blocks(loop: For | While, sums: Sums, lengths: Lengths) -> Stmt:
    """A loop in blocks of ``SUM_BLOCK`` terms, these in blocks of as many, and so on; short runs of positions stay one loop."""
    inside, terms, widths = _inside(loop.body, sums, lengths), _terms(loop, sums, lengths), list[int]()
    width = max(int(tuning.SUM_BLOCK / inside), 1) * _step_of(loop)
    while terms >= LONG:
        widths.append(width)
        width, terms = width * tuning.SUM_BLOCK, terms / tuning.SUM_BLOCK
    layered = _layered(loop, sums, widths)
    if isinstance(loop, For) and widths and not isinstance(loop.start, Const):
        return If(loop.start + widths[0] * (LONG // tuning.SUM_BLOCK) < loop.stop, (layered,), (loop,))
    return layered


def _layered(loop: For | While, sums: Sums, widths: list[int]) -> For | While:
    """A loop in blocks of these widths, the last one outermost."""
    if not widths:
        return loop
    *inner, width = widths
    names = {name: _part(name) for name in sums}
    parts = {names[name]: zero for name, zero in sums.items()}
    body, var = _renamed(loop.body, names), _variable(loop)
    match loop:
        case For(_, start, stop):
            block = Var(f"{var.name}_block{len(widths)}")
            layer = replace(loop, start=block, stop=call("min", block + width, stop), body=body)
            return For(block, start, stop, (*_cleared(parts), _layered(layer, parts, inner), *_added(sums, names)), step=Const(width))
        case While(condition) if (walked := walked_by(condition)) is not None:
            last = Var(f"{var.name}_last{len(widths)}")
            first = Assign(last, call("min", var + width, walked[1]))
            own_loop = While(until(condition, last), body)
            return replace(loop, body=(*_cleared(parts), first, _layered(own_loop, parts, inner), *_added(sums, names)))
        case _:
            raise TypeError(f"a loop that counts no variable: {loop}")


def _apart(block: Block, sums: Sums, lengths: Lengths) -> Block:
    """A loop's body, in which each loop of many terms has sums of its own, which are then added to the others."""
    out: list[Stmt] = []
    for stmt in block:
        zeros = {name: zero for name, zero in sums.items() if _writes(name, (stmt,))}
        if zeros and isinstance(stmt, For | While) and _step_of(stmt) and _terms(stmt, zeros, lengths) >= APART:
            names = {name: f"{name}_apart" for name in zeros}
            out += [*_cleared({names[name]: zero for name, zero in zeros.items()}), *_renamed((stmt,), names), *_added(zeros, names)]
        elif zeros and isinstance(stmt, For | While | If):
            out.append(map_blocks(stmt, partial(_apart, sums=zeros, lengths=lengths)))
        else:
            out.append(stmt)
    return tuple(out)


def _part(name: str) -> str:
    """The register of a part of a sum.

    >>> _part("t"), _part("t_part1")
    ('t_part1', 't_part2')
    """
    base, _, number = name.partition("_part")
    return f"{base}_part{int(number or 0) + 1}"


def _cleared(sums: Sums) -> Block:
    return tuple(Assign(Var(name), zero) for name, zero in sums.items())


def _added(sums: Sums, names: Names) -> Block:
    """Add the part of each sum to it."""
    pairs = [(Var(name), Var(names[name]), isinstance(zero, Call)) for name, zero in sums.items()]
    return tuple(Assign(total, call("add", total, part)) if register else Accumulate(total, part) for total, part, register in pairs)


def _renamed(block: Block, names: Names) -> Block:
    """A block that adds to the registers of parts."""

    def change(expr: Expr) -> Expr | None:
        return Var(names[expr.name]) if isinstance(expr, Var) and expr.name in names else None

    def renamed(stmt: Stmt) -> Stmt:
        match stmt:
            case Assign(var, value) if var.name in names:
                return Assign(Var(names[var.name]), map_expr(value, change))
            case Accumulate(var, value) if var.name in names:
                return Accumulate(Var(names[var.name]), value)
            case For() | While() | If():
                return map_blocks(stmt, lambda inner: _renamed(inner, names))
            case _:
                return map_stmt(stmt, change)

    return tuple(map(renamed, block))
