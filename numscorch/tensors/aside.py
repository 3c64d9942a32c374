"""Run a function outside of a program that torch compiles.

Import this module lazily: it imports torch's compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .modes import on_cpu


@torch.compiler.disable  # type: ignore[untyped-decorator]
def aside(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function outside of the compiled program: a graph break, which ``fullgraph=True`` rejects."""
    return on_cpu(function, *args, **kwargs)
