"""vectorize: contiguous dense loops run in SIMD registers, and sparse sums take several positions at once."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ..errors import ScheduleError
from ..ir.functions import REDUCTIONS, REGISTER_FUNCTIONS, is_zero, simplified
from ..ir.index import (
    Access,
    Assignment,
    FlatSum,
    Forall,
    IndexVar,
    Positions,
    Serial,
    Stmt,
    Tile,
    Transpose,
    Unroll,
    Vector,
    Where,
    accesses_in,
    assignments,
    is_product,
    loops_of,
    map_loops,
    operators_in,
    result_of,
    unwrap,
    value_of,
    wrap,
)
from ..ir.verify import can_join_dot_products, can_take_positions, can_unroll
from . import cost, tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target, Tiling, tiling_within
from .loop_order import unit_stride
from .statements import each_statement, nested, statements_of
from .tiles import tiled
from .workspace import free_names, sum_in_register, summed_factors, summed_tail


@each_statement
def vectorize(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str]:
    """Vectorise the innermost loop if that pays, or the loop of the options.

    Raises:
        ScheduleError: the loop of the options cannot be vectorised.
    """
    if any(isinstance(loop.tag, FlatSum) for loop in loops_of(stmt)):
        return stmt, "the sum over all entries runs in registers"
    wanted = options.vector
    if wanted == "":
        return stmt, "requested: plain loops"
    vectorized, why = _vectorize_innermost(stmt, facts, target)
    names = {tag: [loop.var.name for loop in loops_of(vectorized) if isinstance(loop.tag, tag)] for tag in (Vector, Positions, Unroll)}
    simd = names[Vector] + names[Positions] or names[Unroll]
    if wanted is not None and wanted not in simd:
        innermost = loops_of(stmt)[-1].var.name
        beginning = (
            f"the innermost loop is {innermost}, not {wanted}" if innermost != wanted else f"{', '.join(simd)} is vectorized instead"
        )
        why = f"{beginning} ({why})" if simd or innermost != wanted else why
        raise ScheduleError(
            f"vectorize({wanted}): {why}\n  {stmt}     the loop must be innermost, and contiguous or a sum over one sparse level"
        )
    return vectorized, why


def gather_rows(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """In fused statements, compute functions for several positions of a long row at once; None if no statement gains from it.

    Fused statements read rows that are in the nearest cache. A single statement reads memory, and the masks at the ends of rows
    cost more than registers save: ``A[i,j] / x[i]`` takes 1.8 times as long.
    """
    reasons: list[str] = []

    def gathered(loop: Forall) -> Forall:
        term = loop.body
        if not isinstance(term, Assignment) or is_product(term.rhs) or loop.tag != Serial() or not term.lhs.tensor.type.in_registers:
            return loop
        if not operators_in(term.rhs) <= set(REGISTER_FUNCTIONS) or (positions := take_positions(loop, term, facts, target)) is None:
            return loop
        tagged, why = positions
        reasons.append(f"{term.lhs.tensor}: {why}")
        return tagged

    loops, statements = statements_of(stmt)
    if not loops:
        return None
    # in a vector loop, the register of a sum already holds one value for each coordinate
    vectors = [any(isinstance(loop.tag, Vector) for loop in loops_of(each)) for each in statements]
    nest = nested(loops, [each if has_vector else map_loops(each, gathered) for each, has_vector in zip(statements, vectors, strict=True)])
    return (nest, "; ".join(reasons)) if reasons else None


def _vectorize_innermost(stmt: Stmt, facts: Facts, target: Target) -> tuple[Stmt, str]:
    """Vectorise the innermost loop, by one of three rules.

    * A dense, contiguous loop over a dimension of the result moves outside the summed loops around it. Its tiles stay in
      registers while these loops run.
    * A dense, contiguous, summed loop keeps partial sums in registers and adds them at the end.
    * A sparse, summed loop takes a register of nonzeros at once if rows are long, else up to four.
    """
    match stmt:
        case Forall(var, body, Tile(size)):
            lanes = target.lanes(result_of(stmt).tensor.dtype)
            body, why = _vectorize_innermost(body, facts.within(var, size, lanes, target), target)
            return tiled(body, var, size), why + (f", and {lanes} lanes don't divide tiles of {size}" if size % lanes else "")
    loops, body = unwrap(stmt)
    if not result_of(stmt).tensor.type.in_registers:
        return stmt, f"{result_of(stmt).tensor.dtype} has no vector instructions here: plain loops"
    for rule in (_vectorize_extreme, _tile_function):
        if (vectorized := rule(loops, body, facts, target)) is not None:
            return vectorized
    if not is_product(value_of(stmt)) or result_of(stmt).tensor.is_assembled or any(a.op not in ("=", "+=") for a in assignments(stmt)):
        return stmt, "not a sum of products at a known position: plain loops"
    match body:
        case Assignment(lhs, Access() as read) if (nest := _transposed_nest(loops, lhs, read, target)) is not None:
            return wrap(nest, body), f"{nest[-2].var} is contiguous in {read}, {nest[-1].var} in {lhs}: transposed in squares of registers"
        case Assignment() if loops and is_dense_loop(loops[-1].var, body, facts):
            return _tile_result(loops, body, facts, target)
        case Where(Assignment() as consumer, producer):
            inner, why = _tag_summed_loop(producer, facts, target)
            return wrap(_unroll_dot_products(loops, consumer, inner), Where(consumer, inner)), why
        case _:
            return stmt, "the innermost loop is neither contiguous nor a sum"


def _tile_function(loops: list[Forall], body: Stmt, facts: Facts, target: Target) -> tuple[Stmt, str] | None:
    """Evaluate functions along a contiguous loop in registers; None if tensors are merged or an operator has no instruction.

    The kept entries of a pruned result are appended one register at a time. If each block has a limited number of entries
    (``largest``), a register must hold whole blocks.

    >>> from ..ir.format import CSR, dense
    >>> from ..ir.index import TensorVar
    >>> from ..ir.notation import parse_stmt
    >>> tensors = {"C": TensorVar("C", CSR, prunes=True), "C_row": TensorVar("C_row", dense(1), strides="1")}
    >>> loop = parse_stmt("forall(k, C[i,k] = where(C_row[k] <= t, 0, C_row[k]))", tensors)
    >>> print(vectorize(loop, Facts.of({IndexVar("k"): 64}, {}, 8, Target()))[0])
    vector_forall<8 x 8, once>(k, C[i,k] = where(C_row[k] <= t, 0, C_row[k]))
    """
    if not loops or not isinstance(body, Assignment) or body.op != "=":
        return None
    var, result, operands = loops[-1].var, body.lhs.tensor, accesses_in(body.rhs)
    if (result.is_assembled or is_product(body.rhs)) and not result.prunes:
        return None
    sparse = {a.tensor.name for a in operands if not a.tensor.is_dense}
    if len(sparse) > 1 or var not in body.lhs.indices or not operators_in(body.rhs) <= set(REGISTER_FUNCTIONS):
        return None
    if not is_dense_loop(var, body, facts) or any(not is_zero(simplified(body.rhs, {name})) for name in sparse):
        return None
    tiles = facts.tiling(var)
    if result.largest is not None and tiles.lanes % result.largest[1]:
        return None
    tag = _tag(tiles) if result.prunes else result_tag(tiles)
    return wrap([*loops[:-1], replace(loops[-1], tag=tag)], body), f"{var} is contiguous: {tag}"


def _vectorize_extreme(loops: list[Forall], body: Stmt, facts: Facts, target: Target) -> tuple[Stmt, str] | None:
    """Compute a maximum or minimum in registers; None for other statements.

    If a contiguous loop is around it, its tiles stay in registers. Otherwise, several positions of a long row are processed at once.
    """
    if not isinstance(body, Where) or not isinstance(body.consumer, Assignment) or body.consumer.lhs.tensor.is_assembled:
        return None
    inner, term = unwrap(body.producer)
    if not isinstance(term, Assignment) or term.op not in REDUCTIONS or not REDUCTIONS[term.op].function:
        return None
    if not operators_in(term.rhs) <= set(REGISTER_FUNCTIONS):
        return None
    sparse = [a for a in accesses_in(term.rhs) if not a.tensor.is_dense]
    if loops and len({a.tensor.name for a in sparse}) == 1 and body.consumer == Assignment(body.consumer.lhs, term.lhs):
        var, assignment = loops[-1].var, Assignment(body.consumer.lhs, term.rhs)
        if not any(var in a.indices for a in sparse) and is_dense_loop(var, assignment, facts) and _varies(var, assignment):
            tag = _tag(facts.tiling(var))
            why = f"{var} is contiguous: {tag}, its tiles kept in registers while {', '.join(str(loop.var) for loop in inner)} runs"
            return wrap([*loops[:-1], replace(loops[-1], tag=tag)], body), why
    if not inner or (gathered := take_positions(inner[-1], term, facts, target)) is None:
        return None
    loop, why = gathered
    return wrap(loops, replace(body, producer=wrap(inner[:-1], loop))), why


def take_positions(loop: Forall, term: Assignment, facts: Facts, target: Target, chosen: float | None = None) -> tuple[Forall, str] | None:
    """Process several positions of a row at once, with gathers into a register; None if that is impossible or doesn't pay.

    If another operand chooses the rows, ``chosen`` is their average length, and their ends are mispredicted.
    """
    count = _entries_per_row(loop.var, term, facts) if chosen is None else chosen
    spread = _spread(loop.var, term, facts) if chosen is None else inf
    gathers = any(a.tensor.is_reordered or (a.tensor.is_dense and loop.var in a.indices) for a in accesses_in(term.rhs))
    lanes = 0 if count is None else in_masks(count, spread, target.lanes(term.lhs.tensor.dtype), gathers)
    if not lanes or not can_take_positions(loop):
        return None
    return replace(
        loop, tag=Positions(lanes)
    ), f"about {count:.3g} nonzeros per row: {lanes} are gathered at once, and the rest of a row is masked"


def _transposed_nest(loops: list[Forall], lhs: Access, read: Access, target: Target) -> list[Forall] | None:
    """The loops of a dense transposing copy, with the two contiguous indices innermost; None for other statements."""
    if not (lhs.tensor.is_dense and read.tensor.is_dense) or len(loops) != len(lhs.indices) or set(lhs.indices) != set(read.indices):
        return None
    source, result = ([v for v, stride in zip(a.indices, a.tensor.strides, strict=True) if stride == "1"] for a in (read, lhs))
    if len(source) != 1 or len(result) != 1 or source == result:
        return None
    tags = {source[0]: Transpose(target.lanes(lhs.tensor.dtype))}
    order = [*(loop for loop in loops if loop.var not in (source[0], result[0])), *(loop for loop in loops if loop.var in source)]
    order += [loop for loop in loops if loop.var in result]
    return [replace(loop, tag=tags.get(loop.var, loop.tag)) for loop in order]


def _unroll_dot_products(loops: list[Forall], consumer: Assignment, producer: Stmt) -> list[Forall]:
    """Make the innermost loop compute several results at once if each is a dot product at an entry of a pattern."""
    match producer:
        case Forall(_, Assignment(), Vector(lanes)) if loops and lanes >= tuning.DOT_PRODUCTS:
            unrolled = replace(loops[-1], tag=Unroll(tuning.DOT_PRODUCTS), body=Where(consumer, producer))
            return [*loops[:-1], unrolled] if can_join_dot_products(unrolled) else loops
        case _:
            return loops


def is_dense_loop(var: IndexVar, body: Assignment, facts: Facts) -> bool:
    """Whether the coordinates of a loop fill lanes: they are adjacent in the memory of all tensors."""
    accesses = [*([] if body.lhs.tensor.prunes else [body.lhs]), *accesses_in(body.rhs)]  # a pruned result is appended to
    return facts.extent(var) > 1 and facts.is_tiled(var) and all(unit_stride(a, var) for a in accesses if var in a.indices)


def _varies(var: IndexVar, body: Assignment) -> bool:
    """Whether a factor varies along a variable; a sum of broadcast factors or patterns has no lanes to add up."""
    operands = [a for a in accesses_in(body.rhs) if var in a.indices and a.tensor.has_values]
    return any(not a.tensor.is_dense or a.tensor.strides[a.indices.index(var)] != "0" for a in operands)


def _tag(tiles: Tiling) -> Vector:
    return Vector(tiles.lanes, tiles.registers, tiles.tail, tiles.masked)


def result_tag(tiles: Tiling) -> Vector:
    """The tag of a loop that writes each place of a result, and for which writing a place twice is harmless.

    Overlapping tiles serve any extent of more than one tile, so that few kernels serve all sizes.
    """
    return Vector(tiles.lanes, tiles.registers, overlapped=True) if tiles.fits else _tag(tiles)


def _tile_result(loops: list[Forall], body: Assignment, facts: Facts, target: Target) -> tuple[Stmt, str]:
    """Move the innermost loop outside the summed loops around it."""
    inner = loops[-1]
    summed = summed_tail(loops[:-1], body.lhs)
    outer = loops[: len(loops) - 1 - len(summed)]
    adds = any(loop.var not in body.lhs.indices for loop in outer) if summed else body.op != "="
    tag = _tag(facts.tiling(inner.var)) if adds else result_tag(facts.tiling(inner.var))
    if not summed:
        return wrap(loops[:-1], replace(inner, tag=tag)), f"{inner.var} is contiguous: {tag}"
    last = summed[-1]
    times = _independent_sums(last.var, body, tag, facts)
    summed = [*summed[:-1], replace(last, tag=Unroll(times))] if times > 1 else summed
    tile = sum_in_register(body.lhs, "+=" if adds else "=", summed, summed_factors(body.rhs, summed, facts), free_names(loops))
    why = f"{inner.var} is contiguous: {tag}, its tiles kept in registers while {', '.join(str(s.var) for s in summed)} runs"
    return wrap(outer, replace(inner, tag=tag, body=tile)), why


def narrowed(var: IndexVar, tag: Vector, registers: int, facts: Facts, overlapped: bool = False) -> Vector:
    """The tag of a vector loop with tiles of fewer registers; set ``overlapped`` if a place may be written twice."""
    if registers == (tag.registers or tag.tail):
        return tag
    if overlapped and (tag.overlapped or not tag.registers):
        return Vector(tag.lanes, registers, overlapped=True)
    return _tag(tiling_within(facts.exact[var], registers * tag.lanes, tag.lanes, registers))


def _independent_sums(var: IndexVar, body: Assignment, tag: Vector, facts: Facts) -> int:
    """Number of nonzeros to add at once, so that the sums of a narrow tile are independent."""
    entries_per_row = _entries_per_row(var, body, facts)
    if entries_per_row is None or entries_per_row < tuning.SEVERAL_SUMS_ROW or not can_unroll(Forall(var, body)):
        return 1
    return max(tuning.SUMS_IN_FLIGHT // max(tag.registers, tag.tail), 1)


def _tag_summed_loop(producer: Stmt, facts: Facts, target: Target) -> tuple[Stmt, str]:
    loops, body = unwrap(producer)
    if isinstance(body, Where) and isinstance(body.consumer, Assignment):
        inner, why = _tag_summed_loop(body.producer, facts, target)
        return wrap(loops, Where(body.consumer, inner)), why
    if not loops or not isinstance(body, Assignment):
        return producer, "nothing to vectorise"
    last = loops[-1]
    if is_dense_loop(last.var, body, facts) and _varies(last.var, body):
        tag = _tag(facts.tiling(last.var, is_summed=True))
        return wrap(loops[:-1], replace(last, tag=tag)), f"{last.var} is contiguous and summed: {tag}"
    if body.op == "+=" and (gathered := take_positions(last, body, facts, target)) is not None:
        return wrap(loops[:-1], gathered[0]), gathered[1]
    count = _entries_per_row(last.var, body, facts)
    if count is not None and count >= tuning.FOUR_SUMS_ROW and _spread(last.var, body, facts) == 1 and can_unroll(last):
        return wrap(loops[:-1], replace(last, tag=Unroll(4))), f"about {count:.3g} nonzeros per row: four partial sums"
    return producer, "rows are short or uneven, or the loop is not contiguous: plain loop"


def in_masks(entries_per_row: float, spread: float, lanes: int, gathers: bool = True) -> int:
    """Number of positions of a row to process at once, with the end of the row masked; 0 if that does not pay.

    Where operands are gathered, unused lanes cost as much as used ones: only long rows take a whole register, others four positions.
    In uneven rows, each branch at the end of a row is mispredicted, so a whole register pays for shorter rows. Where only adjacent
    values are read, a row takes as many lanes as it has entries.

    >>> in_masks(3.0, 1.0, 16), in_masks(3.0, 2.0, 16), in_masks(40.0, 1.0, 16), in_masks(40.0, 2.0, 16), in_masks(100.0, 1.0, 8)
    (0, 4, 4, 16, 8)
    >>> [in_masks(entries, 2.0, 16, gathers=False) for entries in (7.0, 9.0, 40.0)]
    [4, 8, 16]
    """
    if entries_per_row < (tuning.GATHER_ROW if spread == 1 else tuning.FOUR_SUMS_ROW) or lanes == 1:
        return 0
    if not gathers:
        return min(1 << max(int(entries_per_row).bit_length() - 1, 2), lanes)
    is_long = entries_per_row >= (tuning.MASKED_REGISTER if spread == 1 else tuning.MASKED_REGISTER_UNEVEN)
    return lanes if is_long else min(tuning.GATHERED_POSITIONS, lanes)


def _entries_per_row(var: IndexVar, body: Assignment, facts: Facts) -> float | None:
    """Average number of coordinates per parent in the sparse level that a loop iterates; None unless it iterates exactly one."""
    levels = _sparse_levels(var, body)
    return cost.fan_of(*levels[0], facts) if len(levels) == 1 else None


def _spread(var: IndexVar, body: Assignment, facts: Facts) -> float:
    """How uneven the rows are that a loop iterates; the ends of uneven rows are mispredicted."""
    return max((facts.spread(access.tensor.name, at) for access, at in _sparse_levels(var, body)), default=1.0)


def _sparse_levels(var: IndexVar, body: Assignment) -> list[tuple[Access, int]]:
    """The sparse levels that a loop iterates, each once even if both the pattern and the values of an operand are read."""
    levels = {(access.tensor.name, at): (access, at) for access in accesses_in(body.rhs) for at in access.sparse_levels(var)}
    return [(access, at) for access, at in levels.values() if not access.tensor.format.levels[at].ends]
