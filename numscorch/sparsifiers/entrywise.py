"""Sparsifiers that decide entry by entry: all of them, those that are large enough, or random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from ..errors import OperandError, SizeError
from ..ir.format import CSR, Format
from .kinds import Kind
from .magnitude import check_fraction, is_number, lowest, magnitudes
from .names import called_as, described


@dataclass(frozen=True)
class keep_all:
    """Every entry is kept, zeros among them.

    Shape:
        a tensor of any shape and data type, to a bool mask of that shape.

    >>> keep_all()(torch.tensor([3.0, 0.0]))
    tensor([True, True])
    """

    kind: ClassVar[Kind] = Kind.STREAMING
    format: ClassVar[Format] = CSR

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mask of what is kept."""
        return torch.ones_like(tensor, dtype=torch.bool)

    def keeps_value(self, value: Any) -> Any:
        """Whether a kernel keeps a value: always."""
        return True

    def __repr__(self) -> str:
        return "keep_all()"


@called_as("threshold(0.01)")
@dataclass(frozen=True)
class threshold:
    """The entries whose absolute value is greater than t are kept, as torch.nn.functional.hardshrink keeps them.

    Args:
        t: the largest absolute value that becomes zero, taken in the tensor's data type; 0 keeps what isn't 0.

    Shape:
        a tensor of any shape, to a bool mask of that shape, True where an entry is kept.

    Raises:
        SizeError: t is negative, or no number.
        OperandError: the tensor holds NaN, or no floating-point numbers.

    >>> threshold(1.0)(torch.tensor([3.0, -1.0, 0.5, -2.0]))
    tensor([ True, False, False,  True])
    """

    t: float
    kind: ClassVar[Kind] = Kind.STREAMING
    format: ClassVar[Format] = CSR

    def __post_init__(self) -> None:
        if not is_number(self.t) or not self.t >= 0:
            raise SizeError(f"threshold({described(self.t)}): t, the bound of absolute values, is a number of at least 0")

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mask of what is kept."""
        return magnitudes(self, tensor) > self.bound(tensor.dtype)

    def keeps_value(self, value: Any) -> Any:
        """Whether a kernel keeps a value; NaN, too, which is refused when it is found among what was kept."""
        return ~(value.abs() <= self.t)

    def bound(self, dtype: torch.dtype) -> float:
        """t as a number of a data type.

        >>> threshold(0.1).bound(torch.float32) == 0.1, threshold(0.1).bound(torch.float64) == 0.1
        (False, True)
        """
        return torch.tensor(self.t, dtype=dtype).item()

    def __repr__(self) -> str:
        return f"threshold({self.t})"


@called_as("random(0.9)")
@dataclass(frozen=True)
class random:
    """Entries at random places become zero, whatever their values: the same ones each time in tensors of one shape.

    A mask follows from the seed and the shape alone. Copies and pickles of a sparsifier so draw the same one,
    and a mask that was drawn is remembered.

    Args:
        fraction: the share that becomes zero, of all entries.
        seed: of the places; by default one that torch's generator draws as the sparsifier is made.

    Shape:
        a tensor of any shape and data type, to a bool mask of that shape, True where an entry is kept.

    Raises:
        SizeError: the fraction is not between 0 and 1.
        OperandError: the seed is no whole number.

    >>> keep = random(0.5, seed=0)
    >>> int(keep(torch.rand(4, 4)).sum()), bool((keep(torch.rand(4, 4)) == keep(torch.zeros(4, 4))).all())
    (8, True)
    """

    fraction: float
    seed: int | None = None
    _drawn: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)
    kind: ClassVar[Kind] = Kind.MATERIALIZING
    format: ClassVar[Format] = CSR

    def __post_init__(self) -> None:
        check_fraction(self, self.fraction)
        if self.seed is None:
            object.__setattr__(self, "seed", int(torch.randint(1 << 62, ())))
        if not isinstance(self.seed, int) or not -(1 << 63) <= self.seed < 1 << 64:
            raise OperandError(
                f"random({self.fraction}, seed={described(self.seed)}): a seed is a whole number of 64 bits, as torch takes it"
            )

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mask of what is kept."""
        return self.mask_for(tensor.shape).clone()

    def mask_for(self, shape: Sequence[int]) -> torch.Tensor:
        """The mask of any tensor of a shape, which isn't to be written to."""
        known = self._drawn.get(tuple(shape))
        return self._drawn.setdefault(tuple(shape), self._draw(shape)) if known is None else known

    def _draw(self, shape: Sequence[int]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed or 0)
        return ~lowest(torch.rand(tuple(shape), generator=generator, dtype=torch.float64), self.fraction)

    def __getstate__(self) -> dict[str, Any]:
        """What was drawn is drawn again."""
        return {"fraction": self.fraction, "seed": self.seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _drawn={})

    def __repr__(self) -> str:
        return f"random({self.fraction}, seed={self.seed})"
