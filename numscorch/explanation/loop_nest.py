"""The loop nest, the passes and their cost comparisons: what ``loop_nest.html`` asks about them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import takewhile

from ..ir.index import Forall, TensorVar, assignments, loops_of
from ..ir.tags import Tag
from ..schedule import Step

COST = re.compile(r"(?P<what>[^:;]+): (?P<cost>\d[\d.]*(?:e[+-]?\d+)?)(?P<moved>(?:, [^;]+)?)")


def passes_of(loop: Forall, steps: Sequence[Step]) -> list[str]:
    """The pass that created a loop of the last step, and, if it differs, the pass that set the loop's tag.

    >>> from ..ir.notation import parse_stmt
    >>> texts = "forall(i, y[i] = x[i])", "parallel_forall(i, y[i] = x[i])"
    >>> steps = [Step(name, parse_stmt(text), "") for name, text in zip(("order_loops", "parallelize"), texts)]
    >>> passes_of(loops_of(steps[-1].stmt)[0], steps)
    ['order_loops', 'parallelize']
    """
    *_, tagged = takewhile(lambda step: _count(step, loop, with_tag=True) > 0, reversed(steps))
    before = steps.index(tagged) - 1
    if before < 0 or _count(tagged, loop, with_tag=False) > _count(steps[before], loop, with_tag=False):
        return [tagged.name]  # the same pass created the loop
    first_step = _first(steps, lambda step: _count(step, loop, with_tag=False) > 0)
    return list(dict.fromkeys([first_step, tagged.name]))


def _count(step: Step, loop: Forall, with_tag: bool) -> int:
    return sum(inner.var == loop.var and (inner.tag == loop.tag or not with_tag) for inner in loops_of(step.stmt))


def _first(steps: Sequence[Step], holds: Callable[[Step], bool]) -> str:
    return next(step.name for step in steps if holds(step))


def pass_adding(workspace: TensorVar, steps: Sequence[Step]) -> str:
    """The pass that added a workspace."""
    return _first(steps, lambda step: workspace.name in {assignment.lhs.tensor.name for assignment in assignments(step.stmt)})


def description(tag: Tag) -> str:
    """The first sentence of a tag's documentation."""
    return " ".join((tag.__doc__ or "").split()).partition(". ")[0].rstrip(".") + "."


def costs_in(why: str) -> list[tuple[str, float]]:
    """The alternatives that a pass compared and their costs, in the text's order (cheapest first); empty without a comparison.

    >>> costs_in("ijk: 2.56e+05; jik: 7.94e+05, A stored as CSC")
    [('ijk', 256000.0), ('jik, A stored as CSC', 794000.0)]
    """
    pieces = [COST.fullmatch(piece.strip()) for piece in why.split("; ")]
    return [(match["what"] + match["moved"], float(match["cost"])) for match in pieces if match]
