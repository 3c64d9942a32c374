"""Passes that choose how a loop walks its levels: visit_positions, flatten_sum, gallop, merge_without_branches and load_ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps

from ..ir.dtype import DTYPES
from ..ir.functions import REGISTER_FUNCTIONS, is_zero, simplified
from ..ir.index import (
    Access,
    Ahead,
    Assignment,
    Blend,
    Each,
    FlatSum,
    Forall,
    Gallop,
    Serial,
    Stmt,
    Tag,
    Where,
    accesses_in,
    factors_of,
    map_expr,
    map_loops,
    map_parts,
    operands_of,
    operators_in,
    product,
    unwrap,
    value_of,
    wrap,
)
from ..ir.verify import appends, can_merge_without_branches, chosen_rows, runs_of
from . import cost, tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target

MOST_OPERANDS = 3  # operands of a merge; a merge has one loop per subset of its operands

Choice = tuple[Tag, str]  # the tag of a loop, and the reason


def each_loop(choose: Callable[[Forall, Facts], Choice | None]) -> Callable[..., tuple[Stmt, str] | None]:
    """Turn a function that chooses the tag of a serial loop into a pass over all loops. If it returns None, the loop is unchanged."""

    @wraps(choose)
    def tag_loops(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
        reasons: list[str] = []

        def tagged(loop: Forall) -> Forall:
            choice = choose(loop, facts) if loop.tag == Serial() else None
            if choice is None:
                return loop
            tag, why = choice
            reasons.append(why)
            return replace(loop, tag=tag)

        nest = map_loops(stmt, tagged)
        return (nest, "; ".join(reasons)) if reasons else None

    return tag_loops


@each_loop
def visit_positions(loop: Forall, facts: Facts) -> Choice | None:
    """Visit each position of levels with short runs of equal coordinates; None if there is no such level.

    A level with repeated coordinates, as in COO, is walked in runs of equal coordinates. The end of each run is found by comparing
    coordinates, and mispredicted. Factors that depend on the coordinate are applied once per run, which pays for long runs only.

    >>> from ..ir.format import COO
    >>> from ..ir.index import IndexVar, TensorVar
    >>> from ..ir.notation import parse_stmt
    >>> nest = parse_stmt("forall(i, forall(j, forall(k, y[i] += A[i,j,k] * x[j])))", {"A": TensorVar("A", COO(3))})
    >>> facts = Facts(tuple((IndexVar(name), 100) for name in "ijk"), (("A", COO(3), (10**4,) * 3),))
    >>> print(*visit_positions(nest, facts) or (), sep="\\n")
    forall(i, each_forall(j, forall(k, y[i] += A[i,j,k] * x[j])))
    at j, about 1 positions of A share a coordinate: each one is visited
    """
    runs = runs_of(loop)
    if runs is None:
        return None
    access, at = runs
    counts = cost.counts_of(access, facts)
    length = counts[-1] / max(counts[at], 1.0)
    why = f"at {loop.var}, about {length:.3g} positions of {access.tensor} share a coordinate: each one is visited"
    return (Each(), why) if length <= tuning.SHORT_RUN else None


def flatten_sum(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Replace the loops of a sum over all entries of a tensor by one loop over positions; None for other statements.

    The positions of the last level are consecutive, so the levels above it need not be read, and no order of loops needs a conversion.

    >>> from numscorch.ir.format import CSR
    >>> from numscorch.ir.index import IndexVar, TensorVar
    >>> from numscorch.ir.notation import parse_stmt
    >>> nest = parse_stmt("where(s = t, forall(i, forall(j, t += abs(A[i,j]))))", {"A": TensorVar("A", CSR)})
    >>> facts = Facts.of({IndexVar("i"): 100, IndexVar("j"): 100}, {"A": (CSR, (100, 9000))}, 16, Target())
    >>> print(*flatten_sum(nest, facts, Target()) or (), sep="\\n")
    where(s = t, entry_forall<8 x 8>(i, forall(j, t += abs(A[i,j]))))
    all entries of A are summed: one loop over its positions
    """
    match stmt:
        case Where(Assignment(lhs), Forall(tag=Serial()) as nest) if lhs.tensor.is_scalar and options.vector is None:
            loops_and_term = _flatten(map_expr(nest, partial(_as_stored, facts=facts)))
            if loops_and_term is None or (operand := _operand_visited_once(*loops_and_term)) is None:
                return None
            loops, body = loops_and_term
            outer, *inner = sorted(loops, key=lambda loop: operand.tensor.format.mode_order.index(operand.indices.index(loop.var)))
            flattened = wrap([replace(outer, tag=_entry_tag(body, operand, facts, target)), *inner], body)
            return replace(stmt, producer=flattened), f"all entries of {operand.tensor} are summed: one loop over its positions"
    return None


