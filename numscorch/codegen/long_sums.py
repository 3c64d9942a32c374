"""Long sums: loops run in blocks, each of which adds to separate registers, or to separate places if the loop scatters its terms.

``schedule.block_sums`` chooses the partial sums in registers. A loop over a run of positions is emitted with and without blocks,
because only a few rows may be long.

``schedule.scatter_blocks`` chooses the blocks of loops that scatter. After each block, a routine adds the sums to a second array
and clears them. After ``FAN`` blocks, the routine adds the second array to a third one, and so on (``routines.carry``). So each
place takes few terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ..ir import index as ix
from ..ir.dtype import DTYPES
from ..ir.loop import (
    NESTED,
    Accumulate,
    Assign,
    BinOp,
    Block,
    Call,
    Const,
    Do,
    Expr,
    For,
    If,
    Stmt,
    Var,
    While,
    call,
    expressions,
    map_blocks,
    map_stmt,
    names_in,
    names_written,
    rewrite,
    until,
    walk_block,
    walked_by,
)
from ..ir.workspace_levels import Listed
from ..schedule import tuning
from ..schedule.scatter_blocks import in_memory, outer_of
from .environment import Env, size_of, stride_of

FAN = 64  # sums that a place takes before it is added to the next level
LEVELS = 4  # levels of places, enough for FAN**LEVELS blocks

Sums = Mapping[str, Expr]  # initial zeros of registers, keyed by the register
Names = Mapping[str, str]  # registers of partial sums, keyed by the register of the sum


def with_sums(block: Block, loop: ix.Forall) -> Block:
    """Pass the partial sums of a loop of index notation on to the loops to which it was lowered.

    The lowered loops count the variable, or positions of levels that it indexes.
    """
    if loop.sums is None:
        return block
    levels = [(access, at) for access in ix.operands_of(loop) for at in range(len(access.indices))]
    variables = {inner.var for inner in ix.loops_of(loop)} if isinstance(loop.tag, ix.FlatSum) else {loop.var}
    counted = {loop.var.name, *(f"p{access.tensor}{at + 1}" for access, at in levels if access.level_var(at) in variables)}

    def passed_on(stmt: Stmt) -> Block:
        if isinstance(stmt, For | While) and (counter := _counter(stmt)) is not None and counter[0].name in counted:
            return (replace(stmt, sums=loop.sums),)
        return (stmt,)

    return rewrite(block, passed_on)


def block_sums(block: Block, cleared: Sums | None = None) -> Block:
    """Split loops with partial sums into blocks that add to separate registers.

    ``cleared`` maps each register that is zero before the block to its initial zero.

    >>> from ..ir.tags import PartialSums
    >>> t, p, n, x = (Var(name) for name in ("t", "p", "n", "x"))
    >>> summed = (Assign(t, Const(0.0, "float32")), For(p, Const(0), n, (Accumulate(t, x[p]),)))
    >>> block_sums(summed) == summed
    True
    >>> *_, loop = block_sums((summed[0], replace(summed[1], sums=PartialSums((64,)))))
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
            stmt = map_blocks(stmt, partial(block_sums, cleared=dict(cleared)))
        elif isinstance(stmt, For | While):
            counter = _counter(stmt)
            sums = {name: zero for name, zero in cleared.items() if _is_summed(name, stmt.body)} if counter else {}
            stmt = map_blocks(map_blocks(stmt, partial(_separate_sums, sums=sums)), block_sums)
            stmt = _in_blocks(stmt, *counter, sums) if counter and sums else stmt
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


def _is_summed(name: str, block: Block) -> bool:
    """Whether a block adds to a register, but doesn't read or write it otherwise."""
    users = [stmt for stmt in walk_block(block) if _written(stmt) == name or name in names_in(*expressions(stmt))]
    return bool(users) and all(_adds_to(name, stmt) for stmt in users)


def _written(stmt: Stmt) -> str | None:
    return stmt.var.name if isinstance(stmt, Assign | Accumulate) else None


def _adds_to(name: str, stmt: Stmt) -> bool:
    """Whether a statement adds something else to a register."""
    match stmt:
        case Accumulate(Var(var), value) if var == name:
            return name not in names_in(value)
        case Assign(Var(var), Call("add" | "accumulate", (Var(first), *rest)) | Call("fma" | "dot" | "dots", (*rest, Var(first)))):
            return var == first == name and name not in names_in(*rest)
        case _:
            return False


def _in_blocks(loop: For | While, var: Var, step: int, sums: Sums) -> Stmt:
    """Split a loop into blocks, and blocks of blocks, with its widths. A short run of positions uses no blocks."""
    if loop.sums is None or not loop.sums.widths:
        return loop
    widths = [width * step for width in loop.sums.widths]
    nest = _nest(loop, var, sums, widths)
    if isinstance(loop, For) and not isinstance(loop.start, Const):
        return If(loop.start + widths[0] * tuning.FEWEST_SUM_BLOCKS < loop.stop, (nest,), (loop,))
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


