"""insert_workspaces: keeps sums in registers while their loops run, and collects rows with unordered entries.

A row is collected in a list, with dense arrays that mark its coordinates and hold their sums. A short row of a long
dimension is collected in a hash table (Gustavson, "Two Fast Algorithms for Sparse Matrices", 1978; Nagasaka, Matsuoka,
Azad, Buluç, "High-Performance Sparse Matrix-Matrix Products on Intel KNL and Multicore Architectures", 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from math import inf, prod

from ..errors import ScheduleError
from ..ir.assembled import in_storage_order, is_placed, visits_once
from ..ir.format import Format
from ..ir.functions import counts_absent, is_intersection
from ..ir.index import (
    SCALAR,
    Access,
    Assignment,
    Each,
    Expr,
    Forall,
    IndexVar,
    Stmt,
    TensorVar,
    Where,
    accesses_in,
    factors_of,
    is_relation,
    product,
    unwrap,
    wrap,
)
from ..ir.level import INT32_MAX, Level
from ..ir.workspace_levels import Cleared, Flagged, Hashed, Listed, PackedWorkspace, Sorted
from . import cost, tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target
from .statements import NAMES, each_statement

KINDS: dict[str, type[Listed | Hashed | Sorted]] = {"list": Listed, "hash": Hashed, "sort": Sorted}


@each_statement
def insert_workspaces(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str]:
    """Keep the sums of the innermost loops in registers, and collect rows with unordered entries in a workspace.

    >>> from numscorch.ir.notation import parse_stmt
    >>> print(insert_workspaces(parse_stmt("forall(i, forall(j, y[i] += A[i,j] * x[j]))"), Facts(()))[0])
    forall(i, where(y[i] = t, forall(j, t += A[i,j] * x[j])))

    A factor that the summed loops do not change multiplies the sum instead of each term, unless a sum may have no term:

    >>> print(insert_workspaces(parse_stmt("forall(i, forall(j, forall(k, D[i,j] += A[i,j] * X[i,k] * Y[j,k])))"), Facts(()))[0])
    forall(i, forall(j, where(D[i,j] = A[i,j] * t, forall(k, t += X[i,k] * Y[j,k]))))

    The options may name the kind of workspace.

    Raises:
        ScheduleError: the options name a kind of workspace, but no row is collected.
    """
    loops, assignment = unwrap(stmt)
    if not isinstance(assignment, Assignment):
        return stmt, "the statement already has workspaces"
    split = _collecting_split(loops, assignment) if assignment.lhs.tensor.is_assembled else _counting_split(loops, assignment)
    if split is not None and (assignment.lhs.tensor.is_assembled or options.workspace not in ("hash", "sort")):
        level, why = _kind(loops, split, assignment, facts, options.workspace)
        return _collect_rows(loops, split, assignment, level, facts), why
    if options.workspace is not None:
        result = assignment.lhs
        in_order, in_place = f"these loops append to {result} in order", f"the positions of the entries of {result} are known in advance"
        raise ScheduleError(
            f"workspace({options.workspace}): {in_order if result.tensor.is_assembled else in_place}, so no row is collected\n"
            f"  {stmt}     reorder(...) puts a summed loop above the last level"
        )
    counts = assignment.op not in ("=", "+=") and not _accumulates(loops, assignment)  # its register counts the terms
    sums = assignment.op != "=" and summed_tail(loops, assignment.lhs)  # where a single term is absent, nothing may be written
    if not sums and not counts:
        return _in_wider_type(loops, assignment, facts) or (stmt, "no workspace is needed")
    return in_register(loops, assignment, free_names(loops), facts), "a register keeps the sum while the innermost loops run"


def is_widened(result: Access, order: Sequence[IndexVar]) -> bool:
    """Whether loops in this order scatter terms over a dense vector of a narrow type, so that long sums are collected in a wider type."""
    is_narrow = result.tensor.is_dense and len(result.indices) == 1 and result.tensor.type.accumulator != result.tensor.dtype
    return is_narrow and order[0] not in result.indices and order[-1] in result.indices


def _in_wider_type(loops: list[Forall], assignment: Assignment, facts: Facts) -> tuple[Stmt, str] | None:
    """Collect scattered sums in a wider type if one of them is much longer than the others; None otherwise."""
    order = [loop.var for loop in loops]
    if assignment.op != "+=" or not facts.peaks or not is_widened(assignment.lhs, order):  # without peaks, no sum is known to be long
        return None
    walks, united = cost.walks_of(accesses_in(assignment.rhs), facts), not is_intersection(assignment.rhs)
    terms, _ = cost.executions(order, walks, facts, united)
    summed = [var for var in order if var not in assignment.lhs.indices]
    if not cost.is_uneven(summed, walks, united, terms / max(facts.extent(assignment.lhs.indices[0]), 1.0), facts):
        return None
    why = f"sums of {assignment.lhs.tensor} of very different lengths: dense values of {assignment.lhs.tensor.type.accumulator}"
    return _collect_rows(loops, 0, assignment, Cleared(False), facts), why


def _kind(loops: list[Forall], split: int, assignment: Assignment, facts: Facts, wanted: str | None) -> tuple[Level, str]:
    """Choose the level that collects a row: sorted if one operand fills short rows, hashed if dense arrays exceed the cache and
    their places are seldom reused.

    In a banded matrix, neighbouring rows use the same places, and hashing takes twice as long as dense arrays. In a random
    matrix it takes about as long. With few sums, the allocation of dense arrays takes much longer than hashing.
    """
    must_count = _must_count(loops[split:], assignment)
    if wanted is not None:
        if wanted == "sort" and (must_count or assignment.op not in ("=", "+=")):
            raise ScheduleError(
                f"workspace(sort): {assignment.op} does not sum the stored terms, so equal coordinates cannot be combined: use hash"
            )
        return KINDS[wanted](must_count), f"requested: {wanted}"
    extent = facts.extent(_collected_variable(loops[split:], assignment.lhs))
    walks, united = cost.walks_of(accesses_in(assignment.rhs), facts), not is_intersection(assignment.rhs)
    sums, _ = cost.executions((loop.var for loop in loops), walks, facts, united)
    places = prod(facts.extent(var) for var in assignment.lhs.indices)
    if assignment.lhs.tensor.is_dense and sums * tuning.CLEARED_PLACES >= places:
        return Cleared(must_count), f"dense rows of {extent:.3g}, about {sums:.3g} sums in total: each row is cleared first"
    insertions = sums / max(prod(facts.extent(loop.var) for loop in loops[:split]), 1.0)
    are_short = insertions <= tuning.RANKED_INSERTIONS and _longest_row(loops[:split], assignment, facts) <= tuning.LONGEST_SORTED_ROW
    if _is_sortable(loops[split:], assignment, must_count) and are_short and extent <= INT32_MAX:
        return Sorted(), f"unordered rows with about {insertions:.3g} insertions: a list, sorted when the row is complete"
    if _is_one_row(assignment) and sums >= extent:
        return Flagged(must_count), f"one unordered row of {extent:.3g}, about {sums:.3g} sums in total: dense arrays with flags"
    hashed = assignment.lhs.tensor.is_assembled and extent > tuning.DENSE_ROW and sums < tuning.REUSED_PLACES * extent
    how = "a hash table" if hashed else "dense arrays with a list"
    return KINDS["hash" if hashed else "list"](must_count), f"unordered rows of {extent:.3g}, about {sums:.3g} sums in total: {how}"


def _is_sortable(loops: list[Forall], assignment: Assignment, must_count: bool) -> bool:
    """Whether a row can be collected in a list and then sorted: its level is ordered, and a single loop inserts the entries."""
    result = assignment.lhs.tensor
    sums = assignment.op in ("=", "+=") and not must_count
    return sums and len(loops) == 1 and result.is_assembled and result.format.levels[-1].is_ordered


def _longest_row(loops: list[Forall], assignment: Assignment, facts: Facts) -> float:
    """Estimate the insertions into the longest row from the counts of the most frequent coordinates; infinity if unknown."""
    rows = [loop.var for loop in loops]
    sparse = [access for access in accesses_in(assignment.rhs) if not access.tensor.is_dense and not is_relation(access)]
    return max((cost.peak_of(access, [var for var in rows if var in access.indices], inf, facts) for access in sparse), default=inf)


def _must_count(loops: list[Forall], assignment: Assignment) -> bool:
    """Whether a row must count the terms of each value, because several loops add terms to it and absent terms change it."""
    return _accumulates(loops, assignment) and counts_absent(assignment.op, assignment.rhs)


def _accumulates(loops: list[Forall], assignment: Assignment) -> bool:
    """Whether terms are added to a value in several passes: a summed loop is outside a loop of the result."""
    around = loops[: len(loops) - len(summed_tail(loops, assignment.lhs))]
    return any(loop.var not in assignment.lhs.indices for loop in around)


def _counting_split(loops: list[Forall], assignment: Assignment) -> int | None:
    """Number of loops around the workspace that counts the terms of a dense row's values; None if none is needed."""
    return len(assignment.lhs.indices) - 1 if _must_count(loops, assignment) else None


