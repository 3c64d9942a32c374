"""flatten_sum: a sum over all entries of a tensor is one loop over its stored values."""

from __future__ import annotations

from dataclasses import replace

from ..ir.functions import REGISTER_FUNCTIONS, is_zero, simplified
from ..ir.index import (
    Access,
    Assignment,
    FlatSum,
    Forall,
    Serial,
    Stmt,
    Where,
    accesses_in,
    factors_of,
    operators_in,
    product,
    unwrap,
    wrap,
)
from . import tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target


def flatten_sum(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Replace the loops of a sum over all entries of a tensor by one loop over positions; None for other statements.

    The positions of the last level are consecutive, so the levels above it need not be read.

    >>> from numscorch.ir.format import CSR
    >>> from numscorch.ir.index import IndexVar, TensorVar
    >>> from numscorch.ir.notation import parse_stmt
    >>> nest = parse_stmt("where(s = t, forall(i, forall(j, t += abs(A[i,j]))))", {"A": TensorVar("A", CSR)})
    >>> facts = Facts.of({IndexVar("i"): 100, IndexVar("j"): 100}, {"A": (CSR, (100, 9000))}, 16, Target())
    >>> print(*flatten_sum(nest, facts, Target()) or (), sep="\\n")
    where(s = t, entry_forall<8 x 8>(i, forall(j, t += abs(A[i,j]))))
    all entries of A are summed: one loop over its positions
    """
    if options.vector is not None:
        return None
    match stmt:
        case Where(Assignment() as consumer, Forall(tag=Serial()) as nest) if consumer.lhs.tensor.is_scalar:
            if (loops_and_term := _flatten(nest)) is None or (operand := _operand_visited_once(*loops_and_term)) is None:
                return None
            (outer, *loops), body = loops_and_term
            flattened = wrap([replace(outer, tag=_tag(body, operand, facts, target)), *loops], body)
            return replace(stmt, producer=flattened), f"all entries of {operand.tensor} are summed: one loop over its positions"
    return None


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


def _tag(body: Assignment, operand: Access, facts: Facts, target: Target) -> FlatSum:
    """Use enough registers to hide the latency of additions, fewer for few entries; without vector instructions, add single values."""
    operators = operators_in(body.rhs) - {"*"}
    if not body.lhs.tensor.type.in_registers or not operators <= set(REGISTER_FUNCTIONS):
        return FlatSum(1, 1)
    lanes, registers = target.lanes(body.lhs.tensor.dtype), tuning.SUMS_IN_FLIGHT
    while registers > 1 and facts.count(operand.tensor.name)[1][-1] < tuning.FLAT_SUM_STEPS * registers * lanes:
        registers //= 2
    return FlatSum(lanes, registers)
