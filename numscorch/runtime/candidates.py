"""Schedules that may be faster than the cost model's pick: what ``autotune`` and confirmed picks try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
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
AT_ONCE = 1 << 20  # values that are compared at once


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
    """Whether two results agree up to the rounding of sums in another order. Few of their values are compared at once, to save memory."""
    if isinstance(result, SparseTensor):
        result, expected = result.coalesce(), expected.coalesce()
        if not all(map(torch.equal, chain(*result.pattern.arrays), chain(*expected.pattern.arrays))):
            return False
        result, expected = result.values, expected.values
    if result.shape != expected.shape or not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return torch.equal(result, expected)
    pairs = list(zip(result.reshape(-1).split(AT_ONCE), expected.reshape(-1).split(AT_ONCE), strict=True))
    largest = max((float(part[part.isfinite()].abs().amax()) for _, part in pairs if part.isfinite().any()), default=0.0)
    return all(torch.allclose(values, wanted, rtol=1e-3, atol=1e-3 * largest, equal_nan=True) for values, wanted in pairs)
