"""Autograd of fused programs: the forward kernel, and the backward kernels of its adjoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..convert.values import to_dense
from ..frontend.requests import NAMES
from ..tensors.sparse_tensor import SparseTensor
from .adjoints import UPSTREAM, Adjoint, adjoint_of
from .autograd import Differentiable, gradients_by_autograd, through
from .dispatch import compute
from .fusion import Group, OperandKind
from .gradients import with_patterns


def fused_with_gradients(group: Group, operands: Sequence[Any], parts: Callable[[Sequence[Any]], Tensor]) -> Tensor | None:
    """Return the differentiable result of a group, or None if separate kernels for the parts are better.

    ``parts`` computes the result part by part, for double backward.
    """
    values = [o._values if isinstance(o, SparseTensor) else o for o in operands]
    kinds = tuple(kind for operand in operands if (kind := OperandKind.of(operand)) is not None)
    wanted = tuple(NAMES[at] for at, value in enumerate(values) if value.requires_grad)
    adjoint = adjoint_of(group.request, kinds, wanted) if len(kinds) == len(operands) else None
    if adjoint is None:
        return None
    patterns = [o.pattern if isinstance(o, SparseTensor) else None for o in operands]
    return through(_Fused(adjoint, patterns, parts), values)


@dataclass(frozen=True, eq=False, slots=True)
class _Fused(Differentiable):
    """A fused program; ``parts`` computes the result part by part, for double backward."""

    adjoint: Adjoint
    patterns: Sequence[Any]
    parts: Callable[[Sequence[Any]], Tensor]

    def run(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        output = compute(self.adjoint.forward, with_patterns([v.detach() for v in values], self.patterns))
        return output if isinstance(output, tuple) else (output,)

    def gradients(
        self, values: Sequence[Tensor], saved: Sequence[Tensor], upstream: Tensor, needed: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        if torch.is_grad_enabled():
            return gradients_by_autograd(lambda views: self.parts(with_patterns(views, self.patterns)), values, upstream, needed)
        tensors: dict[str, Any] = dict(zip(self.adjoint.forward.returned, saved, strict=True)) | {UPSTREAM: upstream}
        tensors |= zip(NAMES, with_patterns(values, self.patterns), strict=False)
        for run in self.adjoint.runs:
            inputs = [tensors[name] for name in run.operands]
            if run.format is not None:
                inputs = [o.to(run.format) if isinstance(o, SparseTensor) else o for o in inputs]
            results = compute(run.request, inputs)
            tensors |= zip(run.names, results if isinstance(results, tuple) else (results,), strict=True)
        gradients = {letter: tensors[name] for letter, name in self.adjoint.gradients.items()}
        terms = zip(NAMES, values, self.patterns, needed, strict=False)
        return [_shaped(gradients.get(name), v, pattern is not None) if need else None for name, v, pattern, need in terms]


def _shaped(gradient: Any, value: Tensor, is_sparse: bool) -> Tensor | None:
    """Convert a gradient to the shape of its operand's values: take the values if sparse, and sum over broadcast dimensions."""
    if gradient is None:
        return None
    if is_sparse:
        return gradient._values
    full: Tensor = to_dense(gradient) if isinstance(gradient, SparseTensor) else gradient
    return full.sum_to_size(value.shape)
