"""share_positions: compute the common terms of the positions of several loads only once.

The copies of an unrolled statement load from positions that differ in one term. LLVM adds loop-invariant terms first, so each
of eight rows keeps an address for each term that changes: more addresses than there are registers. With the common terms in a
variable, each row keeps one invariant address, and each load adds the variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ..ir.loop import Accumulate, Assign, BinOp, Expr, Load, Stmt, Store, Var, add, expressions, map_stmt, walk

FEWEST = 2  # number of common terms from which a variable pays off


def share_positions(copies: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Return the copies of a statement, preceded by the common terms of their loads' positions.

    >>> A, t, i, j, n = Var("A_vals"), Var("t"), Var("i"), Var("j"), Var("n")
    >>> shared, *copies = share_positions([Assign(t, A[Var(f"u{c}") * n + i * n + j]) for c in range(2)])
    >>> shared == Assign(Var("pA_all"), i * n + j), copies[1] == Assign(t, A[Var("u1") * n + Var("pA_all")])
    (True, True)
    """
    if not all(isinstance(stmt, Assign | Accumulate | Store) for stmt in copies):
        return tuple(copies)
    shared_addresses: dict[Expr, Expr] = {}
    shared: list[Stmt] = []
    for same in zip(*(_loads(stmt) for stmt in copies), strict=False):
        terms = [_terms(load.index) for load in same]
        common = [term for term in terms[0] if all(term in summands for summands in terms)]
        if len(common) < FEWEST or len(common) == len(terms[0]) or len({load.array for load in same}) > 1:
            continue
        name = Var(f"p{same[0].array.name.removesuffix('_vals')}_all{len(shared) or ''}")
        shared.append(Assign(name, reduce(add, common)))
        for load, summands in zip(same, terms, strict=True):
            shared_addresses[load] = Load(load.array, reduce(add, [*(term for term in summands if term not in common), name]))
    return (*shared, *(map_stmt(stmt, shared_addresses.get) for stmt in copies)) if shared else tuple(copies)


def _loads(stmt: Stmt) -> list[Load]:
    """Return the distinct loads of single values, in order."""
    return list(dict.fromkeys(e for top in expressions(stmt) for e in walk(top) if isinstance(e, Load) and isinstance(e.array, Var)))


def _terms(expr: Expr) -> list[Expr]:
    return [*_terms(expr.left), *_terms(expr.right)] if isinstance(expr, BinOp) and expr.op == "+" else [expr]
