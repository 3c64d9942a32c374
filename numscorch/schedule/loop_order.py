"""order_loops: chooses the order of the loops over index variables (Scorch, section 4.1).

The paper pushes sparse filters down the loop nest greedily. This pass searches all orders for the cheapest one, priced
with the operands' measured counts. An order that reads an operand against its mode order is charged for a conversion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

from ..errors import ScheduleError
from ..ir.functions import REDUCTIONS, is_intersection
from ..ir.index import Access, Assignment, Forall, IndexVar, Stmt, accesses_in, factors_of, is_product, map_expr, variables_in
from ..ir.scatter import can_be_placed, in_storage_order, may_be_placed, run_to_place, visits_once
from . import cost, tuning
from .empty_rows import without_empty_rows
from .facts import GENERIC, Facts, Target
from .longest import is_uneven
from .options import AUTOMATIC, Options
from .order_operands import operands_walked
from .order_search import Search, Space
from .workspace import moved_by

SHOWN = 4  # cheapest loop orders that `explain` compares


@dataclass(frozen=True, slots=True)
class LoopOrder:
    """A loop order, its cost, and the operands that it needs in another format."""

    order: tuple[IndexVar, ...]
    cost: float
    converted: tuple[Access, ...]

    def __str__(self) -> str:
        conversions = "".join(f", {a.tensor} stored as {a.tensor.format.name}" for a in self.converted)
        separator = "" if all(len(var.name) == 1 for var in self.order) else " "
        return f"{separator.join(var.name for var in self.order)}: {self.cost:.3g}{conversions}"


def order_loops(stmt: Assignment, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str]:
    """Wrap an assignment in foralls, in the cheapest order or that of the options, and list the orders compared.

    The assignment becomes ``+=`` if a variable is summed over. If each entry has one term, it becomes ``=``, unless entries
    without a term are nonzero (semirings).

    Raises:
        ScheduleError: the order of the options does not name each variable once, or cannot be compiled.
    """
    variables, wanted = variables_in(stmt.rhs), options.order
    if wanted is not None and sorted(wanted) != sorted(var.name for var in variables):
        raise ScheduleError(f"reorder({', '.join(wanted)}) must name each of {', '.join(map(str, variables))} once\n  {stmt}")
    choices = candidates(stmt, variables, facts, target, wanted)
    if not choices:
        raise _order_error(wanted or (), stmt, candidates(stmt, variables, facts, target))
    best = choices[0]
    conversions = {a.tensor.name: a.tensor for a in best.converted}
    summed = set(variables) != set(stmt.lhs.indices) and not _is_written_once(stmt, best.order)
    op = "+=" if stmt.op == "=" else stmt.op
    body: Stmt = Assignment(stmt.lhs, stmt.rhs, op if summed or REDUCTIONS[op].of_stored else "=")
    body = map_expr(body, lambda a: Access(replace(conversions.get(a.tensor.name, a.tensor), dtype=a.tensor.dtype), a.indices))
    for var in reversed(best.order):
        body = Forall(var, body)
    note = f"; entries of {stmt.lhs} are placed" if _is_placed(stmt, best.order) else ""
    return body, "; ".join(map(str, choices)) + note


def cheapest(stmt: Assignment, facts: Facts, target: Target) -> LoopOrder:
    """The cheapest order of an assignment's loops."""
    return candidates(stmt, variables_in(stmt.rhs), facts, target, most=1)[0]


def _order_error(wanted: tuple[str, ...], stmt: Assignment, choices: list[LoopOrder]) -> ScheduleError:
    """The error for a loop order that cannot be compiled."""
    possible = ", ".join("".join(var.name for var in choice.order) for choice in choices)
    return ScheduleError(
        f"reorder({', '.join(wanted)}) would reach a sparse level before its parent levels, or append out of order to {stmt.lhs}\n"
        f"  {stmt}     possible orders: {possible}"
    )


