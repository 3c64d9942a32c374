"""Properties and formats derived from a format: runs of levels, whether results can be appended, and formats without parts."""

from __future__ import annotations

from .format import Format
from .implicit import Range
from .level import Level
from .levels import Compressed, Dense


def runs_of(fmt: Format) -> list[tuple[int, int]]:
    """The (first, last) levels of each run. A run is an iterated level with the branchless levels below it, such as singletons.

    >>> runs_of(Format("dsds")), runs_of(Format("doo"))
    ([(1, 1), (3, 3)], [(1, 2)])
    """
    runs: list[tuple[int, int]] = []
    for at, level in enumerate(fmt.levels):
        if level.branchless and runs and runs[-1][1] == at - 1 and not level.is_located:
            runs[-1] = (runs[-1][0], at)
        elif not level.is_located:
            runs.append((at, at))
    return runs


def can_be_empty(fmt: Format) -> bool:
    """Whether a position may have no entries below it: no run starts with a level that stores one for each position, as a singleton.

    >>> [can_be_empty(Format(f"(i, j) -> (i: dense, j: {level})")) for level in ("compressed", "singleton")]
    [True, False]
    """
    return not any(fmt.levels[first].branchless for first, _ in runs_of(fmt))


def can_be_assembled(fmt: Format) -> bool:
    """Whether a result in this format can be appended to.

    Each run of sparse levels must be a single level, or a coordinate list that ends at the innermost level.
    """
    stored = all(level.full or (level.appended and level.array_dtype("crd") is None) for level in fmt.levels)
    lists = all(first == last or (last == len(fmt.levels) - 1 and not fmt.levels[first].is_unique) for first, last in runs_of(fmt))
    return stored and lists and can_be_empty(fmt) and bool(runs_of(fmt))


def flattened(fmt: Format) -> Format:
    """The format as a loop nest sees it: each level stores a separate dimension, and the levels inside blocks have known extents.

    >>> from numscorch.ir.format import BCSR
    >>> [str(level) for level in flattened(BCSR(2, 3)).levels]
    ['dense', 'compressed', 'dense(2)', 'dense(3)']
    """
    if fmt.is_plain:
        return fmt
    levels = [
        Dense(part.extent(())) if part.modulus and level == Dense() else level for part, level in zip(fmt.parts, fmt.levels, strict=True)
    ]
    return Format.flat(levels)


def realized(flat: Format, base: Format) -> Format:
    """The inverse of :func:`flattened`: the levels of ``flat``, each of which stores the part that ``base`` has for it."""
    if base.is_plain:
        return flat
    return Format([Dense() if level.full else level for level in flat.levels], [base.parts[m] for m in flat.mode_order])


def without_parts(fmt: Format) -> Format:
    """A plain, ordered format that stores the same entries.

    A dimension becomes dense if all its levels are full or ``range``, and so are the levels of outer dimensions that lie
    below its first level. Otherwise it becomes compressed.

    >>> from numscorch.ir.format import BCSR
    >>> without_parts(BCSR(2, 3)).name
    'CSR'
    >>> without_parts(Format("(i, j) -> (i // 2: dense, j: dense, i % 2: compressed)")).name
    'DCSR'
    """
    if fmt.is_plain:
        return fmt
    stored = [(part.dimension, level.full or isinstance(level, Range)) for part, level in zip(fmt.parts, fmt.levels, strict=True)]
    order = list(dict.fromkeys(part.dimension for part in fmt.parts if part.minus is None))
    levels: list[Level] = []
    for place, dimension in enumerate(order):
        above = set(order[: place + 1])
        first = next(at for at, part in enumerate(fmt.parts) if part.dimension == dimension and part.minus is None)
        levels.append(Dense() if all(full for outer, full in stored[first:] if outer in above) else Compressed())
    return Format(levels, order)