def _as_stored(access: Access, facts: Facts) -> Access:
    """A sparse operand in the format in which it is stored: all orders of its entries have the same sum."""
    stored = next((fmt for name, fmt, _ in facts.counts if name == access.tensor.name), access.tensor.format)
    return access if access.tensor.shares or stored == access.tensor.format else access.with_changes(format=stored)


def _flatten(nest: Stmt) -> tuple[list[Forall], Assignment] | None:
    """The loops and the term of a sum, with the factors of inner sums moved into the term; None for other statements."""
    loops, body = unwrap(nest)
    match body:
        case Assignment(op="+=") if all(loop.tag == Serial() for loop in loops):
            return loops, body
        case Where(Assignment(op="+=") as consumer, Forall() as producer) if (inner := _flatten(producer)) is not None:
            inner_loops, term = inner
            factors = factors_of(consumer.rhs)
            if factors.count(term.lhs) == 1 and all(loop.tag == Serial() for loop in loops):
                outer_factors = [factor for factor in factors if factor != term.lhs]
                return [*loops, *inner_loops], replace(consumer, rhs=product([*outer_factors, *factors_of(term.rhs)]))
    return None


def _operand_visited_once(loops: list[Forall], body: Assignment) -> Access | None:
    """The operand whose entries the loops visit exactly once; None if they also read a tensor with other positions."""
    operands = [access for access in accesses_in(body.rhs) if not access.tensor.is_scalar]
    owners = {access for access in operands if access.tensor.shares is None}
    if len(owners) != 1 or not any(access.tensor.has_values for access in operands):
        return None
    (owner,) = owners
    is_visited_once = len(set(owner.indices)) == len(owner.indices) and {loop.var for loop in loops} == set(owner.indices)
    shares_positions = all(access == owner or access.tensor.shares == owner.tensor.name for access in operands)
    is_stored = not owner.tensor.is_dense and not any(level.gaps or level.ends for level in owner.tensor.format.levels)
    return owner if is_visited_once and shares_positions and is_stored and is_zero(simplified(body.rhs, {owner.tensor.name})) else None


def _entry_tag(body: Assignment, operand: Access, facts: Facts, target: Target) -> FlatSum:
    """Use enough registers to hide the latency of additions, fewer for few entries; without vector instructions, add single values."""
    operators = operators_in(body.rhs) - {"*"}
    if not body.lhs.tensor.type.in_registers or not operators <= set(REGISTER_FUNCTIONS):
        return FlatSum(1, 1)
    lanes, registers = target.lanes(body.lhs.tensor.dtype), tuning.SUMS_IN_FLIGHT
    while registers > 1 and facts.count(operand.tensor.name)[1][-1] < tuning.FLAT_SUM_STEPS * registers * lanes:
        registers //= 2
    return FlatSum(lanes, registers)


