"""Dense weights that are used sparse: masked anew in every step, so that what isn't kept may come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from glob import escape
from typing import Any

import torch
from torch.nn.utils import parametrize

from ..errors import NumscorchError, OperandError, SizeError, UnsupportedError
from ..ir.format import Format
from ..sparsifiers.patterned import same_pattern
from ..sparsifiers.sparsify import Sparsifier, sparsify
from ..tensors.sparse_tensor import SparseTensor
from .choosing import Names, bare, patterns, trained, usual
from .matching import MatchedWeight, why_hooked
from .optimizers import Optimizers, check_held, listed
from .owners import adapt_readers, put_sparse


def straight_through(model: torch.nn.Module, sparsifier: Sparsifier, *, weights: Names | None = None, decay: float = 0.0) -> None:
    """Let layers use what a sparsifier keeps of their weight as it is at that time, while the whole weight is trained.

    The gradient of the masked weight is given to all of the weight, straight through the mask, plus ``decay`` times what the mask
    leaves out, which draws that to 0, so that masks settle: with ``n_m(2, 4)`` and ``decay=2e-4`` this is SR-STE. The weight stays the
    same parameter, for optimizers; in the model's state it is called ``parametrizations.weight.original``
    (``torch.nn.utils.parametrize``). :func:`settle` ends it. As torch refuses to pickle modules that are parametrized, save the
    model's ``state_dict()``; ``copy.deepcopy`` copies it.

    Args:
        model: whose layers are changed.
        sparsifier: is given the weight, one row for each output, whenever the layer is called.
        weights: patterns of names, as a plan takes them; by default the weights of all ``torch.nn.Linear`` and ``Conv2d``.
        decay: how strongly entries that aren't kept are drawn to 0.

    Raises:
        ExpressionError: a pattern names no weight.
        OperandError: no sparsifier.
        SizeError: a negative decay.
        UnsupportedError: a weight that two layers share, or that is computed by torch's older ``weight_norm`` or ``prune``.

    Source: Zhou, Ma, Zhu, Liu, Zhang, Yuan, Sun, Li, "Learning N:M fine-grained structured sparse neural networks from scratch", 2021.

    >>> from numscorch.sparsify import magnitude
    >>> layer = torch.nn.Linear(4, 2, bias=False)
    >>> straight_through(layer, magnitude(0.5))
    >>> int((layer.weight == 0).sum()), layer.parametrizations.weight.original.numel()
    (4, 8)
    """
    if not callable(sparsifier):
        raise OperandError(f"{sparsifier!r} is not a sparsifier: give a callable that makes a mask of a tensor, as magnitude(0.9)")
    if not isinstance(decay, int | float) or not decay >= 0:
        raise SizeError(f"decay={decay}: the decay of dropped weights is a number of at least 0, as 2e-4")
    chosen = _dense(model, sparsifier, weights)
    for choice in chosen:
        if len(choice.modules()) > 1:
            raise UnsupportedError(
                f"{', '.join(site.name for site in choice.sites)} share one weight, and each would get another mask: untie them"
            )
    for choice in chosen:
        parametrize.register_parametrization(choice.sites[0].module, choice.sites[0].key, StraightThrough(sparsifier, decay))


def settle(model: torch.nn.Module, optimizer: Optimizers = None, format: Format | str | None = None) -> None:
    """End :func:`straight_through`: its layers become sparse ones, with the entries that are kept now.

    Args:
        model: whose layers are changed.
        optimizer: those that train it, which go on with the values.
        format: how weights are stored; by default as the sparsifier says.

    Raises:
        OperandError: no layer is trained so, or the optimizer doesn't hold a weight.
        UnsupportedError: the model itself is such a layer, one has no sparse version or has hooks of its own on the weight, or the
            optimizer can't follow. Nothing is changed.

    >>> from numscorch.sparsify import magnitude
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    >>> straight_through(model, magnitude(0.5))
    >>> settle(model)
    >>> model[0].weight
    SparseParameter(SparseTensor(CSR, shape=(2, 4), nnz=4, density=0.5, float32, int32 indices, requires_grad=True))
    """
    within, used = bare(model), {}
    for name, layer in within.named_modules():
        used.update({f"{name}.{key}".lstrip("."): (layer, key, through) for key, through in _straight(layer).items()})
    if not used:
        raise OperandError("settle: no layer of the model is trained by straight_through")
    if any(layer is within for layer, _, _ in used.values()):
        raise UnsupportedError("settle: the model itself would be replaced: put it in a torch.nn.Sequential")
    for name, (layer, key, _) in used.items():
        check_held(name, layer.parametrizations[key].original, optimizer)
        if why := why_hooked(layer.parametrizations[key].original):
            raise UnsupportedError(f"settle: {name} {why}")
    for choice, stored in _settled(model, used, format):
        put_sparse(within, choice, same_pattern(stored), stored.format, listed(optimizer))
    adapt_readers(within)


def _settled(
    model: torch.nn.Module, used: Mapping[str, tuple[torch.nn.Module, str, StraightThrough]], format: Format | str | None
) -> list[tuple[MatchedWeight, SparseTensor]]:
    """The weights without their parametrizations, which stay if anything is wrong, and what is kept of each."""
    for layer, key, _ in used.values():
        parametrize.remove_parametrizations(layer, key, leave_parametrized=False)
    try:
        chosen = trained(model, {escape(name): choice.sparsifier for name, (_, _, choice) in used.items()}, format)
        return [(choice, sparsify(choice.parameter.detach().flatten(1), choice.sparsifier, choice.rule.format)) for choice in chosen]
    except NumscorchError:
        for layer, key, choice in used.values():
            parametrize.register_parametrization(layer, key, choice, unsafe=True)  # it isn't tried, by which NaN would be met again
        raise


def resparsify(model: torch.nn.Module, sparsifier: Sparsifier, *, weights: Names | None = None) -> None:
    """Set to 0 what a sparsifier doesn't keep of dense weights; call it after each ``optimizer.step()``.

    Gradients stay those of the whole weight, so that an entry comes back if one step makes it larger than one that is kept. A
    sparsifier that draws masks at random has to give the same ones each time, or nearly nothing is left after some steps.

    Args:
        model: whose layers are changed.
        sparsifier: is given each weight, one row for each output.
        weights: patterns of names, as a plan takes them; by default the weights of all ``torch.nn.Linear`` and ``Conv2d``.

    Raises:
        ExpressionError: a pattern names no weight.
        OperandError: a weight holds NaN; no weight is changed.

    >>> from numscorch.sparsify import magnitude
    >>> layer = torch.nn.Linear(4, 2)
    >>> resparsify(layer, magnitude(0.5))
    >>> int((layer.weight == 0).sum())
    4
    """
    chosen = [choice.parameter for choice in _dense(model, sparsifier, weights)]
    masks = [sparsifier(weight.detach().flatten(1)).reshape(weight.shape) for weight in chosen]
    with torch.no_grad():
        for weight, mask in zip(chosen, masks, strict=True):
            weight.masked_fill_(~mask, 0)


def _dense(model: torch.nn.Module, sparsifier: Sparsifier, weights: Names | None) -> list[MatchedWeight]:
    """The dense weights that are named.

    Raises:
        ExpressionError: a pattern names nothing.
        UnsupportedError: one is sparse already, or can't be masked.
    """
    names = usual(model, or_sparse=False) if weights is None else patterns(weights)
    chosen = trained(model, dict.fromkeys(names, sparsifier), masked=True)
    if sparse := [choice for choice in chosen if choice.is_sparse]:
        raise UnsupportedError(f"{sparse[0].name} {sparse[0].why}")
    return chosen


class StraightThrough(torch.nn.Module):
    """What a sparsifier keeps of a weight; its gradient is given to all of it."""

    def __init__(self, sparsifier: Sparsifier, decay: float):
        super().__init__()
        self.sparsifier: Callable[[torch.Tensor], torch.Tensor] = sparsifier
        self.decay = decay

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        mask = self.sparsifier(weight.detach().flatten(1)).reshape(weight.shape)
        masked: torch.Tensor = _Masked.apply(weight, mask, self.decay)  # type: ignore[no-untyped-call]
        return masked

    def extra_repr(self) -> str:
        return f"{self.sparsifier!r}, decay={self.decay}"


class _Masked(torch.autograd.Function):
    """A weight times a mask, through which gradients go straight; SR-STE's term is added to them."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, mask: torch.Tensor, decay: float) -> torch.Tensor:
        if decay:
            ctx.save_for_backward(weight, mask)
        ctx.decay = decay
        return weight.masked_fill(~mask, 0)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[Any, ...]:
        if not ctx.decay:
            return upstream, None, None
        weight, mask = ctx.saved_tensors
        return upstream + ctx.decay * weight.masked_fill(mask, 0), None, None


def _straight(layer: Any) -> dict[str, StraightThrough]:
    """How a layer's parameters are used, by name, where it is by straight_through alone."""
    parametrizations = layer.parametrizations.items() if parametrize.is_parametrized(layer) else ()
    return {key: steps[0] for key, steps in parametrizations if len(steps) == 1 and isinstance(steps[0], StraightThrough)}
