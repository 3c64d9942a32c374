"""Dynamic sparse training: SET and RigL drop a weight's least entries and grow others, as many, while it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch

from ..errors import OperandError
from .checks import check_seed, share_at
from .choosing import Names, named, sparse_weights
from .distributed import summed
from .evolution import Evolution, scheduled
from .optimizers import Optimizers
from .probes import Probe, watched_layers
from .saving import check_keys
from .schedules import Schedule, check_steps, cosine, one_shot
from .units import Units


class SET(Evolution):
    """Sparse evolutionary training: the least entries are dropped, and as many others grown at random places.

    Weights keep their number of entries, or of blocks, where their format stores these whole. Grown entries start at 0, and so does
    what the optimizer remembers of them. Frozen weights are left as they are.

    To resume, make model, optimizer and SET as at first, then load the states in this order: SET's, the model's, the optimizer's.
    Given a ``DistributedDataParallel``, all processes draw alike, and their patterns stay equal; these are compared at first.

    Args:
        model: its sparse weights are changed.
        optimizer: those that train it, one or several.
        every: after how many steps.
        fraction: the share of each weight's entries that is replaced, or a schedule of it.
        until: the step from which on nothing is changed; None for never.
        weights: patterns of names, as ``"encoder.*.weight"``.
        seed: of what is drawn.

    Raises:
        ExpressionError: a pattern names no sparse weight.
        OperandError: a weight requires grad, and the optimizer doesn't hold it.
        UnsupportedError: a format with set places, as NM; an optimizer whose state can't follow; patterns that differ between processes.
        SizeError: a fraction that isn't between 0 and 1, or no steps.

    Source: Mocanu, Mocanu, Stone, Nguyen, Gibescu, Liotta, "Scalable training of artificial neural networks with adaptive sparse
    connectivity inspired by network science", 2018.

    >>> from numscorch.nn import SparseLinear
    >>> model = SparseLinear(8, 4, density=0.25)
    >>> evolve = SET(model, torch.optim.Adam(model.parameters()), every=2, fraction=0.5)
    >>> evolve.step(), evolve.step(), model.weight.nnz
    (False, True, 8)
    """

    KEYS: ClassVar[tuple[str, ...]] = (*Evolution.KEYS, "generator")

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizers,
        *,
        every: int = 100,
        fraction: float | Schedule = 0.3,
        until: int | None = None,
        weights: Names = "*",
        seed: int = 0,
    ):
        check_seed("SET", seed)
        self.generator = torch.Generator().manual_seed(seed)
        schedule = scheduled("SET", fraction, until, partial(one_shot, at=0))
        super().__init__(model, optimizer, every, schedule, until, named(model, sparse_weights(model), weights, "sparse weight"))

    def _grown(self, name: str, units: Units, keys: torch.Tensor, kept: torch.Tensor, count: int) -> torch.Tensor:
        """Some of those that weren't stored."""
        ranks = drawn(units.count - len(keys), count, self.generator)
        return ranks + torch.searchsorted(keys - torch.arange(len(keys)), ranks, right=True)

    def state_dict(self) -> dict[str, Any]:
        """The count of steps, the patterns, and the state of the generator."""
        return {**super().state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_keys(state, "SET", self.KEYS)
        if not isinstance(state["generator"], torch.Tensor):
            given = repr(state["generator"])
            raise OperandError(f"the state of SET has {given} as the state of its generator: give what its state_dict() made")
        generator = torch.Generator().set_state(state["generator"])  # which is refused before anything is changed
        super().load_state_dict(state)
        self.generator = generator

    def __getstate__(self) -> dict[str, Any]:
        """A generator can't be copied, but its state can."""
        return {**vars(self), "generator": self.generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.generator = torch.Generator()
        self.generator.set_state(state["generator"])


class RigL(Evolution):
    """Rigging the lottery: the least entries are dropped, and as many grown where the dense weight would have the largest gradient.

    The dense gradient is computed in the steps before a change alone, ``upstream.T @ input`` of each layer, and added up over
    micro-batches; it is never kept in others. Weights keep their number of entries, or of blocks, where their format stores these
    whole. Grown entries start at 0, and so does what the optimizer remembers of them; those that were just dropped may be grown again,
    and keep both, then. Layers that no gradient reached, and frozen ones, are left as they are. Where a gradient overflowed, as
    ``torch.amp.GradScaler`` expects of some, the change is put off by a step.

    To resume, make model, optimizer and RigL as at first, then load the states in this order: RigL's, the model's, the optimizer's.
    Given a ``DistributedDataParallel``, dense gradients are summed over all processes, so that patterns stay equal; these are
    compared at first.

    Args:
        model: the weights of its ``SparseLinear`` and ``SparseConv2d`` layers are changed.
        optimizer: those that train it, one or several.
        until: the step from which on nothing is changed; three quarters of all, in the paper.
        every: after how many steps.
        fraction: the share of each weight's entries that is replaced at first, which falls as :class:`schedules.cosine` does, or a
            schedule of it.
        weights: patterns of names, as ``"encoder.*.weight"``.

    Raises:
        ExpressionError: a pattern names no weight of these layers.
        OperandError: a weight requires grad, and the optimizer doesn't hold it.
        UnsupportedError: a format with set places, as NM; an optimizer whose state can't follow; patterns that differ between processes.
        SizeError: a fraction that isn't between 0 and 1, or no steps.

    Source: Evci, Gale, Menick, Castro, Elsen, "Rigging the lottery: making all tickets winners", 2020.

    >>> from numscorch.nn import SparseLinear
    >>> model = SparseLinear(8, 4, density=0.25)
    >>> rigl = RigL(model, torch.optim.SGD(model.parameters(), lr=0.1), until=100, every=1)
    >>> model(torch.ones(2, 8)).sum().backward()
    >>> rigl.step(), model.weight.nnz
    (True, 8)
    """

    KEYS: ClassVar[tuple[str, ...]] = (*Evolution.KEYS, "is_put_off")

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizers,
        *,
        until: int,
        every: int = 100,
        fraction: float | Schedule = 0.3,
        weights: Names = "*",
    ):
        check_steps(f"RigL(until={until})", until)
        layers = watched_layers(model)
        known = {name: probes[0].weight for name, probes in layers.items()}
        chosen = named(model, known, weights, "weight of a SparseLinear or SparseConv2d")
        schedule = scheduled("RigL", fraction, until, partial(cosine, until=until))
        super().__init__(model, optimizer, every, schedule, until, chosen)
        self.is_put_off = False
        self.probes = {name: Probe() for name in chosen}
        self.gradients: dict[str, torch.Tensor] = {}
        for name, probe in self.probes.items():
            for layer in layers[name]:
                layer.register_forward_hook(probe, with_kwargs=True)
        self._prepare()

    def step(self) -> bool:
        """Count a step, and at every ``every``-th one drop and grow; call it after ``optimizer.step()``.

        Returns:
            Whether entries were dropped and grown.

        Raises:
            OperandError: it is time to, and no gradient reached any weight since the step before; or a weight holds NaN, or the
                model has it no more. No weight is changed, and the step isn't counted.
            SizeError: the schedule returned no share.
        """
        changed = super().step()
        self._prepare()
        return changed

    def _prepare(self) -> None:
        """Watch the layers if weights are changed after the next step."""
        due = self._is_due(self.count + 1)
        for name, probe in self.probes.items():
            probe.watch(self.weights[name] if due and self.weights[name].requires_grad else None)

    def _is_due(self, step: int) -> bool:
        return super()._is_due(step) or self.is_put_off

    def _update(self, step: int) -> bool:
        trained = self._trained()
        self.gradients = summed({name: self.probes[name].gradient for name in trained}, self.weights, self.group)
        if trained and not self.gradients:
            raise OperandError("RigL.step() found no gradient of any weight since the step before: call it after backward()")
        share = share_at(self.fraction, step)
        self.is_put_off = not all(bool(gradient.isfinite().all()) for gradient in self.gradients.values())
        if not self.is_put_off:
            self._change(self.gradients, share)
        self.gradients = {}
        return bool(trained) and not self.is_put_off

    def _grown(self, name: str, units: Units, keys: torch.Tensor, kept: torch.Tensor, count: int) -> torch.Tensor:
        """Those with the largest gradients, of all that aren't kept."""
        scores = units.dense_sums(self.gradients[name].abs()).index_fill_(0, kept, -1.0)
        return scores.topk(count).indices

    def state_dict(self) -> dict[str, Any]:
        """The count of steps, the patterns, and whether a change was put off."""
        return {**super().state_dict(), "is_put_off": self.is_put_off}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.is_put_off = state["is_put_off"]
        self._prepare()


def drawn(most: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Different numbers below a bound, in no order; without room for all of these where few are drawn.

    >>> sorted(drawn(3, 3, torch.Generator()).tolist())
    [0, 1, 2]
    """
    if 4 * count > most:
        return torch.randperm(most, generator=generator)[:count]
    numbers = torch.empty(0, dtype=torch.int64)
    while len(numbers) < count:
        numbers = torch.unique(torch.cat([numbers, torch.randint(most, (2 * count,), generator=generator)]))
    return numbers[torch.randperm(len(numbers), generator=generator)[:count]]
