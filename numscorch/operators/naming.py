"""Names: torch's function of a name, and names and docstrings for generated functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional


def torchs(name: str) -> Callable[..., Any]:
    """torch's function of this name, or torch.nn.functional's."""
    return getattr(torch, name, None) or getattr(functional, name)


def with_name(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    """The function itself, renamed and documented."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function