def candidates(
    stmt: Assignment, variables: list[IndexVar], facts: Facts, target: Target, wanted: tuple[str, ...] | None = None, most: int = SHOWN
) -> list[LoopOrder]:
    """The ``most`` cheapest orders, or only the ``wanted`` order; ties follow the order in which variables appear."""
    shared = stmt.lhs.tensor.shares

    def price_order(order: tuple[IndexVar, ...]) -> tuple[float, LoopOrder] | None:
        choice = price(stmt, order, facts, target)
        if any(a.tensor.name == shared for a in choice.converted) or not _can_be_made(stmt, choice):
            return None
        return choice.cost, choice

    return Search(_space(stmt, variables, facts, target, wanted), price_order).cheapest(most)


def _space(stmt: Assignment, variables: list[IndexVar], facts: Facts, target: Target, wanted: tuple[str, ...] | None) -> Space:
    """The search space of a statement: its loop orders, and lower bounds of their costs."""
    operands, result = list(dict.fromkeys(_sparse(stmt))), set(stmt.lhs.indices)
    first, ordered, is_single = first_loops(stmt), _ordered_variables(stmt), stmt.lhs.tensor.is_assembled and _visits_once(stmt)

    def may_follow(prefix: tuple[IndexVar, ...], var: IndexVar) -> bool:
        return (
            (wanted is None or var.name == wanted[len(prefix)])
            and (var not in ordered or set(ordered[: ordered.index(var)]) <= set(prefix))
            and _may_come_next(first, prefix, var, stmt, is_single)
        )

    placed, sums = _is_placeable(stmt), stmt.op in ("=", "+=")
    by_table = any(level.constants for access in operands for level in access.tensor.format.levels)
    result_vars = [at for at, var in enumerate(variables) if var in result]

    def extra_key(order: tuple[int, ...]) -> object:
        return order if placed else (order[-2:] if by_table else (), () if sums else tuple(at for at in order if at in result_vars)[-1:])

    bounds = [_last_step(stmt, variables, at, [access.indices for access in operands], target, by_table) for at in range(len(variables))]
    return Space(
        variables,
        [max(facts.extent(var), 1.0) for var in variables],
        operands_walked(operands, variables, facts, stmt.lhs.tensor.shares),
        not is_intersection(stmt.rhs),
        sum(1 << at for at, var in enumerate(variables) if var not in result),
        may_follow,
        lambda var, scatters: bounds[var][scatters],
        [tuning.COST_SERIAL if result and var not in result else 1.0 for var in variables],
        [tuning.COST_ALONE if _is_alone(var, variables, operands, facts) else 1.0 for var in variables],
        extra_key,
    )


def _last_step(
    stmt: Assignment, variables: list[IndexVar], at: int, sparse_indices: list[tuple[IndexVar, ...]], target: Target, by_table: bool
) -> tuple[float, float]:
    """Lower bounds on the cost of a step of an innermost loop (see :func:`_nest_cost`): if no outer loop scatters, and if one does."""
    inner, lanes = variables[at], target.lanes(stmt.lhs.tensor.dtype)
    if is_contiguous(stmt, inner):
        return 1.0 / lanes, (1.0 if by_table and inner in stmt.lhs.indices else tuning.COST_VECTOR_SCATTER) / lanes
    if stmt.op not in ("=", "+="):
        return 1.0 / lanes, 1.0 / lanes
    scatters = inner in stmt.lhs.indices and any(var not in stmt.lhs.indices for var in variables)
    outer_vars = [var for var in variables if var != inner]
    is_repeated = bool(sparse_indices) and any(all(var not in indices for indices in sparse_indices) for var in outer_vars)
    step = tuning.COST_STRIDED if not any(inner in indices for indices in sparse_indices) else tuning.COST_WALK if is_repeated else 1.0
    return step * (tuning.COST_SCATTER if scatters else 1.0), step * tuning.COST_SCATTER


def _is_alone(var: IndexVar, variables: list[IndexVar], operands: list[Access], facts: Facts) -> bool:
    """Whether an outermost loop over the variable has a single step, which threads cannot share."""
    return len(variables) > 1 and facts.extent(var) == 1 and not any(var in access.indices for access in operands)


