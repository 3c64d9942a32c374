"""Sums over all entries of a tensor: one loop over the positions of its values, split into blocks for threads."""

from __future__ import annotations

from dataclasses import replace

from ..errors import ScheduleError
from ..ir import index as ix
from ..ir.level import Segment
from ..ir.loop import Accumulate, Assign, Block, Const, Expr, For, Store, Var, call, names_used
from .environment import Env, Lanes, Lower, clear, partial_register


def lower_entries(stmt: ix.Where, target: ix.TensorVar, env: Env, lower: Lower) -> Block:
    """Sum the entries in full steps of all registers, then the remaining entries one by one, and run the consumer.

    Blocks consist of full steps. Their number does not depend on the number of threads, and their sums are added in order.
    """
    walk = Walk(stmt, target, env, lower)
    total = Var("total") if walk.tag.parallel else walk.register
    summed = replace(env, registers={**env.registers, target.name: total})
    steps = walk.in_blocks(total) if walk.tag.parallel else (*clear(target, walk.env), *walk.run(Const(0), walk.split))
    split = (Assign(walk.split, walk.entries // walk.width * walk.width),) if walk.width > 1 and not walk.tag.parallel else ()
    return (*split, *steps, *walk.rest(total), *lower(stmt.consumer, summed))


class Walk:
    """The loops of a sum over all entries of one operand."""

    def __init__(self, stmt: ix.Where, target: ix.TensorVar, env: Env, lower: Lower):
        loops = ix.loops_of(stmt.producer)
        if not loops or not isinstance(tag := loops[0].tag, ix.FlatSum):
            raise ScheduleError(f"expected a loop over entries, found {stmt.producer}")
        self.tag, self.target, self.lower, self.loops = tag, target, lower, loops
        self.body = next(ix.assignments(stmt.producer))
        walked = next(a for a in ix.accesses_in(self.body.rhs) if not a.tensor.is_scalar and a.tensor.shares is None)
        self.name, self.depth = walked.tensor.name, len(walked.tensor.format.levels)
        self.position, self.entries = Var(f"p{self.name}{self.depth}"), Var(f"{self.name}_entries")
        self.register, self.width = Var(target.name), tag.lanes * tag.registers
        self.split = Var(f"{self.position.name}_split") if self.width > 1 else self.entries
        self.env = self._at_position(env)

    def _at_position(self, env: Env) -> Env:
        """Return the environment at a position. Coordinates are unknown, and the body must not need them."""
        unknown = {loop.var: Var(loop.var.name) for loop in self.loops}
        segments = (*(Segment(Var(f"p{self.name}{at + 1}")) for at in range(self.depth - 1)), Segment(self.position))
        registers = {**env.registers, self.target.name: self.register}
        return replace(env, coords={**env.coords, **unknown}, segments={**env.segments, self.name: segments}, registers=registers)

    def run(self, first: Expr, stop: Expr) -> Block:
        """Sum full steps into the register."""
        if self.width == 1:
            return (For(self.position, first, stop, self._step(self.env)),)
        tile = partial_register(self.target.name)
        inner = replace(self.env, registers={**self.env.registers, self.target.name: tile}, varying=self.env.varying | {self.target.name})
        inner = replace(inner, lanes=Lanes(self.loops[-1].var, self.tag.lanes, self.tag.registers))
        loop = For(self.position, first, stop, self._step(inner), step=Const(self.width))
        return (*clear(self.target, inner), loop, Accumulate(self.register, call("hsum", tile)))

    def _step(self, env: Env) -> Block:
        body = self.lower(self.body, env)
        if unknown := {loop.var.name for loop in self.loops} & names_used(body):
            raise ScheduleError(f"{self.body} needs {', '.join(sorted(unknown))}, which a loop over entries doesn't know")
        return body

    def in_blocks(self, total: Var) -> Block:
        """Sum each block separately, then add the sums of all blocks."""
        worker, block, steps, partial = Var("worker"), Var("block"), Var(f"{self.name}_steps"), Var("partial_vals")
        workers, blocks = Var("workers"), Var("blocks")
        first, stop = (steps * at // blocks * self.width for at in (block, block + 1))
        block_body = (*clear(self.target, self.env), *self.run(first, stop), Store(partial, block, self.register))
        inner = For(block, blocks * worker // workers, blocks * (worker + 1) // workers, block_body)
        join = For(block, Const(0), blocks, (Accumulate(total, partial[block]),))
        return (
            Assign(steps, self.entries // self.width),
            For(worker, Const(0), workers, (inner,), parallel=True),
            Assign(total, Const(0.0, self.target.dtype)),
            join,
            *((Assign(self.split, steps * self.width),) if self.width > 1 else ()),
        )

    def rest(self, total: Var) -> Block:
        """Sum the entries after the last full step one by one."""
        if self.width == 1:
            return ()
        env = replace(self.env, registers={**self.env.registers, self.target.name: total})
        return (For(self.position, self.split, self.entries, self._step(env)),)
