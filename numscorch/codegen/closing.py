"""The kernel that closes the gaps between workers' entries of a result whose number of entries was bounded in advance.

Each worker copies what it wrote. If one thread copied everything, cache lines would move between cores, at this call and at the next.
"""

from __future__ import annotations

from functools import lru_cache

from ..ir.index import TensorVar
from ..ir.loop import Accumulate, Assign, Const, For, Store, Var
from ..machine.fingerprints import hashed
from ..schedule.facts import FORGET, Target
from .assembly import KernelBody, Param, functions_of
from .python import emit_function
from .source import Source

TITLE = "Close the gaps between the entries that workers have written: each worker copies its entries."


def closing_of(result: TensorVar, target: Target) -> Source:
    """The source for a result whose last level is its only sparse one."""
    return _closing(result.dtype, result.index_dtype, result.format.levels[-1].array_dtype("crd") or result.index_dtype, target)


@lru_cache(maxsize=64)
def _closing(dtype: str, of_pos: str, of_crd: str, target: Target) -> Source:
    """The source for values, ``pos`` and ``crd`` of these data types; all results of these types share it. The text names the
    types, since a kernel is named by its text.

    Worker ``w`` wrote the entries from ``starts[w]`` to ``ends[w]``, of the parents from ``cuts[w]`` to ``cuts[w + 1]``.
    """
    params = (
        Param("pos", "pos", dtype=of_pos),
        Param("crd", "crd", dtype=of_crd),
        Param("vals", "vals", dtype=dtype),
        Param("new_crd", "new_crd", dtype=of_crd),
        Param("new_vals", "new_vals", dtype=dtype),
        Param("starts", "starts"),
        Param("ends", "ends"),
        Param("cuts", "cuts"),
        Param("workers", "workers"),
    )
    worker, other, place, shift, p, i = map(Var, ("worker", "other", "place", "shift", "p", "i"))
    pos, crd, vals, new_crd, new_vals, starts, ends, cuts, workers = (Var(param.name) for param in params)
    copied = (Store(new_crd, p - shift, crd[p]), Store(new_vals, p - shift, vals[p]))
    work = (
        Assign(place, Const(0)),
        For(other, Const(0), worker, (Accumulate(place, ends[other] - starts[other]),)),
        Assign(shift, starts[worker] - place),
        For(p, starts[worker], ends[worker], copied),
        For(i, cuts[worker] + 1, cuts[worker + 1] + 1, (Store(pos, i, pos[i] - shift),)),
    )
    functions = functions_of((For(worker, Const(0), workers, work, parallel=True),), params)
    title = f'"""{TITLE}\n\npos: {of_pos}\ncrd: {of_crd}\nvals: {dtype}\n"""'
    text = "\n\n".join([title, "from numba import prange\n", *map(emit_function, functions)])
    return Source(f"kernel_{hashed(text, target)}", text, KernelBody(functions, params, zeroed=False, parallel=True))


FORGET.append(_closing.cache_clear)
