"""The statements of a nest: one, or several fused statements below the loops that they share.

Fused statements are nested as ``where(last, first)``: a statement reads the numbers and rows that earlier statements write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce, wraps
from typing import Concatenate, ParamSpec

from ..ir.index import Forall, Stmt, Where, result_of, unwrap, wrap

P = ParamSpec("P")
NAMES = ("t", "u", "v", "w", "sum_t", "sum_u", "sum_v", "sum_w")  # workspaces within a statement; fused results have other names


def statements_of(nest: Stmt) -> tuple[list[Forall], list[Stmt]]:
    """The loops that fused statements share, and the statements in the order in which they run; no loops for a single statement.

    >>> from ..ir.notation import parse_stmt
    >>> nest = parse_stmt("forall(i, where(forall(j, C[i,j] = R[i,j] * s), where(s = t, forall(k, t += x[k]))))")
    >>> print(*statements_of(nest)[1], sep="\\n")
    where(s = t, forall(k, t += x[k]))
    forall(j, C[i,j] = R[i,j] * s)
    """
    loops, body = unwrap(nest)
    earlier: list[Stmt] = []
    while isinstance(body, Where) and result_of(body.producer).tensor.name not in NAMES:
        earlier.append(body.producer)
        body = body.consumer
    return (loops, [*earlier, body]) if earlier else ([], [nest])


def nested(loops: list[Forall], statements: Sequence[Stmt]) -> Stmt:
    """The statements, nested in the loops that they share."""
    return wrap(loops, reduce(Where, reversed(statements)))


def each_statement(change: Callable[Concatenate[Stmt, P], tuple[Stmt, str]]) -> Callable[Concatenate[Stmt, P], tuple[Stmt, str]]:
    """Extend a pass for one statement to fused statements: it changes each statement below the loops that all share."""

    @wraps(change)
    def change_each(nest: Stmt, /, *args: P.args, **named: P.kwargs) -> tuple[Stmt, str]:
        loops, statements = statements_of(nest)
        changed = [change(stmt, *args, **named) for stmt in statements]
        if len(changed) == 1:
            return changed[0]
        whys = "; ".join(f"{result_of(stmt).tensor}: {why}" for stmt, why in changed)
        return nested(loops, [stmt for stmt, _ in changed]), whys

    return change_each
