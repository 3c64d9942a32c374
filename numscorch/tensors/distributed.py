"""Implementations for distributed operands, which the package ``sharding`` registers when it is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Handler:
    """How a class of operands computes, and for sparse weights also ``linear`` and the class of their parameters."""

    einsum: Callable[..., Any]
    evaluate: Callable[..., Any]
    linear: Callable[..., Any] | None = None
    parameter: Callable[..., Any] | None = None


HANDLERS: dict[type, Handler] = {}  # by class of operands; empty unless sharding is imported


def handler_of(operands: Iterable[Any]) -> Handler | None:
    """The handler of the first operand that has one."""
    return next((HANDLERS[type(operand)] for operand in operands if type(operand) in HANDLERS), None)
