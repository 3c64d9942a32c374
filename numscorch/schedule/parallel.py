"""parallelize: cuts the outermost loop into blocks that run in parallel. divide: workers share a loop that scatters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from ..errors import ScheduleError
from ..ir.assembled import bound_of, is_placed
from ..ir.functions import is_intersection
from ..ir.index import (
    Assignment,
    Blocks,
    Divide,
    FlatSum,
    Forall,
    IndexVar,
    Parallel,
    Positions,
    Serial,
    Stmt,
    Tag,
    Tile,
    Transpose,
    Vector,
    Where,
    accesses_in,
    assignments,
    is_product,
    loops_of,
    operands_of,
    result_of,
    unwrap,
    value_of,
)
from ..ir.verify import can_divide
from ..ir.workspace_levels import Scattered
from . import cost, tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target, by_answers


def parallelize(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str]:
    """Run the outermost loop inside tile loops in parallel, if its iterations write disjoint results or add to one sum.

    A sum over the outermost loop is computed block by block, and the partial sums are added in order. A problem that is too
    small for threads uses the same kernel with one worker (``pays``). The options may name the loop or disable threads.

    Raises:
        ScheduleError: the loop of the options would cause a data race, or is not the outermost loop.
    """
    wanted = options.parallel
    if wanted == "":
        return stmt, "requested: serial"
    parallel, why = _tag_outermost(stmt, facts)
    in_blocks = [loop.var.name for loop in loops_of(parallel) if runs_in_blocks(loop.tag)]
    if wanted is not None and wanted not in in_blocks:
        outermost = next(loop.var.name for loop in loops_of(stmt) if not isinstance(loop.tag, Tile))
        why = why if wanted == outermost else f"the outermost loop is {outermost}, not {wanted}"
        raise ScheduleError(f"parallelize({wanted}): {why}\n  {stmt}     only the outermost loop, if its iterations write disjoint results")
    steps = steps_of(parallel, facts)
    is_small = in_blocks and wanted is None and steps < _fewest_steps(parallel)
    note = ", on one worker, since there are too few steps for threads" if is_small else ""
    return parallel, f"about {steps:.3g} steps: {why}{note}"


@by_answers
def pays(stmt: Stmt, facts: Facts) -> bool:
    """Whether a problem has enough work for several workers."""
    return steps_of(stmt, facts) >= _fewest_steps(stmt)


def _fewest_steps(stmt: Stmt) -> int:
    """The number of steps from which several workers pay; entries that are placed or appended take two parallel loops."""
    return tuning.PARALLEL_STEPS * (tuning.PLACED_STEPS if is_placed(stmt) else tuning.APPENDED_STEPS if bound_of(stmt) else 1)


def _tag_outermost(stmt: Stmt, facts: Facts, within: tuple[IndexVar, ...] = ()) -> tuple[Stmt, str]:
    """Tag the outermost loop inside tile loops, and inside a loop of few steps around tile loops.

    It has no blocks if its variable is tiled (``within``): they would exceed the tile.
    """
    match stmt:
        case Forall(var, tiled, Tile()):
            tiled, why = _tag_outermost(tiled, facts, (*within, var))
            return replace(stmt, body=tiled), f"in each tile of {var}, {why}"
        case Forall(var, Forall(_, _, Tile()) as tiled, Serial()) if facts.extent(var) < tuning.SHARED_COORDINATES:
            inner, why = _tag_outermost(tiled, facts, within)
            return replace(stmt, body=inner), f"for each {var}, {why}"
        case Forall(var, _, Serial()) | Where(_, Forall(var, _, Serial())) if var in within:
            return stmt, "the outermost loop is serial: it runs over that tile only"
        case Forall(var, _, Serial()) if (var in result_of(stmt).indices or is_placed(stmt)) and _can_be_cut(stmt):
            return replace(stmt, tag=Parallel()), f"parallel blocks of {var}, with disjoint results"
        case Where(Assignment(lhs), Forall(var, _, Serial()) as producer) if lhs.tensor.is_scalar and _can_be_summed(producer):
            return replace(stmt, producer=replace(producer, tag=Parallel())), f"parallel blocks of {var}, with a partial sum each"
        case Forall(_, Forall(var), Transpose()):
            return stmt, f"parallel parts of {var}, with disjoint results"
        case Where(Assignment(), Forall(tag=FlatSum())):
            return stmt, "parallel blocks of positions, with a partial sum each"
        case _:
            return stmt, "serial, since the outermost loop scatters, searches or is vectorised"


def runs_in_blocks(tag: Tag) -> bool:
    """Whether a loop is cut into blocks that run in parallel."""
    return isinstance(tag, Parallel | FlatSum)


def steps_of(stmt: Stmt, facts: Facts) -> float:
    """Estimate the steps of the innermost loops; a step handles a register of lanes, or a few gathered values."""
    tags = [loop.tag for loop in loops_of(stmt)]
    lanes = max((tag.lanes for tag in tags if isinstance(tag, Vector | FlatSum | Transpose)), default=1)
    gathers = tuning.STEPS_OF_A_GATHER if any(isinstance(tag, Positions) for tag in tags) else 1
    return work_of(stmt, facts) * _passes(stmt) / max(lanes, gathers)


def _passes(stmt: Stmt) -> int:
    """How many innermost loops run one after the other, as a row's maximum and its sum."""
    depths = list(_depths(stmt))
    return depths.count(max(depths))


