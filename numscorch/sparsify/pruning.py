"""GradualPruning: a model loses more and more of its weights while it is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import SizeError, UnsupportedError
from ..ir.format import Format
from ..pattern import Pattern
from ..sparse_parameter import SparseParameter
from .choosing import Names, bare, check_untied, dense_layers, named, sparse_weights
from .masking import Sparsifier, sparsify
from .repattern import Optimizers, check_held, followers, held, listed, repattern
from .saving import check_names, patterns_of, saved
from .schedules import Schedule
from .sparsifiers import check_fraction
from .swapping import swap


class GradualPruning:
    """Prune a model bit by bit during training, as a schedule says; call :meth:`step` after each ``optimizer.step()``.

    While a layer is denser than where sparse kernels pay, it stays dense and is masked: what is pruned is 0 in the weight, its
    gradient, and what the optimizer remembers. From ``sparse_from`` on, the layer is a ``SparseLinear`` or ``SparseConv2d`` in the same
    place, with the same bias, hooks and names; the optimizer goes on with its values, and what it remembers is gathered. Later steps
    change its pattern. What was pruned stays so.

    A layer that becomes sparse has a new parameter ``weight.values`` for its ``weight``: whoever kept a list of
    ``model.parameters()`` makes it again when :meth:`step` returns True.

    To resume, make model, optimizer and pruning as at first, then load the states in this order: the pruning's, the model's, the
    optimizer's. A copy is made of all at once, ``copy.deepcopy((model, optimizer, pruning))``, since the masks are kept here.

    In processes that train together (``DistributedDataParallel``), the number of parameters must not change. Either give it the
    DistributedDataParallel with ``sparse_from=None``; or give it the model within, and wrap that anew, as ``data_parallel(model)``
    does, whenever :meth:`step` returns True. All processes prune alike, since their weights are equal.

    Args:
        model: some of whose weights are pruned.
        optimizer: those that train it, one or several.
        sparsifier: from a fraction to a sparsifier, as ``magnitude``, or ``lambda f: block_magnitude(16, 1, f)``.
        schedule: from the number of a step to the fraction that is zero then; it never falls.
        weights: patterns of names, as ``"encoder.*.weight"``; by default the weights of all ``torch.nn.Linear`` and ``Conv2d`` that
            aren't of a class derived from these, and the sparse weights of the model.
        sparse_from: the fraction from which on layers are sparse; None for never.
        format: how sparse layers store their weight; by default as the sparsifier says.

    Raises:
        OperandError: a pattern that matches no weight, or a weight that requires grad and that no optimizer holds.
        UnsupportedError: a weight that two layers share, an optimizer whose state can't follow, or DistributedDataParallel with layers
            that would become sparse.

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
        sparsifier: Callable[[float], Sparsifier],
        schedule: Schedule,
        *,
        weights: Names = "*",
        sparse_from: float | None = 0.8,
        format: Format | str | None = None,
    ):
        self.model, self.optimizer = bare(model), listed(optimizer)
        self.sparsifier, self.schedule, self.sparse_from, self.format = sparsifier, schedule, sparse_from, format
        if sparse_from is not None:
            check_fraction(f"sparse_from={sparse_from}", sparse_from)
        chosen = named({**dense_layers(model), **sparse_weights(model)}, weights, "weight that can be pruned")
        self.sparse: dict[str, SparseParameter] = {name: own for name, own in chosen.items() if isinstance(own, SparseParameter)}
        self.dense: dict[str, Any] = {name: own for name, own in chosen.items() if not isinstance(own, SparseParameter)}
        self.dropped: dict[str, torch.Tensor] = {}
        self.count, self.fraction = 0, 0.0
        self._hooks: dict[str, Any] = {}
        check_untied(model, self.dense)
        for name, own in chosen.items():
            check_held(name, own.values if isinstance(own, SparseParameter) else own.weight, self.optimizer)
        if isinstance(model, DistributedDataParallel) and (self.sparse or sparse_from is not None):
            raise UnsupportedError(
                "DistributedDataParallel takes no parameters that change their number of values: give sparse_from=None, by which weights "
                "are masked, or give the model within, and wrap it anew whenever step() returns True"
            )

    def step(self) -> bool:
        """Count a step, and prune where the schedule says so.

        Returns:
            Whether the model has other parameters now, or other numbers of values.

        Raises:
            SizeError: the schedule's fraction fell.
            OperandError: a weight holds NaN; the model is as it was.
        """
        fraction = self.schedule(self.count + 1)
        if fraction < self.fraction:
            raise SizeError(f"{self.schedule} falls from {self.fraction} to {fraction} at step {self.count + 1}: what is pruned stays so")
        changed = fraction > self.fraction and self._prune(fraction)
        self.count, self.fraction = self.count + 1, fraction
        for name, layer in self.dense.items():
            if name in self.dropped:
                self._mask(name, layer.weight)
        return changed

    def _prune(self, fraction: float) -> bool:
        """Give every weight its new mask; all are made before the first one is changed."""
        sparsifier, become_sparse = self.sparsifier(fraction), self.sparse_from is not None and fraction >= self.sparse_from
        patterns = {
            name: sparsify(own.with_values(own.values.detach()), sparsifier, own.format).pattern for name, own in self.sparse.items()
        }
        kept = {name: self._kept(name, layer.weight.detach().flatten(1), sparsifier) for name, layer in self.dense.items()}
        before = {name: own.values.numel() for name, own in self.sparse.items()}
        for name, own in self.sparse.items():
            repattern(own, patterns[name], self._holding(own.values))
        for name, layer in list(self.dense.items()):
            if become_sparse:
                self._make_sparse(name, sparsify(kept[name], lambda mask: mask, self.format or getattr(sparsifier, "format", None)).pattern)
            else:
                self._drop(name, ~kept[name].reshape(layer.weight.shape))
        return before != {name: own.values.numel() for name, own in self.sparse.items()}

    def _kept(self, name: str, weight: torch.Tensor, sparsifier: Sparsifier) -> torch.Tensor:
        """The mask of what is kept of a dense weight, as a matrix."""
        kept = sparsifier(weight)
        return kept & ~self.dropped[name].flatten(1) if name in self.dropped else kept

    def _holding(self, weight: torch.Tensor) -> Optimizers:
        """The optimizers that hold a weight."""
        return [own for own in self.optimizer if any(weight is other for group in own.param_groups for other in group["params"])]

    def _make_sparse(self, name: str, pattern: Pattern) -> None:
        """Put a sparse layer in the place of a dense one."""
        layer = self.dense[name]
        made = swap(self.model, layer, pattern, self._holding(layer.weight))
        self._unhook(name)
        del self.dense[name]
        self.dropped.pop(name, None)
        self.sparse[name] = made.weight

    def _drop(self, name: str, dropped: torch.Tensor) -> None:
        """Mask a dense weight, its gradient, and what optimizers remember."""
        weight = self.dense[name].weight
        self.dropped[name] = dropped
        if weight.grad is not None:
            weight.grad.masked_fill_(dropped, 0)
        for own, state in held(weight, self._holding(weight)):
            for of in followers(state, weight.shape, own):
                state[of].masked_fill_(dropped, 0)
        self._unhook(name)
        self._mask(name, weight)

    def _mask(self, name: str, weight: torch.nn.Parameter) -> None:
        """Zeros where a weight was dropped, in gradients to come, too; one that was frozen has none until it is trained."""
        with torch.no_grad():
            weight.masked_fill_(self.dropped[name], 0)
        if weight.requires_grad and name not in self._hooks:
            self._hooks[name] = weight.register_hook(partial(_masked, self.dropped[name]))

    def _unhook(self, name: str) -> None:
        if name in self._hooks:
            self._hooks.pop(name).remove()

    def state_dict(self) -> dict[str, Any]:
        """The count of steps, the fraction, the masks of dense weights, and the patterns of sparse ones."""
        patterns = {name: saved(own.pattern) for name, own in self.sparse.items()}
        return {"step": self.count, "fraction": self.fraction, "dropped": dict(self.dropped), "patterns": patterns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: layers become sparse, and get the patterns that they had. Load the model's and the optimizer's after it.

        Raises:
            OperandError: the state is of other weights.
            SizeError: weights have other shapes.
            UnsupportedError: a layer is sparse already that was dense.
        """
        patterns, dropped = self._checked(state)
        for name in list(self.dropped):
            self._unhook(name)
        self.dropped = {}
        for name, pattern in patterns.items():
            if name in self.dense:
                self._make_sparse(name, pattern)
            else:
                repattern(self.sparse[name], pattern, self._holding(self.sparse[name].values))
        for name, mask in dropped.items():
            self._drop(name, mask)
        self.count, self.fraction = state["step"], state["fraction"]

    def _checked(self, state: Mapping[str, Any]) -> tuple[dict[str, Pattern], dict[str, torch.Tensor]]:
        """The patterns and masks of a state, if they are of these weights."""
        shapes = {name: tuple(own.shape) for name, own in self.sparse.items()}
        shapes |= {name: tuple(layer.weight.flatten(1).shape) for name, layer in self.dense.items()}
        patterns = patterns_of(state["patterns"], "GradualPruning", {n: s for n, s in shapes.items() if n in state["patterns"]})
        if early := [name for name in self.sparse if name not in patterns]:
            raise UnsupportedError(f"{early[0]} was dense in the state, and is sparse: load it into a model that was made anew")
        dropped: dict[str, torch.Tensor] = dict(state["dropped"])
        check_names(dropped, "GradualPruning", [name for name in dropped if name in self.dense])
        for name, mask in dropped.items():
            if mask.shape != self.dense[name].weight.shape:
                raise SizeError(f"the state has a mask of shape {tuple(mask.shape)} for {name}, which has {shapes[name]}")
        return patterns, dropped

    def __getstate__(self) -> dict[str, Any]:
        """Without handles of hooks, which copies of weights don't have."""
        return {**vars(self), "_hooks": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for name in self.dropped:
            self._mask(name, self.dense[name].weight)

    def __repr__(self) -> str:
        return f"GradualPruning(step {self.count}, {self.fraction:.3g} of {len(self.dense)} dense and {len(self.sparse)} sparse weights)"


def _masked(dropped: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """A gradient without what was dropped."""
    return gradient.masked_fill(dropped, 0)
