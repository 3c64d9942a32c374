"""merge_without_branches: a merge loop masks absent values instead of branching on them.

A branch on the operand with the next coordinate is mispredicted about every other time if the coordinates are random.
Reading the values of all operands and masking the absent values costs less.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..ir.functions import is_zero, simplified
from ..ir.index import Access, Assignment, Blend, Forall, Serial, Stmt, Where, accesses_in, map_parts, operands_of
from ..ir.verify import appends, can_merge_without_branches
from . import tuning
from .cost import counts_of
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target

MOST_OPERANDS = 3  # operands of a merge; a merge has one loop per subset of its operands


def merge_without_branches(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Merge operands without branches in loops that append or sum into a register; None if there is no such loop.

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
    level_counts = {access.tensor.name: counts_of(access, facts) for access in operands_of(loop) if access.tensor.name in names}
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
