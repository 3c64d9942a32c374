"""Base classes of the built-in sparsifiers, and the check of the fractions that they take."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from numbers import Real
from typing import Any, ClassVar

from ..errors import SizeError
from ..ir.format import CSR, Format
from .kinds import Kind
from .names import described


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
