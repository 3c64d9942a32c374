"""Dynamic sparse training: SET and RigL drop the smallest entries of a weight during training, and grow as many others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from ..errors import OperandError, UnsupportedError
from ..ir.format import Format
from ..nn.weights import block_entries, block_of
from ..sparsifiers.base import check_fraction
from ..sparsifiers.magnitude import block_sums
from ..tensors.packing import coordinates, of_entries, pack
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from .checks import check_current, check_placed, check_values, share_at
from .data_parallel_patterns import check_patterns, group_of, summed
from .loading import check_keys, patterns_of, saved
from .matching import Names, bare, named, sparse_weights
from .probes import Probe, watched_layers
from .replacement import Optimizers, as_stored, check_followers, listed, repattern
from .schedules import Schedule, check_count, check_steps, cosine, one_shot


class Units:
    """The entries or blocks of a matrix in a format, numbered in row-major order.

    Attributes:
        block: rows and columns of a unit.
        grid: numbers of units along the rows and the columns of the matrix.
        count: the number of units of the matrix.

    Raises:
        UnsupportedError: the tensor is not a matrix; or the format stores a fixed number of entries per row or group,
            or diagonals.

    >>> import numscorch as ns
    >>> units = Units(ns.BCSR(2, 2), (4, 6))
    >>> units.grid, units.count
    ((2, 3), 6)
    >>> units.sums(units.pattern(torch.tensor([1, 5]), "int32"), torch.ones(8))
    (tensor([1, 5]), tensor([4., 4.]))
    """

    def __init__(self, format: Format, shape: tuple[int, ...]):
        if len(shape) != 2:
            raise UnsupportedError(f"a weight of shape {shape}: entries are dropped and grown only in matrices")
        if any(level.spaced for level in format.levels) or any(part.minus is not None for part in format.parts):
            raise UnsupportedError(
                f"a weight in {format.name}, which restricts the positions of entries: drop and grow in CSR or BCSR; "
                "for n:m patterns, use straight_through"
            )

        self.format, self.shape, self.block = format, shape, block_of(format)
        self.grid = -(-shape[0] // self.block[0]), -(-shape[1] // self.block[1])
        self.count = self.grid[0] * self.grid[1]

    def sums(self, pattern: Pattern, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sorted numbers of the stored units, and the sum of each unit's scores.

        ``scores`` has one score per stored value.
        """
        rows, columns = coordinates(pattern)
        keys, which = torch.unique(rows // self.block[0] * self.grid[1] + columns // self.block[1], return_inverse=True)
        return keys, scores.new_zeros(len(keys)).index_add_(0, which, of_entries(pattern, scores))

    def dense_sums(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the sums (count,) of all units, for scores of the whole matrix."""
        return block_sums(scores, *self.block).flatten()

    def pattern(self, keys: torch.Tensor, index_dtype: str) -> Pattern:
        """Return the pattern that stores the units with these numbers."""
        columns = max(self.grid[1], 1)
        indices = block_entries(torch.stack([keys // columns, keys % columns]), self.block, self.shape)
        return pack(indices.numpy(), self.shape, self.format, np.dtype(index_dtype))[0]


class Evolution:
    """Drops the smallest entries of a model's weights during training, and grows as many others."""

    RESUMED: ClassVar[str]  # the attribute of a subclass that its state has, too

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
        check_current(self.model, self.weights, type(self).__name__)
        changed = self._is_due(self.count + 1) and self._update(self.count + 1)
        self.count += 1
        return changed

    def _is_due(self, step: int) -> bool:
        return step % self.every == 0 and (self.until is None or step < self.until)

    def _update(self, step: int) -> bool:
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
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the state for :meth:`load_state_dict`: the count of steps, the patterns, and the state of the random generator of SET.

        The state of RigL says whether a change is postponed instead.
        """
        return {
            "step": self.count,
            "patterns": {name: saved(weight.pattern) for name, weight in self.weights.items()},
            self.RESUMED: getattr(self, self.RESUMED),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, and give the weights its patterns; load the model and the optimizer after it.

        Args:
            state: the result of :meth:`state_dict`.

        Raises:
            OperandError: the state belongs to another class or to other weights; nothing is changed.
            SizeError: weights have other shapes.
            FormatError: index arrays violate an invariant of their format.
        """
        owner = type(self).__name__
        check_keys(state, owner, self.state_dict())
        check_count(f"the state of {owner}", state["step"])
        patterns = patterns_of(state["patterns"], owner, {name: weight.pattern.shape for name, weight in self.weights.items()})
        for name, pattern in {name: as_stored(self.weights[name], pattern) for name, pattern in patterns.items()}.items():
            repattern(self.weights[name], pattern, self.optimizer)
        self.count = state["step"]
        setattr(self, self.RESUMED, state[self.RESUMED])

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


class SET(Evolution):
    """Sparse evolutionary training: drop the smallest entries, and grow as many at random positions.

    Call :meth:`step` after each ``optimizer.step()``. A weight keeps its number of entries, or of blocks if its format stores whole
    blocks. Grown entries and their optimizer state start at 0. Frozen weights are not changed.

    To resume, make the model, the optimizer and SET as before. Then load the states in this order: SET, model, optimizer.

    With a ``DistributedDataParallel`` model, the initial patterns are compared. All processes draw the same random numbers, so the
    patterns stay equal.

    Args:
        model: the model whose sparse weights are changed.
        optimizer: the optimizers that train it, one or several.
        every: number of steps between changes.
        fraction: the fraction of each weight's entries that is replaced. Or a schedule: a function from the number of a step to the
            fraction.
        until: the step from which on nothing changes; None for no limit.
        weights: one or several name patterns, such as ``"encoder.*.weight"``.
        seed: the seed of the random positions.

    Raises:
        ExpressionError: a pattern names no sparse weight.
        OperandError: an argument has another type, or a weight requires grad and the optimizer does not hold it.
        UnsupportedError: a format restricts the positions of entries, as NM does; a weight is on the meta device; an optimizer's state
            cannot follow; or patterns differ between processes.
        SizeError: a fraction is not between 0 and 1, or a number of steps is not positive.

    Source: Mocanu, Mocanu, Stone, Nguyen, Gibescu, Liotta, "Scalable training of artificial neural networks with adaptive sparse
    connectivity inspired by network science", 2018.

    >>> from numscorch.nn import SparseLinear
    >>> model = SparseLinear(8, 4, density=0.25)
    >>> evolve = SET(model, torch.optim.Adam(model.parameters()), every=2, fraction=0.5)
    >>> evolve.step(), evolve.step(), model.weight.nnz
    (False, True, 8)
    """

    RESUMED = "generator"

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
        if not isinstance(seed, int):
            raise OperandError(f"SET(seed={seed!r}): a seed has to be an integer, such as 0")
        self.generator = torch.Generator().manual_seed(seed).get_state()  # the state, since a generator cannot be copied
        schedule = scheduled("SET", fraction, until, partial(one_shot, at=0))
        super().__init__(model, optimizer, every, schedule, until, named(model, sparse_weights(model), weights, "sparse weight"))

    def _grown(self, name: str, units: Units, keys: torch.Tensor, kept: torch.Tensor, count: int) -> torch.Tensor:
        """Draw units that are not stored."""
        generator = torch.Generator().set_state(self.generator)
        ranks = drawn(units.count - len(keys), count, generator)
        self.generator = generator.get_state()
        return ranks + torch.searchsorted(keys - torch.arange(len(keys)), ranks, right=True)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, and give the weights its patterns; load the model and the optimizer after it.

        Args:
            state: the result of :meth:`state_dict`.

        Raises:
            OperandError: the state belongs to another class or to other weights; nothing is changed.
            SizeError: weights have other shapes.
            FormatError: index arrays violate an invariant of their format.
        """
        check_keys(state, "SET", self.state_dict())
        if not isinstance(state["generator"], torch.Tensor):
            raise OperandError(
                f"the state of SET has {state['generator']!r} as the state of its generator: give the result of its state_dict()"
            )
        torch.Generator().set_state(state["generator"])  # an invalid state raises here, before anything is changed
        super().load_state_dict(state)


class RigL(Evolution):
    """Rigging the lottery: drop the smallest entries, and grow as many where the dense gradient is largest.

    Call :meth:`step` after each ``optimizer.step()``. The dense gradient of each layer is computed only in the step before a change, and
    accumulated over micro-batches. A weight keeps its number of entries, or of blocks if its format stores whole blocks. Grown entries and
    their optimizer state start at 0. An entry that is dropped and grown in the same step keeps its value and state. Frozen layers, and
    layers that no gradient reached, are not changed. If a gradient is not finite, as with ``torch.amp.GradScaler``, the change is postponed
    by a step.

    To resume, make the model, the optimizer and RigL as before. Then load the states in this order: RigL, model, optimizer.

    With a ``DistributedDataParallel`` model, the initial patterns are compared. Dense gradients are summed over all processes, so the
    patterns stay equal.

    Args:
        model: the model whose ``SparseLinear`` and ``SparseConv2d`` weights are changed.
        optimizer: the optimizers that train it, one or several.
        until: the step from which on nothing changes; the paper uses three quarters of all steps.
        every: number of steps between changes.
        fraction: the initial fraction of each weight's entries that is replaced; it decays as in :class:`schedules.cosine`. Or a
            schedule: a function from the number of a step to the fraction.
        weights: one or several name patterns, such as ``"encoder.*.weight"``.

    Raises:
        ExpressionError: a pattern names no weight of these layers.
        OperandError: an argument has another type, or a weight requires grad and the optimizer does not hold it.
        UnsupportedError: a format restricts the positions of entries, as NM does; a weight is on the meta device; an optimizer's state
            cannot follow; or patterns differ between processes.
        SizeError: a fraction is not between 0 and 1, or a number of steps is not positive.

    Source: Evci, Gale, Menick, Castro, Elsen, "Rigging the lottery: making all tickets winners", 2020.

    >>> from numscorch.nn import SparseLinear
    >>> model = SparseLinear(8, 4, density=0.25)
    >>> rigl = RigL(model, torch.optim.SGD(model.parameters(), lr=0.1), until=100, every=1)
    >>> model(torch.ones(2, 8)).sum().backward()
    >>> rigl.step(), model.weight.nnz
    (True, 8)
    """

    RESUMED = "is_put_off"

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
        super().__init__(model, optimizer, every, scheduled("RigL", fraction, until, partial(cosine, until=until)), until, chosen)
        self.is_put_off = False
        self.probes = {name: Probe() for name in chosen}
        self.gradients: dict[str, torch.Tensor] = {}
        for name, probe in self.probes.items():
            for layer in layers[name]:
                layer.register_forward_hook(probe, with_kwargs=True)
        self._prepare()

    def step(self) -> bool:
        """Count a step, and drop and grow entries at every ``every``-th step; call it after ``optimizer.step()``.

        Returns:
            Whether entries were dropped and grown.

        Raises:
            OperandError: a change is due, but no gradient reached any weight since the last step; or a weight holds
                NaN, or is no longer part of the model. No weight is changed, and the step is not counted.
            SizeError: the schedule returned no valid fraction.
        """
        changed = super().step()
        self._prepare()
        return changed

    def _prepare(self) -> None:
        """Watch the layers if the next step changes weights."""
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
        """Return the units with the largest gradients among those not kept."""
        return units.dense_sums(self.gradients[name].abs()).index_fill_(0, kept, -1.0).topk(count).indices

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, and give the weights its patterns; load the model and the optimizer after it.

        Args:
            state: the result of :meth:`state_dict`.

        Raises:
            OperandError: the state belongs to another class or to other weights; nothing is changed.
            SizeError: weights have other shapes.
            FormatError: index arrays violate an invariant of their format.
        """
        super().load_state_dict(state)
        self._prepare()


def drawn(most: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw distinct numbers below a bound, in no particular order; O(count) memory if few are drawn.

    >>> sorted(drawn(3, 3, torch.Generator()).tolist())
    [0, 1, 2]
    """
    if 4 * count > most:
        return torch.randperm(most, generator=generator)[:count]
    numbers = torch.empty(0, dtype=torch.int64)
    while len(numbers) < count:
        numbers = torch.unique(torch.cat([numbers, torch.randint(most, (2 * count,), generator=generator)]))
    return numbers[torch.randperm(len(numbers), generator=generator)[:count]]
