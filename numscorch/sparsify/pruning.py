"""GradualPruning: a model loses more and more of its weights while it is trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..convert.construct import from_coo
from ..convert.dense import to_dense
from ..convert.entries import values_of
from ..errors import ExpressionError, OperandError, SizeError, UnsupportedError
from ..ir.format import Format
from ..sparsifiers.entrywise import random
from ..sparsifiers.magnitude import check_fraction
from ..sparsifiers.patterned import same_pattern
from ..sparsifiers.sparsify import Sparsifier, kept_of, mask_of, sparsify
from ..tensors.ledgers import stack_level
from ..tensors.packing import coordinates, entry_count
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .checks import Factory, Outdated, check_current, check_factory, check_placed, check_schedule, check_values, share_at, sparsifier_of
from .choosing import Names, bare, patterns, trained, usual
from .flows import Masking
from .loading import tell_order
from .matching import MatchedWeight, why_hooked
from .optimizers import Optimizer, Optimizers, check_held, check_states, followers, holds, listed
from .owners import adapt_readers, put_sparse
from .repattern import repattern
from .saving import check_keys, check_names, patterns_of, saved
from .schedules import Schedule, check_count
from .settling import padding_note

KEYS = ("step", "fraction", "dropped", "patterns")


class GradualPruning:
    """Prune a model bit by bit during training, as a schedule says; call :meth:`step` after each ``optimizer.step()``.

    While a layer is denser than where sparse kernels pay, it stays dense and is masked: what is pruned is 0 in the weight, its
    gradient, and what the optimizer remembers. From ``sparse_from`` on, a sparse layer is in its place, as :func:`sparsify_model` has
    it, with the same bias, hooks and names; the optimizer goes on with its values, and what it remembers is gathered. Later steps
    change its pattern. What was pruned stays so. Frozen weights are pruned as others are, and stay frozen. Weights with hooks of their
    own, from ``weight.register_hook``, can be masked, but don't become sparse, since such hooks expect a dense gradient.

    A layer that becomes sparse has a new parameter ``weight.values`` for its ``weight``: whoever kept a list of
    ``model.parameters()`` makes it again when :meth:`step` returns True.

    To resume, make model, optimizer and pruning as at first, then load the states in this order: the pruning's, the model's, the
    optimizer's; another order is told. To use a model without going on, :func:`load_patterns` takes its state alone. A copy is made of
    all at once, ``copy.deepcopy((model, optimizer, pruning))``, since the masks are kept here.

    In processes that train together (``DistributedDataParallel``), the number of parameters must not change. Either give it the
    DistributedDataParallel with ``sparse_from=None``; or give it the model within, and wrap that anew, as ``data_parallel(model)``
    does, whenever :meth:`step` returns True. All processes prune alike, since their weights are equal.

    Args:
        model: some of whose weights are pruned.
        optimizer: those that train it, one or several.
        sparsifier: from a fraction to a sparsifier, as ``magnitude``, or ``lambda f: block_magnitude(16, 1, f)``; or a dict of these by
            patterns of names, the last of which holds, where layers differ, as by the scores of ``movement``:
            ``{name: partial(movement, scores=scores[name]) for name in scores}``. Scores that a ``MovementScores`` records are those of
            the dense weight: let layers become sparse with the last fraction, as ``sparse_from=0.9``, or not at all.
        schedule: from the number of a step to the fraction that is zero then; it never falls.
        weights: patterns of names, as a plan takes them: ``"encoder.*.weight"``; vectors among these are left out. By default the names
            of a dict, or else the weights of all ``torch.nn.Linear`` and ``Conv2d`` that aren't of a class derived from these, and the
            sparse weights of the model.
        sparse_from: the fraction from which on layers are sparse; None for never. A schedule of ``schedules`` that ends below it
            warns.
        format: how sparse layers store their weight; by default as the sparsifier says. One that stores more entries than the
            sparsifier keeps, which training fills, warns once.

    Raises:
        ExpressionError: a pattern names no parameter; near misses are listed.
        OperandError: a weight requires grad, and no optimizer holds it; a dict and ``weights=`` are given; or no schedule, or a
            sparsifier where one is made of fractions.
        UnsupportedError: a weight that can't become sparse, as one that is tied to another, which isn't named, is on the meta device, is
            computed by torch's older ``weight_norm`` or ``prune``, or is of a convolution with groups; an optimizer whose state can't
            follow; or DistributedDataParallel with layers that would become sparse. Nothing is changed.

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
            check_held(choice.name, self.sparse[choice.name].values if choice.is_sparse else choice.parameter, self.optimizer)
        if isinstance(model, DistributedDataParallel) and (self.sparse or sparse_from is not None):
            raise UnsupportedError(
                "DistributedDataParallel takes no parameters that change their number of values: give sparse_from=None, by which weights "
                "are masked, or give the model within, and wrap it anew whenever step() returns True"
            )
        self._warn_if_never_sparse()

    def _warn_if_never_sparse(self) -> None:
        """Warn of a schedule that ends before layers become sparse; where a function ends is not known."""
        final = getattr(self.schedule, "final", None)
        if self.sparse_from is not None and self.dense and final is not None and final < self.sparse_from:
            warnings.warn(
                f"{self.schedule} ends below sparse_from={self.sparse_from}: weights ({len(self.dense)}) are masked and stay dense, as "
                f"large and slow as before; give sparse_from={final} to store them sparse then, or sparse_from=None to mask them only",
                stacklevel=3,
            )

    def step(self) -> bool:
        """Count a step, and prune where the schedule says so.

        Returns:
            Whether the model has other parameters now, or other numbers of values.

        Raises:
            SizeError: the schedule's fraction fell, or is none.
            OperandError: a weight holds NaN, the model has it no more, or a factory made no sparsifier; the model is as it was.
            UnsupportedError: a weight that becomes sparse got hooks of its own; the model is as it was.
        """
        self._check_current()
        fraction = share_at(self.schedule, self.count + 1)
        if fraction < self.fraction:
            raise SizeError(f"{self.schedule} falls from {self.fraction} to {fraction} at step {self.count + 1}: give one that never falls")
        changed = fraction > self.fraction and self._prune(fraction)
        self.count, self.fraction = self.count + 1, fraction
        for name, weight in self.dense.items():
            if name in self.dropped:
                self._mask(name, weight.parameter)
        return changed

    def _prune(self, fraction: float) -> bool:
        """Give every weight its new mask; all are made before the first one is changed."""
        sparsifiers = {name: sparsifier_of(name, factory, fraction) for name, factory in self.factories.items()}
        for name, weight in self.sparse.items():
            check_values(name, weight)
            check_held(name, weight.values, self.optimizer)
        patterns = {name: self._pruned(name, weight, sparsifiers[name]) for name, weight in self.sparse.items()}
        kept = {name: self._kept(name, weight.parameter.detach().flatten(1), sparsifiers[name]) for name, weight in self.dense.items()}
        before = {name: weight.values.numel() for name, weight in self.sparse.items()}
        patterns_ = {}
        if self.sparse_from is not None and fraction >= self.sparse_from:
            formats = {name: self.format or getattr(sparsifiers[name], "format", None) for name in kept}
            patterns_ = {name: sparsify(mask, lambda same: same, formats[name]).pattern for name, mask in kept.items()}
            self._check_can_follow(patterns_)
            for name, pattern in patterns_.items():
                self._warn_of_padding(name, self.dense[name].parameter, pattern, int(kept[name].count_nonzero()))
        for name, weight in self.sparse.items():
            repattern(weight, patterns[name], self._holding(weight.values))
        self._make_sparse(patterns_)
        for name, weight in self.dense.items():
            self._drop(name, ~kept[name].reshape(weight.parameter.shape))
        return before != {name: weight.values.numel() for name, weight in self.sparse.items()}

    def _pruned(self, name: str, weight: SparseParameter, sparsifier: Sparsifier) -> Pattern:
        """The pattern of what is kept of a sparse weight; it is made dense for sparsifiers that need that, which users can't change."""
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
            f"{name} {more} in {pattern.format.name}, and training fills them, so that pruned weights come back: use a sparsifier that "
            "matches the format, as lambda f: block_magnitude(4, 4, f) for BCSR(4, 4), or format='CSR'; told once",
            stacklevel=stack_level(),
        )
        self._is_told = True

    def _kept(self, name: str, weight: torch.Tensor, sparsifier: Sparsifier) -> torch.Tensor:
        """The mask of what is kept of a dense weight, as a matrix."""
        kept = mask_of(weight, sparsifier)
        if name not in self.dropped:
            return kept
        still = kept & ~self.dropped[name].flatten(1)
        if isinstance(sparsifier, random) and not torch.equal(still, kept):
            raise OperandError(
                f"{name}: {sparsifier!r} keeps {int(kept.sum())} entries, of which {int(kept.sum()) - int(still.sum())} are pruned already:"
                " a sparsifier that draws has to draw the same ones each time, as random(fraction, seed=0) does"
            )
        return still

    def _holding(self, weight: torch.Tensor) -> list[Optimizer]:
        """The optimizers that hold a weight."""
        return [optimizer for optimizer in self.optimizer if holds(optimizer, weight)]

    def _check_current(self) -> None:
        """That the model still has the weights that are pruned."""
        held = {**self.sparse, **{name: weight.sites[0].module for name, weight in self.dense.items()}}
        for name, weight in held.items():
            check_current(self.model, name, weight, "GradualPruning")

    def _check_can_follow(self, names: Iterable[str]) -> None:
        """That optimizers and hooks can go on with sparse weights in the place of dense ones."""
        for name in names:
            weight = self.dense[name].parameter
            check_states(name, weight, self.optimizer)
            if why := why_hooked(weight):
                raise UnsupportedError(f"{name}: {why}; or give sparse_from=None, by which weights are masked")

    def _make_sparse(self, patterns: Mapping[str, Pattern]) -> None:
        """Put sparse layers in the place of dense ones."""
        for name, pattern in patterns.items():
            choice = self.dense.pop(name)
            self._unhook(name)
            self.dropped.pop(name, None)
            stored = same_pattern(SparseTensor(pattern, torch.ones(pattern.nnz, dtype=choice.parameter.dtype)))
            dense = choice.parameter
            _, self.sparse[name] = put_sparse(self.model, choice, stored, pattern.format, self.optimizer)
            if dense.requires_grad:
                dense.register_hook(Outdated(name))
        if patterns:
            adapt_readers(self.model)

    def _drop(self, name: str, dropped: torch.Tensor) -> None:
        """Mask a dense weight, its gradient, and what optimizers remember."""
        weight = self.dense[name].parameter
        self.dropped[name] = dropped
        if weight.grad is not None:
            weight.grad.masked_fill_(dropped, 0)
        for optimizer in self._holding(weight):
            for of in followers(weight, optimizer):
                optimizer.state[weight][of].masked_fill_(dropped, 0)
        self._unhook(name)
        self._mask(name, weight)

    def _mask(self, name: str, weight: torch.nn.Parameter) -> None:
        """Zeros where a weight was dropped, in gradients to come, too; one that was frozen has none until it is trained."""
        with torch.no_grad():
            weight.masked_fill_(self.dropped[name], 0)
        if weight.requires_grad and name not in self._hooks:
            self._hooks[name] = weight.register_hook(Masking(same_pattern(~self.dropped[name])))

    def _unhook(self, name: str) -> None:
        if name in self._hooks:
            self._hooks.pop(name).remove()

    def state_dict(self) -> dict[str, Any]:
        """The count of steps, the fraction, the masks of dense weights, and the patterns of sparse ones."""
        patterns = {name: saved(weight.pattern) for name, weight in self.sparse.items()}
        return {"step": self.count, "fraction": self.fraction, "dropped": dict(self.dropped), "patterns": patterns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: layers become sparse, and get the patterns that they had. Load the model's and the optimizer's after it.

        Raises:
            OperandError: the state is another one's, or of other weights; nothing is changed.
            SizeError: weights have other shapes.
            UnsupportedError: a layer is sparse already that was dense, or one that becomes sparse has hooks of its own.
        """
        self._check_current()
        patterns, dropped = self._checked(state)
        try:
            self._check_can_follow(name for name in patterns if name in self.dense)
        except UnsupportedError as error:
            raise UnsupportedError(f"{error}; a state of the optimizer is loaded last, after the pruning's and the model's") from error
        for name in list(self.dropped):
            self._unhook(name)
        self.dropped = {}
        for name, weight in self.sparse.items():
            repattern(weight, patterns[name], self._holding(weight.values))
        self._make_sparse({name: pattern for name, pattern in patterns.items() if name in self.dense})
        for name, mask in dropped.items():
            self._drop(name, mask)
        self.count, self.fraction = state["step"], state["fraction"]

    def _checked(self, state: Mapping[str, Any]) -> tuple[dict[str, Pattern], dict[str, torch.Tensor]]:
        """The patterns and masks of a state, if they are of these weights."""
        check_keys(state, "GradualPruning", KEYS)
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
        """Without handles of hooks, which copies of weights don't have."""
        return {**vars(self), "_hooks": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for name in self.dropped:
            self._mask(name, self.dense[name].parameter)

    def __repr__(self) -> str:
        return f"GradualPruning(step {self.count}, {self.fraction:.3g} of {len(self.dense)} dense and {len(self.sparse)} sparse weights)"


def _factories(model: torch.nn.Module, sparsifier: Factory | Mapping[str, Factory], weights: Names | None) -> Mapping[str, Factory]:
    """What makes sparsifiers, by patterns of names.

    Raises:
        OperandError: names are given twice, or nothing makes sparsifiers.
        ExpressionError: none are given, and the model has no usual ones.
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
