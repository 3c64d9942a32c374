"""Base of sparsifiers: kinds, names, checks of arguments, and base classes of the built-in sparsifiers; name patterns of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import wraps
from inspect import signature
from numbers import Real
from typing import Any, ClassVar, TypeVar

import torch

from ..errors import ExpressionError, FormatError, OperandError, SizeError
from ..ir.format import CSR, Format

WHOLE = -1  # block extent that spans the whole dimension; torch.Tensor.expand uses the same convention
Block = tuple[int, int]
T = TypeVar("T")
REGISTERED: dict[str, Any] = {}


class Kind(StrEnum):
    """The part of a tensor that a sparsifier needs to see to decide about an entry.

    Members are strings: ``"streaming"`` equals ``Kind.STREAMING``.

    Attributes:
        STREAMING: the value of the entry, as for :class:`threshold`. The sparsifier may be called with any part of a tensor. In
            ``einsum(..., sparsifier=)``, the kernel of the einsum applies the sparsifier if its comparison can be traced.
        BLOCKING: the values in one block of a matrix, as for :class:`n_m`. The attribute ``block`` of the sparsifier is the shape of a
            block; -1 stands for the whole extent. Kernels apply ``n_m``, too.
        MATERIALIZING: all values, as for :class:`magnitude`; or the shape of the tensor, as for :class:`random`.

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

    ``keeps_value``, which skips the check for NaN, is called if it has the same rule as ``__call__``. It has another rule in a
    subclass that overrides only ``__call__``.

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


def named(sparsifier: Any) -> Any:
    """Return the sparsifier registered under a name; return a callable unchanged.

    Raises:
        OperandError: no sparsifier has this name; or the argument is a class, a budget, a mask, a format, or not callable.

    >>> named("magnitud")
    Traceback (most recent call last):
    ...
    numscorch.OperandError: no sparsifier is registered as 'magnitud': register_sparsifier gives one a name; ...
    """
    if isinstance(sparsifier, type):
        raise OperandError(f"{sparsifier.__name__} is a class, not a sparsifier: call it with its parameters, as in magnitude(0.9)")
    if is_budget(sparsifier):
        share = sparsifier.fraction
        raise OperandError(
            f"{sparsifier!r} is a budget for several weights: give it to the plan's method weights, as in "
            f'SparsityPlan().weights("*", {type(sparsifier).__name__}({share})); for one tensor, use magnitude({share})'
        )
    if isinstance(sparsifier, torch.Tensor):
        raise OperandError(f"{described(sparsifier)} is not a sparsifier: give same_pattern(mask) to keep the entries of a mask")
    if isinstance(sparsifier, Format) or (isinstance(sparsifier, str) and sparsifier not in REGISTERED and _is_format(sparsifier)):
        message = sparsifier.name if isinstance(sparsifier, Format) else repr(sparsifier)
        raise OperandError(f"{message} is a format, not a sparsifier: give it after the sparsifier, as in (..., magnitude(0.9), {message})")
    if callable(sparsifier):
        return sparsifier
    if not isinstance(sparsifier, str):
        raise OperandError(
            f"{sparsifier!r} is not a sparsifier: give a callable that makes a mask of a tensor, such as magnitude(0.9), or lambda t: t > 0"
        )
    if sparsifier not in REGISTERED:
        near = get_close_matches(sparsifier, REGISTERED)
        message = f"did you mean {' or '.join(map(repr, near))}?" if near else "call one with parameters, as in magnitude(0.9)"
        raise OperandError(f"no sparsifier is registered as {sparsifier!r}: register_sparsifier gives one a name; {message}")
    return REGISTERED[sparsifier]


def called_as(example: str) -> Callable[[type[T]], type[T]]:
    """Decorate a class: wrong constructor arguments raise an error that shows a correct call.

    >>> @called_as("half(0.5)")
    ... class half:
    ...     def __init__(self, fraction: float): ...
    >>> half()
    Traceback (most recent call last):
    ...
    numscorch.OperandError: half(): missing a required argument: 'fraction'; call it as half(0.5)
    """

    def decorate(cls: type[T]) -> type[T]:
        construct: Any = cls.__init__
        parameters = signature(construct)

        @wraps(construct)
        def __init__(self: T, *args: Any, **kwargs: Any) -> None:
            try:
                parameters.bind(self, *args, **kwargs)
            except TypeError as error:
                arguments = [*map(described, args), *(f"{name}={described(value)}" for name, value in kwargs.items())]
                raise OperandError(f"{cls.__name__}({', '.join(arguments)}): {error}; call it as {example}") from None
            construct(self, *args, **kwargs)

        cls.__init__ = __init__  # type: ignore[assignment]
        return cls

    return decorate


def is_budget(value: Any) -> bool:
    """Return whether a value is a built-in budget: ``uniform``, ``erk`` or ``global_magnitude``."""
    return getattr(value, "is_budget", False) is True


def described(value: Any) -> str:
    """Format an argument for an error text; a tensor is shown by its shape.

    >>> described("0.5"), described(torch.ones(2, 3))
    ("'0.5'", 'a tensor of shape (2, 3)')
    """
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _is_format(text: str) -> bool:
    try:
        Format(text)
    except FormatError:
        return False
    return True


def matched(pattern: str, names: Iterable[str], message: str) -> list[str]:
    """Return the names that match a shell pattern: ``*`` matches any text, dots included, and ``?`` one character.

    Raises:
        ExpressionError: no name matches. The error starts with ``message`` and lists the nearest names.

    >>> matched("layers.?.weight", ["layers.0.weight", "layers.0.bias"], "")
    ['layers.0.weight']
    >>> matched("layer.*.weight", ["layers.0.weight"], "weights='layer.*.weight' names no parameter")
    Traceback (most recent call last):
    ...
    numscorch.ExpressionError: weights='layer.*.weight' names no parameter: did you mean 'layers.0.weight'?
    """
    names = list(names)
    if matches := [name for name in names if fnmatchcase(name, pattern)]:
        return matches
    raise ExpressionError(f"{message}: {near(pattern, names)}")


def near(pattern: str, names: list[str]) -> str:
    """Suggest the names most similar to a pattern, or else list the first names."""
    if not names:
        return "the model has none"
    close = get_close_matches(pattern, names, 4, 0.5)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"there are {', '.join(map(repr, names[:6]))}{' and others' if len(names) > 6 else ''}"


@dataclass(frozen=True, repr=False)
class BuiltIn:
    """A sparsifier that needs the whole tensor and is stored as CSR, unless its class says otherwise; prints as its call."""

    kind: ClassVar[Kind] = Kind.MATERIALIZING

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the mask of kept entries."""
        raise NotImplementedError

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

    Args:
        fraction: the fraction, between 0 and 1.

    Raises:
        SizeError: the fraction is not between 0 and 1.
    """

    fraction: float

    def __post_init__(self) -> None:
        check_fraction(self, self.fraction)


def check_fraction(sparsifier: object, fraction: Any) -> None:
    """Check that a fraction lies between 0 and 1.

    Raises:
        SizeError: the fraction is another number, or not a number.

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
