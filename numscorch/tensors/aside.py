"""aside: a call beside a program that torch compiles. Imports torch's compiler, so that it is imported by such programs alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])
untraced: Callable[[F], F] = torch.compiler.disable


@untraced
def aside(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A call beside the compiled program, which is in two parts then; with ``fullgraph=True``, torch refuses that."""
    return function(*args, **kwargs)