def _collected_variable(loops: list[Forall], lhs: Access) -> IndexVar:
    """The variable of the result that a workspace collects: the innermost one of the loops that fill it."""
    return next(loop.var for loop in reversed(loops) if loop.var in lhs.indices)


def _is_one_row(assignment: Assignment) -> bool:
    """Whether all sums go to one row, so that scanning all of its places once is cheap."""
    levels = assignment.lhs.tensor.format.levels
    is_plain = levels[0].arrays == ("pos", "crd") and levels[0].is_unique and levels[0].appended
    return len(levels) == 1 and is_plain


def _collecting_split(loops: list[Forall], assignment: Assignment) -> int | None:
    """Number of loops around the workspace that collects the result's last level; None if none is needed."""
    lhs = assignment.lhs
    count = len(lhs.indices)
    levels = lhs.tensor.format.levels
    if not count or levels[-1].full or lhs.tensor.prunes or is_placed(wrap(loops, assignment)):
        return None
    if lhs.tensor.row_limit:
        return count - 1
    sparse = [a for a in accesses_in(assignment.rhs) if not a.tensor.is_dense]
    order = [loop.var for loop in loops]
    united = not is_intersection(assignment.rhs)
    is_in_order = visits_once(lhs, sparse, order, united) and in_storage_order(lhs, sparse, order, united)
    if not is_in_order and order[:count] != [lhs.level_var(level) for level in range(count)]:
        return count - 1
    last = lhs.level_var(count - 1)
    levels_read = [level for a in sparse for at, level in enumerate(a.tensor.format.levels) if a.level_var(at) == last]
    return count - 1 if levels[-1].is_ordered and not all(level.is_ordered for level in levels_read) else None


