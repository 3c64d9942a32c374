"""compose: several sparsifiers, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..ir.format import CSR, Format
from .kinds import Block, Kind, kept_by, kind_of
from .names import named
from .sparsify import Sparsifier, mask_of


def compose(*sparsifiers: Sparsifier | str) -> Composed:
    """The entries that every one of several sparsifiers keeps, each of which sees 0 where those before it kept nothing.

    A share is still one of all entries.

    Args:
        sparsifiers: callables that make masks, or names of registered ones.

    Raises:
        OperandError: one is not a sparsifier.

    >>> from numscorch.sparsify import n_m, threshold
    >>> few = compose(n_m(1, 2), threshold(1.0))
    >>> few, few(torch.tensor([3.0, -4.0, 0.5, 0.2])), str(few.kind)
    (compose(n_m(1, 2), threshold(1.0)), tensor([False,  True, False, False]), 'blocking')
    """
    return Composed(tuple(map(named, sparsifiers)))


@dataclass(frozen=True)
class Composed:
    """What :func:`compose` makes."""

    sparsifiers: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return compose, self.sparsifiers

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mask of what all of them keep."""
        kept = torch.ones_like(tensor, dtype=torch.bool)
        for sparsifier in self.sparsifiers:
            kept = kept & mask_of(torch.where(kept, tensor, torch.zeros((), dtype=tensor.dtype)), sparsifier)
        return kept

    def keeps_value(self, value: Any) -> Any:
        """Whether a kernel keeps a value; NaN, too, as one of them may refuse it."""
        kept: Any = True
        for sparsifier in self.sparsifiers:
            answer = kept_by(sparsifier, value if kept is True else torch.where(kept, value, 0.0))
            kept = answer if kept is True else kept if answer is True else kept & answer
        return kept if kept is True else kept | (value != value)

    @property
    def kind(self) -> Kind:
        """Streaming if all are, blocking if those that aren't share a block's shape."""
        looking = [sparsifier for sparsifier in self.sparsifiers if kind_of(sparsifier) != Kind.STREAMING]
        if not looking:
            return Kind.STREAMING
        same = {getattr(sparsifier, "block", None) for sparsifier in looking}
        are_blocking = len(same) == 1 and all(kind_of(sparsifier) == Kind.BLOCKING for sparsifier in looking)
        return Kind.BLOCKING if are_blocking else Kind.MATERIALIZING

    @property
    def block(self) -> Block | None:
        """The blocks that a blocking one decides by."""
        if self.kind != Kind.BLOCKING:
            return None
        block: Block = next(sparsifier.block for sparsifier in self.sparsifiers if kind_of(sparsifier) == Kind.BLOCKING)
        return block

    @property
    def format(self) -> Format:
        """That of the last one that asks for another than CSR."""
        wanted = [getattr(format_, "format", None) for format_ in self.sparsifiers]
        return next((format_ for format_ in reversed(wanted) if isinstance(format_, Format) and format_ != CSR), CSR)

    def __repr__(self) -> str:
        return f"compose({', '.join(map(repr, self.sparsifiers))})"