@each_loop
def gallop(loop: Forall, facts: Facts) -> Choice | None:
    """Walk the shortest operand of an intersection and search the others for each coordinate, if one of these is far longer.

    Returns None if no loop intersects levels that can be searched.

    >>> from numscorch.ir.format import CSR
    >>> from numscorch.ir.index import IndexVar, TensorVar
    >>> from numscorch.ir.notation import parse_stmt
    >>> nest = parse_stmt("forall(i, forall(j, y[i] += A[i,j] * B[i,j]))", {name: TensorVar(name, CSR) for name in "AB"})
    >>> facts = Facts(((IndexVar("i"), 10), (IndexVar("j"), 2048)), (("A", CSR, (10, 40)), ("B", CSR, (10, 10240))))
    >>> print(*gallop(nest, facts) or (), sep="\\n")
    forall(i, gallop_forall<A>(j, y[i] += A[i,j] * B[i,j]))
    at j, A has about 4 coordinates and B 1.02e+03: A is walked, and the others are searched
    """
    fans = _searchable_fans(loop, facts)
    if not fans:
        return None
    short, *others = sorted(fans, key=fans.__getitem__)
    *between, longest = [f"{name} {fans[name]:.3g}" for name in others]
    reason = f"at {loop.var}, {', '.join([f'{short} has about {fans[short]:.3g} coordinates', *between])} and {longest}"
    if fans[others[-1]] < tuning.SEEK * fans[short]:
        return Serial(), f"{reason}: {'all' if between else 'both'} are walked"
    return Gallop(short), f"{reason}: {short} is walked, and the others are searched"


def _searchable_fans(loop: Forall, facts: Facts) -> dict[str, float]:
    """Average number of coordinates below one parent for each operand; empty unless the loop intersects searchable levels."""
    value = value_of(loop.body)
    levels = {access.tensor.name: (access, at) for access in accesses_in(value) for at in access.sparse_levels(loop.var)}
    if len(levels) < 2 or not all(cost.can_seek(access.tensor.format.levels[at]) for access, at in levels.values()):
        return {}
    if not all(is_zero(simplified(value, {name})) for name in levels):
        return {}
    return {name: cost.fan_of(access, at, facts) for name, (access, at) in levels.items()}


