"""Kinds of sparsifiers: how much of a tensor each has to see before it can say whether an entry is kept."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

WHOLE = -1  # in a block's shape, the whole extent, as torch's expand takes it
Block = tuple[int, int]


class Kind(StrEnum):
    """What a sparsifier decides by.

    * STREAMING: each entry by its own value, as ``threshold``. It can be asked for any part of a tensor, and the kernel that makes a
      result applies it (``einsum(..., sparsifier=)``), if what it compares can be written down.
    * BLOCKING: each block of a matrix by the values in it, as ``n_m``, which kernels apply, too; ``block`` is the block's shape, -1 the
      whole extent.
    * MATERIALIZING: by all values, or by the tensor's shape, as ``magnitude`` and ``random``.

    Source: Ivanov, Dryden, Ben-Nun, Ashkboos, Hoefler, "STen: productive and efficient sparsity in PyTorch", 2023, section 3.

    >>> from numscorch.sparsify import magnitude, threshold
    >>> threshold(0.1).kind == "streaming", str(magnitude(0.9).kind)
    (True, 'materializing')
    """

    STREAMING = "streaming"
    BLOCKING = "blocking"
    MATERIALIZING = "materializing"


def kind_of(sparsifier: Any) -> Kind:
    """A sparsifier's kind; a callable that declares none has to see the whole tensor.

    >>> str(kind_of(lambda t: t > 0))
    'materializing'
    """
    return Kind(getattr(sparsifier, "kind", Kind.MATERIALIZING))


def kept_by(sparsifier: Any, value: Any) -> Any:
    """What a streaming sparsifier answers for a stand-in: those of ours have a method for it, which tells no numbers from NaN."""
    return sparsifier.keeps_value(value) if has_rule(sparsifier) else sparsifier(value)


def has_rule(sparsifier: Any) -> bool:
    """Whether a sparsifier says by ``keeps_value`` what its call does: a subclass that has another call has another rule.

    >>> from numscorch.sparsify import threshold
    >>> class Positive(threshold):
    ...     def __call__(self, tensor):
    ...         return tensor > self.t
    >>> has_rule(threshold(1.0)), has_rule(Positive(1.0))
    (True, False)
    """
    order = type(sparsifier).__mro__
    makes = [next((at for at, cls in enumerate(order) if name in vars(cls)), len(order)) for name in ("keeps_value", "__call__")]
    return makes[0] < len(order) and makes[0] <= makes[1]
