"""Split loops that scatter long sums into blocks: after each block, a routine adds the sums to a second array and clears them.

After ``FAN`` blocks, the routine adds the second array to a third one, and so on (``routines.carry``). So each place takes
few terms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir import index as ix
from ..ir.loop import Accumulate, Assign, Block, Const, Do, Expr, For, Stmt, Var, While, call, until, walked_by
from ..ir.workspace_levels import Listed
from ..schedule.scatter_blocks import in_memory, outer_of
from .environment import Env, size_of, stride_of

FAN = 64  # sums that a place takes before it is added to the next level
LEVELS = 4  # levels of places, enough for FAN**LEVELS blocks


def scattered(stmt: ix.Stmt) -> dict[str, tuple[ix.Access, set[ix.IndexVar]]]:
    """Map the array names of each loop in blocks to the access that it adds to and the variables that change within the loop."""
    loops = [(loop, ix.result_of(loop)) for loop in ix.loops_of(stmt) if isinstance(loop.tag, ix.Blocks)]
    return {f"{lhs.tensor.name}_{loop.var}": (lhs, {inner.var for inner in ix.loops_of(loop)}) for loop, lhs in loops}


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
    return Const(0), env.extent(lhs.indices[order[0]]) * stride_of(lhs, order[0]) if order else Const(1)


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
