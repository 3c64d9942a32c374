"""order_loops: chooses the order of the loops over index variables (Scorch, section 4.1).

The paper pushes sparse filters down the loop nest greedily. This pass prices every order of a few loops with the
operands' measured counts, and improves orders of many loops by local search. An order
that reads an operand against its mode order is charged for a conversion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from math import ceil, inf, prod

from ..errors import ScheduleError
from ..ir.assembled import can_be_placed, in_storage_order, may_be_placed, run_to_place, visits_once
from ..ir.functions import REDUCTIONS, is_intersection
from ..ir.index import (
    Access,
    Assignment,
    Forall,
    IndexVar,
    Stmt,
    accesses_in,
    factors_of,
    is_product,
    is_relation,
    map_expr,
    variables_in,
    wrap,
)
from . import cost, tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target, by_answers
from .workspace import is_widened, moved_by

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


def order_loops(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str]:
    """Wrap an assignment in foralls, in the cheapest order or that of the options, and list the orders compared.

    If a variable is summed over, the assignment becomes ``+=``. If no entry has more than one term, it becomes ``=``, except
    for semirings, in which entries without a term are nonzero.

    Raises:
        ScheduleError: the order of the options does not name each variable once, or cannot be compiled.
    """
    if not isinstance(stmt, Assignment):
        return stmt, "the loops that fused statements share are outermost"
    variables, wanted = variables_in(stmt.rhs), options.order
    if wanted is not None and sorted(wanted) != sorted(var.name for var in variables):
        raise ScheduleError(f"reorder({', '.join(wanted)}) must name each of {', '.join(map(str, variables))} once\n  {stmt}")
    orders = Orders(stmt, facts, target)
    choices = orders.cheapest(wanted=wanted)
    if not choices:
        possible = ", ".join("".join(var.name for var in choice.order) for choice in orders.cheapest())
        order = wanted or ()
        reduced = [var.name for var in variables if var not in orders.result]
        rule = f"would reach a sparse level before its parent levels, or append out of order to {stmt.lhs}"
        if None in orders.first and set(order[-len(reduced) :]) != set(reduced):
            rule = f"must end with the reduced loops ({', '.join(reduced)}): only sums can be completed in several steps"
        raise ScheduleError(f"reorder({', '.join(order)}) {rule}\n  {stmt}     possible orders: {possible}")
    best = choices[0]
    conversions = {a.tensor.name: a.tensor for a in best.converted}
    summed = set(variables) != set(stmt.lhs.indices) and not orders.are_written_once(best.order)
    op = "+=" if stmt.op == "=" else stmt.op
    body: Stmt = Assignment(stmt.lhs, stmt.rhs, op if summed or REDUCTIONS[op].of_stored else "=")
    body = map_expr(body, lambda a: Access(replace(conversions.get(a.tensor.name, a.tensor), dtype=a.tensor.dtype), a.indices))
    nest = wrap([Forall(var, body) for var in best.order], body)
    note = f"; entries of {stmt.lhs} are written out of order, to known positions" if orders.are_placed(best.order) else ""
    return nest, "; ".join(map(str, choices)) + note


@by_answers
def cheapest(stmt: Assignment, facts: Facts, target: Target) -> LoopOrder:
    """The cheapest order of an assignment's loops."""
    return Orders(stmt, facts, target).cheapest(1)[0]


def _sparse(stmt: Assignment) -> list[Access]:
    """The sparse operands, each tensor once even if both its pattern and its values are read."""
    return list({access.tensor.name: access for access in accesses_in(stmt.rhs) if not access.tensor.is_dense}.values())


def first_loops(stmt: Assignment) -> tuple[IndexVar | None, ...]:
    """The variables over which the outermost loops must run; None stands for any variable of the result.

    An assembled result is appended to, so all but the last of its sparse levels come first, in order. The last sparse level
    may come later, through a workspace, unless dense levels lie below it. For other results, a register combines the terms of
    a reduction that is not a sum, so its loops come last. An exception is a sparse operand that scatters its terms along one
    variable of a dense result (see :func:`_scatters`). Placed entries may come in any order.
    """
    result, levels = stmt.lhs, stmt.lhs.tensor.format.levels
    if result.tensor.is_assembled:
        last = max(at for at, level in enumerate(levels) if not level.full)
        first = last if last == len(levels) - 1 else last + 1
        ordered = tuple(result.level_var(at) for at in range(first))
        collected = last == len(levels) - 1
        return ordered if collected or stmt.op in ("=", "+=") else tuple(result.level_var(at) for at in range(len(levels)))
    return () if stmt.op in ("=", "+=") else (None,) * len(result.indices)


