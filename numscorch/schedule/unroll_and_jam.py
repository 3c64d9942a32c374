"""unroll_and_jam: a loop around a register tile takes several coordinates at once, which share loads.

A tile of R registers takes R + 1 loads for R multiplications: R registers of the vector operand, and the scalar that
multiplies them. U coordinates at once take R + U loads for U R multiplications (Callahan, Carr, Kennedy, "Improving
Register Allocation for Subscripted Variables", PLDI 1990).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from ..ir.index import (
    Access,
    Assignment,
    Forall,
    IndexVar,
    Jam,
    Serial,
    Stmt,
    Tile,
    Unroll,
    Vector,
    Where,
    accesses_in,
    loops_of,
    map_loops,
    operands_of,
    result_of,
    unwrap,
    value_of,
    wrap,
)
from . import tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target, is_divisible
from .tiles import tiled
from .vector import narrowed
from .workspace import moved_by

TIMES = (8, 4, 2)  # candidate numbers of coordinates at once


def unroll_and_jam(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Take several coordinates of a dense loop at once if that saves loads; None if it saves none.

    >>> from numscorch.ir.notation import parse_stmt
    >>> nest = "forall(i, forall(u, vector_forall<8 x 8, once>(k, where(C[i,u,k] = t, forall(j, t += A[i,u,j] * B[i,j,k])))))"
    >>> extents = {IndexVar("i"): 100, IndexVar("u"): 64, IndexVar("j"): 100, IndexVar("k"): 64}
    >>> stmt, why = unroll_and_jam(parse_stmt(nest), Facts.of(extents, {}, 8, Target()), Target())
    >>> print(str(stmt)[:72])
    forall(i, jam_forall<4>(u, vector_forall<8 x 2, overlapped>(k, where(C[i
    """
    if options.order is not None or options.tile is not None:
        return None
    loops, body = unwrap(stmt)
    if len(loops) < 3 or not isinstance(body, Where) or not isinstance(body.consumer, Assignment):
        return None
    *outer, vector = loops
    if not isinstance(vector.tag, Vector) or any(_is_merge(loop) for loop in loops_of(body)):  # each coordinate would repeat the merge
        return None
    best = min(_choices(outer, vector.var, vector.tag.registers or vector.tag.tail, stmt, facts, target), default=None)
    if best is None:
        return None
    _, _, times, registers, at = best
    jam_loop = outer[at]
    tag = Jam(times, rest=not is_divisible(facts.exact[jam_loop.var], times))
    narrow = narrowed(vector.var, vector.tag, registers, facts, overlapped=body.consumer.op == "=")
    # the jammed coordinates already give enough independent sums
    serial = map_loops(body, lambda loop: replace(loop, tag=Serial()) if isinstance(loop.tag, Unroll) else loop)
    inner = replace(vector, tag=narrow, body=serial)
    nest = wrap([*outer[:at], *outer[at + 1 :], replace(jam_loop, tag=tag)], inner)
    why = f"{times} coordinates of {jam_loop.var} share their loads: {times} x {registers} registers"
    size, where = _choose_tile(jam_loop.var, {loop.var for loop in outer}, times, nest, facts, target)
    return (tiled(nest, jam_loop.var, size), f"{why}; tiles of {size} stay in {where}") if size else (nest, why)


def _choose_tile(var: IndexVar, outer: set[IndexVar], times: int, stmt: Stmt, facts: Facts, target: Target) -> tuple[int, str]:
    """Tile size for which the operands of a tile stay in a cache, and the name of the cache; 0 for no tiles.

    The nearest cache is chosen if that saves more than rereading the shared operands for each tile costs, else half of a
    core's own cache. There are no tiles if the operands of all coordinates fit, or if tiles would be too small.
    """
    moving = [access for access in operands_of(stmt) if access.tensor.is_dense and var in access.indices]
    each = sum(prod(facts.extent(v) for v in moved_by(access) - outer) * access.tensor.type.itemsize for access in moving)
    near_size = int(tuning.NEAREST_CACHE / each) // times * times if each else 0
    if 0 < near_size < facts.extent(var) and _pays_in_the_nearest(each, var, outer, times, stmt, facts, target):
        return near_size, "the nearest cache"
    if each * facts.extent(var) * 2 <= target.own_cache:
        return 0, ""
    size = int(target.own_cache / 2 / each) // times * times
    return size if size >= tuning.JAMMED_GROUPS * times else 0, "a core's cache"


def _pays_in_the_nearest(each: float, var: IndexVar, outer: set[IndexVar], times: int, stmt: Stmt, facts: Facts, target: Target) -> bool:
    """Whether tiles in the nearest cache save more loads from farther caches than they add.

    Tiles save ``times`` loads of ``each`` bytes, or of all bytes of the shared operands if these are fewer. In return, each tile
    rereads the shared operands sequentially: from a core's own cache at full speed, from the last cache at half that speed.
    """
    total = sum(_bytes_of(access, facts) for access in operands_of(stmt) if var not in access.indices and access.tensor.has_values)
    shared = total / max(prod(facts.extent(v) for v in outer - {var}), 1.0)
    return times * min(each, shared) > shared * (1 if total <= target.own_cache else 2)


def _bytes_of(access: Access, facts: Facts) -> float:
    if access.tensor.is_dense:
        return prod(facts.extent(v) for v in access.indices) * access.tensor.type.itemsize
    return facts.count(access.tensor.name)[1][-1] * access.tensor.type.itemsize


def _choices(
    outer: list[Forall], lanes: IndexVar, chunks: int, stmt: Stmt, facts: Facts, target: Target
) -> Iterator[tuple[float, int, int, int, int]]:
    """Yield (loads per multiplication, -coordinates, coordinates, registers, loop number) of each choice that pays.

    ``lanes`` is the variable of the vector loop, and ``chunks`` the number of its registers.
    """
    for at, loop in enumerate(outer):
        if not _can_be_jammed(loop, lanes, stmt):
            continue
        for times in (t for t in TIMES if t <= facts.extent(loop.var)):
            for registers in {chunks, *(r for r in (1, 2, 4) if r < chunks)}:
                loads = (registers + times + 1) / (registers * times)
                if times * registers <= target.registers * 3 // 4 and loads * tuning.JAM_GAIN <= (chunks + 2) / chunks:
                    yield loads, -times, times, registers, at


def _can_be_jammed(loop: Forall, lanes: IndexVar, stmt: Stmt) -> bool:
    """Whether a loop may move inside the other loops and take several coordinates at once, with shared loads."""
    result, var = result_of(stmt), loop.var
    is_tiled = any(other.var == var and isinstance(other.tag, Tile) for other in loops_of(stmt))
    if not isinstance(loop.tag, Serial) or var not in result.indices or is_tiled:
        return False
    sparse = [(access, at) for access in operands_of(stmt) for at in access.sparse_levels()]
    if any(access.level_var(up) == var for access, at in sparse for up in range(at + 1)):
        return False  # an operand is sparse at the level of the variable or below it
    loads = [access for access in accesses_in(value_of(stmt)) if access.tensor.has_values]
    return any(lanes in moved_by(access) and var not in moved_by(access) for access in loads)


def _is_merge(loop: Forall) -> bool:
    """Whether a loop walks several sparse operands together, or an operand with repeated coordinates."""
    iterated = [access.tensor.format.levels[at] for access in operands_of(loop) for at in access.sparse_levels(loop.var)]
    levels = [level for level in iterated if not level.ends]
    return len(levels) > 1 or not all(level.is_unique for level in levels)
