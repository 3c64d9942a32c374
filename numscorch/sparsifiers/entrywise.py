"""Sparsifiers that decide entry by entry: ``keep_all``, ``threshold`` and ``random``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from ..errors import OperandError, SizeError
from .base import BuiltIn, Kind, WithFraction, called_as, described, is_number
from .magnitude import lowest, magnitudes


@dataclass(frozen=True, repr=False)
class keep_all(BuiltIn):
    """Keep every entry, zeros included.

    Shape:
        the input has any shape and data type; the bool mask has the input's shape.

    >>> keep_all()(torch.tensor([3.0, 0.0]))
    tensor([True, True])
    """

    kind: ClassVar[Kind] = Kind.STREAMING

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the mask of kept entries."""
        return torch.ones_like(tensor, dtype=torch.bool)

    def keeps_value(self, value: Any) -> Any:
        """Return whether a kernel keeps a value: always True."""
        return True


@called_as("threshold(0.01)")
@dataclass(frozen=True, repr=False)
class threshold(BuiltIn):
    """Keep the entries whose absolute value is greater than t, as torch.nn.functional.hardshrink does.

    Args:
        t: the largest absolute value that becomes zero, rounded to the tensor's data type; 0 keeps all nonzeros.

    Shape:
        the input has any shape; the bool mask has the input's shape, and is True where an entry is kept.

    Raises:
        SizeError: t is negative, or not a number.
        OperandError: the tensor holds NaN, or is not floating-point.

    >>> threshold(1.0)(torch.tensor([3.0, -1.0, 0.5, -2.0]))
    tensor([ True, False, False,  True])
    """

    t: float
    kind: ClassVar[Kind] = Kind.STREAMING

    def __post_init__(self) -> None:
        if not is_number(self.t) or not self.t >= 0:
            raise SizeError(f"threshold({described(self.t)}): t, the bound of absolute values, has to be a number of at least 0")

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the mask of kept entries."""
        return magnitudes(self, tensor) > self.bound(tensor.dtype)

    def keeps_value(self, value: Any) -> Any:
        """Return whether a kernel keeps a value. NaN is kept, so that a check of the kept values finds and refuses it."""
        return ~(value.abs() <= self.t)

    def bound(self, dtype: torch.dtype) -> float:
        """Return t rounded to a data type.

        >>> threshold(0.1).bound(torch.float32) == 0.1, threshold(0.1).bound(torch.float64) == 0.1
        (False, True)
        """
        return torch.tensor(self.t, dtype=dtype).item()


@called_as("random(0.9)")
@dataclass(frozen=True, repr=False)
class random(BuiltIn, WithFraction):
    """Zero entries at random positions, whatever their values; tensors of one shape always get the same mask.

    The mask depends only on the seed and the shape, so copies and pickles of a sparsifier draw the same masks. Masks
    are cached.

    Args:
        fraction: the fraction of all entries that becomes zero.
        seed: the seed of the positions; by default, torch's generator draws one when the sparsifier is made.

    Shape:
        the input has any shape and data type; the bool mask has the input's shape, and is True where an entry is kept.

    Raises:
        SizeError: the fraction is not between 0 and 1.
        OperandError: the seed is not an integer.

    >>> keep = random(0.5, seed=0)
    >>> int(keep(torch.rand(4, 4)).sum()), bool((keep(torch.rand(4, 4)) == keep(torch.zeros(4, 4))).all())
    (8, True)
    """

    seed: int | None = None
    _drawn: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seed is None:
            object.__setattr__(self, "seed", int(torch.randint(1 << 62, ())))
        if not isinstance(self.seed, int) or not -(1 << 63) <= self.seed < 1 << 64:
            raise OperandError(
                f"random({self.fraction}, seed={described(self.seed)}): a seed is an integer of 64 bits, as for torch.manual_seed"
            )

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the mask of kept entries."""
        return self.mask_for(tensor.shape).clone()

    def mask_for(self, shape: Sequence[int]) -> torch.Tensor:
        """Return the cached mask for a shape; callers must not write to it."""
        key = tuple(shape)
        if key not in self._drawn:
            generator = torch.Generator().manual_seed(self.seed or 0)
            self._drawn[key] = ~lowest(torch.rand(key, generator=generator, dtype=torch.float64), self.fraction)
        return self._drawn[key]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the cached masks, which can be drawn again."""
        return {"fraction": self.fraction, "seed": self.seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _drawn={})
