"""Kinds of sparsifiers, base classes of the built-in ones, and the check of the fractions that they take."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from numbers import Real
from typing import Any, ClassVar

from ..errors import SizeError
from ..ir.format import CSR, Format
from .names import described

WHOLE = -1  # block extent that spans the whole dimension; torch.Tensor.expand uses the same convention
Block = tuple[int, int]


class Kind(StrEnum):
    """The part of a tensor that a sparsifier needs to decide whether to keep an entry.

    * STREAMING: the value of the entry, as for ``threshold``. The sparsifier may be called with any part of a tensor.
      The kernel that computes a result applies it (``einsum(..., sparsifier=)``) if its comparison can be traced.
    * BLOCKING: the values in one block of a matrix, as for ``n_m``, which kernels also apply. ``block`` is the shape of
      the block; -1 is the whole extent.
    * MATERIALIZING: all values, or the shape of the tensor, as for ``magnitude`` and ``random``.

    Source: Ivanov, Dryden, Ben-Nun, Ashkboos, Hoefler, "STen: productive and efficient sparsity in PyTorch", 2023, section 3.

    >>> from numscorch.sparsify import magnitude, threshold
    >>> threshold(0.1).kind == "streaming", str(magnitude(0.9).kind)
    (True, 'materializing')
    """

    STREAMING = "streaming"
    BLOCKING = "blocking"
    MATERIALIZING = "materializing"


def kind_of(sparsifier: Any) -> Kind:
    """Return the kind of a sparsifier; a callable without a ``kind`` is materializing.

    >>> str(kind_of(lambda t: t > 0))
    'materializing'
    """
    return Kind(getattr(sparsifier, "kind", Kind.MATERIALIZING))


def kept_by(sparsifier: Any, value: Any) -> Any:
    """Return a streaming sparsifier's answer for a proxy.

    ``keeps_value``, which skips the check for NaN, is called if it has the same rule as ``__call__``: a subclass that overrides
    only ``__call__`` has another rule.

    >>> import torch
    >>> from numscorch.sparsify import threshold
    >>> class Positive(threshold):
    ...     def __call__(self, tensor):
    ...         return tensor > self.t
    >>> value = torch.tensor([-3.0, torch.nan])
    >>> kept_by(threshold(1.0), value), kept_by(Positive(1.0), value)
    (tensor([True, True]), tensor([False, False]))
    """
    order = type(sparsifier).__mro__
    depths = [next((at for at, cls in enumerate(order) if name in vars(cls)), len(order)) for name in ("keeps_value", "__call__")]
    return sparsifier.keeps_value(value) if depths[0] < len(order) and depths[0] <= depths[1] else sparsifier(value)


@dataclass(frozen=True, repr=False)
class BuiltIn:
    """A sparsifier that needs the whole tensor and is stored as CSR, unless its class says otherwise; prints as its call."""

    kind: ClassVar[Kind] = Kind.MATERIALIZING

    @property
    def format(self) -> Format:
        """The format in which ``sparsify`` stores the kept entries."""
        return CSR

    def __repr__(self) -> str:
        shown = [(field, getattr(self, field.name)) for field in fields(self) if field.repr]
        arguments = [f"{value}" if field.default is MISSING else f"{field.name}={value}" for field, value in shown]
        return f"{type(self).__name__}({', '.join(arguments)})"


@dataclass(frozen=True)
class WithFraction:
    """A value whose first argument is the fraction that becomes zero.

    Raises:
        SizeError: the fraction is not between 0 and 1.
    """

    fraction: float

    def __post_init__(self) -> None:
        check_fraction(self, self.fraction)


def check_fraction(sparsifier: object, fraction: Any) -> None:
    """Check that a fraction lies between 0 and 1.

    Raises:
        SizeError: it does not, or is not a number.

    >>> check_fraction("magnitude(90)", 90)
    Traceback (most recent call last):
    ...
    numscorch.SizeError: magnitude(90): the share that becomes zero lies between 0 and 1, as in 0.9
    >>> check_fraction(WithFraction, "0.5")
    Traceback (most recent call last):
    ...
    numscorch.SizeError: WithFraction: the share that becomes zero lies between 0 and 1, as in 0.9; '0.5' is not a number
    """
    message = "the share that becomes zero lies between 0 and 1, as in 0.9"
    if not is_number(fraction):
        what = sparsifier if isinstance(sparsifier, str) else getattr(sparsifier, "__name__", type(sparsifier).__name__)
        raise SizeError(f"{what}: {message}; {described(fraction)} is not a number")
    if not 0 <= fraction <= 1:
        raise SizeError(f"{sparsifier}: {message}")


def is_number(value: Any) -> bool:
    """Return whether a value is a real number of Python or numpy, and not a bool.

    >>> import numpy as np
    >>> is_number(np.float32(0.5)), is_number("0.5"), is_number(True)
    (True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)
