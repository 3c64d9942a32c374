"""One autograd function for all computations by kernels: requests, fused programs and graph attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor, unwrap_if_dead
from torch.autograd import forward_ad

from ..tensors.dynamo import skipped
from ..tensors.modes import in_transform


class Differentiable(Protocol):
    """The interface of kernels to autograd: a function of tensors, and the gradients of these tensors.

    Within transforms of torch.func, ``run`` may return the result only, and a method ``over_batch`` is required. Forward-mode AD requires
    a method ``tangent``.

    Attributes:
        keeps_result: whether the gradients need the result.
    """

    keeps_result: bool = False

    def run(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The result, and further tensors that the gradients need."""

    def gradients(
        self, values: Sequence[Tensor], saved: Sequence[Tensor], upstream: Tensor, needed: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """The needed gradients; ``saved`` has the further tensors that ``run`` returned, or the result if ``keeps_result``."""


def through(call: Differentiable, values: Iterable[Tensor]) -> Any:
    """The result of a computation, as a tensor through which gradients flow."""
    function: Any = _Transformed if in_transform() else _Through
    return function.apply(call, *values)


def gradients_by_autograd(
    function: Callable[[Sequence[Tensor]], Tensor], values: Sequence[Tensor], upstream: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of a function of differentiable operations; in grad mode, they can be differentiated again.

    The function is differentiated at views of the values, since a value may be computed from another one.
    """
    is_recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        views = [value.view_as(value) for value in values]
        wanted = [view for view, is_needed in zip(views, needed, strict=True) if is_needed]
        result = function(views)
        if not result.requires_grad:  # no operation of the function has a gradient
            return [None] * len(needed)
        gradients = iter(torch.autograd.grad(result, wanted, upstream, create_graph=is_recorded, allow_unused=True))
    return [next(gradients) if is_needed else None for is_needed in needed]


class _Through(torch.autograd.Function):
    """A computation as an autograd function of its values."""

    @staticmethod
    @skipped
    def forward(ctx: Any, call: Differentiable, *values: Tensor) -> Tensor:
        result, *saved = call.run(values)
        if forward_ad._current_level >= 0 and result._is_view():
            result = result.clone()  # the tangent of a view must have its strides and offset
        _save(ctx, call, values, [result] if call.keeps_result else saved, result)
        return result

    @staticmethod
    @skipped
    def backward(ctx: Any, upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        if upstream is None:  # 0
            return (None,) * len(ctx.needs_input_grad)
        if is_legacy_batchedtensor(upstream):
            return tuple(_of_batch(lambda *upstream: _Through.backward(ctx, *upstream), [upstream]))
        # the pullback of torch.func.vjp may run after the transform that wrapped the tensors
        tensors = [unwrap_if_dead(tensor) for tensor in ctx.saved_tensors]
        return (None, *ctx.call.gradients(tensors[: len(needed)], tensors[len(needed) :], upstream, needed))

    @staticmethod
    @skipped
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor | None:
        *values, result = ctx.saved_tensors

        def tangent(*tangents: Tensor | None) -> list[Tensor]:
            moved = ctx.call.tangent(values, result, tangents)
            return [torch.zeros_like(result) if moved is None else moved]

        is_batched = any(t is not None and is_legacy_batchedtensor(t) for t in tangents)
        return (_of_batch(tangent, tangents[1:]) if is_batched else tangent(*tangents[1:]))[0]


def _of_batch(function: Callable[..., Sequence[Tensor | None]], tensors: Sequence[Any]) -> list[Tensor | None]:
    """The results of a function for a batch, as with ``torch.autograd.grad(..., is_grads_batched=True)``.

    Torch batches gradients and tangents by a mechanism that kernels do not support, so this function calls ``torch.func.vmap`` instead.
    """
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    results: list[Tensor | None] = []
    batched = [t is not None and is_legacy_batchedtensor(t) for t in tensors]

    def of_row(*row: Tensor | None) -> dict[int, Tensor]:
        results[:] = function(*row)
        return {at: tensor for at, tensor in enumerate(results) if tensor is not None}

    plain = [torch._remove_batch_dim(t, level, 0, 0) if b else t for t, b in zip(tensors, batched, strict=True)]
    rows = torch.func.vmap(of_row, tuple([0 if b else None for b in batched]))(*plain)
    return [torch._add_batch_dim(rows[at].contiguous(), 0, level) if at in rows else None for at in range(len(results))]


class _Transformed(_Through):
    """The form of _Through that torch.func requires; each call costs several times as much."""

    @staticmethod
    @skipped
    def forward(call: Differentiable, *values: Tensor) -> Tensor:  # type: ignore[override]
        return call.run(values)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        call, *values = inputs
        _save(ctx, call, values, [output] if call.keeps_result else [], output)

    @staticmethod
    @skipped
    def vmap(info: Any, in_dims: tuple[int | None, ...], call: Any, *values: Tensor) -> tuple[Tensor, int]:
        batched = [dim is not None for dim in in_dims[1:]]
        moved = [v if dim is None else v.movedim(dim, 0) for v, dim in zip(values, in_dims[1:], strict=True)]
        return call.over_batch(info.batch_size, moved, batched)


def _save(ctx: Any, call: Differentiable, values: Sequence[Tensor], saved: Sequence[Tensor], result: Tensor) -> None:
    """Save what the gradients need and, in forward-mode AD, what the tangent needs."""
    ctx.call = call
    ctx.save_for_backward(*values, *saved)
    if forward_ad._current_level >= 0:
        ctx.set_materialize_grads(False)  # zeros for missing tangents would run kernels
        ctx.save_for_forward(*values, result)
