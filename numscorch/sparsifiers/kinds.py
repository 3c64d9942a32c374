"""Kinds of sparsifiers: the part of a tensor that a sparsifier needs to decide on one entry."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

WHOLE = -1  # block extent that spans the whole dimension; torch.Tensor.expand uses the same convention
Block = tuple[int, int]


class Kind(StrEnum):
    """The part of a tensor that a sparsifier needs to decide whether to keep an entry.

    * STREAMING: the value of the entry, as for ``threshold``. The sparsifier may be called with any part of a tensor.
      The kernel that computes a result applies it (``einsum(..., sparsifier=)``) if its comparison can be traced.
    * BLOCKING: the values in one block of a matrix, as for ``n_m``, which kernels also apply. ``block`` is the shape of
      the block; -1 is the whole extent.
    * MATERIALIZING: all values, or the shape of the tensor, as for ``magnitude`` and ``random``.

    Source: Ivanov, Dryden, Ben-Nun, Ashkboos, Hoefler, "STen: productive and efficient sparsity in PyTorch", 2023, section 3.

    >>> from numscorch.sparsify import magnitude, threshold
    >>> threshold(0.1).kind == "streaming", str(magnitude(0.9).kind)
    (True, 'materializing')
    """

    STREAMING = "streaming"
    BLOCKING = "blocking"
    MATERIALIZING = "materializing"


def kind_of(sparsifier: Any) -> Kind:
    """Return the kind of a sparsifier; a callable without a ``kind`` is materializing.

    >>> str(kind_of(lambda t: t > 0))
    'materializing'
    """
    return Kind(getattr(sparsifier, "kind", Kind.MATERIALIZING))


def kept_by(sparsifier: Any, value: Any) -> Any:
    """Return a streaming sparsifier's answer for a proxy.

    ``keeps_value``, which skips the check for NaN, is called if it has the same rule as ``__call__``: a subclass that overrides
    only ``__call__`` has another rule.

    >>> import torch
    >>> from numscorch.sparsify import threshold
    >>> class Positive(threshold):
    ...     def __call__(self, tensor):
    ...         return tensor > self.t
    >>> value = torch.tensor([-3.0, torch.nan])
    >>> kept_by(threshold(1.0), value), kept_by(Positive(1.0), value)
    (tensor([True, True]), tensor([False, False]))
    """
    order = type(sparsifier).__mro__
    depths = [next((at for at, cls in enumerate(order) if name in vars(cls)), len(order)) for name in ("keeps_value", "__call__")]
    return sparsifier.keeps_value(value) if depths[0] < len(order) and depths[0] <= depths[1] else sparsifier(value)
