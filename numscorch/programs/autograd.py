"""One autograd function for all computations by kernels: requests, fused programs and graph attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor, unwrap_if_dead

from ..errors import UnsupportedError
from ..tensors.modes import in_transform


class Differentiable(Protocol):
    """The interface of kernels to autograd: a function of tensors, and the gradients of these tensors.

    Within transforms of torch.func, ``run`` may return the result only, and a method ``over_batch`` is required.

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
    """The gradients of a function of differentiable operations; they can be differentiated again.

    The function is differentiated at views of the values, since a value may be computed from another one.
    """
    views = [value.view_as(value) for value in values]
    wanted = [view for view, is_needed in zip(views, needed, strict=True) if is_needed]
    result = function(views)
    if not result.requires_grad:  # no operation of the function has a gradient
        return [None] * len(needed)
    gradients = iter(torch.autograd.grad(result, wanted, upstream, create_graph=True, allow_unused=True))
    return [next(gradients) if is_needed else None for is_needed in needed]


class _Through(torch.autograd.Function):
    """A computation as an autograd function of its values."""

    @staticmethod
    def forward(ctx: Any, call: Differentiable, *values: Tensor) -> Tensor:
        result, *saved = call.run(values)
        _save(ctx, call, values, [result] if call.keeps_result else saved)
        return result

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if is_legacy_batchedtensor(upstream):
            return _of_batch(ctx, upstream)
        # the pullback of torch.func.vjp may run after the transform that wrapped the tensors
        tensors, needed = [unwrap_if_dead(tensor) for tensor in ctx.saved_tensors], ctx.needs_input_grad[1:]
        return (None, *ctx.call.gradients(tensors[: len(needed)], tensors[len(needed) :], upstream, needed))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise no_forward_mode()


def no_forward_mode() -> UnsupportedError:
    """The error for operands with a forward-mode tangent."""
    return UnsupportedError(
        "an operand has a forward-mode tangent: forward-mode AD is not supported, and the tangent would be lost; use reverse mode, as "
        "torch.autograd.grad, torch.func.vjp or torch.func.jacrev"
    )


def _of_batch(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients for a batch of upstream gradients, as with ``torch.autograd.grad(..., is_grads_batched=True)``.

    Torch batches upstream gradients by a mechanism that kernels do not support, so this function calls ``torch.func.vmap`` instead.
    """
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()

    def of_row(row: Tensor) -> dict[int, Tensor]:
        return {at: gradient for at, gradient in enumerate(_Through.backward(ctx, row)) if gradient is not None}

    by_place = torch.func.vmap(of_row)(torch._remove_batch_dim(upstream, level, 0, 0))
    gradients = map(by_place.get, range(len(ctx.needs_input_grad)))
    return tuple([None if gradient is None else torch._add_batch_dim(gradient, 0, level) for gradient in gradients])


class _Transformed(_Through):
    """The form of _Through that torch.func requires; each call costs several times as much."""

    @staticmethod
    def forward(call: Differentiable, *values: Tensor) -> Tensor:  # type: ignore[override]
        return call.run(values)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        call, *values = inputs
        _save(ctx, call, values, [output] if call.keeps_result else [])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], call: Any, *values: Tensor) -> tuple[Tensor, int]:
        batched = [dim is not None for dim in in_dims[1:]]
        moved = [v if dim is None else v.movedim(dim, 0) for v, dim in zip(values, in_dims[1:], strict=True)]
        return call.over_batch(info.batch_size, moved, batched), 0


def _save(ctx: Any, call: Differentiable, values: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
    """Save what the gradients need."""
    ctx.call = call
    ctx.save_for_backward(*values, *saved)
