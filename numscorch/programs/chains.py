"""Executables: the steps of a program for operands of a kind. Chains: the functions of these steps for operands of certain sizes.

They are to a program what a kind and its plans are to one request: one lookup finds them, and nothing is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from ..errors import SizeError
from ..frontend.problem import size_clash
from ..frontend.requests import NAMES, Request
from ..runtime.plans import Plan, known_plan
from ..tensors.sparse_tensor import SparseTensor
from .dense_requests import dense_result
from .operands import identify


@dataclass(frozen=True, slots=True)
class RequestStep:
    """A request, the wanted format of its result, and the positions of its operands.

    The program's operands come first, then the results of earlier steps.
    """

    request: Request
    format: Any
    reads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Functions of the steps for operands of certain sizes; the last one computes the result.

    >>> Chain(((lambda a, b: a + b, (0, 1)), (lambda a, b: a * b, (2, 0)))).run(3, 4)
    21
    """

    steps: tuple[tuple[Callable[..., Any], tuple[int, ...]], ...]

    def run(self, *operands: Any) -> Any:
        """Run all steps and return the last one's result."""
        values = list(operands)
        for run, reads in self.steps:
            values.append(run(*[values[at] for at in reads]))
        return values[-1]


@dataclass(slots=True)
class ChainRecorder:
    """Records the steps of a first call to build an executable.

    A step can call its plan directly only if its operands have the same signatures in every call of the chain. This holds for the
    chain's operands, dense results, and results that keep an operand's pattern. If an operand may be stored differently in the
    next call, none is built. The last step's result may be any sparse tensor, because no step reads it.
    """

    steps: list[RequestStep] = field(default_factory=list)
    functions: list[tuple[Callable[..., Any], tuple[int, ...]]] = field(default_factory=list)
    is_fixed: bool = True
    is_last_alike: bool = True

    def note(self, request: Request, format: Any, reads: Sequence[int], operands: Sequence[Any], result: Any) -> None:
        """Record a step that computed a result from the operands at these positions."""
        self.is_fixed &= self.is_last_alike
        ready, signatures = identify(operands)
        plan = None
        if SparseTensor not in map(type, ready):
            self.is_fixed &= format is None and None not in signatures
            self.functions.append((partial(dense_result, request), tuple(reads)))
        elif (plan := known_plan(request, format, signatures)) is not None:
            self.is_fixed &= plan.problem.requested is None
            self.functions.append((plan.run, tuple(reads)))
        else:
            self.is_fixed = False
        self.steps.append(RequestStep(request, format, tuple(reads)))
        self.is_last_alike = _is_alike(result, plan, ready)
        self.is_fixed &= self.is_last_alike or isinstance(result, SparseTensor)

    def chain(self) -> Chain | None:
        """The chain, or None if the next call may need other steps."""
        return Chain(tuple(self.functions)) if self.is_fixed else None


def run_steps(steps: Sequence[RequestStep], operands: Sequence[Any], compute: Callable[..., Any]) -> tuple[Any, Chain | None]:
    """The result of an executable, and the chain for operands of these sizes; ``compute`` is ``dispatch.compute``.

    Raises:
        SizeError: an index has two sizes.
    """
    values, recorder = list(operands), ChainRecorder()
    for step in steps:
        given = [values[at] for at in step.reads]
        if SparseTensor not in map(type, given) and size_clash(step.request.subscripts, [value.shape for value in given]):
            raise SizeError(f"the sizes of {step.request} differ")
        values.append(compute(step.request, given, step.format))
        recorder.note(step.request, step.format, step.reads, given, values[-1])
    return values[-1], recorder.chain()


def _is_alike(result: Any, plan: Plan | None, operands: Sequence[Any]) -> bool:
    """Whether every call's result has the same signature: a dense tensor, or one with the pattern of the plan's designated operand.

    The pattern of another operand may match by chance, such as that of ``A.t()`` if a step transposes A.
    """
    if isinstance(result, SparseTensor):
        shares = None if plan is None else plan.problem.result.shares
        return shares is not None and result.pattern is operands[NAMES.index(shares)].pattern
    return isinstance(result, Tensor) and result.is_contiguous()