def _scatters(stmt: Assignment, prefix: tuple[IndexVar, ...]) -> bool:
    """Whether one variable of a dense result remains below these loops, and a sparse operand scatters terms along it."""
    remaining = [var for var in stmt.lhs.indices if var not in prefix]
    if len(remaining) != 1 or not stmt.lhs.tensor.is_dense:
        return False
    return any(remaining[0] in access.indices for access in _sparse(stmt)) and not is_contiguous(stmt, remaining[0])


class Orders:
    """The loop orders of an assignment, and their prices by the cost model.

    The orders of few loops are all priced. For more loops, a local search finds a cheap order: it moves one loop at a time to
    its cheapest place, until no move lowers the price.
    """

    def __init__(self, stmt: Assignment, facts: Facts, target: Target):
        self.stmt, self.facts, self.target = stmt, facts, target
        self.variables = variables = variables_in(stmt.rhs)
        self.operands, self.result = _sparse(stmt), set(stmt.lhs.indices)
        self.united = not is_intersection(stmt.rhs)
        self.visits_once = stmt.lhs.tensor.is_assembled and visits_once(stmt.lhs, self.operands, variables, self.united)
        self.is_placeable = self.visits_once and can_be_placed(stmt.lhs.tensor.format)
        self.placed = run_to_place(stmt.lhs) if self.is_placeable else []
        self.first = () if self.is_placeable else first_loops(stmt)
        self.contiguous = {var for var in variables if is_contiguous(stmt, var)}
        self.priced: dict[tuple[IndexVar, ...], LoopOrder | None] = {}
        self.unindexed = {var for var in variables if all(var not in access.indices for access in self.operands)}
        self.walk = cache(lambda access: cost.walk_of(access, facts))
        self.iterations = cache(lambda var, walks: cost.iterations(var, walks, facts, self.united))
        self.walks = [self.walk(access) for access in self.operands]
        self.in_order = cache(self._in_order)

    def cheapest(self, most: int = SHOWN, wanted: tuple[str, ...] | None = None) -> list[LoopOrder]:
        """The cheapest orders that can be compiled, or only the wanted one; ties follow the order of the variables."""
        if wanted is not None or len(self.variables) <= tuning.FEW_LOOPS:
            self.priced = {order: self.price(order) for order in self.all_orders(wanted=wanted)}
        else:
            self.search()
        return sorted(filter(None, self.priced.values()), key=lambda choice: choice.cost)[:most]

    def all_orders(self, prefix: tuple[IndexVar, ...] = (), wanted: tuple[str, ...] | None = None) -> Iterator[tuple[IndexVar, ...]]:
        """Yield the orders that start with these loops."""
        if len(prefix) == len(self.variables):
            yield prefix
        for var in self.variables:
            if var not in prefix and (wanted is None or var.name == wanted[len(prefix)]) and self.may_follow(prefix, var):
                yield from self.all_orders((*prefix, var), wanted)

    def may_follow(self, prefix: tuple[IndexVar, ...], var: IndexVar) -> bool:
        """Whether a loop over a variable may follow these loops: they reach the levels of the result in order."""
        if var in self.placed:
            return set(self.placed[: self.placed.index(var)]) <= set(prefix)
        if self.visits_once:  # loops over other variables do not count
            prefix = tuple(before for before in prefix if before in self.result)
        if len(prefix) >= len(self.first) or (self.visits_once and var not in self.result):
            return True
        required = self.first[len(prefix)]
        return var == required or (required is None and (var in self.result or _scatters(self.stmt, prefix)))

    def search(self) -> None:
        """Start a search at each order that walks one operand first, and at the first order that can be compiled; the cheapest first.

        Many orders cannot be compiled, for example if a relation's inner index comes before its outer one. So only the first few
        orders are tried, unless no order that walks one operand first can be compiled.
        """
        walks = [[access.level_var(at) for at in range(len(access.indices))] for access in self.operands]
        starts = [tuple(dict.fromkeys([*walk, *self.variables])) for walk in walks]
        is_possible = any(self.price_of(order) < inf for order in starts)
        tried = islice(self.all_orders(), tuning.FIRST_ORDERS if is_possible else None)
        starts = [*islice((order for order in tried if self.price_of(order) < inf), 1), *starts]
        for order in sorted(starts, key=self.price_of):
            if len(self.priced) < tuning.SEARCHED_ORDERS:
                self.improve(order)

    def improve(self, order: tuple[IndexVar, ...]) -> None:
        """Move each loop to its cheapest place, until no move lowers the price."""
        before = None
        while order != before:
            before = order
            for var in self.variables:
                others = tuple(other for other in order if other != var)
                moved = [(*others[:at], var, *others[at:]) for at in range(len(order))]
                order = min([order, *moved], key=self.price_of)

    def price_of(self, order: tuple[IndexVar, ...]) -> float:
        """The price of an order, infinite if it cannot be compiled."""
        if order not in self.priced:
            is_reachable = all(self.may_follow(order[:at], var) for at, var in enumerate(order))
            self.priced[order] = self.price(order) if is_reachable else None
        choice = self.priced[order]
        return inf if choice is None else choice.cost

    def can_be_made(self, choice: LoopOrder) -> bool:
        """Whether the loops reach the levels of an assembled result from the first level down, or can place its entries."""
        if not self.are_placed(choice.order):
            is_appended = choice.order[: len(self.first)] == self.first or self.are_written_once(choice.order)
            return not self.stmt.lhs.tensor.is_assembled or is_appended
        conversions = {a.tensor.name: a for a in choice.converted}
        return may_be_placed(self.stmt.lhs, [conversions.get(a.tensor.name, a) for a in self.operands], choice.order, self.united)

    def are_placed(self, order: tuple[IndexVar, ...]) -> bool:
        """Whether loops in this order visit the result's entries out of storage order, so that the entries are placed."""
        return self.is_placeable and not in_storage_order(self.stmt.lhs, self.operands, order, self.united)

    def are_written_once(self, order: tuple[IndexVar, ...]) -> bool:
        """Whether each entry of the result has a single term, and is appended or placed when loops in this order reach it."""
        return self.is_placeable or (self.visits_once and in_storage_order(self.stmt.lhs, self.operands, order, self.united))

    def price(self, order: tuple[IndexVar, ...]) -> LoopOrder | None:
        """Price an order with the cheapest format of each operand: reordered if needed, or with rows that are located or searched.

        Returns None if the order cannot be compiled. A relation, and the operand whose pattern the result keeps, are never converted.
        """
        shared, place = self.stmt.lhs.tensor.shares, {var: at for at, var in enumerate(order)}
        walks = [self.in_order(walk, tuple(sorted(walk.access.indices, key=place.__getitem__))) for walk in self.walks]
        best = self.price_stored(order, walks)
        for at, walk in enumerate(walks if not self.united else ()):
            in_rows = cost.in_rows(walk, walks, order, self.facts)
            if in_rows is not walk.access and walk.access.tensor.name != shared:
                others = [*walks[:at], self.walk(in_rows), *walks[at + 1 :]]
                choice = self.price_stored(order, others)
                if choice.cost < best.cost:
                    best, walks = choice, others
        is_fixed = any(access.tensor.name == shared or is_relation(access) for access in best.converted)
        return None if is_fixed or not self.can_be_made(best) else best

    def _in_order(self, walk: cost.SparseWalk, order: tuple[IndexVar, ...]) -> cost.SparseWalk:
        """The operand, in a format whose levels the loops reach from the first level down; ``order`` are the loops over its variables."""
        return walk if cost.is_concordant(walk.access, order) else self.walk(cost.reordered(walk.access, order))

    def price_stored(self, order: tuple[IndexVar, ...], walks: list[cost.SparseWalk]) -> LoopOrder:
        """Add up the price of an order with operands in these formats: loop steps, innermost body, scattering and conversions."""
        stored = [self.walk(access) for access in cost.mergeable([walk.access for walk in walks])]
        read = [self.walk(cost.without_empty_rows(self.stmt, order, walk.access, self.facts)) for walk in stored]
        moved = [(walk, other) for walk, other in zip(self.walks, stored, strict=True) if other is not walk]
        total = sum(cost.conversion(walk, other.access, self.facts, self.target) for walk, other in moved)
        total += self.nest_cost(order, tuple(read))
        if len(order) > 1 and self.facts.extent(order[0]) == 1 and order[0] in self.unindexed:
            total *= tuning.COST_ALONE  # the outermost loop has a single step, which threads cannot share
        converted = tuple(other.access for walk, other in zip(self.walks, read, strict=True) if other is not walk)
        return LoopOrder(order, total, converted)

    def nest_cost(self, order: tuple[IndexVar, ...], walks: tuple[cost.SparseWalk, ...]) -> float:
        """The cost of the loops and the innermost body."""
        if not order:
            return 1.0
        stmt, facts, result = self.stmt, self.facts, self.result
        runs, total, inner = 1.0, 0.0, order[-1]
        has_table = inner in self.contiguous and chosen_by_table(stmt, order) is not None
        for var in order[:-1]:
            survivors, steps = self.iterations(var, walks)
            if not has_table or var != order[-2]:  # rows that a table chooses take no steps
                total += runs * steps * (tuning.COST_WALK if survivors < facts.extent(var) else 1.0)
            runs *= survivors
        survivors, steps = self.iterations(inner, walks)
        steps = min(steps, self.looked_up(order, walks))
        scatters = not _sums_inside(order, result)
        step = tuning.COST_SCATTER if scatters else 1.0
        if self.are_placed(order):
            total += tuning.COST_PLACE * runs * survivors
        if inner in self.contiguous:
            lanes = self.target.lanes(stmt.lhs.tensor.dtype)
            steps = ceil(steps / lanes) * lanes  # a partly filled register takes as long
            if inner in result and (_sums_inside(order[:-1], result) or has_table):
                scatters = False  # the sums of a tile stay in registers while the summed loops run
            step = (tuning.COST_VECTOR_SCATTER if scatters else 1.0) / lanes
        elif self.is_tiled_reduction(order):
            step /= self.target.lanes(stmt.lhs.tensor.dtype)
        elif inner in self.unindexed:
            step *= tuning.COST_STRIDED
        elif self.operands and not self.unindexed.isdisjoint(order):
            step *= tuning.COST_WALK  # an outer loop over a variable that no sparse operand has walks short rows again
        total = (total + runs * steps * step) * (tuning.COST_SERIAL if result and order[0] not in result else 1.0)
        if not scatters:
            return total
        places = prod(max(facts.extent(var), 1.0) for var in result)
        if stmt.lhs.tensor.is_dense:
            below = order[[var in result for var in order].index(False) :]
            scattered = prod(max(facts.extent(var), 1.0) for var in below if var in result)
            rows = runs if inner in self.contiguous else runs * survivors
            total += rows * cost.far(stmt.lhs.tensor, scattered, self.target) / 2  # writes wait for nothing
        summed = [var for var in order if var not in result]
        if not _is_rounded(stmt) or not cost.is_uneven(summed, walks, self.united, runs * survivors / places, facts):
            return total
        # wide places are cleared first, and copied at the end
        return total + 2 * places if is_widened(stmt.lhs, order) else total * tuning.COST_INEXACT

    def looked_up(self, order: tuple[IndexVar, ...], walks: tuple[cost.SparseWalk, ...]) -> float:
        """Steps of the innermost loop if it sums two merged rows, and one of them is scattered by ``scatter_rows``; else infinity.

        The loops around the next one fix the scattered row, which is merged with each row that the next loop chooses.
        """
        merged = [walk for walk in walks if order[-1] in walk.fans]
        is_sum = not self.united and order[-1] not in self.result and not self.stmt.lhs.tensor.is_assembled
        if len(merged) != 2 or len(order) < 3 or not is_sum:
            return inf
        rows = [walk for walk in merged if order[-2] not in walk.access.indices and len(walk.access.indices) > 1]
        others = [walk for walk in merged if rows and walk is not rows[0]]
        return min((cost.length_of_row(walk, order[-1], walks, self.facts) for walk in others), default=inf)

    def is_tiled_reduction(self, order: tuple[IndexVar, ...]) -> bool:
        """Whether a reduction other than a sum runs in tiles: the innermost loop of the result is contiguous."""
        written = [var for var in order if var in self.result]
        return self.stmt.op not in ("=", "+=") and bool(written) and written[-1] in self.contiguous


