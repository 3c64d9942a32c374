"""Loops that scatter long sums run in blocks: after each block, a routine adds the sums to a second array and empties their places.

After ``FAN`` blocks, it adds the second array to a third one, and so on (``routines.carry``). So each place takes few terms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir import index as ix
from ..ir.loop import Accumulate, Assign, Block, Const, Do, Expr, For, Stmt, Var, While, call, until, walked_by
from ..ir.workspace_levels import Listed
from ..schedule.scatter_blocks import in_memory, outer_of
from .environment import Env, size_of, stride_of

FAN = 64  # sums that one place takes before it is emptied into another
LEVELS = 4  # of such places: FAN**LEVELS blocks
Lower = Callable[[ix.Forall, Env], Block]


def scattered(stmt: ix.Stmt) -> dict[str, tuple[ix.Access, set[ix.IndexVar]]]:
    """For each loop that runs in blocks, by the name of its arrays: what it adds to, and the variables that change within it."""
    loops = [loop for loop in ix.loops_of(stmt) if isinstance(loop.tag, ix.Blocks)]
    results = [(loop, lhs) for loop in loops if (lhs := ix.result_of(loop))]
    return {f"{lhs.tensor.name}_{loop.var}": (lhs, {inner.var for inner in ix.loops_of(loop)}) for loop, lhs in results}


def lower_blocks(stmt: ix.Forall, count: int, env: Env, lower_serial: Lower) -> Block:
    """Lower a serial loop to about ``count`` blocks. Each block starts with empty sums and moves its sums to other places at its end."""
    body = lower_serial(replace(stmt, tag=ix.Serial()), env)
    lhs = ix.result_of(stmt)
    if env.assembly is not None and env.assembly.counting:
        return body
    name = f"{lhs.tensor.name}_{stmt.var}"
    parts, number, values = Var(f"{name}_parts"), Var(f"{name}_number"), Var(f"{lhs.tensor.name}_vals")
    first, size = _places(lhs, {loop.var for loop in ix.loops_of(stmt)}, env)
    emptied: Block = (Do(call("empty_places", parts, Const(0), Var(f"{name}_places"))),)
    carry = (Accumulate(number, Const(1)), Do(call("carry", parts, values, first, size, number)))
    cut = tuple(part for each in body for part in _cut(each, count, name, carry))
    if cut == body:
        return body
    is_listed = not lhs.tensor.is_dense and isinstance(lhs.tensor.format.levels[0], Listed)
    emptied = (*emptied, Do(call("empty_places", values, first, size))) if is_listed else emptied
    return (*emptied, Assign(number, Const(0)), *cut, Do(call("collect", parts, values, first, size)))


def _places(lhs: ix.Access, inner: set[ix.IndexVar], env: Env) -> tuple[Expr, Expr]:
    """The first place of the sums of a loop, and how many there are, where these variables change within it."""
    if not lhs.tensor.is_dense:
        return Const(0), size_of(lhs.indices[0])
    outer, order = outer_of(lhs, inner), in_memory(lhs)
    if outer:
        return env.strided_position(lhs, tuple(lhs.indices[at] for at in outer)), stride_of(lhs, outer[-1])
    return Const(0), env.extent(lhs.indices[order[0]]) * stride_of(lhs, order[0]) if order else Const(1)


def _cut(stmt: Stmt, count: int, name: str, carry: Block) -> Block:
    """A loop in blocks, after each of which the sums are carried on; anything else as it is."""
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
