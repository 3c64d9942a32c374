"""blend: operands are merged without branches where their coordinates, and so the branches, are as good as random.

A branch on which operand has the next coordinate is mispredicted about every other time, which costs more than reading
all of their values and masking those that aren't there.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.functions import is_zero, simplified
from ..ir.index import Access, Assignment, Blend, Forall, Serial, Stmt, Where, accesses_in, operands_of
from ..ir.tag_rules import appends, can_merge_without_branches
from . import tuning
from .cost import counts_of
from .facts import GENERIC, Facts, Target
from .gallop import iterated_levels
from .options import AUTOMATIC, Options

MOST_OPERANDS = 3  # operands: their merge has a loop for each of their sets
MASKED = frozenset({"float32", "float64", "int32", "int64"})


def merge_without_branches(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Merge without branches what is appended to a result, or summed into a register; None if there is no such loop.

    Where two operands have rows of some length, a step waits for the load of a coordinate most of its time, so that it is loaded ahead.

    >>> from numscorch.ir.format import CSR
    >>> from numscorch.ir.index import IndexVar, TensorVar
    >>> from numscorch.ir.notation import parse_stmt
    >>> tensors = {name: TensorVar(name, CSR) for name in "ABC"}
    >>> facts = Facts(((IndexVar("i"), 10), (IndexVar("j"), 100)), (("A", CSR, (10, 200)), ("B", CSR, (10, 200))))
    >>> print(*merge_without_branches(parse_stmt("forall(i, forall(j, C[i,j] = A[i,j] + B[i,j]))", tensors), facts) or (), sep="\\n")
    forall(i, blend_forall<ahead>(j, C[i,j] = A[i,j] + B[i,j]))
    at j, A, B are merged by masks: a branch would be mispredicted
    """
    reasons: list[str] = []
    blended = _blended(stmt, facts, appends(stmt), reasons)
    return (blended, "; ".join(reasons)) if reasons else None


def _blended(stmt: Stmt, facts: Facts, is_appended: bool, reasons: list[str]) -> Stmt:
    match stmt:
        case Forall(var, Assignment() as body, Serial()) if (names := merged_in(stmt, body)) and can_merge_without_branches(
            stmt, is_appended
        ):
            reasons.append(f"at {var}, {', '.join(names)} are merged by masks: a branch would be mispredicted")
            return replace(stmt, tag=Blend(_looks_ahead(stmt, names, facts)))
        case Forall(_, body, Serial()):  # in registers of many coordinates, terms aren't masked
            return replace(stmt, body=_blended(body, facts, is_appended, reasons))
        case Where(consumer, producer):
            return Where(_blended(consumer, facts, is_appended, reasons), _blended(producer, facts, is_appended, reasons))
        case _:
            return stmt


def _looks_ahead(loop: Forall, names: list[str], facts: Facts) -> bool:
    """Whether there are two operands, with so many coordinates in a row that a loop more is worth its ends."""
    walked = {access.tensor.name: counts_of(access, facts) for access in operands_of(loop) if access.tensor.name in names}
    return len(names) == 2 and all(counts[-1] >= tuning.MERGED_ROW * (counts[-2] if len(counts) > 1 else 1.0) for counts in walked.values())


def merged_in(loop: Forall, body: Assignment) -> list[str]:
    """The operands whose last levels, compressed and in order, the loop merges; none if it does more than that, or writes elsewhere."""
    lhs, walked = body.lhs, [access for access in accesses_in(body.rhs) if list(iterated_levels(access, loop))]
    names = sorted({access.tensor.name for access in walked})
    appended = lhs.tensor.is_assembled and body.op == "=" and lhs.level_var(len(lhs.indices) - 1) == loop.var
    if not 2 <= len(names) <= MOST_OPERANDS or not all(_is_compressed(access, loop) for access in walked):
        return []
    if not (appended or (lhs.tensor.is_scalar and body.op == "+=")) or not is_zero(simplified(body.rhs, names)):
        return []
    return names if all(access.tensor.dtype in MASKED for access in (lhs, *accesses_in(body.rhs))) else []


def _is_compressed(access: Access, loop: Forall) -> bool:
    """Whether the loop's level is its last, and has just coordinates in order, each once."""
    last = access.tensor.format.levels[-1]
    innermost = access.level_var(len(access.indices) - 1) == loop.var and access.indices.count(loop.var) == 1
    return innermost and last.arrays == ("pos", "crd") and last.is_ordered and last.is_unique