def _separate_sums(block: Block, sums: Sums) -> Block:
    """Give each inner loop with partial sums separate registers, and add these to the outer sums after the loop."""
    out: list[Stmt] = []
    for stmt in block:
        written = names_written((stmt,)) if sums else set()
        zeros = {name: zero for name, zero in sums.items() if name in written}
        if zeros and isinstance(stmt, For | While) and stmt.sums is not None:
            names = {name: f"{name}_apart" for name in zeros}
            out += [*_clear({names[name]: zero for name, zero in zeros.items()}), *_rename((stmt,), names), *_add_parts(zeros, names)]
        elif zeros and isinstance(stmt, For | While | If):
            out.append(map_blocks(stmt, partial(_separate_sums, sums=zeros)))
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
    """Redirect the sums of a block to registers of partial sums."""

    def change(expr: Expr) -> Expr | None:
        return Var(names[expr.name]) if isinstance(expr, Var) and expr.name in names else None

    def renamed(stmt: Stmt) -> Block:
        if isinstance(stmt, Assign | Accumulate) and stmt.var.name in names:
            stmt = replace(stmt, var=Var(names[stmt.var.name]))
        return (stmt if isinstance(stmt, NESTED) else map_stmt(stmt, change),)

    return rewrite(block, renamed)


def scattered(stmt: ix.Stmt) -> dict[str, tuple[ix.Access, set[ix.IndexVar]]]:
    """Map the array names of each loop in blocks to the access that it adds to and the variables that change within the loop."""
    loops = [(loop, ix.result_of(loop)) for loop in ix.loops_of(stmt) if _is_in_blocks(loop.tag)]
    return {f"{lhs.tensor.name}_{loop.var}": (lhs, {inner.var for inner in ix.loops_of(loop)}) for loop, lhs in loops}


def _is_in_blocks(tag: ix.Tag) -> bool:
    return isinstance(tag, ix.Blocks) or (isinstance(tag, ix.Divide) and tag.blocks > 0)


def lower_blocks(stmt: ix.Forall, count: int, env: Env, lower_serial: Callable[[ix.Forall, Env], Block]) -> Block:
    """Lower a serial loop to about ``count`` blocks. Each block starts with zero sums and moves its sums to the next level at its end."""
    body = lower_serial(replace(stmt, tag=ix.Serial()), env)
    lhs = ix.result_of(stmt)
    if env.assembly.counting:
        return body
    name = f"{lhs.tensor.name}_{stmt.var}"
    parts, number, values = Var(f"{name}_parts"), Var(f"{name}_number"), Var(f"{lhs.tensor.name}_vals")
    first, size = _places(lhs, {loop.var for loop in ix.loops_of(stmt)}, env)
    clear: Block = (Do(call("empty_places", parts, Const(0), Var(f"{name}_places"))),)
    carry = (Accumulate(number, Const(1)), Do(call("carry", parts, values, first, size, number)))
    cut = tuple(part for each in body for part in _cut(each, count, name, carry))
    if cut == body:
        return body
    is_listed = not lhs.tensor.is_dense and isinstance(lhs.tensor.format.levels[0], Listed)
    clear = (*clear, Do(call("empty_places", values, first, size))) if is_listed else clear
    return (*clear, Assign(number, Const(0)), *cut, Do(call("collect", parts, values, first, size)))


def _places(lhs: ix.Access, inner: set[ix.IndexVar], env: Env) -> tuple[Expr, Expr]:
    """Return the first place and the number of places of a loop's sums. The variables ``inner`` change within the loop."""
    if not lhs.tensor.is_dense:
        return Const(0), size_of(lhs.indices[0])
    outer, order = outer_of(lhs, inner), in_memory(lhs)
    if outer:
        return env.strided_position(lhs, tuple(lhs.indices[at] for at in outer)), stride_of(lhs, outer[-1])
    if not order:
        return Const(0), Const(1)
    var, stride = lhs.indices[order[0]], stride_of(lhs, order[0])
    first, stop = env.bounds(var) if env.divided else (Const(0), env.extent(var))
    return first * stride, (stop - first) * stride


def _cut(stmt: Stmt, count: int, name: str, carry: Block) -> Block:
    """Split a loop into blocks and carry the sums after each block; return any other statement unchanged."""
    width, block = Var(f"{name}_width"), Var(f"{name}_block")
    match stmt:
        case For(_, start, stop, _, Const(1), False):
            inner = replace(stmt, start=block, stop=call("min", block + width, stop))
            return (Assign(width, (stop - start) // count + 1), For(block, start, stop, (inner, *carry), step=width))
        case While(condition) if (walked := walked_by(condition)) is not None:
            var, end = walked
            body = (Assign(block, call("min", var + width, end)), While(until(condition, block), stmt.body), *carry)
            return (Assign(width, (end - var) // count + 1), While(condition, body))
        case _:
            return (stmt,)