def _collect_rows(loops: list[Forall], split: int, assignment: Assignment, level: Level, facts: Facts) -> Stmt:
    """where(forall(j, C[i,j] = w[j]), ...): collect the sums of one row before they are appended."""
    names = free_names(loops)
    var = _collected_variable(loops[split:], assignment.lhs)
    name = "w" if "w" in names else names[-1]
    inner, dtype = loops[split:], assignment.lhs.tensor.dtype
    if isinstance(level, Listed | PackedWorkspace | Cleared) and assignment.op == "+=" and not summed_tail(inner, assignment.lhs):
        dtype = assignment.lhs.tensor.type.accumulator
    space = Access(TensorVar(name, Format((level,)), dtype), (var,))
    op = "+=" if assignment.op == "=" else assignment.op
    update = Assignment(space, assignment.rhs, op)
    others = tuple(n for n in names if n != name)
    producer = in_register(inner, update, others, facts) if summed_tail(inner, space) else wrap(inner, update)
    return wrap(loops[:split], Where(Forall(var, Assignment(assignment.lhs, space, "=")), producer))


def in_register(loops: list[Forall], assignment: Assignment, names: tuple[str, ...], facts: Facts) -> Stmt:
    """Wrap an assignment in loops, with a register for the sums of the innermost loops."""
    inner = summed_tail(loops, assignment.lhs)
    outer = loops[: len(loops) - len(inner)]
    factors = summed_factors(assignment.rhs, inner, facts) if assignment.op == "+=" else [assignment.rhs]
    body = sum_in_register(assignment.lhs, assignment.op if _accumulates(loops, assignment) else "=", inner, factors, names, assignment.op)
    return wrap(outer, body)


