"""Training of dense weights through masks that are recomputed at every step, so that dropped entries may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from glob import escape
from typing import Any

import torch
from torch.nn.utils import parametrize

from ..errors import NumscorchError, OperandError, SizeError, UnsupportedError
from ..ir.format import Format
from ..sparsifiers.base import named
from ..sparsifiers.entrywise import same_pattern
from ..sparsifiers.sparsify import Sparsifier, sparsify
from ..tensors.sparse_tensor import SparseTensor
from .matching import MatchedWeight, Names, bare, patterns, trained, usual, why_hooked
from .replacement import Optimizers, adapt_readers, check_followers, listed, put_sparse


def straight_through(model: torch.nn.Module, sparsifier: Sparsifier | str, *, weights: Names | None = None, decay: float = 0.0) -> None:
    """Train dense weights with masks that a sparsifier draws anew at each call (straight-through estimator).

    A layer computes with the entries that the sparsifier keeps. The gradient of the masked weight is passed to the whole weight, so
    dropped entries can return. In addition, ``decay`` times the dropped entries is added to the gradient. This moves them towards 0, so
    that masks become stable. With ``n_m(2, 4)`` and ``decay=2e-4``, this is SR-STE. :func:`settle` ends the masking.

    Optimizers keep the same parameter. Its name in the state of the model is ``parametrizations.weight.original``
    (``torch.nn.utils.parametrize``). Parametrized modules cannot be pickled: save the ``state_dict()`` of the model, and copy it with
    ``copy.deepcopy``.

    Args:
        model: the model whose layers are changed.
        sparsifier: a callable that makes a mask, or the name of a registered one. It gets the weight as a matrix, with a row for each
            output.
        weights: one or several name patterns, as in a plan; by default the weights of all ``torch.nn.Linear`` and ``Conv2d``.
        decay: factor of the dropped entries in the gradient.

    Raises:
        ExpressionError: a pattern names no weight.
        OperandError: ``sparsifier`` is not a sparsifier.
        SizeError: ``decay`` is negative, or not a number.
        UnsupportedError: two layers share a weight, a weight is sparse already, or torch's older ``weight_norm`` or ``prune`` computes it.

    Source: Zhou, Ma, Zhu, Liu, Zhang, Yuan, Sun, Li, "Learning N:M fine-grained structured sparse neural networks from scratch", 2021.

    >>> from numscorch.sparsify import magnitude
    >>> layer = torch.nn.Linear(4, 2, bias=False)
    >>> straight_through(layer, magnitude(0.5))
    >>> int((layer.weight == 0).sum()), layer.parametrizations.weight.original.numel()
    (4, 8)
    """
    keep: Sparsifier = named(sparsifier)
    if not isinstance(decay, int | float) or not decay >= 0:
        raise SizeError(f"decay={decay}: the decay of dropped weights has to be a number of at least 0, such as 2e-4")
    chosen = _dense_weights(model, keep, weights)
    if shared := [choice for choice in chosen if len(choice.modules()) > 1]:
        raise UnsupportedError(
            f"{', '.join(site.name for site in shared[0].sites)} share one weight, and each would get a different mask: untie them"
        )
    for choice in chosen:
        parametrize.register_parametrization(choice.sites[0].module, choice.sites[0].key, StraightThrough(keep, decay))


def settle(model: torch.nn.Module, optimizer: Optimizers = None, format: Format | str | None = None) -> None:
    """End :func:`straight_through`: replace its layers by sparse layers with the entries that are kept now.

    Args:
        model: the model whose layers are changed.
        optimizer: the optimizers of the model, one or several; they then train the sparse values.
        format: the format of the weights; by default that of the sparsifier.

    Raises:
        OperandError: no layer is trained by straight_through, or the optimizer does not hold a weight.
        FormatError: the format is unknown, or cannot store the kept entries.
        UnsupportedError: the model itself is such a layer; a layer has no sparse version; a weight has user-defined hooks;
            or the optimizer's state cannot follow. Nothing is changed.

    >>> from numscorch.sparsify import magnitude
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    >>> straight_through(model, magnitude(0.5))
    >>> settle(model)
    >>> model[0].weight
    SparseParameter(SparseTensor(CSR, shape=(2, 4), nnz=4, density=0.5, float32, int32 indices, requires_grad=True))
    """
    within: Any = bare(model)
    parametrized = {
        f"{name}.{key}".lstrip("."): (layer, key, steps[0])
        for name, layer in within.named_modules()
        if parametrize.is_parametrized(layer)
        for key, steps in layer.parametrizations.items()
        if len(steps) == 1 and isinstance(steps[0], StraightThrough)
    }
    if not parametrized:
        raise OperandError("settle: no layer of the model is trained by straight_through")
    if any(layer is within for layer, _, _ in parametrized.values()):
        raise UnsupportedError("settle: the model itself would be replaced: put it in a torch.nn.Sequential")
    for name, (layer, key, _) in parametrized.items():
        check_followers(name, layer.parametrizations[key].original, optimizer)
        if why := why_hooked(layer.parametrizations[key].original):
            raise UnsupportedError(f"settle: {name} {why}")
    for choice, stored in _remove_parametrizations(model, parametrized, format):
        put_sparse(within, choice, same_pattern(stored), stored.format, listed(optimizer))
    adapt_readers(within)


def _remove_parametrizations(
    model: torch.nn.Module, parametrized: Mapping[str, tuple[torch.nn.Module, str, StraightThrough]], format: Format | str | None
) -> list[tuple[MatchedWeight, SparseTensor]]:
    """Remove the parametrizations, and return the weights with their kept entries.

    On an error, the parametrizations are restored.
    """
    for layer, key, _ in parametrized.values():
        parametrize.remove_parametrizations(layer, key, leave_parametrized=False)
    try:
        chosen = trained(model, {escape(name): choice.sparsifier for name, (_, _, choice) in parametrized.items()}, format)
        return [(choice, sparsify(choice.parameter.detach().flatten(1), choice.sparsifier, choice.rule.format)) for choice in chosen]
    except NumscorchError:
        for layer, key, choice in parametrized.values():
            parametrize.register_parametrization(layer, key, choice, unsafe=True)  # without a trial call, which could raise again
        raise


def resparsify(model: torch.nn.Module, sparsifier: Sparsifier | str, *, weights: Names | None = None) -> None:
    """Set the entries of dense weights that a sparsifier drops to 0; call it after each ``optimizer.step()``.

    The gradient is that of the whole weight, so a dropped entry returns if a step makes it larger than a kept entry. A random sparsifier
    must make the same mask each time; otherwise few nonzeros remain after some steps.

    Args:
        model: the model whose weights are changed.
        sparsifier: a callable that makes a mask, or the name of a registered one. It gets each weight as a matrix, with a row for each
            output.
        weights: one or several name patterns, as in a plan; by default the weights of all ``torch.nn.Linear`` and ``Conv2d``.

    Raises:
        ExpressionError: a pattern names no weight.
        OperandError: ``sparsifier`` is not a sparsifier; or a weight holds NaN, and the sparsifier compares magnitudes. No weight is
            changed.
        UnsupportedError: a weight is sparse already, or torch's older ``weight_norm`` or ``prune`` computes it.

    >>> from numscorch.sparsify import magnitude
    >>> layer = torch.nn.Linear(4, 2)
    >>> resparsify(layer, magnitude(0.5))
    >>> int((layer.weight == 0).sum())
    4
    """
    keep: Sparsifier = named(sparsifier)
    chosen = [choice.parameter for choice in _dense_weights(model, keep, weights)]
    masks = [keep(weight.detach().flatten(1)).reshape(weight.shape) for weight in chosen]
    with torch.no_grad():
        for weight, mask in zip(chosen, masks, strict=True):
            weight.masked_fill_(~mask, 0)


def _dense_weights(model: torch.nn.Module, sparsifier: Sparsifier, weights: Names | None) -> list[MatchedWeight]:
    """Return the dense weights that patterns name.

    Raises:
        ExpressionError: a pattern names nothing.
        UnsupportedError: a weight is sparse already, or cannot be masked.
    """
    names = usual(model, or_sparse=False) if weights is None else patterns(weights)
    chosen = trained(model, dict.fromkeys(names, sparsifier), masked=True)
    if sparse := [choice for choice in chosen if choice.is_sparse]:
        raise UnsupportedError(f"{sparse[0].name} {sparse[0].why}")
    return chosen


class StraightThrough(torch.nn.Module):
    """The masked weight, whose gradient is passed to the whole weight."""

    def __init__(self, sparsifier: Sparsifier, decay: float):
        super().__init__()
        self.sparsifier: Callable[[torch.Tensor], torch.Tensor] = sparsifier
        self.decay = decay

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        mask = self.sparsifier(weight.detach().flatten(1)).reshape(weight.shape)
        return _Masked.apply(weight, mask, self.decay)  # type: ignore[no-untyped-call]

    def extra_repr(self) -> str:
        return f"{self.sparsifier!r}, decay={self.decay}"


class _Masked(torch.autograd.Function):
    """Masking with a straight-through gradient, to which SR-STE's decay is added."""

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
