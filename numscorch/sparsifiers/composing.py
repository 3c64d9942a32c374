"""compose: apply several sparsifiers, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..ir.format import CSR, Format
from .base import Block, Kind, kept_by, kind_of, named
from .sparsify import Sparsifier, mask_of


@dataclass(frozen=True, init=False, repr=False)
class compose:
    """Keep the entries that every sparsifier keeps; each one sees 0 at the entries that earlier ones dropped.

    Fractions still refer to all entries of the tensor.

    Args:
        sparsifiers: callables that make masks, or names of registered sparsifiers.

    Raises:
        OperandError: an argument is not a sparsifier.

    >>> from numscorch.sparsify import n_m, threshold
    >>> few = compose(n_m(1, 2), threshold(1.0))
    >>> few, few(torch.tensor([3.0, -4.0, 0.5, 0.2])), str(few.kind)
    (compose(n_m(1, 2), threshold(1.0)), tensor([False,  True, False, False]), 'blocking')
    """

    sparsifiers: tuple[Any, ...]

    def __init__(self, *sparsifiers: Sparsifier | str):
        object.__setattr__(self, "sparsifiers", tuple(map(named, sparsifiers)))

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the mask of the entries that all sparsifiers keep."""
        kept = torch.ones_like(tensor, dtype=torch.bool)
        for sparsifier in self.sparsifiers:
            kept = kept & mask_of(torch.where(kept, tensor, torch.zeros((), dtype=tensor.dtype)), sparsifier)
        return kept

    def keeps_value(self, value: Any) -> Any:
        """Return whether a kernel keeps a value. NaN is kept, since one of the sparsifiers may refuse it."""
        kept: Any = True
        for sparsifier in self.sparsifiers:
            answer = kept_by(sparsifier, value if kept is True else torch.where(kept, value, 0.0))
            kept = answer if kept is True else kept if answer is True else kept & answer
        return kept if kept is True else kept | (value != value)

    @property
    def kind(self) -> Kind:
        """Streaming if all sparsifiers are; blocking if all others are blocking with one block shape; else materializing."""
        non_streaming = [sparsifier for sparsifier in self.sparsifiers if kind_of(sparsifier) != Kind.STREAMING]
        if not non_streaming:
            return Kind.STREAMING
        blocks = {getattr(sparsifier, "block", None) for sparsifier in non_streaming}
        are_blocking = len(blocks) == 1 and all(kind_of(sparsifier) == Kind.BLOCKING for sparsifier in non_streaming)
        return Kind.BLOCKING if are_blocking else Kind.MATERIALIZING

    @property
    def block(self) -> Block | None:
        """The block shape of a blocking composition; None for other kinds."""
        if self.kind != Kind.BLOCKING:
            return None
        return next(sparsifier.block for sparsifier in self.sparsifiers if kind_of(sparsifier) == Kind.BLOCKING)

    @property
    def format(self) -> Format:
        """The last sparsifier format other than CSR; CSR if there is none."""
        formats = [getattr(sparsifier, "format", None) for sparsifier in self.sparsifiers]
        return next((format_ for format_ in reversed(formats) if isinstance(format_, Format) and format_ != CSR), CSR)

    def __repr__(self) -> str:
        return f"compose({', '.join(map(repr, self.sparsifiers))})"