def _can_be_made(stmt: Assignment, choice: LoopOrder) -> bool:
    """Whether the loops reach the levels of an assembled result from the first level down, or can place its entries."""
    if not _is_placed(stmt, choice.order):
        first = first_loops(stmt)
        return not stmt.lhs.tensor.is_assembled or choice.order[: len(first)] == first or _is_written_once(stmt, choice.order)
    conversions = {a.tensor.name: a for a in choice.converted}
    operands = [conversions.get(a.tensor.name, a) for a in accesses_in(stmt.rhs) if not a.tensor.is_dense]
    return may_be_placed(stmt.lhs, operands, choice.order)


def _ordered_variables(stmt: Assignment) -> list[IndexVar]:
    """Variables of the sparse levels of a result whose entries may be placed; loops must keep their order."""
    return run_to_place(stmt.lhs) if _is_placeable(stmt) else []


def _is_placeable(stmt: Assignment) -> bool:
    """Whether each entry of an assembled result is visited once, and may be placed instead of appended."""
    result = stmt.lhs.tensor
    return result.is_assembled and can_be_placed(result.format) and _visits_once(stmt)


def _is_placed(stmt: Assignment, order: tuple[IndexVar, ...]) -> bool:
    """Whether loops in this order visit the entries of a placeable result in another order than its storage order."""
    return _is_placeable(stmt) and not in_storage_order(stmt.lhs, _sparse(stmt), order)


def _is_written_once(stmt: Assignment, order: tuple[IndexVar, ...]) -> bool:
    """Whether loops in this order append or place each entry of the result when they reach its only term."""
    if not stmt.lhs.tensor.is_assembled or not _visits_once(stmt):
        return False
    return _is_placeable(stmt) or in_storage_order(stmt.lhs, _sparse(stmt), order)


def _visits_once(stmt: Assignment) -> bool:
    """Whether each entry of the result has one term."""
    return visits_once(stmt.lhs, _sparse(stmt), variables_in(stmt.rhs))


def _sparse(stmt: Assignment) -> list[Access]:
    """The sparse operands, each tensor once even if both its pattern and its values are read."""
    return list({access.tensor.name: access for access in accesses_in(stmt.rhs) if not access.tensor.is_dense}.values())


def first_loops(stmt: Assignment) -> tuple[IndexVar | None, ...]:
    """Variables that the outermost loops must have; None stands for any variable of the result.

    An assembled result is appended to, so all but the last of its sparse levels come first, in order. The last sparse level
    may come later, through a workspace, unless dense levels lie below it. For other results, a register combines the terms of
    a reduction that is not a sum, so its loops come last. An exception is a sparse operand that scatters its terms along one
    variable of a dense result (see :func:`_scatters`). Placed entries may come in any order.
    """
    if _is_placeable(stmt):
        return ()
    result, levels = stmt.lhs, stmt.lhs.tensor.format.levels
    if result.tensor.is_assembled:
        last = max(at for at, level in enumerate(levels) if not level.full)
        first = last if last == len(levels) - 1 else last + 1
        ordered = tuple(result.level_var(at) for at in range(first))
        collected = last == len(levels) - 1
        return ordered if collected or stmt.op in ("=", "+=") else tuple(result.level_var(at) for at in range(len(levels)))
    return () if stmt.op in ("=", "+=") else (None,) * len(result.indices)


def _may_come_next(
    first: tuple[IndexVar | None, ...], prefix: tuple[IndexVar, ...], var: IndexVar, stmt: Assignment, is_single: bool
) -> bool:
    if is_single:  # loops over other variables do not count
        prefix = tuple(before for before in prefix if before in stmt.lhs.indices)
    if len(prefix) >= len(first) or (is_single and var not in stmt.lhs.indices):
        return True
    required = first[len(prefix)]
    return var == required or (required is None and (var in stmt.lhs.indices or _scatters(stmt, prefix)))


