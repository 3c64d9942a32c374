"""Dense weights that are used sparse: masked anew in every step, so that what isn't kept may come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import parametrize

from ..errors import OperandError, SizeError
from ..ir.format import Format
from .choosing import Names, bare, check_untied, dense_layers, named
from .masking import Sparsifier, sparsify
from .repattern import Optimizers
from .swapping import swap


def straight_through(model: torch.nn.Module, sparsifier: Sparsifier, *, weights: Names = "*", decay: float = 0.0) -> None:
    """Let layers use what a sparsifier keeps of their weight as it is at that time, while the whole weight is trained.

    The gradient of the masked weight is given to all of the weight, straight through the mask, plus ``decay`` times what the mask
    leaves out, which draws that to 0, so that masks settle: with ``n_m(2, 4)`` and ``decay=2e-4`` this is SR-STE. The weight stays the
    same parameter, for optimizers; in the model's state it is called ``parametrizations.weight.original``
    (``torch.nn.utils.parametrize``). :func:`settle` ends it.

    Args:
        model: whose layers are changed.
        sparsifier: is given the weight, one row for each output, whenever the layer is called.
        weights: patterns of names; by default the weights of all ``torch.nn.Linear`` and ``Conv2d``.
        decay: how strongly entries that aren't kept are drawn to 0.

    Raises:
        OperandError: a pattern that matches no weight, or no sparsifier.
        SizeError: a negative decay.
        UnsupportedError: a weight that two layers share.

    Source: Zhou, Ma, Zhu, Liu, Zhang, Yuan, Sun, Li, "Learning N:M fine-grained structured sparse neural networks from scratch", 2021.

    >>> from numscorch.sparsify import magnitude
    >>> layer = torch.nn.Linear(4, 2, bias=False)
    >>> straight_through(layer, magnitude(0.5))
    >>> int((layer.weight == 0).sum()), layer.parametrizations.weight.original.numel()
    (4, 8)
    """
    if not callable(sparsifier):
        raise OperandError(f"{sparsifier!r} is no sparsifier: give a callable that makes a mask of a tensor, as magnitude(0.9)")
    if not decay >= 0:
        raise SizeError(f"decay={decay}: what isn't kept is drawn to 0 by a number from 0 on, as 2e-4")
    chosen = named(dense_layers(model), weights, "dense weight")
    check_untied(model, chosen)
    for layer in chosen.values():
        parametrize.register_parametrization(layer, "weight", StraightThrough(sparsifier, decay))


def settle(model: torch.nn.Module, optimizer: Optimizers = None, format: Format | str | None = None) -> None:
    """End :func:`straight_through`: its layers become sparse ones, with the entries that are kept now.

    Args:
        model: whose layers are changed.
        optimizer: those that train it, which go on with the values.
        format: how weights are stored; by default as the sparsifier says.

    Raises:
        OperandError: no layer is trained so, or the optimizer doesn't hold a weight.

    >>> from numscorch.sparsify import magnitude
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    >>> straight_through(model, magnitude(0.5))
    >>> settle(model)
    >>> model[0].weight
    SparseParameter(SparseTensor(CSR, shape=(2, 4), nnz=4, density=0.5, float32, int32 indices, requires_grad=True))
    """
    layers: list[Any] = [own for own in bare(model).modules() if _trained(own) is not None]
    if not layers:
        raise OperandError("settle: no layer of the model is trained by straight_through")
    for layer in layers:
        used: Any = _trained(layer)
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
        swap(model, layer, sparsify(layer.weight.detach().flatten(1), used.sparsifier, format).pattern, optimizer)


def resparsify(model: torch.nn.Module, sparsifier: Sparsifier, *, weights: Names = "*") -> None:
    """Set to 0 what a sparsifier doesn't keep of dense weights; call it after each ``optimizer.step()``.

    Gradients stay those of the whole weight, so that an entry comes back if one step makes it larger than one that is kept. A
    sparsifier that draws masks at random has to give the same ones each time, or nearly nothing is left after some steps.

    Args:
        model: whose layers are changed.
        sparsifier: is given each weight, one row for each output.
        weights: patterns of names; by default the weights of all ``torch.nn.Linear`` and ``Conv2d``.

    Raises:
        OperandError: a pattern that matches no weight, or a weight that holds NaN; no weight is changed.

    >>> from numscorch.sparsify import magnitude
    >>> layer = torch.nn.Linear(4, 2)
    >>> resparsify(layer, magnitude(0.5))
    >>> int((layer.weight == 0).sum())
    4
    """
    chosen: list[Any] = list(named(dense_layers(model), weights, "dense weight").values())
    masks = [sparsifier(layer.weight.detach().flatten(1)).reshape(layer.weight.shape) for layer in chosen]
    with torch.no_grad():
        for layer, mask in zip(chosen, masks, strict=True):
            layer.weight.masked_fill_(~mask, 0)


class StraightThrough(torch.nn.Module):
    """What a sparsifier keeps of a weight; its gradient is given to all of it."""

    def __init__(self, sparsifier: Sparsifier, decay: float):
        super().__init__()
        self.sparsifier: Callable[[torch.Tensor], torch.Tensor] = sparsifier
        self.decay = decay

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        mask = self.sparsifier(weight.detach().flatten(1)).reshape(weight.shape)
        made: torch.Tensor = _Masked.apply(weight, mask, self.decay)  # type: ignore[no-untyped-call]
        return made

    def extra_repr(self) -> str:
        return f"{self.sparsifier!r}, decay={self.decay}"


class _Masked(torch.autograd.Function):
    """A weight times a mask, through which gradients go straight; SR-STE's term is added to them."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, mask: torch.Tensor, decay: float) -> torch.Tensor:
        ctx.save_for_backward(weight, mask)
        ctx.decay = decay
        return weight.masked_fill(~mask, 0)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[Any, ...]:
        weight, mask = ctx.saved_tensors
        return (upstream + ctx.decay * weight.masked_fill(mask, 0) if ctx.decay else upstream), None, None


def _trained(layer: torch.nn.Module) -> StraightThrough | None:
    """How a layer's weight is used, if it is by straight_through alone."""
    if not parametrize.is_parametrized(layer, "weight"):
        return None
    own = list(layer.parametrizations["weight"])  # type: ignore[index]
    return own[0] if len(own) == 1 and isinstance(own[0], StraightThrough) else None
