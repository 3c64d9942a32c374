"""Entrances to ``torch_compile.py``, which is imported when torch first compiles or records a program: the import takes a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def as_operator(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """See :func:`numscorch.programs.torch_compile.as_operator`."""
    from .torch_compile import as_operator  # deferred: it imports torch's compiler

    return as_operator(name, args, kwargs)


def outside(function: Callable[..., Any], reason: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """See :func:`numscorch.programs.torch_compile.outside`."""
    from .torch_compile import outside  # deferred: it imports torch's compiler

    return outside(function, reason, args, kwargs)


def einsum_as_operator(expr: str, operands: Sequence[Any], format: Any) -> Any:
    """See :func:`numscorch.programs.torch_compile.einsum_as_operator`."""
    from .torch_compile import einsum_as_operator  # deferred: it imports torch's compiler

    return einsum_as_operator(expr, operands, format)
