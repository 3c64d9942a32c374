"""Calls of fused kernels: their operands and results as separate parts would return them, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..convert.values import as_stored, strided
from ..frontend.datatypes import computed_in
from ..frontend.fused_problem import FusedRequest, valued
from ..frontend.requests import NAMES
from ..ir.format import COO, CSR
from ..ir.index import accesses_in
from ..tensors.modes import in_transform
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .adjoints import UPSTREAM, Adjoint, adjoint_of
from .autograd import Differentiable, gradients_by_autograd, through
from .dispatch import compute, converted
from .fusion import kinds_of
from .gradients import attached, with_patterns
from .operands import STRIDED
from .results import stored_as
from .torch_sparse import by_rows


def widened_operand(operand: SparseTensor | Tensor) -> SparseTensor | Tensor:
    """Convert an operand for fused kernels: wrap sparse torch tensors by rows, and widen 16-bit types. Differentiable."""
    if isinstance(operand, SparseTensor):
        operand = attached(operand)
    elif operand.layout is not STRIDED:
        operand = by_rows(attached(operand))
    return converted(operand, computed_in(operand.dtype))


def returned(request: FusedRequest, operands: Sequence[Any], result: SparseTensor | Tensor) -> Any:
    """Convert a result to the operands' data type and, if it keeps an operand's pattern, to that operand's layout and kind of tensor."""
    dtype = operands[valued(request)[0]].dtype
    result = result if result.dtype is dtype else result.to(dtype)
    if not isinstance(result, SparseTensor) or request.owner is None or request.form.prunes:
        return result
    owner = operands[NAMES.index(request.owner.tensor.name)]
    is_coo = isinstance(owner, Tensor) and owner.layout is torch.sparse_coo
    return stored_as(result, COO(2) if is_coo and result.format == CSR else None, is_native(request, operands), asked=False)


def is_native(request: FusedRequest, operands: Sequence[Any]) -> bool:
    """Return whether separate parts would return a torch tensor: all sparse inputs of the last part derive from torch tensors."""
    return _is_native(request, tuple([not isinstance(operand, SparseTensor) for operand in operands]))


@lru_cache(maxsize=1024)
def _is_native(request: FusedRequest, are_native: tuple[bool, ...]) -> bool:
    native = dict(zip(NAMES, are_native, strict=False))
    for member in request.members:
        native[member.name] = not member.is_stored or all(native[a.tensor.name] for a in accesses_in(member.value))
    return request.value is not None and all(native[a.tensor.name] for a in accesses_in(request.value))


def fused_with_gradients(request: FusedRequest, operands: Sequence[Any], parts: Callable[[Sequence[Any]], Any]) -> Any:
    """Return the differentiable result of a fused request, or None if separate kernels for the parts are better.

    ``parts`` computes the result part by part, for double backward.
    """
    values = [o._values if isinstance(o, SparseTensor) else o for o in operands]
    kinds = tuple([kind for kind in kinds_of(dict(zip(NAMES, operands, strict=False))).values() if kind is not None])
    wanted = tuple(NAMES[at] for at, value in enumerate(values) if value.requires_grad)
    adjoint = adjoint_of(request, kinds, wanted) if len(kinds) == len(operands) else None
    if adjoint is None:
        return None
    patterns = [o.pattern if isinstance(o, SparseTensor) else None for o in operands]
    kept = patterns[NAMES.index(request.owner.tensor.name)] if request.keeps and request.owner is not None else None
    result = through(_Fused(adjoint, patterns, kept, parts), values)
    return result if kept is None else SparseTensor.trusted(kept, result)


@dataclass(frozen=True, eq=False, slots=True)
class _Fused(Differentiable):
    """A fused program; ``parts`` computes the result part by part, for double backward and batched gradients.

    ``patterns`` are those of the operands, and ``kept`` is the one of a sparse result.
    """

    adjoint: Adjoint
    patterns: Sequence[Pattern | None]
    kept: Pattern | None
    parts: Callable[[Sequence[Any]], Any]

    def run(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        output = compute(self.adjoint.forward, with_patterns([v.detach() for v in values], self.patterns))
        result, *saved = output if isinstance(output, tuple) else (output,)
        return (result if self.kept is None else result._values, *saved)

    def gradients(
        self, values: Sequence[Tensor], saved: Sequence[Tensor], upstream: Tensor, needed: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        if torch.is_grad_enabled() or in_transform():
            return gradients_by_autograd(self.unfused, values, upstream, needed)
        tensors: dict[str, Any] = dict(zip(self.adjoint.forward.returned, saved, strict=True))
        tensors |= zip((UPSTREAM, *NAMES), with_patterns([upstream, *values], [self.kept, *self.patterns]), strict=False)
        for run in self.adjoint.runs:
            inputs = [tensors[name] for name in run.operands]
            if run.format is not None:
                inputs = [o.to(run.format) if isinstance(o, SparseTensor) else o for o in inputs]
            results = compute(run.request, inputs)
            tensors |= zip(run.names, results if isinstance(results, tuple) else (results,), strict=True)
        gradients = {letter: tensors[name] for letter, name in self.adjoint.gradients.items()}
        terms = zip(NAMES, values, self.patterns, needed, strict=False)
        return [_shaped(gradients.get(name), v, pattern is not None) if need else None for name, v, pattern, need in terms]

    def unfused(self, values: Sequence[Tensor]) -> Tensor:
        """The result, or its values if it is sparse, computed part by part."""
        result = self.parts(with_patterns(values, self.patterns))
        return result if self.kept is None else as_stored(result, self.kept)


def _shaped(gradient: Any, value: Tensor, is_sparse: bool) -> Tensor | None:
    """Convert a gradient to the shape of its operand's values: take the values if it is sparse, and sum over broadcast dimensions."""
    if gradient is None:
        return None
    if is_sparse:
        return gradient._values
    return strided(gradient).sum_to_size(value.shape)
