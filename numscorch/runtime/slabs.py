"""Slabs: a long index of dense tensors with copied layouts is processed a few hundred coordinates at a time.

In ``x @ W.t()`` the copies of ``x`` and of the result have the batch contiguous. Copies of a whole batch of thousands exceed the
cache, and each of their rows lies on separate pages. Copies of a slab stay in the cache, and the next slab reuses their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from ..frontend.operand import Operand
from ..frontend.parser import Subscripts
from ..frontend.problem import Problem
from ..frontend.relayout import Slabs, slab_starts
from ..ir.symbolic import evaluated
from ..machine.buffer_pool import room
from ..schedule import tuning
from ..schedule.facts import Target, itemsize
from ..tensors.ledgers import note
from .bindings import Bind


def slabs_of(problem: Problem, subscripts: Subscripts, operands: Sequence[Operand], target: Target) -> Slabs | None:
    """The slabs of a problem whose copies exceed a core's own cache; None if it has no such copies, or few coordinates.

    The slabs are about equal in size, and multiples of a register.
    """
    layout = problem.layout
    if layout is None or layout.result != 0 or problem.members or not problem.result.is_dense:
        return None
    extent, lanes = problem.shape[0], target.lanes(problem.result.dtype)
    sizes = [prod(operands[at].shape) for at in layout.operands] + [prod(problem.shape)]
    if extent < 2 * tuning.SLAB or sum(sizes) * itemsize(problem.result.dtype) <= 2 * target.own_cache:
        return None
    places = {at: indices.index(layout.index) for at, indices in enumerate(subscripts.operands) if layout.index in indices}
    if any(operands[at].shape[place] != extent for at, place in places.items()):
        return None  # an operand is broadcast along the index
    slabs = -(-extent // tuning.SLAB)
    size = -(-extent // (slabs * lanes)) * lanes
    return Slabs(layout.index, size, extent, places)


def in_slabs(slabs: Slabs, problem: Problem, bind: Bind) -> Bind:
    """Bind to sizes a function of the operands that runs each slab, with its operands and the array for its results."""
    return lambda sizes: _in_slabs(slabs, problem, bind(sizes), evaluated(problem.shape, sizes), evaluated(slabs.size, sizes))


def _in_slabs(slabs: Slabs, problem: Problem, run: Callable[..., Any], shape: tuple[int, ...], size: int) -> Callable[..., torch.Tensor]:
    dtype, starts = getattr(np, problem.result.dtype), slab_starts(shape[0], size)

    def run_slabs(*operands: Any) -> torch.Tensor:
        result = room(shape, dtype)
        for at in problem.layout.operands if problem.layout is not None else ():
            note("copy", "a dense tensor with another dimension contiguous", operands[at].nbytes)
        note("copy", "a dense tensor with another dimension contiguous", result.nbytes)
        for start in starts:
            pieces = [o.narrow(slabs.dimensions[at], start, size) if at in slabs.dimensions else o for at, o in enumerate(operands)]
            run(*pieces, result[start : start + size])
        return torch.from_numpy(result)

    return run_slabs
