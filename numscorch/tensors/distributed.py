"""Implementations for distributed operands, which the package ``sharding`` registers. The first ``DTensor`` operand imports it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from sys import modules
from typing import Any


@dataclass(frozen=True)
class Handler:
    """How a class of operands computes.

    Args:
        einsum, evaluate: the implementations.
        linear: the implementation of ``linear`` with a weight of this class.
        add_bias: adds a plain bias, which every rank holds, to the result of ``linear``.
        parameter: the parameter class for a weight of this class.
        local, saved: suggestions for error texts: what to write in functions for a single process, and how to save an operand.
    """

    einsum: Callable[..., Any]
    evaluate: Callable[..., Any]
    linear: Callable[..., Any] | None = None
    add_bias: Callable[..., Any] | None = None
    parameter: Callable[..., Any] | None = None
    local: str = ""
    saved: str = ""


HANDLERS: dict[type, Handler] = {}  # by class of operands; empty unless sharding is imported
TENSORS, SHARDING = "torch.distributed.tensor", "numscorch.sharding"  # modules


def handler_of(operands: Iterable[Any]) -> Handler | None:
    """The handler of the first operand that has one."""
    if not HANDLERS:
        if TENSORS not in modules or not any(type(operand) is getattr(modules[TENSORS], "DTensor", None) for operand in operands):
            return None
        import_module(SHARDING)
    return next((HANDLERS[type(operand)] for operand in operands if type(operand) in HANDLERS), None)
