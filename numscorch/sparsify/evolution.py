"""What SET and RigL share: when weights are changed, what is dropped, and the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch

from ..sparsifiers.magnitude import check_fraction
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from .checks import check_current, check_placed, check_values, share_at
from .choosing import bare
from .distributed import check_patterns, group_of
from .optimizers import Optimizers, check_held, listed
from .repattern import as_stored, repattern
from .saving import check_keys, check_names, patterns_of, saved
from .schedules import Schedule, check_count, check_steps
from .units import Units


class Evolution:
    """Weights of a model that drop their least entries and grow others, as many, while they are trained."""

    KEYS: ClassVar[tuple[str, ...]] = ("step", "patterns")

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
            check_held(name, weight.values, self.optimizer)
            check_placed(name, weight)
        if self.group is not None:
            check_patterns(model)

    def step(self) -> bool:
        """Count a step, and at every ``every``-th one drop and grow; call it after ``optimizer.step()``.

        Returns:
            Whether entries were dropped and grown.

        Raises:
            OperandError: a weight holds NaN, or the model has it no more; no weight is changed, and the step isn't counted.
            SizeError: the schedule returned no share.
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
        """The weights that are trained, whose values can be compared."""
        names = [name for name, weight in self.weights.items() if weight.requires_grad]
        for name in names:
            check_values(name, self.weights[name])
        return names

    def _change(self, names: Iterable[str], share: float) -> None:
        """Drop and grow a share of weights; every pattern is made before the first one is changed."""
        for name, pattern in {name: self._changed(name, self.weights[name], share) for name in names}.items():
            repattern(self.weights[name], pattern, self.optimizer)

    def _changed(self, name: str, weight: SparseParameter, share: float) -> Pattern:
        """A weight's next pattern, with as many units."""
        old = weight.pattern
        units = Units(old.format, old.shape)
        keys, sizes = units.sums(old, weight.values.detach().abs())
        count = min(int(share * len(keys)), units.count - len(keys))
        kept = keys[sizes.sort(stable=True).indices[count:]]
        grown = self._grown(name, units, keys, kept, count)
        return units.pattern(torch.cat([kept, grown]).sort().values, old.index_dtype)

    def _grown(self, name: str, units: Units, keys: torch.Tensor, kept: torch.Tensor, count: int) -> torch.Tensor:
        """The numbers of the units that are grown."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The count of steps, and the patterns."""
        return {"step": self.count, "patterns": {name: saved(weight.pattern) for name, weight in self.weights.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, whose patterns the weights get; load the model's and the optimizer's after it.

        Raises:
            OperandError: the state is another one's, or of other weights; nothing is changed.
            SizeError: weights have other shapes.
        """
        owner = type(self).__name__
        check_keys(state, owner, self.KEYS)
        check_count(f"the state of {owner}", state["step"])
        check_names(state["patterns"], owner, self.weights)
        patterns = patterns_of(state["patterns"], owner, {name: weight.pattern.shape for name, weight in self.weights.items()})
        stored_patterns = {name: as_stored(self.weights[name], pattern) for name, pattern in patterns.items()}
        for name, pattern in stored_patterns.items():
            weight = self.weights[name]
            repattern(weight, pattern, self.optimizer if weight.requires_grad else None)
        self.count = state["step"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(step {self.count}, every {self.every} of {len(self.weights)} weights)"


def scheduled(owner: str, fraction: float | Schedule, until: int | None, make: Callable[[float], Schedule]) -> Schedule:
    """The schedule of a share that is replaced, if that and the last step are some.

    Raises:
        SizeError: they aren't.
    """
    if until is not None:
        check_steps(f"{owner}(until={until})", until)
    if callable(fraction):
        return fraction
    check_fraction(f"{owner}(fraction={fraction})", fraction)
    return make(fraction)
