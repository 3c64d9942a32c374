"""Probes: the gradient that a sparse layer's weight would have if it were dense, in the steps where someone asks for it."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.grad import conv2d_weight

from ..convert.dense import to_dense
from ..nn.conv import SparseConv2d
from ..nn.linear import SparseLinear
from ..tensors.parameter import SparseParameter
from ..tensors.sparse_tensor import SparseTensor
from .choosing import bare


class Probe:
    """A forward hook, which sees to it that the dense gradient is added up in ``gradient`` while it watches a weight.

    It stays with its layer, and costs a look at one attribute where it doesn't watch, so that compiled programs know it.

    >>> from numscorch.nn import SparseLinear
    >>> layer, probe = SparseLinear(3, 2, density=0.0), Probe()
    >>> handle = layer.register_forward_hook(probe, with_kwargs=True)
    >>> probe.watch(layer.weight)
    >>> layer(torch.ones(4, 3)).sum().backward()
    >>> probe.gradient
    tensor([[4., 4., 4.],
            [4., 4., 4.]])
    """

    def __init__(self) -> None:
        self.dense: torch.Tensor | None = None

    def watch(self, weight: SparseParameter | None) -> None:
        """Begin anew to add up the gradients of this weight; None for no more."""
        # One number stands for all: autograd asks for nothing but a leaf with the right shape.
        self.dense = None if weight is None else torch.zeros((), dtype=weight.dtype).expand(weight.shape).requires_grad_()

    @property
    def gradient(self) -> torch.Tensor | None:
        """What was added up; None where no gradient arrived."""
        return None if self.dense is None else self.dense.grad

    def __call__(self, layer: Any, args: tuple[Any, ...], named: dict[str, Any], output: torch.Tensor) -> torch.Tensor | None:
        if self.dense is None or not output.requires_grad:
            return None
        (input,) = args or named.values()
        input = to_dense(input.detach()) if isinstance(input, SparseTensor) else input
        result: torch.Tensor = _Watched.apply(output, input, self.dense, layer)  # type: ignore[no-untyped-call]
        return result


class _Watched(torch.autograd.Function):
    """A layer's output as it is; behind it, the gradient of a dense weight."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, input: torch.Tensor, dense: torch.Tensor, layer: Any) -> torch.Tensor:
        ctx.save_for_backward(input)
        ctx.layer, ctx.dtype = layer, dense.dtype
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[Any, ...]:
        (input,) = ctx.saved_tensors
        return upstream, None, dense_gradient(ctx.layer, input.to(ctx.dtype), upstream.to(ctx.dtype)), None


def dense_gradient(layer: Any, input: torch.Tensor, upstream: torch.Tensor) -> torch.Tensor:
    """The gradient of a layer's weight, if it stored every entry, as a matrix."""
    if not hasattr(layer, "kernel_size"):
        return upstream.flatten(0, -2).t() @ input.flatten(0, -2) if input.ndim > 1 else torch.outer(upstream, input)
    batch, above = (tensor if tensor.ndim == 4 else tensor[None] for tensor in (input, upstream))
    padded = torch.nn.functional.pad(batch, layer._sides)
    shape = (layer.out_channels, layer.in_channels, *layer.kernel_size)
    gradient: torch.Tensor = conv2d_weight(padded, shape, above, layer.stride, 0, layer.dilation).flatten(1)
    return gradient


def watched_layers(model: torch.nn.Module) -> dict[str, list[Any]]:
    """The layers whose dense gradients can be computed, by the name of their weight; several where they share it."""
    layers: dict[int, tuple[str, list[Any]]] = {}
    for name, layer in bare(model).named_modules():
        if isinstance(layer, SparseLinear | SparseConv2d):
            layers.setdefault(id(layer.weight), (f"{name}.weight".lstrip("."), []))[1].append(layer)
    return dict(layers.values())
