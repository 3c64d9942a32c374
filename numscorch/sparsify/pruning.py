"""GradualPruning: prune a model step by step during training."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..convert.construct import from_coo
from ..convert.values import to_dense, values_of
from ..errors import ExpressionError, OperandError, SizeError, UnsupportedError
from ..ir.format import Format
from ..sparsifiers.base import check_fraction
from ..sparsifiers.entrywise import random, same_pattern
from ..sparsifiers.sparsify import Sparsifier, kept_of, mask_of, sparsify
from ..tensors.ledgers import stack_level
from ..tensors.packing import coordinates, entry_count
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .checks import (
    Factory,
    check_current,
    check_factory,
    check_placed,
    check_schedule,
    check_values,
    refuse_gradient,
    share_at,
    sparsifier_of,
)
from .flows import Masking
from .loading import check_keys, check_names, patterns_of, saved, tell_order
from .matching import MatchedWeight, Names, bare, patterns, trained, usual, why_hooked
from .replacement import Optimizers, adapt_readers, check_followers, followers, listed, optimizers_of, put_sparse, repattern
from .schedules import Schedule, check_count
from .settling import padding_note


class GradualPruning:
    """Prune a model step by step during training, by a schedule; call :meth:`step` after each ``optimizer.step()``.

    A layer is dense and masked while the fraction of zeros is less than ``sparse_from``: pruned entries are 0 in the weight, its gradient,
    and the optimizer's state. Then a sparse layer with the same bias, hooks and names replaces it, as with :func:`sparsify_model`. The
    optimizer trains the sparse values, with the state of their entries. Later steps change the pattern.

    Pruned entries never return. Frozen weights are pruned, too, and stay frozen. Weights with user-defined hooks
    (``weight.register_hook``) can be masked, but cannot become sparse, because such hooks expect a dense gradient.

    A layer that becomes sparse has a new parameter ``weight.values`` in place of ``weight``. Update lists of ``model.parameters()`` when
    :meth:`step` returns True.

    To resume, make the model, the optimizer and the pruning as before. Then load the states in this order: pruning, model, optimizer. To
    use a model without further pruning, call :func:`load_patterns` with the state of the model. Copy all three objects together, with
    ``copy.deepcopy((model, optimizer, pruning))``, because the pruning holds the masks.

    In ``DistributedDataParallel``, the number of parameters must not change. Either pass the ``DistributedDataParallel`` with
    ``sparse_from=None``; or pass the wrapped model, and wrap it again with ``data_parallel(model)`` whenever :meth:`step` returns True.
    All processes prune the same entries, because their weights are equal.

    Args:
        model: the model to prune.
        optimizer: the optimizers that train it, one or several.
        sparsifier: a function from a fraction to a sparsifier, such as ``magnitude`` or ``lambda f: block_magnitude(16, 1, f)``; or a dict
            of such functions by name pattern, of which the last match applies. A dict is needed if layers have different sparsifiers,
            such as ``{name: partial(movement, scores=scores[name]) for name in scores}``. Scores of a :class:`MovementScores` belong to
            the dense weight: let layers become sparse only at the last fraction, for example with ``sparse_from=0.9``, or not at all.
        schedule: a function from the number of a step to the fraction of zeros, such as ``schedules.cubic(0.9, begin=0, end=1000)``. The
            fraction must not fall.
        weights: one or several name patterns, as in a plan, such as ``"encoder.*.weight"``; vectors are skipped. By default, the names of
            a dict; or else the weights of all ``torch.nn.Linear`` and ``Conv2d``, without subclasses, and the sparse weights of the
            model.
        sparse_from: the fraction from which on layers are sparse; None for never. A schedule of ``schedules`` that ends below it causes a
            warning.
        format: the format of sparse weights; by default that of the sparsifier. The first format that stores more entries than the
            sparsifier keeps causes a warning, because training fills all of them.

    Raises:
        ExpressionError: a pattern names no parameter; the nearest names are listed.
        OperandError: an argument has another type, such as a sparsifier in place of a function that makes one; a weight requires grad, and
            no optimizer holds it; or both a dict and ``weights`` are given.
        SizeError: ``sparse_from`` is not between 0 and 1.
        UnsupportedError: a weight cannot become sparse, an optimizer's state cannot follow, or layers would become sparse in
            ``DistributedDataParallel``. Nothing is changed. A weight cannot become sparse if it is tied to a weight that is not named, is
            on the meta device, or belongs to a convolution with groups. Weights that torch's older ``weight_norm`` or ``prune`` computes
            cannot become sparse, either.

    Source: Zhu, Gupta, "To prune, or not to prune: exploring the efficacy of pruning for model compression", 2017.

    >>> from numscorch.sparsify import magnitude, schedules
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> pruning = GradualPruning(model, optimizer, magnitude, schedules.linear(0.75, begin=0, end=2), sparse_from=0.7)
    >>> pruning.step(), int((model[0].weight == 0).sum())
    (False, 12)
    >>> pruning.step(), type(model[0]).__name__, model[0].weight.nnz
    (True, 'SparseLinear', 8)
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizers,
        sparsifier: Factory | Mapping[str, Factory],
        schedule: Schedule,
        *,
        weights: Names | None = None,
        sparse_from: float | None = 0.8,
        format: Format | str | None = None,
    ):
        self.model, self.optimizer = bare(model), listed(optimizer)
        self.schedule, self.sparse_from = schedule, sparse_from
        check_schedule("GradualPruning", schedule)
        if sparse_from is not None:
            check_fraction(f"sparse_from={sparse_from}", sparse_from)
        chosen = trained(self.model, _factories(self.model, sparsifier, weights), format, masked=sparse_from is None)
        self.factories = {choice.name: choice.rule.sparsifier for choice in chosen}
        self.format = chosen[0].rule.format
        self.sparse: dict[str, Any] = {choice.name: choice.parameter for choice in chosen if choice.is_sparse}
        self.dense: dict[str, MatchedWeight] = {choice.name: choice for choice in chosen if not choice.is_sparse}
        self.dropped: dict[str, torch.Tensor] = {}
        self.count, self.fraction, self._is_told = 0, 0.0, False
        self._hooks: dict[str, Any] = {}
        tell_order(self.model)
        for name, weight in self.sparse.items():
            check_placed(name, weight)
        for choice in chosen:
            check_followers(choice.name, self.sparse[choice.name].values if choice.is_sparse else choice.parameter, self.optimizer)
        if isinstance(model, DistributedDataParallel) and (self.sparse or sparse_from is not None):
            raise UnsupportedError(
                "DistributedDataParallel does not support parameters that change their number of values: give sparse_from=None, so that "
                "weights are masked, or give the wrapped model, and wrap it again whenever step() returns True"
            )
        self._warn_if_never_sparse()

    def _warn_if_never_sparse(self) -> None:
        """Warn if the schedule ends before layers become sparse; only schedules with a ``final`` fraction are checked."""
        final = getattr(self.schedule, "final", None)
        if self.sparse_from is not None and self.dense and final is not None and final < self.sparse_from:
            warnings.warn(
                f"{self.schedule} ends below sparse_from={self.sparse_from}: weights ({len(self.dense)}) are masked and stay dense, as "
                f"large and slow as before; give sparse_from={final} to store them sparse, or sparse_from=None to only mask them",
                stacklevel=3,
            )

    def step(self) -> bool:
        """Count a step, and prune if the fraction of the schedule rises.

        Returns:
            Whether parameters of the model were replaced, or have another number of values.

        Raises:
            SizeError: the fraction of the schedule fell, or is not between 0 and 1.
            OperandError: a weight holds NaN or is no longer part of the model, or a function made no sparsifier; nothing is changed.
            UnsupportedError: a weight that becomes sparse has user-defined hooks; nothing is changed.
        """
        self._check_current()
        fraction = share_at(self.schedule, self.count + 1)
        if fraction < self.fraction:
            raise SizeError(f"{self.schedule} falls from {self.fraction} to {fraction} at step {self.count + 1}: give one that never falls")
        changed = fraction > self.fraction and self._prune(fraction)
        self.count, self.fraction = self.count + 1, fraction
        for name in self.dropped:
            self._mask(name, self.dense[name].parameter)
        return changed

    def _prune(self, fraction: float) -> bool:
        """Give every weight its new mask; all masks are computed before the first weight changes."""
        sparsifiers = {name: sparsifier_of(name, factory, fraction) for name, factory in self.factories.items()}
        for name, weight in self.sparse.items():
            check_values(name, weight)
            check_followers(name, weight.values, self.optimizer)
        patterns = {name: self._pruned_pattern(name, weight, sparsifiers[name]) for name, weight in self.sparse.items()}
        kept = {name: self._kept_mask(name, weight.parameter.detach().flatten(1), sparsifiers[name]) for name, weight in self.dense.items()}
        before = {name: weight.values.numel() for name, weight in self.sparse.items()}
        patterns_ = {}
        if self.sparse_from is not None and fraction >= self.sparse_from:
            formats = {name: self.format or getattr(sparsifiers[name], "format", None) for name in kept}
            patterns_ = {name: sparsify(mask, lambda same: same, formats[name]).pattern for name, mask in kept.items()}
            self._check_can_follow(patterns_)
            for name, pattern in patterns_.items():
                self._warn_of_padding(name, self.dense[name].parameter, pattern, int(kept[name].count_nonzero()))
        for name, weight in self.sparse.items():
            repattern(weight, patterns[name], self.optimizer)
        self._make_sparse(patterns_)
        for name, weight in self.dense.items():
            self._drop(name, ~kept[name].reshape(weight.parameter.shape))
        return before != {name: weight.values.numel() for name, weight in self.sparse.items()}

    def _pruned_pattern(self, name: str, weight: SparseParameter, sparsifier: Sparsifier) -> Pattern:
        """Return the pattern of a sparse weight's kept entries; sparsifiers that need all values get a dense copy."""
        A: SparseTensor = weight.tensor.detach()
        kept = kept_of(A, sparsifier, to_dense)
        stored = from_coo(coordinates(A.pattern)[:, kept], values_of(A)[kept], A.shape, A.format)
        self._warn_of_padding(name, weight, stored.pattern, int(kept.count_nonzero()))
        return stored.pattern

    def _warn_of_padding(self, name: str, weight: Any, pattern: Pattern, kept: int) -> None:
        """Warn once of a format that stores more entries than a sparsifier keeps."""
        if not weight.requires_grad or self._is_told or not (more := padding_note(entry_count(pattern), kept)):
            return
        warnings.warn(
            f"{name} {more} in {pattern.format.name}, and training fills them, so that pruned weights return: use a sparsifier that "
            "matches the format, such as lambda f: block_magnitude(4, 4, f) for BCSR(4, 4), or format='CSR'; this warning is shown once",
            stacklevel=stack_level(),
        )
        self._is_told = True

    def _kept_mask(self, name: str, weight: torch.Tensor, sparsifier: Sparsifier) -> torch.Tensor:
        """Return the mask of a dense weight's kept entries, as a matrix."""
        kept = mask_of(weight, sparsifier)
        if name not in self.dropped:
            return kept
        still = kept & ~self.dropped[name].flatten(1)
        if isinstance(sparsifier, random) and not torch.equal(still, kept):
            raise OperandError(
                f"{name}: {sparsifier!r} keeps {int(kept.sum())} entries, of which {int(kept.sum()) - int(still.sum())} are pruned already:"
                " a random sparsifier has to draw the same entries each time, as random(fraction, seed=0) does"
            )
        return still

    def _check_current(self) -> None:
        check_current(self.model, self.sparse | {name: weight.sites[0].module for name, weight in self.dense.items()}, "GradualPruning")

    def _check_can_follow(self, names: Iterable[str]) -> None:
        """Check that optimizers and hooks allow these dense weights to become sparse."""
        for name in names:
            weight = self.dense[name].parameter
            check_followers(name, weight, self.optimizer, required=False)
            if why := why_hooked(weight):
                raise UnsupportedError(f"{name}: {why}; or give sparse_from=None, so that weights are masked")

    def _make_sparse(self, patterns: Mapping[str, Pattern]) -> None:
        for name, pattern in patterns.items():
            choice = self.dense.pop(name)
            self._unhook(name)
            self.dropped.pop(name, None)
            stored = same_pattern(SparseTensor(pattern, torch.ones(pattern.nnz, dtype=choice.parameter.dtype)))
            dense = choice.parameter
            _, self.sparse[name] = put_sparse(self.model, choice, stored, pattern.format, self.optimizer)
            if dense.requires_grad:
                dense.register_hook(partial(refuse_gradient, name))
        if patterns:
            adapt_readers(self.model)

    def _drop(self, name: str, dropped: torch.Tensor) -> None:
        """Mask a dense weight, its gradient, and its optimizer state."""
        weight = self.dense[name].parameter
        self.dropped[name] = dropped
        if weight.grad is not None:
            weight.grad.masked_fill_(dropped, 0)
        for optimizer in optimizers_of(weight, self.optimizer):
            for key in followers(weight, optimizer):
                optimizer.state[weight][key].masked_fill_(dropped, 0)
        self._unhook(name)
        self._mask(name, weight)

    def _mask(self, name: str, weight: torch.nn.Parameter) -> None:
        """Zero the dropped entries of a weight, and hook its gradient if it requires grad and has no hook yet."""
        with torch.no_grad():
            weight.masked_fill_(self.dropped[name], 0)
        if weight.requires_grad and name not in self._hooks:
            self._hooks[name] = weight.register_hook(Masking(same_pattern(~self.dropped[name])))

    def _unhook(self, name: str) -> None:
        if name in self._hooks:
            self._hooks.pop(name).remove()

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the count of steps, the fraction, the masks of dense weights, and the patterns of sparse weights."""
        return {
            "step": self.count,
            "fraction": self.fraction,
            "dropped": dict(self.dropped),
            "patterns": {name: saved(weight.pattern) for name, weight in self.sparse.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: layers become sparse, with the saved patterns.

        Load the states of the model and the optimizer afterwards.

        Args:
            state: the result of :meth:`state_dict`.

        Raises:
            OperandError: the state belongs to another class or to other weights; nothing is changed.
            SizeError: weights have other shapes.
            FormatError: index arrays violate an invariant of their format.
            UnsupportedError: a layer is sparse in the model but dense in the state, or a weight that becomes sparse has user-defined hooks.
        """
        self._check_current()
        patterns, dropped = self._validated(state)
        try:
            self._check_can_follow(name for name in patterns if name in self.dense)
        except UnsupportedError as error:
            raise UnsupportedError(f"{error}; load the optimizer's state last, after the pruning's and the model's") from error
        for name in list(self.dropped):
            self._unhook(name)
        self.dropped = {}
        for name, weight in self.sparse.items():
            repattern(weight, patterns[name], optimizers_of(weight.values, self.optimizer))
        self._make_sparse({name: pattern for name, pattern in patterns.items() if name in self.dense})
        for name, mask in dropped.items():
            self._drop(name, mask)
        self.count, self.fraction = state["step"], state["fraction"]

    def _validated(self, state: Mapping[str, Any]) -> tuple[dict[str, Pattern], dict[str, torch.Tensor]]:
        """Return the patterns and masks of a state, after a check that they belong to these weights."""
        check_keys(state, "GradualPruning", self.state_dict())
        check_count("the state of GradualPruning", state["step"])
        check_fraction(f"the state of GradualPruning, whose fraction is {state['fraction']!r}", state["fraction"])
        shapes = {name: tuple(weight.shape) for name, weight in self.sparse.items()}
        shapes |= {name: tuple(weight.parameter.flatten(1).shape) for name, weight in self.dense.items()}
        patterns = patterns_of(state["patterns"], "GradualPruning", {n: s for n, s in shapes.items() if n in state["patterns"]})
        if early := [name for name in self.sparse if name not in patterns]:
            raise UnsupportedError(f"{early[0]} is dense in the state, but sparse in the model: load it into a newly built model")
        dropped: dict[str, torch.Tensor] = dict(state["dropped"])
        check_names(dropped, "GradualPruning", [name for name in dropped if name in self.dense])
        for name, mask in dropped.items():
            if mask.shape != self.dense[name].parameter.shape:
                raise SizeError(f"the state has a mask of shape {tuple(mask.shape)} for {name}, which has {shapes[name]}")
        return patterns, dropped

    def __getstate__(self) -> dict[str, Any]:
        """Leave out hook handles, which copies of weights do not have."""
        return {**vars(self), "_hooks": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for name in self.dropped:
            self._mask(name, self.dense[name].parameter)

    def __repr__(self) -> str:
        return f"GradualPruning(step {self.count}, {self.fraction:.3g} of {len(self.dense)} dense and {len(self.sparse)} sparse weights)"


def _factories(model: torch.nn.Module, sparsifier: Factory | Mapping[str, Factory], weights: Names | None) -> Mapping[str, Factory]:
    """Return the functions that make sparsifiers, by name pattern.

    Raises:
        OperandError: names are given twice, or a value makes no sparsifiers.
        ExpressionError: no names are given, and the model has no default weights.
    """
    if isinstance(sparsifier, Mapping) and weights is not None:
        raise OperandError(f"weights={weights!r}: the sparsifiers are given by name already; leave weights= out")
    if not isinstance(sparsifier, Mapping):
        sparsifier = dict.fromkeys(usual(model, or_sparse=True) if weights is None else patterns(weights), sparsifier)
    if not sparsifier:
        raise ExpressionError("GradualPruning(sparsifier={}): nothing would be pruned: give magnitude, or a dict with a pattern of names")
    for factory in sparsifier.values():
        check_factory(factory)
    return sparsifier
