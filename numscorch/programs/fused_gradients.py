"""Fused programs with gradients: the forward kernel, and in reverse those of its adjoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..compute.dispatch import compute
from ..convert.dense import to_dense
from ..frontend.statements import NAMES
from ..tensors.sparse_tensor import SparseTensor
from .adjoints import Adjoint, adjoint_of
from .fusion import Group, OperandKind

Again = Callable[[Sequence[Any]], Tensor]


def fused_with_gradients(group: Group, operands: Sequence[Any], again: Again) -> Tensor | None:
    """The group's result, through which gradients flow; None where kernels of its parts do better.

    ``again`` computes it part by part: for gradients of gradients.
    """
    values = [o._values if isinstance(o, SparseTensor) else o for o in operands]
    kinds = tuple(kind for operand in operands if (kind := OperandKind.of(operand)) is not None)
    wanted = tuple(NAMES[at] for at, value in enumerate(values) if value.requires_grad)
    adjoint = adjoint_of(group.request, kinds, wanted) if len(kinds) == len(operands) else None
    if adjoint is None:
        return None
    patterns = [o.pattern if isinstance(o, SparseTensor) else None for o in operands]
    through: Any = _Fused
    result: Tensor = through.apply(_ProgramCall(adjoint, patterns, again), *values)
    return result


class _ProgramCall:
    """One call: how its gradients are computed, and of which patterns."""

    def __init__(self, adjoint: Adjoint, patterns: Sequence[Any], again: Again):
        self.adjoint, self.patterns, self.again = adjoint, patterns, again

    def operands(self, values: Sequence[Tensor]) -> list[Any]:
        """Operands again, of their values."""
        return [v if pattern is None else SparseTensor(pattern, v) for v, pattern in zip(values, self.patterns, strict=True)]

    def gradients(self, values: Sequence[Tensor], saved: Sequence[Tensor], upstream: Tensor) -> dict[str, Any]:
        """The gradient of each operand that wants one, by its letter."""
        known: dict[str, Any] = dict(zip(self.adjoint.forward.returned, saved, strict=True)) | {"upstream": upstream}
        known |= {NAMES[at]: operand for at, operand in enumerate(self.operands(values))}
        for run in self.adjoint.runs:
            operands = [known[name] for name in run.operands]
            if run.format is not None:
                operands = [o.to(run.format) if isinstance(o, SparseTensor) else o for o in operands]
            results = compute(run.request, operands)
            known |= zip(run.names, results if isinstance(results, tuple) else (results,), strict=True)
        return {letter: known[name] for letter, name in self.adjoint.gradients.items()}


class _Fused(torch.autograd.Function):
    """A fused program as a function of its operands' values."""

    @staticmethod
    def forward(ctx: Any, call: _ProgramCall, *values: Tensor) -> Tensor:
        output = compute(call.adjoint.forward, call.operands([v.detach() for v in values]))
        result: Tensor = output[0] if isinstance(output, tuple) else output
        ctx.call, ctx.count = call, len(values)
        ctx.save_for_backward(*values, *(output[1:] if isinstance(output, tuple) else ()))
        return result

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        values, saved = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # a gradient of this gradient may be asked for
            wanted = [v for v, need in zip(values, needed, strict=True) if need]
            result = ctx.call.again(ctx.call.operands(values))
            grads = iter(torch.autograd.grad(result, wanted, upstream, create_graph=True, allow_unused=True))
            return (None, *(next(grads) if need else None for need in needed))
        gradients = ctx.call.gradients(values, saved, upstream)
        patterns = ctx.call.patterns
        shaped = [_shaped(gradients.get(NAMES[at]), value, patterns[at] is not None) for at, value in enumerate(values)]
        return (None, *(gradient if need else None for gradient, need in zip(shaped, needed, strict=True)))


def _shaped(gradient: Any, value: Tensor, is_sparse: bool) -> Tensor | None:
    """A gradient as its operand is: its values where that is sparse, and in its shape, whose dimensions of size 1 are broadcast."""
    if gradient is None:
        return None
    if is_sparse:
        values: Tensor = gradient._values
        return values
    full: Tensor = to_dense(gradient) if isinstance(gradient, SparseTensor) else gradient
    return full.sum_to_size(value.shape)
