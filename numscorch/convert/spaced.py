"""Convert to formats with a spaced level, which allocates room for each parent: a padded width, or a hash table."""

from __future__ import annotations

from math import prod

import numpy as np

from ..errors import FormatError
from ..frontend.copy_statements import copying
from ..ir.format import Format
from ..ir.level import times
from ..ir.levels import Compressed, Dense
from ..runtime.plans import launch
from ..tensors.packing import check_room
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor


def can_be_spaced(format: Format) -> bool:
    """Whether a format has at most one spaced level, and only dense levels below it.

    >>> [can_be_spaced(Format(f"(i, j) -> (i: {i}, j: {j})")) for i, j in (("dense", "fixed"), ("hash", "dense"), ("hash", "hash"))]
    [True, True, False]
    """
    spaced = [at for at, level in enumerate(format.levels) if level.spaced]
    return not spaced or all(level == Dense() for level in format.levels[spaced[0] + 1 :])


def respaced(A: SparseTensor, format: Format) -> SparseTensor:
    """Replace a compressed level by a spaced level, with a kernel that copies the entries parent by parent.

    Raises:
        FormatError: the level cannot store these entries.
    """
    at = next(at for at, level in enumerate(format.levels) if level.spaced)
    sizes, arrays = format.sizes(A.shape), A.pattern.arrays[at]
    children = np.diff(A.pattern.level_arrays(at)[0])
    try:
        level = format.levels[at].fitted(children, sizes[at])
    except FormatError as error:
        raise FormatError(f"level {at + 1} ({format.levels[at]}) of {format} {error}") from error
    check_room(times(level.places(children), prod(sizes[at + 1 :])), level, format)
    below = (Dense(),) * len(sizes[at + 1 :])
    rows, target = Format((Dense(), Compressed(), *below)), Format((Dense(), level, *below))
    part = Pattern(rows, (len(children), *sizes[at:]), ((), arrays, *((),) * len(below)))
    spaced = launch(copying(rows, target), (type(A).trusted(part, A.values),), target)
    levels = (*format.levels[:at], level, *format.levels[at + 1 :])
    stored = (*A.pattern.arrays[:at], *spaced.pattern.arrays[1:])
    return type(A).trusted(Pattern(Format(levels, format.parts), A.pattern.shape, stored), spaced.values)
