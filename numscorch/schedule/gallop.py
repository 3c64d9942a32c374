"""gallop: an intersection walks its shortest operand and searches the other operands for each coordinate."""

from __future__ import annotations

from dataclasses import replace

from ..ir.functions import is_zero, simplified
from ..ir.index import Forall, Gallop, Serial, Stmt, accesses_in, map_loops, value_of
from . import cost, tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target


def gallop(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Walk the shortest operand of an intersection and search the others, if one of these is far longer.

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
    reasons: list[str] = []

    def tagged(loop: Forall) -> Forall:
        fans = fans_of(loop, facts) if isinstance(loop.tag, Serial) else {}
        return replace(loop, tag=_choose_tag(str(loop.var), fans, reasons)) if fans else loop

    nest = map_loops(stmt, tagged)
    return (nest, "; ".join(reasons)) if reasons else None


def _choose_tag(var: str, fans: dict[str, float], reasons: list[str]) -> Gallop | Serial:
    """Choose the tag of a loop from the average number of coordinates that each operand has below one parent."""
    short, long = min(fans, key=fans.__getitem__), max(fans, key=fans.__getitem__)
    reason = f"at {var}, {short} has about {fans[short]:.3g} coordinates and {long} {fans[long]:.3g}"
    if fans[long] < tuning.SEEK * fans[short]:
        reasons.append(f"{reason}: both are walked")
        return Serial()
    reasons.append(f"{reason}: {short} is walked, and the others are searched")
    return Gallop(short)


def fans_of(loop: Forall, facts: Facts) -> dict[str, float]:
    """Average number of coordinates below one parent for each operand; empty unless the loop intersects searchable levels."""
    value = value_of(loop.body)
    levels = {access.tensor.name: (access, at) for access in accesses_in(value) for at in access.sparse_levels(loop.var)}
    if len(levels) < 2 or not all(cost.can_seek(access.tensor.format.levels[at]) for access, at in levels.values()):
        return {}
    if not all(is_zero(simplified(value, {name})) for name in levels):
        return {}
    return {name: cost.fan_of(access, at, facts) for name, (access, at) in levels.items()}