def _scatters(stmt: Assignment, prefix: tuple[IndexVar, ...]) -> bool:
    """Whether one variable of a dense result remains below these loops, and a sparse operand scatters terms along it."""
    remaining = [var for var in stmt.lhs.indices if var not in prefix]
    if len(remaining) != 1 or not stmt.lhs.tensor.is_dense:
        return False
    return any(remaining[0] in access.indices for access in _sparse(stmt)) and not is_contiguous(stmt, remaining[0])


def price(stmt: Assignment, order: tuple[IndexVar, ...], facts: Facts, target: Target) -> LoopOrder:
    """Price an order with the cheapest format of each operand: reordered if needed, or with rows that are located or searched."""
    operands = list(dict.fromkeys(_sparse(stmt)))
    stored = [access if cost.is_concordant(access, order) else cost.reordered(access, order) for access in operands]
    best = _price_stored(stmt, order, operands, stored, facts, target)
    if not is_intersection(stmt.rhs):
        return best
    for at, access in enumerate(stored):
        in_rows = cost.in_rows(access, stored, order, facts)
        if in_rows is not access and access.tensor.name != stmt.lhs.tensor.shares:
            formats = [*stored[:at], in_rows, *stored[at + 1 :]]
            choice = _price_stored(stmt, order, operands, formats, facts, target)
            if choice.cost < best.cost:
                best, stored = choice, formats
    return best


def _price_stored(
    stmt: Assignment, order: tuple[IndexVar, ...], operands: list[Access], formats: list[Access], facts: Facts, target: Target
) -> LoopOrder:
    """Price an order with operands in these formats: steps of loops, innermost body, scattering and conversions."""
    sparse, converted = [], []
    total = 0.0
    for access, stored in zip(operands, cost.mergeable(formats), strict=True):
        if stored is not access:
            total += cost.conversion(access, stored, facts)
        access_read = without_empty_rows(stmt, order, stored, facts)
        sparse.append((access_read, cost.counts_of(access_read, facts)))
        if access_read is not access:
            converted.append(access_read)
    total += _nest_cost(stmt, order, sparse, facts, target)
    if order and _is_alone(order[0], list(order), operands, facts):
        total *= tuning.COST_ALONE
    return LoopOrder(order, total, tuple(converted))


def _nest_cost(
    stmt: Assignment, order: tuple[IndexVar, ...], sparse: list[tuple[Access, tuple[float, ...]]], facts: Facts, target: Target
) -> float:
    runs, total, united = 1.0, 0.0, not is_intersection(stmt.rhs)
    for var in order[:-1]:
        survivors, steps = cost.iterations(var, sparse, facts, united)
        total += runs * steps * (tuning.COST_WALK if survivors < facts.extent(var) else 1.0)
        runs *= survivors
    if not order:
        return 1.0
    inner = order[-1]
    survivors, steps = cost.iterations(inner, sparse, facts, united)
    result = set(stmt.lhs.indices)
    scatters = any(var not in result and set(order[at + 1 :]) & result for at, var in enumerate(order))
    step = tuning.COST_SCATTER if scatters else 1.0
    if _is_placed(stmt, order):
        total += tuning.COST_PLACE * runs * survivors
    if is_contiguous(stmt, inner):
        lanes = target.lanes(stmt.lhs.tensor.dtype)
        steps = ceil(steps / lanes) * lanes  # a partly filled register takes as long
        in_registers = inner in result and (_tail_is_summed(order, result) or chosen_by_table(stmt, order) is not None)
        step = (1.0 if in_registers else tuning.COST_VECTOR_SCATTER if scatters else 1.0) / lanes
    elif _is_tiled_reduction(stmt, order):
        step /= target.lanes(stmt.lhs.tensor.dtype)
    elif not any(a.indices and inner in a.indices for a, _ in sparse):
        step *= tuning.COST_STRIDED
    elif _walks_again(order, sparse):
        step *= tuning.COST_WALK
    body = runs * steps * step
    total = (total + body) * (tuning.COST_SERIAL if result and order[0] not in result else 1.0)
    if not scatters:
        return total
    average = runs * survivors / prod(max(facts.extent(var), 1.0) for var in result)
    is_inexact = _is_rounded(stmt) and is_uneven([var for var in order if var not in result], sparse, united, average, facts)
    return total * tuning.COST_INEXACT if is_inexact else total