def merge_without_branches(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Merge operands without branches in loops that append or sum into a register; None if there is no such loop.

    A branch on the operand with the next coordinate is mispredicted about every other time if the coordinates are random. Reading the
    values of all operands and masking the absent values costs less.

    With two operands and long rows, a step mostly waits for the load of a coordinate. Such a loop loads the next
    coordinate ahead.

    >>> from numscorch.ir.format import CSR
    >>> from numscorch.ir.index import IndexVar, TensorVar
    >>> from numscorch.ir.notation import parse_stmt
    >>> tensors = {name: TensorVar(name, CSR) for name in "ABC"}
    >>> facts = Facts(((IndexVar("i"), 10), (IndexVar("j"), 100)), (("A", CSR, (10, 200)), ("B", CSR, (10, 200))))
    >>> print(*merge_without_branches(parse_stmt("forall(i, forall(j, C[i,j] = A[i,j] + B[i,j]))", tensors), facts) or (), sep="\\n")
    forall(i, blend_forall<ahead>(j, C[i,j] = A[i,j] + B[i,j]))
    at j, A, B are merged with masks, since branches would be mispredicted
    """
    reasons: list[str] = []
    tagged = _tag_merges(stmt, facts, appends(stmt), reasons)
    return (tagged, "; ".join(reasons)) if reasons else None


def _tag_merges(stmt: Stmt, facts: Facts, is_appended: bool, reasons: list[str]) -> Stmt:
    match stmt:
        case Forall(var, Assignment() as body, Serial()) if (names := merged_in(stmt, body)) and can_merge_without_branches(
            stmt, is_appended
        ):
            reasons.append(f"at {var}, {', '.join(names)} are merged with masks, since branches would be mispredicted")
            return replace(stmt, tag=Blend(_looks_ahead(stmt, names, facts)))
        case Forall(tag=Serial()) | Where():  # vector loops do not mask terms
            return map_parts(stmt, partial(_tag_merges, facts=facts, is_appended=is_appended, reasons=reasons))
        case _:
            return stmt


def _looks_ahead(loop: Forall, names: list[str], facts: Facts) -> bool:
    """Whether the loop merges two operands whose rows are long enough to pay for an extra loop that loads ahead."""
    level_counts = {access.tensor.name: cost.counts_of(access, facts) for access in operands_of(loop) if access.tensor.name in names}
    return len(names) == 2 and all(
        counts[-1] >= tuning.MERGED_ROW * (counts[-2] if len(counts) > 1 else 1.0) for counts in level_counts.values()
    )


def merged_in(loop: Forall, body: Assignment) -> list[str]:
    """Names of the operands that the loop merges at their last level, if these levels are compressed and ordered.

    The list is empty if a merged level is of another kind, or if the loop neither appends to the result's last level nor sums
    into a register.
    """
    lhs, operands = body.lhs, [access for access in accesses_in(body.rhs) if access.sparse_levels(loop.var)]
    names = sorted({access.tensor.name for access in operands})
    is_append = lhs.tensor.is_assembled and body.op == "=" and lhs.level_var(len(lhs.indices) - 1) == loop.var
    if not 2 <= len(names) <= MOST_OPERANDS or not all(_is_compressed(access, loop) for access in operands):
        return []
    if not (is_append or (lhs.tensor.is_scalar and body.op == "+=")) or not is_zero(simplified(body.rhs, names)):
        return []
    types = [access.tensor.type for access in (lhs, *accesses_in(body.rhs))]
    return names if all(dtype.kind in ("floating", "integer") and dtype.itemsize >= 4 for dtype in types) else []  # masks have 4 or 8 bytes


def _is_compressed(access: Access, loop: Forall) -> bool:
    """Whether the loop iterates only the last level of an access, and that level is compressed, ordered and unique."""
    last = access.tensor.format.levels[-1]
    innermost = access.level_var(len(access.indices) - 1) == loop.var and access.indices.count(loop.var) == 1
    return innermost and last.arrays == ("pos", "crd") and last.is_ordered and last.is_unique


@each_loop
def load_ahead(loop: Forall, facts: Facts) -> Choice | None:
    """Prefetch the rows that a loop's coordinates choose if they exceed the nearest cache; None if there are no such loops.

    The branch at the end of each row is mispredicted, and the next row is far away, so that the processor waits for each row in turn.
    A prefetch starts these loads early (Callahan, Kennedy, Porterfield, "Software Prefetching", ASPLOS 1991).

    >>> from ..ir.format import CSR
    >>> from ..ir.index import IndexVar, TensorVar
    >>> from ..ir.notation import parse_stmt
    >>> nest = parse_stmt("forall(i, forall(j, forall(k, C[i,k] += A[i,j] * B[j,k])))", {name: TensorVar(name, CSR) for name in "AB"})
    >>> counts = tuple((name, CSR, (1000, 8000)) for name in "AB")
    >>> print(*load_ahead(nest, Facts(tuple((IndexVar(name), 1000) for name in "ijk"), counts)) or (), sep="\\n")
    forall(i, ahead_forall<8>(j, forall(k, C[i,k] += A[i,j] * B[j,k])))
    j chooses rows of B, whose 9.6e+04 bytes exceed the nearest cache: they are prefetched
    """
    far = {access.tensor.name: size for access, at in chosen_rows(loop) if (size := _size(access, at, facts)) > tuning.NEAREST_CACHE}
    reasons = [
        f"{loop.var} chooses rows of {name}, whose {size:.3g} bytes exceed the nearest cache: they are prefetched"
        for name, size in far.items()
    ]
    return (Ahead(tuning.ROWS_AHEAD), "; ".join(reasons)) if reasons else None


def _size(access: Access, at: int, facts: Facts) -> float:
    """The bytes of an operand's level, with the values if it is the last one."""
    tensor = access.tensor
    values = tensor.type.itemsize if tensor.has_values and at + 1 == len(access.indices) else 0
    return cost.counts_of(access, facts)[at] * (DTYPES[tensor.index_dtype].itemsize + values)
