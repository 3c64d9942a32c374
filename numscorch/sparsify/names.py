"""The names of registered sparsifiers."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from ..errors import OperandError

REGISTERED: dict[str, Any] = {}


def named(sparsifier: Any) -> Any:
    """The sparsifier that was registered under a name; anything but a name as it is.

    Raises:
        OperandError: no sparsifier has this name.

    >>> named("magnitud")
    Traceback (most recent call last):
    ...
    numscorch.errors.OperandError: no sparsifier is registered as 'magnitud': register_sparsifier gives one a name; ...
    """
    if not isinstance(sparsifier, str):
        return sparsifier
    if sparsifier not in REGISTERED:
        near = get_close_matches(sparsifier, REGISTERED)
        told = f"did you mean {' or '.join(map(repr, near))}?" if near else "those with parameters are called, as magnitude(0.9)"
        raise OperandError(f"no sparsifier is registered as {sparsifier!r}: register_sparsifier gives one a name; {told}")
    return REGISTERED[sparsifier]
