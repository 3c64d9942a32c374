"""Graph breaks: functions that programs which torch compiles call without tracing them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from .modes import function_modes, on_cpu

F = TypeVar("F", bound=Callable[..., Any])


def graph_break(function: F) -> F:
    """Decorate a function that torch.compile must not trace, and that makes tensors on the CPU; tracing it causes a graph break."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # the full name: Dynamo skips functions that do not mention torch
            from .aside import aside  # deferred: it imports torch's compiler

            return aside(function, *args, **kwargs)
        return on_cpu(function, *args, **kwargs) if function_modes() else function(*args, **kwargs)

    return cast("F", call)
