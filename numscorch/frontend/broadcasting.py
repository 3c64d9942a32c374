"""Broadcast shapes by torch's rules without ``torch.broadcast_shapes``, which imports sympy (0.25 s)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ..errors import SizeError


def broadcast_shape(what: str, *shapes: Sequence[int]) -> tuple[int, ...]:
    """Broadcast shapes by torch's rules; ``what`` names the operation in the error.

    Raises:
        SizeError: the shapes don't broadcast, or a size is negative.

    >>> broadcast_shape("remainder", (2, 1), (3,))
    (2, 3)
    """
    sizes: list[int] = []
    for aligned in zip_longest(*(tuple(shape)[::-1] for shape in shapes), fillvalue=1):
        size, *others = [size for size in aligned if size != 1] or [1]
        if any(other != size for other in others) or size < 0:
            why = "a size is negative" if size < 0 else "the shapes don't broadcast"
            raise SizeError(f"{what} of shapes {' and '.join(str(tuple(shape)) for shape in shapes)}: {why}")
        sizes.append(size)
    return tuple(sizes[::-1])
