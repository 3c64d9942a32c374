"""visit_positions: sums over a level with repeated coordinates take one step for each position, unless the runs are long.

A level with repeated coordinates, as in COO, is walked in runs of equal coordinates. The end of each run is found by comparing
coordinates, and mispredicted. Factors that depend on the coordinate are applied once per run, which pays for long runs only.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.index import Each, Forall, Serial, Stmt, map_loops
from ..ir.verify import runs_of
from . import cost, tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target


def visit_positions(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Visit each position of levels with short runs of equal coordinates; None if there is no such level.

    >>> from ..ir.format import COO
    >>> from ..ir.index import IndexVar, TensorVar
    >>> from ..ir.notation import parse_stmt
    >>> nest = parse_stmt("forall(i, forall(j, forall(k, y[i] += A[i,j,k] * x[j])))", {"A": TensorVar("A", COO(3))})
    >>> facts = Facts(tuple((IndexVar(name), 100) for name in "ijk"), (("A", COO(3), (10**4,) * 3),))
    >>> print(*visit_positions(nest, facts) or (), sep="\\n")
    forall(i, each_forall(j, forall(k, y[i] += A[i,j,k] * x[j])))
    at j, about 1 positions of A share a coordinate: each one is visited
    """
    reasons: list[str] = []

    def tagged(loop: Forall) -> Forall:
        runs = runs_of(loop) if loop.tag == Serial() else None
        if runs is None:
            return loop
        counts = cost.counts_of(runs[0], facts)
        length = counts[-1] / max(counts[runs[1]], 1.0)
        if length > tuning.SHORT_RUN:
            return loop
        reasons.append(f"at {loop.var}, about {length:.3g} positions of {runs[0].tensor} share a coordinate: each one is visited")
        return replace(loop, tag=Each())

    nest = map_loops(stmt, tagged)
    return (nest, "; ".join(reasons)) if reasons else None
