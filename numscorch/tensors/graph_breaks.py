"""How torch.compile sees functions: as operators of the compiled program, or as graph breaks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import torch

from .methods import METHODS
from .modes import dispatch_modes, function_modes, on_cpu, recorder

DEPENDS = "its result depends on values, or it changes a tensor"
F = TypeVar("F", bound=Callable[..., Any])
is_compiling = torch.compiler.is_compiling


class Shape(tuple[Any, ...]):
    """The shape of a tensor, in its place among the arguments of a call."""

    __slots__ = ()


class TracedFunction(NamedTuple):
    """A function that compiled programs call as an operator.

    Attributes:
        function: the function; which entries its result stores depends on the patterns of its operands, and not on values.
        shape: the shape of a dense result, from the arguments with a :class:`Shape` in the place of each tensor; None if sizes must not
            be symbolic.
        at_values: the function of torch that computes the values of a result with the pattern of all sparse operands.
    """

    function: Callable[..., Any]
    shape: Callable[..., Any] | None = None
    at_values: Callable[..., Any] | None = None


TRACED: dict[str, TracedFunction] = {}  # by the names that programs have


def graph_break(function: F) -> F:
    """Decorate a function to run outside the graph that torch.compile traces (a graph break), and to create its tensors on the CPU."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # the full name: Dynamo skips functions that do not mention torch
            return METHODS["outside"](function, DEPENDS, args, kwargs)
        return on_cpu(function, *args, **kwargs) if function_modes() else function(*args, **kwargs)

    return cast("F", call)


def traced(
    name: str, shape: Callable[..., Any] | None = None, at_values: Callable[..., Any] | None = None, dropout: int | None = None
) -> Callable[[F], F]:
    """Decorate a function that compiled and recorded programs call as an operator; ``name`` is its name in their texts.

    See :class:`TracedFunction`. Calls with arguments that no operator can take are graph breaks. So are calls with dropout, whose
    probability is the argument at place ``dropout``: gradients compute the call again, and need the same random numbers.
    """

    def decorated(function: F) -> F:
        TRACED[name] = TracedFunction(function, shape, at_values)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or (dispatch_modes() and recorder() is not None):
                if dropout is not None and args[dropout]:
                    return METHODS["outside"](function, "it draws random numbers", args, kwargs)
                return METHODS["as_operator"](name, args, kwargs)
            return on_cpu(function, *args, **kwargs) if function_modes() else function(*args, **kwargs)

        return cast("F", call)

    return decorated