def _depths(stmt: Stmt, above: int = 0) -> Iterator[int]:
    """For each assignment, the number of loops around it."""
    match stmt:
        case Forall(_, body):
            yield from _depths(body, above + 1)
        case Where(consumer, producer):
            yield from (*_depths(consumer, above), *_depths(producer, above))
        case Assignment():
            yield above
        case _:
            assert_never(stmt)


def work_of(stmt: Stmt, facts: Facts) -> float:
    """Estimate the scalar steps of the innermost loop, including coordinates that only one operand of an intersection has.

    Rows that are scattered into dense arrays add no steps: they are looked up at the coordinates of other operands.
    """
    scattered = _scattered_operands(stmt)
    walks = cost.walks_of((a for a in operands_of(stmt) if a.tensor.name not in scattered), facts)
    variables = dict.fromkeys(loop.var for loop in loops_of(stmt))
    return cost.executions(variables, walks, facts, not is_intersection(value_of(stmt)))[1]


def _scattered_operands(stmt: Stmt) -> set[str]:
    """The operands that are read only to scatter their rows into dense arrays."""
    scattered: set[str] = set()
    other_reads: set[str] = set()
    for each in assignments(stmt):
        read = scattered if [type(level) for level in each.lhs.tensor.format.levels] == [Scattered] else other_reads
        read |= {access.tensor.name for access in accesses_in(each.rhs)}
    return scattered - other_reads


def _can_be_summed(loop: Forall) -> bool:
    """Whether the loop can be cut into blocks, if the results of the blocks are then added."""
    return all(a.op in ("=", "+=") for a in assignments(loop)) and _can_be_cut(loop)


def _can_be_cut(loop: Forall) -> bool:
    """Whether the loop can be cut: it runs over a dimension, over one first level, or over levels that it can enter anywhere."""
    iterated = [access for access in operands_of(loop) if 0 in access.sparse_levels(loop.var)]
    if len(iterated) == 1 and is_product(value_of(loop)):
        return True
    return all(cost.can_enter(access.tensor.format.levels[0]) for access in iterated)


def divide(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Let all workers run the outermost loop if a loop inside scatters along rows of an operand; None if none does.

    Each worker adds to its part of the result, in the order of the serial loop. So results are bitwise equal for any number of
    workers.

    >>> from ..ir.format import CSC
    >>> from ..ir.index import TensorVar
    >>> from ..ir.notation import parse_stmt
    >>> nest = parse_stmt("forall(j, forall(i, y[i] += A[i,j] * x[j]))", {"A": TensorVar("A", CSC)})
    >>> print(*divide(nest, Facts(())) or (), sep="\\n")
    divide_forall<i>(j, forall(i, y[i] += A[i,j] * x[j]))
    y is scattered along i: each worker adds its part of y
    """
    match stmt:
        case Forall(tag=Serial() | Blocks()) if options.parallel is None:
            loops, assignment = unwrap(stmt)
            blocks = stmt.tag.count if isinstance(stmt.tag, Blocks) else 0
            for loop in loops[1:]:
                if isinstance(assignment, Assignment) and can_divide(stmt, loop.var.name, blocks):
                    why = f"{assignment.lhs.tensor} is scattered along {loop.var}: each worker adds its part of {assignment.lhs.tensor}"
                    return replace(stmt, tag=Divide(loop.var.name, blocks)), why
        case Where(Forall(var, Assignment(), Serial()), Forall() as producer):
            divided = divide(producer, facts, target, options)  # a worker clears and reads its part of the workspace
            if divided is not None and divided[0] == replace(producer, tag=Divide(var.name)):
                return replace(stmt, producer=divided[0]), divided[1]
    return None