def _is_rounded(stmt: Assignment) -> bool:
    """Whether the statement adds floating-point terms, and has a dense result or a single sparse operand."""
    result = stmt.lhs.tensor
    return (result.is_dense or len(_sparse(stmt)) == 1) and stmt.op in ("=", "+=") and result.type.is_rounded


def _sums_inside(loops: tuple[IndexVar, ...], result: set[IndexVar]) -> bool:
    """Whether the summed loops stand inside the loops of the result."""
    kinds = [var in result for var in loops]
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
    """The operand whose table of constants chooses rows of the result of a sum of products; None if there is none.

    The last level of the operand has constant coordinates for each kind of position in the level above. The innermost loops
    must run over these levels: first over summed columns, then over rows of the result, and then over at most one variable of
    the result that the operand lacks. No other operand may be sparse in these variables, and no other factor may depend on the rows.
    """
    operands, result = accesses_in(stmt.rhs), stmt.lhs.indices
    tables = [a for a in operands if not a.tensor.is_dense and a.tensor.format.levels[-1].constants]
    if len(tables) != 1 or not is_product(stmt.rhs) or not stmt.lhs.tensor.is_dense:
        return None
    table = tables[0]
    columns, rows = (table.level_var(len(table.indices) - before) for before in (2, 1))
    lanes = order[order.index(rows) + 1 :] if rows in order else order
    if len(lanes) > 1 or order[: len(order) - len(lanes)][-2:] != (columns, rows) or set(lanes) & set(table.indices):
        return None
    others = [a for a in operands if a != table and not a.tensor.is_dense and {columns, rows, *lanes} & set(a.indices)]
    if others or columns in result or not {rows, *lanes} <= set(result):
        return None
    is_independent = all(rows not in moved_by(factor) for factor in factors_of(stmt.rhs) if factor != table)
    return table if is_independent and sum(map(len, table.tensor.format.levels[-1].constants)) <= tuning.MOST_COPIES else None
