"""Chains: several requests, one after the other, as what to call on which tensors.

A chain is what a plan is for one request: found by one lookup, and run without asking again what its steps are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from ..frontend.statements import NAMES, Request
from ..runtime.plans import Plan, known_plan
from ..tensors.sparse_tensor import SparseTensor
from .dense_operands import dense_result
from .operands import Deferred, identify


@dataclass(frozen=True, slots=True)
class ChainStep:
    """A function, and the places of the tensors that it is called with: operands first, then what the steps before made."""

    run: Callable[..., Any]
    reads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps whose last one makes the result.

    >>> Chain((ChainStep(lambda a, b: a + b, (0, 1)), ChainStep(lambda a, b: a * b, (2, 0)))).run(3, 4)
    21
    """

    steps: tuple[ChainStep, ...]

    def run(self, *operands: Any) -> Any:
        """The result of the last step."""
        values = list(operands)
        for step in self.steps:
            values.append(step.run(*[values[at] for at in step.reads]))
        return values[-1]


@dataclass(slots=True)
class ChainRecorder:
    """Notes the steps of a first call, to make a chain of them.

    A step calls its plan wherever its operands will be alike in every call that the chain stands for: the chain's own operands are, and
    so are dense results and what keeps a pattern. Where some operand may be stored otherwise next time, nothing is made of it; the last
    step's sparse result may be, as nothing reads it.
    """

    steps: list[ChainStep] = field(default_factory=list)
    is_fixed: bool = True
    is_last_alike: bool = True

    def note(self, request: Request, format: Any, reads: Sequence[int], operands: Sequence[Any], result: Any) -> None:
        """A step that made something of the operands at these places."""
        self.is_fixed &= self.is_last_alike
        ready, signatures = identify(operands)
        plan = None
        if SparseTensor not in map(type, ready):
            tensors = [o.tensor if isinstance(o, Deferred) else o for o in ready]
            self.is_fixed &= format is None and not any(t.requires_grad for t in tensors)
            self.steps.append(ChainStep(partial(dense_result, request), tuple(reads)))
        elif (plan := known_plan(request, format, signatures)) is not None:
            self.is_fixed &= plan.problem.requested is None
            self.steps.append(ChainStep(plan.run, tuple(reads)))
        else:
            self.is_fixed = False
        self.is_last_alike = _is_alike(result, plan, ready)
        self.is_fixed &= self.is_last_alike or isinstance(result, SparseTensor)

    def chain(self) -> Chain | None:
        """The steps; None where the next call's may be others."""
        return Chain(tuple(self.steps)) if self.is_fixed else None


def _is_alike(result: Any, plan: Plan | None, operands: Sequence[Any]) -> bool:
    """Whether the next call's result will be stored as this one is: dense, or in the very pattern of the operand that the plan keeps.

    That of another operand may be the same only this time, as that of ``A.t()`` where a step transposes A.
    """
    if isinstance(result, SparseTensor):
        shares = None if plan is None else plan.problem.result.shares
        return shares is not None and result.pattern is operands[NAMES.index(shares)].pattern
    return isinstance(result, Tensor) and result.is_contiguous()
