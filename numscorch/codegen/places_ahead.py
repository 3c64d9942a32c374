"""load_places_ahead: prefetch values that are found through an array of places.

Each value waits for its place, and values that exceed a core's cache then wait for memory. The places of later entries are known before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..ir.loop import NESTED, Block, Choose, Do, Expr, If, Load, Stmt, Var, call, expressions, rewrite
from ..schedule import tuning


def load_places_ahead(block: Block, names: Collection[str]) -> Block:
    """Prefetch the values of these tensors, ``tuning.PLACES_AHEAD`` entries ahead, under the condition under which they are read.

    >>> from ..ir.loop import Accumulate, Const
    >>> from .python import emit_block
    >>> value = Var("A_vals")[Var("A_order")[Var("p")]]
    >>> print(emit_block(load_places_ahead((Accumulate(Var("t"), value),), ["A"]), 0))
    prefetch(A_vals, A_order[min(p + 64, A_entries - 1)])
    t += A_vals[A_order[p]]
    >>> either = Choose(Var("p") < Var("end"), value, Const(0))
    >>> print(emit_block(load_places_ahead((Accumulate(Var("t"), either),), ["A"]), 0))
    if p < end:
        prefetch(A_vals, A_order[min(p + 64, A_entries - 1)])
    t += A_vals[A_order[p]] if p < end else 0
    """
    names_of = {f"{name}_order": name for name in names}

    def with_prefetches(stmt: Stmt) -> Block:
        if isinstance(stmt, NESTED):
            return (stmt,)
        prefetches = dict.fromkeys(prefetch for expr in expressions(stmt) for prefetch in _prefetches(expr, names_of))
        return (*prefetches, stmt)

    return rewrite(block, with_prefetches) if names_of else block


def _prefetches(expr: Expr, names_of: Mapping[str, str]) -> Block:
    """Prefetch the values that an expression reads. A choice reads nothing of an absent operand, which may have no entries."""
    match expr:
        case Choose(condition, value):
            chosen = _prefetches(value, names_of)
            return (If(condition, chosen),) if chosen else ()
        case Load(Var(array), index) if array in names_of:
            later = call("min", index + tuning.PLACES_AHEAD, Var(f"{names_of[array]}_entries") - 1)
            return (Do(call("prefetch", Var(f"{names_of[array]}_vals"), expr.array[later])),)
        case _:
            return tuple(prefetch for part in expr.parts for prefetch in _prefetches(part, names_of))
