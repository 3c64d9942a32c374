"""The type of functions that bind a kernel to the sizes of operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Bind = Callable[[Sequence[int]], Callable[..., Any]]
"""From the sizes of the operands (``frontend.operand.symbolic``) to a function from the operands to the result."""
