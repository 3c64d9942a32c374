"""Autograd of fused programs: the forward kernel, and the backward kernels of its adjoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..convert.values import to_dense
from ..frontend.requests import NAMES
from ..tensors.modes import KernelFunction, over_batches, saved_tensors
from ..tensors.sparse_tensor import SparseTensor
from .adjoints import Adjoint, adjoint_of
from .dispatch import compute
from .fusion import Group, OperandKind
from .gradients import with_patterns

ByParts = Callable[[Sequence[Any]], Tensor]


def fused_with_gradients(group: Group, operands: Sequence[Any], by_parts: ByParts) -> Tensor | None:
    """Return the differentiable result of a group, or None if separate kernels for the parts are better.

    ``by_parts`` computes the result part by part, for double backward.
    """
    values = [o._values if isinstance(o, SparseTensor) else o for o in operands]
    kinds = tuple(kind for operand in operands if (kind := OperandKind.of(operand)) is not None)
    wanted = tuple(NAMES[at] for at, value in enumerate(values) if value.requires_grad)
    adjoint = adjoint_of(group.request, kinds, wanted) if len(kinds) == len(operands) else None
    if adjoint is None:
        return None
    patterns = [o.pattern if isinstance(o, SparseTensor) else None for o in operands]
    function: Any = _Fused
    return function.apply(adjoint, patterns, by_parts, *values)


def _gradients(adjoint: Adjoint, operands: Sequence[Any], saved: Sequence[Tensor], upstream: Tensor) -> dict[str, Any]:
    """Return the gradient of each operand that requires one, by its letter."""
    tensors: dict[str, Any] = dict(zip(adjoint.forward.returned, saved, strict=True)) | {"upstream": upstream}
    tensors |= zip(NAMES, operands, strict=False)
    for run in adjoint.runs:
        inputs = [tensors[name] for name in run.operands]
        if run.format is not None:
            inputs = [o.to(run.format) if isinstance(o, SparseTensor) else o for o in inputs]
        results = compute(run.request, inputs)
        tensors |= zip(run.names, results if isinstance(results, tuple) else (results,), strict=True)
    return {letter: tensors[name] for letter, name in adjoint.gradients.items()}


class _Fused(KernelFunction):
    """A fused program as a function of its operands' values."""

    @staticmethod
    def forward(ctx: Any, adjoint: Adjoint, patterns: Sequence[Any], by_parts: ByParts, *values: Tensor) -> Tensor:
        output = compute(adjoint.forward, with_patterns([v.detach() for v in values], patterns))
        result: Tensor = output[0] if isinstance(output, tuple) else output
        ctx.adjoint, ctx.patterns, ctx.by_parts, ctx.count = adjoint, patterns, by_parts, len(values)
        ctx.save_for_backward(*values, *(output[1:] if isinstance(output, tuple) else ()))
        return result

    @staticmethod
    @over_batches
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        tensors = saved_tensors(ctx)
        values, saved = tensors[: ctx.count], tensors[ctx.count :]
        needed, operands = ctx.needs_input_grad[3:], with_patterns(values, ctx.patterns)
        if torch.is_grad_enabled():  # create_graph=True: the caller may differentiate this gradient
            wanted = [v for v, need in zip(values, needed, strict=True) if need]
            grads = iter(torch.autograd.grad(ctx.by_parts(operands), wanted, upstream, create_graph=True, allow_unused=True))
            return (None, None, None, *(next(grads) if need else None for need in needed))
        gradients = _gradients(ctx.adjoint, operands, saved, upstream)
        terms = zip(NAMES, values, ctx.patterns, needed, strict=False)
        shaped = [_shaped(gradients.get(name), v, pattern is not None) if need else None for name, v, pattern, need in terms]
        return (None, None, None, *shaped)


def _shaped(gradient: Any, value: Tensor, is_sparse: bool) -> Tensor | None:
    """Convert a gradient to the shape of its operand's values: take the values if sparse, and sum over broadcast dimensions."""
    if gradient is None:
        return None
    if is_sparse:
        return gradient._values
    full: Tensor = to_dense(gradient) if isinstance(gradient, SparseTensor) else gradient
    return full.sum_to_size(value.shape)
