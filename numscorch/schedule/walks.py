"""Passes that choose how a loop walks its levels: visit_positions, gallop and load_ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from ..ir.dtype import DTYPES
from ..ir.functions import is_zero, simplified
from ..ir.index import Access, Ahead, Each, Forall, Gallop, Serial, Stmt, Tag, accesses_in, map_loops, value_of
from ..ir.verify import chosen_rows, runs_of
from . import cost, tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target

Choice = tuple[Tag, str]  # the tag of a loop, and the reason


def each_loop(choose: Callable[[Forall, Facts], Choice | None]) -> Callable[..., tuple[Stmt, str] | None]:
    """Turn a choice for one serial loop into a pass over all loops of a statement; None leaves the loop as it is."""

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
    short, long = min(fans, key=fans.__getitem__), max(fans, key=fans.__getitem__)
    reason = f"at {loop.var}, {short} has about {fans[short]:.3g} coordinates and {long} {fans[long]:.3g}"
    if fans[long] < tuning.SEEK * fans[short]:
        return Serial(), f"{reason}: both are walked"
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
