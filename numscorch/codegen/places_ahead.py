"""load_places_ahead: prefetch values that are found through an array of places.

Each value waits for its place, and values that exceed a core's cache then wait for memory. The places of later entries are known before.
"""

from __future__ import annotations

from collections.abc import Collection

from ..ir.loop import NESTED, Block, Do, Load, Stmt, Var, call, expressions_in, rewrite
from ..schedule import tuning


def load_places_ahead(block: Block, names: Collection[str]) -> Block:
    """Prefetch the values of these tensors, ``tuning.PLACES_AHEAD`` entries ahead.

    >>> from ..ir.loop import Accumulate
    >>> from .python import emit_block
    >>> value = Var("A_vals")[Var("A_order")[Var("p")]]
    >>> print(emit_block(load_places_ahead((Accumulate(Var("t"), value),), ["A"]), 0))
    prefetch(A_vals, A_order[min(p + 64, A_entries - 1)])
    t += A_vals[A_order[p]]
    """
    names_of = {f"{name}_order": name for name in names}

    def with_prefetches(stmt: Stmt) -> Block:
        if isinstance(stmt, NESTED):
            return (stmt,)
        loads = dict.fromkeys(expr for expr in expressions_in((stmt,)) if isinstance(expr, Load) and expr.array.name in names_of)
        return (*(_prefetch(load, names_of[load.array.name]) for load in loads), stmt)

    return rewrite(block, with_prefetches) if names_of else block


def _prefetch(place: Load, name: str) -> Do:
    later = call("min", place.index + tuning.PLACES_AHEAD, Var(f"{name}_entries") - 1)
    return Do(call("prefetch", Var(f"{name}_vals"), place.array[later]))
