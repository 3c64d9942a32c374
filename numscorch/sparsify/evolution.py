"""The common part of SET and RigL: when weights change, which entries are dropped, and the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..sparsifiers.built_in import check_fraction
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from .checks import check_current, check_placed, check_values, share_at
from .choosing import bare
from .distributed import check_patterns, group_of
from .optimizers import Optimizers, check_followers, listed
from .repattern import as_stored, repattern
from .saving import check_keys, patterns_of, saved
from .schedules import Schedule, check_count, check_steps
from .units import Units


class Evolution:
    """Drops the smallest entries of a model's weights during training, and grows as many others."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizers,
        every: int,
        fraction: Schedule,
        until: int | None,
        weights: Mapping[str, SparseParameter],
    ):
        self.every, self.fraction, self.until = every, fraction, until
        self.model, self.optimizer, self.weights, self.group = bare(model), listed(optimizer), dict(weights), group_of(model)
        self.count = 0
        check_steps(f"{type(self).__name__}(every={every})", every)
        for name, weight in self.weights.items():
            Units(weight.pattern.format, weight.pattern.shape)
            check_followers(name, weight.values, self.optimizer)
            check_placed(name, weight)
        if self.group is not None:
            check_patterns(model)

    def step(self) -> bool:
        """Count a step, and drop and grow entries at every ``every``-th step; call it after ``optimizer.step()``.

        Returns:
            Whether entries were dropped and grown.

        Raises:
            OperandError: a weight holds NaN, or is no longer part of the model; no weight is changed, and the step is
                not counted.
            SizeError: the schedule returned no valid fraction.
        """
        for name, weight in self.weights.items():
            check_current(self.model, name, weight, type(self).__name__)
        changed = self._is_due(self.count + 1) and self._update(self.count + 1)
        self.count += 1
        return changed

    def _is_due(self, step: int) -> bool:
        return step % self.every == 0 and (self.until is None or step < self.until)

    def _update(self, step: int) -> bool:
        """Change all weights that are trained."""
        names = self._trained()
        self._change(names, share_at(self.fraction, step))
        return bool(names)

    def _trained(self) -> list[str]:
        """Return the names of the weights that are trained, after a check for NaN."""
        names = [name for name, weight in self.weights.items() if weight.requires_grad]
        for name in names:
            check_values(name, self.weights[name])
        return names

    def _change(self, names: Iterable[str], share: float) -> None:
        """Drop and grow a share of the weights' entries; all patterns are computed before the first weight changes."""
        for name, pattern in {name: self._next_pattern(name, self.weights[name], share) for name in names}.items():
            repattern(self.weights[name], pattern, self.optimizer)

    def _next_pattern(self, name: str, weight: SparseParameter, share: float) -> Pattern:
        """Return a weight's next pattern, with the same number of units."""
        old = weight.pattern
        units = Units(old.format, old.shape)
        keys, sizes = units.sums(old, weight.values.detach().abs())
        count = min(int(share * len(keys)), units.count - len(keys))
        kept = keys[sizes.sort(stable=True).indices[count:]]
        return units.pattern(torch.cat([kept, self._grown(name, units, keys, kept, count)]).sort().values, old.index_dtype)

    def _grown(self, name: str, units: Units, keys: torch.Tensor, kept: torch.Tensor, count: int) -> torch.Tensor:
        """Return the numbers of the units to grow."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the count of steps and the patterns."""
        return {"step": self.count, "patterns": {name: saved(weight.pattern) for name, weight in self.weights.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, and give the weights its patterns; load the model and the optimizer after it.

        Raises:
            OperandError: the state belongs to another class or to other weights; nothing is changed.
            SizeError: weights have other shapes.
        """
        owner = type(self).__name__
        check_keys(state, owner, self.state_dict())
        check_count(f"the state of {owner}", state["step"])
        patterns = patterns_of(state["patterns"], owner, {name: weight.pattern.shape for name, weight in self.weights.items()})
        stored_patterns = {name: as_stored(self.weights[name], pattern) for name, pattern in patterns.items()}
        for name, pattern in stored_patterns.items():
            repattern(self.weights[name], pattern, self.optimizer)
        self.count = state["step"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(step {self.count}, every {self.every} of {len(self.weights)} weights)"


def scheduled(owner: str, fraction: float | Schedule, until: int | None, make: Callable[[float], Schedule]) -> Schedule:
    """Return the schedule of the replaced fraction, after a check of the arguments.

    Raises:
        SizeError: ``fraction`` is not between 0 and 1, or ``until`` is not a positive integer.
    """
    if until is not None:
        check_steps(f"{owner}(until={until})", until)
    if callable(fraction):
        return fraction
    check_fraction(f"{owner}(fraction={fraction})", fraction)
    return make(fraction)