def _is_rounded(stmt: Assignment) -> bool:
    """Whether the statement adds floating-point terms, of one sparse operand or to a dense result."""
    result = stmt.lhs.tensor
    return (result.is_dense or len(_sparse(stmt)) == 1) and stmt.op in ("=", "+=") and result.dtype.startswith(("float", "complex"))


def _walks_again(order: tuple[IndexVar, ...], sparse: list[tuple[Access, tuple[float, ...]]]) -> bool:
    """Whether a loop around the innermost one runs over a variable that no sparse operand has, and so walks short rows again."""
    return bool(sparse) and any(all(var not in access.indices for access, _ in sparse) for var in order[:-1])


def _is_tiled_reduction(stmt: Assignment, order: tuple[IndexVar, ...]) -> bool:
    """Whether a reduction other than a sum runs in tiles: the innermost loop of the result is contiguous."""
    written = [var for var in order if var in stmt.lhs.indices]
    return stmt.op not in ("=", "+=") and bool(written) and is_contiguous(stmt, written[-1])


def _tail_is_summed(order: tuple[IndexVar, ...], result: set[IndexVar]) -> bool:
    """Whether only summed loops stand between the innermost loop and the loops of the result.

    The summed loops move inside a vector tile, which then stays in registers.
    """
    kinds = [var in result for var in order[:-1]]
    return kinds == sorted(kinds, reverse=True)


def is_contiguous(stmt: Assignment, var: IndexVar) -> bool:
    """Whether consecutive coordinates of a variable are adjacent in memory, in every tensor that has it."""
    return all(unit_stride(access, var) for access in [stmt.lhs, *accesses_in(stmt.rhs)] if var in access.indices)


def unit_stride(access: Access, var: IndexVar) -> bool:
    """Whether consecutive coordinates of a variable are adjacent in the memory of this tensor, or the variable is broadcast."""
    if access.indices.count(var) != 1:
        return False
    if access.tensor.is_dense:
        return access.tensor.strides[access.indices.index(var)] in "01"
    last = len(access.tensor.format.levels) - 1
    return access.tensor.format.levels[last].full and access.level_var(last) == var


def chosen_by_table(stmt: Assignment, order: tuple[IndexVar, ...]) -> Access | None:
    """The operand of a sum of products whose table of constants chooses rows of the result; None if there is none.

    The last level of the operand has constant coordinates for each kind of position in the level above. The two loops around
    the innermost loop must run over these levels: first over summed columns, then over rows of the result. No other operand
    may be sparse in the three innermost variables, and no other factor may depend on the rows.
    """
    if len(order) < 3 or not is_product(stmt.rhs) or not stmt.lhs.tensor.is_dense:
        return None
    columns, rows, lanes = order[-3:]
    result, operands = stmt.lhs.indices, accesses_in(stmt.rhs)
    sparse = [a for a in operands if not a.tensor.is_dense and {columns, rows, lanes} & set(a.indices)]
    if columns in result or rows not in result or lanes not in result or len(sparse) != 1 or lanes in sparse[0].indices:
        return None
    levels = sparse[0].tensor.format.levels
    is_chosen = len(levels) >= 2 and (sparse[0].level_var(len(levels) - 2), sparse[0].level_var(len(levels) - 1)) == (columns, rows)
    is_independent = all(rows not in moved_by(factor) for factor in factors_of(stmt.rhs) if factor != sparse[0])
    return sparse[0] if is_chosen and is_independent and 0 < sum(map(len, levels[-1].constants)) <= tuning.MOST_COPIES else None
