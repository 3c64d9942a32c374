"""Sums over all entries of a tensor: one loop over the positions of its values, split into blocks for threads."""

from __future__ import annotations

from dataclasses import replace

from ..errors import ScheduleError
from ..ir import index as ix
from ..ir.level import Segment
from ..ir.loop import Assign, Block, Const, Expr, For, Store, Var, call, names_used
from .environment import Env, Lanes, Lower, clear, loop_over_blocks, partial_register, sum_of_blocks


def lower_entries(stmt: ix.Where, tag: ix.FlatSum, target: ix.TensorVar, env: Env, lower: Lower) -> Block:
    """Sum the entries in full steps of all registers, then the remaining entries one by one, and run the consumer.

    Blocks consist of full steps. Their number does not depend on the number of threads, and their sums are added in order.
    """
    loops, term = ix.loops_of(stmt.producer), next(ix.assignments(stmt.producer))
    walked = next(a.tensor for a in ix.accesses_in(term.rhs) if not a.tensor.is_scalar and a.tensor.shares is None)
    name, depth = walked.name, len(walked.format.levels)
    position, entries, steps, split = Var(f"p{name}{depth}"), Var(f"{name}_entries"), Var(f"{name}_steps"), Var(f"p{name}{depth}_split")
    unknown = {loop.var: Var(loop.var.name) for loop in loops}
    segments = (*(Segment(Var(f"p{name}{at + 1}")) for at in range(depth - 1)), Segment(position))
    env = replace(env, coords={**env.coords, **unknown}, segments={**env.segments, name: segments})

    def sum_into(register: Var, first: Expr, stop: Expr, inner: Env, width: int = 1) -> For:
        body = lower(term, inner.with_register(target.name, register))
        if needed := {var.name for var in unknown} & names_used(body):
            raise ScheduleError(f"{term} needs {', '.join(sorted(needed))}, which a loop over entries does not compute")
        return For(position, first, stop, body, step=Const(width))

    total, register, block, width = Var("total"), Var(target.name), Var("block"), tag.lanes * tag.registers
    first, stop = (steps * at // Var("blocks") * width for at in (block, block + 1))
    if width == 1:
        sums: Block = (*clear(target, env.with_register(target.name, register)), sum_into(register, first, stop, env))
        rest: Block = ()
    else:
        tile = partial_register(target.name)
        inner = replace(env, lanes=Lanes(loops[-1].var, tag.lanes, tag.registers), varying=env.varying | {target.name})
        cleared = clear(target, inner.with_register(target.name, tile))
        sums = (*cleared, sum_into(tile, first, stop, inner, width), Assign(register, call("hsum", tile)))
        rest = (Assign(split, steps * width), sum_into(total, split, entries, env))
    run = loop_over_blocks((*sums, Store(Var("partial_vals"), block, register)))
    workers = For(Var("worker"), Const(0), Var("workers"), (run,), parallel=True)
    consumer = lower(stmt.consumer, env.with_register(target.name, total))
    return (Assign(steps, entries // width), workers, *sum_of_blocks(total, target.dtype), *rest, *consumer)