def summed_factors(value: Expr, loops: list[Forall], facts: Facts) -> list[Expr]:
    """The factors of a summed value; all of it if a loop is empty, since infinity times an empty sum is NaN."""
    return [value] if any(facts.sizes.get(loop.var) == 0 for loop in loops) else factors_of(value)


def free_names(loops: list[Forall]) -> tuple[str, ...]:
    """Register names that differ from all index variables."""
    used = {loop.var.name for loop in loops}
    return tuple(name for name in NAMES if name not in used)


def summed_tail(loops: list[Forall], lhs: Access) -> list[Forall]:
    """The innermost loops whose variables the left side lacks; none if they take one step each inside another loop."""
    tail = list(takewhile(lambda loop: loop.var not in lhs.indices, reversed(loops)))[::-1]
    return [] if any(isinstance(loop.tag, Each) for loop in loops[: len(loops) - len(tail)]) else tail


def sum_in_register(lhs: Access, op: str, loops: list[Forall], factors: list[Expr], names: tuple[str, ...], reduction: str = "+=") -> Stmt:
    """where(lhs = outer factors * t, forall(..., t += inner factors)), with one register for each loop that needs it."""
    register = Access(TensorVar(names[0], SCALAR, lhs.tensor.dtype), ())
    if reduction != "+=":
        return Where(Assignment(lhs, register, op), wrap(loops, Assignment(register, product(factors), reduction)))
    summed = {loop.var for loop in loops}
    moving = [f for f in factors if moved_by(f) & summed] or factors
    fixed = [f for f in factors if f not in moving]
    if _may_be_empty(moving, summed) and lhs.tensor.type.kind != "integer":
        fixed = [f for f in fixed if isinstance(f, Access) and not f.tensor.has_values]
        moving = [f for f in factors if f not in fixed]
    return Where(Assignment(lhs, product([*fixed, register]), op), _produce(register, loops, moving, names[1:]))


def _may_be_empty(factors: list[Expr], summed: set[IndexVar]) -> bool:
    """Whether a sum may have no term; a factor must then stay inside the sum, since infinity times an empty sum is NaN.

    A stored coordinate has at least one entry below it, so the sum has a term unless another sparse tensor takes part.
    """
    sparse = [access for f in factors for access in accesses_in(f) if not access.tensor.is_dense and summed & set(access.indices)]
    return len(sparse) > 1 or any(not _is_below_stored(access, summed) for access in sparse)


def _is_below_stored(access: Access, variables: set[IndexVar]) -> bool:
    """Whether the first level of an access that one of the variables indexes is directly below a sparse level."""
    levels = access.tensor.format.levels
    first = next(at for at in range(len(levels)) if access.level_var(at) in variables)
    return first > 0 and not levels[first - 1].full


def moved_by(factor: Expr) -> set[IndexVar]:
    """The variables that the value of a factor depends on; a dense tensor does not depend on broadcast dimensions."""
    return {
        var
        for access in accesses_in(factor)
        for at, var in enumerate(access.indices)
        if not access.tensor.is_dense or access.tensor.strides[at] != "0"
    }


def _produce(register: Access, loops: list[Forall], factors: list[Expr], names: tuple[str, ...]) -> Stmt:
    """forall(loops, register += factors), with one more register inside each loop that fixes the value of a factor."""
    split = _split(loops, factors) if names else None
    if split is None:
        return wrap(loops, Assignment(register, product(factors), "+="))
    return wrap(loops[:split], sum_in_register(register, "+=", loops[split:], factors, names))


def _split(loops: list[Forall], factors: list[Expr]) -> int | None:
    """Number of loops around the next register: the fewest after which some factors, but not all, keep their value.

    None if there is no such factor, or if the loops inside take one step each.
    """
    for depth in range(1, len(loops)):
        if isinstance(loops[depth - 1].tag, Each):
            return None
        below = {loop.var for loop in loops[depth:]}
        if 0 < sum(bool(below & moved_by(f)) for f in factors) < len(factors):
            return depth
    return None
