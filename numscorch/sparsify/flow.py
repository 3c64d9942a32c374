"""The base class of the hooks that sparsify activations and gradients."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.format import Format
from ..sparsifiers.sparsify import Sparsifier


@dataclass(frozen=True)
class Flow:
    """A hook of a plan's rule: the name of the module or parameter, the sparsifier, and the format of the kept entries.

    Without a format, the kept entries stay in a dense tensor.
    """

    name: str
    sparsifier: Sparsifier
    format: Format | None = None
