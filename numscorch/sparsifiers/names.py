"""Names of registered sparsifiers, and name patterns of a model's parameters and modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

import torch

from ..errors import ExpressionError, FormatError, OperandError
from ..ir.format import Format

T = TypeVar("T")
REGISTERED: dict[str, Any] = {}


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
