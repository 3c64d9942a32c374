"""Probes: hooks that compute the gradient which a sparse layer's weight would have if it were dense."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.grad import conv2d_weight

from ..convert.values import to_dense
from ..nn.sparse_layers import SparseConv2d, SparseLinear
from ..tensors.parameter import SparseParameter
from ..tensors.sparse_tensor import SparseTensor
from .matching import bare


class Probe:
    """A forward hook that accumulates the dense gradient of a weight in ``gradient`` while it watches the weight.

    The hook stays on its layer, so that compiled programs include it. While it does not watch, it costs one attribute
    check.

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
        """Start to accumulate the gradients of a weight, from 0; None stops."""
        # An expanded scalar: autograd only needs a leaf of the right shape.
        self.dense = None if weight is None else torch.zeros((), dtype=weight.dtype).expand(weight.shape).requires_grad_()

    @property
    def gradient(self) -> torch.Tensor | None:
        """The accumulated gradient; None if no gradient arrived."""
        return None if self.dense is None else self.dense.grad

    def __call__(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> torch.Tensor | None:
        if self.dense is None or not output.requires_grad:
            return None
        (input,) = args or kwargs.values()
        input = to_dense(input.detach()) if isinstance(input, SparseTensor) else input
        return _Watched.apply(output, input, self.dense, layer)  # type: ignore[no-untyped-call]


class _Watched(torch.autograd.Function):
    """The identity on a layer's output; its backward pass also computes the gradient of a dense weight."""

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
    """Return the gradient that a layer's weight would have if it stored every entry, as a matrix."""
    if not hasattr(layer, "kernel_size"):
        return upstream.flatten(0, -2).t() @ input.flatten(0, -2) if input.ndim > 1 else torch.outer(upstream, input)
    batch, above = (tensor if tensor.ndim == 4 else tensor[None] for tensor in (input, upstream))
    padded = torch.nn.functional.pad(batch, layer._sides)
    shape = (layer.out_channels, layer.in_channels, *layer.kernel_size)
    return conv2d_weight(padded, shape, above, layer.stride, 0, layer.dilation).flatten(1)


def watched_layers(model: torch.nn.Module) -> dict[str, list[Any]]:
    """Return the layers whose dense gradients can be computed, by the name of their weight; several if they share it."""
    layers: dict[int, tuple[str, list[Any]]] = {}
    for name, layer in bare(model).named_modules():
        if isinstance(layer, SparseLinear | SparseConv2d):
            layers.setdefault(id(layer.weight), (f"{name}.weight".lstrip("."), []))[1].append(layer)
    return dict(layers.values())
