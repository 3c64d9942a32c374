"""Graph breaks: functions that torch.compile runs outside the compiled graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from .modes import function_modes, on_cpu

F = TypeVar("F", bound=Callable[..., Any])


def graph_break(function: F) -> F:
    """Decorate a function to run outside the graph that torch.compile traces (a graph break), and to create its tensors on the CPU."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # the full name: Dynamo skips functions that do not mention torch
            from .aside import aside  # deferred: it imports torch's compiler

            return aside(function, *args, **kwargs)
        return on_cpu(function, *args, **kwargs) if function_modes() else function(*args, **kwargs)

    return cast("F", call)
