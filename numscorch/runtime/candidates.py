"""Schedules that may be faster than the cost model's pick: what ``autotune`` and confirmed picks try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..codegen.workspaces import workspaces_of
from ..frontend.problem import Problem
from ..ir.index import Tile, Vector, loops_of
from ..machine.target import host
from ..machine.threads import workers
from ..schedule import Step
from ..schedule.loop_order import Orders
from ..schedule.parallel import runs_in_blocks
from ..tensors.sparse_tensor import SparseTensor

ORDERS = 3  # loop orders to try besides the cheapest one
DEARER = 16.0  # maximum modelled cost of a loop order, relative to the cheapest one
TILES = (32, 128)  # tile sizes to try, in iterations
SERIAL = "parallelize()"  # a schedule without a parallel loop


def candidates(problem: Problem, steps: Sequence[Step]) -> Iterator[str]:
    """Schedules other than the default, the most promising first."""
    stmt = steps[-1].stmt
    loops = loops_of(stmt)
    ranked = Orders(problem.stmt, problem.facts, host()).cheapest(ORDERS + 1)
    for choice in ranked[1:]:
        if choice.cost < DEARER * ranked[0].cost:
            yield f"reorder({', '.join(var.name for var in choice.order)})"
    yield from (f"workspace({kind})" for kind in ("hash", "list") if workspaces_of(stmt))
    if any(isinstance(loop.tag, Tile) for loop in loops):
        yield "tile()"
    vectors = [loop for loop in loops if isinstance(loop.tag, Vector)]
    yield from (f"tile({loop.var}, {size})" for loop in vectors[:1] for size in TILES if problem.extents[loop.var] > size)
    if vectors:
        yield "vectorize()"
    if workers() > 1 and any(runs_in_blocks(loop.tag) for loop in loops):
        yield SERIAL


def is_close(result: Any, expected: Any) -> bool:
    """Whether two results agree up to the rounding of sums in another order."""
    values, wanted = values_of(result), values_of(expected)
    if values.shape != wanted.shape or (not wanted.dtype.is_floating_point and not wanted.dtype.is_complex):
        return torch.equal(values, wanted)
    finite = wanted[wanted.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(values, wanted, rtol=1e-3, atol=1e-3 * largest, equal_nan=True)


def values_of(result: Any) -> torch.Tensor:
    """The values of a result, in an order that does not depend on the schedule."""
    return result.coalesce().values if isinstance(result, SparseTensor) else result
