"""Shortcuts: einsum calls whose operands match an earlier call go straight to its plan.

Finding a plan by its operands' signatures takes about as long as the kernel of a small problem. A fitting checks all operands in
one step instead. It is created when two consecutive calls of an expression use the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..frontend.requests import Request
from ..runtime.plans import SHORTCUTS, Plan
from ..tensors.sparse_tensor import SparseTensor
from .fitting import ABSENT, Fittings, is_plain

MOST_SHORTCUTS = 1024  # expressions
MOST_MISSES = 64  # misses after which an expression loses its shortcut: its shapes change with each call
MISSED: Any = object()

_last: dict[str, Plan | None] = {}  # each expression's last plan; None disables its shortcut


class Shortcut:
    """The fittings of an expression; ``run(shortcut, *operands)`` returns the result, or MISSED if no fitting matches."""

    __slots__ = ("expr", "fittings", "misses", "request", "run")

    def __init__(self, expr: str, request: Request) -> None:
        self.expr, self.request, self.fittings, self.misses = expr, request, Fittings(), 0
        self.run: Callable[..., Any] = Shortcut._checked

    def _checked(self, *arguments: Any, out: Any = None) -> Any:
        """The result for operands that do not match the last call."""
        operands = tuple([operand for operand in arguments if operand is not ABSENT])
        if (fitting := self.fittings.look_up(operands)) is None:
            self.misses += 1
            if self.misses > MOST_MISSES:
                SHORTCUTS.pop(self.expr, None)
                _last[self.expr] = None
            return MISSED
        self.run = fitting.call
        return fitting.call(self, *operands)

    _traced = _checked  # fittings call it while torch compiles; einsum uses no shortcuts there


def remember_call(expr: str, request: Request, operands: Sequence[Any], ready: Sequence[Any], plan: Plan) -> None:
    """Record the plan of an expression, and create a shortcut if the previous call used the same plan.

    Args:
        expr: the einsum's text.
        request: its request.
        operands: the arguments of einsum.
        ready: the arguments of the plan.
        plan: the plan; it must compute einsum's final result without a later conversion.
    """
    if (last := _last.get(expr, MISSED)) is not plan:
        if last is None:
            return
        while len(_last) >= MOST_SHORTCUTS:
            _last.pop(next(iter(_last)), None)
        _last[expr] = plan
        return
    if not is_plain(operands):
        return
    while len(SHORTCUTS) >= MOST_SHORTCUTS:
        SHORTCUTS.pop(next(iter(SHORTCUTS)), None)
    shortcut = SHORTCUTS.setdefault(expr, Shortcut(expr, request))
    patterns = [operand.pattern for operand in ready if type(operand) is SparseTensor]
    if (fitting := shortcut.fittings.learnt(operands, (), patterns, plan, takes_out=False)) is not None:
        shortcut.run = fitting.call
