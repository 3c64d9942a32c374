"""The steps of a program: the kernels in the order in which they run, and the records of a call that later calls repeat.

Evaluation runs the steps, and explain describes them. The recorded steps of a call are an *executable* for operands of the same kinds.
Their functions for operands of certain sizes are a *chain*. A later call finds its executable or chain by one lookup, and plans nothing
again; for a single request, the kind and its plans have this role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from ..errors import SizeError
from ..frontend.gradient_requests import CONSTANT
from ..frontend.problem import size_clash
from ..frontend.requests import NAMES, Request
from ..frontend.statements import ProgramPart
from ..ir.format import Format
from ..ir.functions import REDUCTIONS
from ..runtime.plans import Plan, known_plan
from ..tensors.sparse_tensor import SparseTensor
from .dense_requests import dense_result
from .fusion import ProgramStep, group_from
from .operands import identify
from .pairing import in_pairs

Wanted = Format | str | None


@dataclass(slots=True)
class Steps:
    """Iterates over the steps of a program.

    Each step depends on the results of earlier ones, which the caller enters into ``values``. A caller that cannot run a group
    calls :meth:`refuse`; the next step is then the first part of that group.

    Args:
        parts: the program; a product of three and more operands is split into pairs on the way.
        values: tensors, or descriptions of them, by name.
        format: the wanted format of the program's result.
        fusable: the tensors as fused kernels read them.
        is_plain: whether parts may be paired and fused; False in transforms of torch.func, which must see each part.
    """

    parts: tuple[ProgramPart, ...]
    values: Mapping[str, Any]
    format: Wanted
    fusable: Mapping[str, Any]
    is_plain: bool = True
    at: int = field(default=0, init=False)
    _alone: int = field(default=-1, init=False)  # the part whose group was refused

    def refuse(self) -> None:
        """Compute the first part of the last step alone."""
        self.at = self._alone

    def __iter__(self) -> Iterator[ProgramStep]:
        while (at := self.at) < len(self.parts):
            step = None
            if self.is_plain:
                self.parts = in_pairs(self.parts, at, self.values)
                if at != self._alone:
                    step = group_from(self.parts, at, self.fusable, self.format)
            if step is None:
                part = self.parts[at]
                step = ProgramStep(part.name, part.request, part.operands, (part,), self.format_of(part))
            self._alone, self.at = at, at + len(step.parts)
            yield step

    def format_of(self, part: ProgramPart) -> Wanted:
        """The wanted format of a part's result; None to infer it.

        ``stored max=`` gives a dense result, because its value is -inf at rows without stored terms. Reductions that other parts read
        are dense if they have fewer than two dimensions, as in ``numscorch.sum``.
        """
        is_last = part is self.parts[-1]
        if is_last and self.format is not None:
            return self.format
        is_read = not is_last and part.request.op in REDUCTIONS and len(part.request.subscripts.result) < 2
        return "dense" if part.request.op == CONSTANT or is_read else None


# ---- executables and chains


@dataclass(frozen=True, slots=True)
class RequestStep:
    """A request, the wanted format of its result, and the numbers of its operands.

    The program's operands are numbered first, then the results of earlier steps.
    """

    request: Request
    format: Any
    reads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """The steps as functions for operands of certain sizes, with the numbers of the values that each reads; the last returns the result.

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
    next call, there is no chain. The last step's result may be any sparse tensor, because no step reads it.
    """

    steps: list[RequestStep] = field(default_factory=list)
    functions: list[tuple[Callable[..., Any], tuple[int, ...]]] = field(default_factory=list)
    is_fixed: bool = True
    is_last_alike: bool = True

    def note(self, request: Request, format: Any, reads: Sequence[int], operands: Sequence[Any], result: Any) -> None:
        """Record a step: ``reads`` are the numbers of its operands, and ``result`` is the result that it computed."""
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
    """Run an executable; return the result, and the chain for operands of these sizes. ``compute`` is ``dispatch.compute``.

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
    """Whether the result has the same signature in every call: it is dense, or has the pattern of the operand that the plan designates.

    The pattern of another operand may match by chance, such as that of ``A.t()`` if a step transposes A.
    """
    if isinstance(result, SparseTensor):
        shares = None if plan is None else plan.problem.result.shares
        return shares is not None and result.pattern is operands[NAMES.index(shares)].pattern
    return isinstance(result, Tensor) and result.is_contiguous()
