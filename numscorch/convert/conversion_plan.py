"""Plan conversions: the sequence of intermediate formats through which kernels copy entries to a target format.

A kernel reads entries in storage order. It appends them to the next format, or writes them to computed positions if that
format has another order. A reordering of several coordinates takes several kernels, as in a radix sort: each one moves
a coordinate to the front, and keeps the order of the remaining coordinates. Before blocks and diagonals are written,
entries are sorted into a list by the parts of their coordinates. Entries stored in blocks or diagonals are first read into
a list by dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from ..frontend.copy_statements import can_be_copied
from ..ir.derived_formats import can_be_empty, runs_of
from ..ir.format import Format, sorted_format
from ..ir.implicit import PartialLevel
from ..ir.level import Level
from ..ir.levels import Compressed, Dense, Singleton
from ..ir.parts import Part
from ..schedule import tuning

Parts = tuple[Part, ...]
LINE_COORDINATES = 16  # consecutive rows whose next places share a cache line


@lru_cache(maxsize=1024)
def steps_between(source: Format, target: Format, countable: tuple[bool, ...]) -> tuple[Format, ...]:
    """The formats to which kernels copy entries in sequence, ending with the target; empty if kernels do not support the conversion.

    ``countable``: for each dimension, whether it is small enough for an array with one count for each coordinate.

    >>> from numscorch.ir.format import BCSR, COO, CSC, CSR
    >>> [step.name for step in steps_between(CSR, COO(2), (True, True))], [step.name for step in steps_between(CSR, CSC, (True, True))]
    (['COO(2)'], ['CSC'])
    >>> for step in steps_between(CSR, BCSR(1, 2), (True, True)):
    ...     print(step)
    (i, j) -> (i: dense, j // 2: compressed(unique=False), j % 2: singleton)
    (i, j) -> (i: dense, j // 2: compressed, j % 2: dense)
    """
    if source.is_full or source == target or source.order != target.order:
        return ()
    base = _compressed(target, lambda level: level.spaced or isinstance(level, PartialLevel))
    spread = _compressed(target, lambda level: level.spaced)
    if not can_be_written(base) or not can_be_written(spread) or not can_be_spaced(target):
        return ()
    listed = _lists_between(source, base, countable)
    if listed is None:
        return ()
    steps = list(listed)
    for last in (base, spread, target):
        steps += [] if steps and steps[-1] == last else [last]
    pairs = zip([source, *map(sorted_format, steps[:-1])], steps, strict=True)  # intermediate lists count as sorted
    is_copied = all(can_be_copied(start, step) for start, step in pairs if not any(level.spaced for level in step.levels))
    return tuple(steps) if is_copied else ()


@lru_cache(maxsize=1024)
def steps_collecting(dimensions: tuple[int, ...]) -> tuple[Format, ...]:
    """The formats through which unsorted entries with duplicates are coalesced.

    They are lists of entries, followed by a result format without duplicates. The last list is sorted by all but the last coordinate.

    >>> for step in steps_collecting((0, 1, 2)):
    ...     print(step)
    (i, j, k) -> (i: compressed(unique=False, ordered=False), j: singleton(unique=False), k: singleton)
    (i, j, k) -> (j: dense, i: compressed(unique=False, ordered=False), k: singleton)
    (i, j, k) -> (i: dense, j: compressed(unique=False), k: singleton(ordered=False))
    (i, j, k) -> (i: dense, j: compressed, k: compressed)
    """
    order, last = tuple(map(Part, dimensions)), len(dimensions) - 1
    formats = [_listed(order, 0)]
    for left in range(last - 1, -1, -1):
        order = (Part(dimensions[left]), *(part for part in order if part != Part(dimensions[left])))
        formats.append(_listed(order, 1 if left else last, first=1))
    return (*formats, Format([Dense() if last else Compressed(), *(Compressed(),) * last], order))


def buckets(source: Format, step: Format, shape: Sequence[int]) -> Format | None:
    """The intermediate format that groups entries by ranges of the first coordinate; None if one pass suffices.

    Each of the two passes writes to about sqrt(n) places for n coordinates, as in a radix sort: the first one by ``i // size``,
    and the second one, within each of these buckets, by ``i``.

    >>> from numscorch.ir.format import CSC, CSR
    >>> print(buckets(CSR, CSC, (10, 1 << 20)))
    (i, j) -> (j // 1024: dense, j % 1024: compressed(unique=False, ordered=False), i: singleton)
    >>> buckets(CSR, CSC, (1 << 20, 10)), buckets(CSR, CSR, (1 << 20, 1 << 20))
    (None, None)
    """
    first, *others = step.parts
    if shape[first.dimension] < (tuning.SCATTERED_COLUMNS if source.levels[0].is_ordered else tuning.SCATTERED_LINES * LINE_COORDINATES):
        return None
    is_listed = step.levels[0] == Dense() and step.levels[1:] and unordered_list(step) == unordered_list(_listed(step.parts, first=1))
    is_in_order = source.parts[0].dimension == first.dimension and source.levels[0].is_ordered
    if not is_listed or is_in_order or not all(part.is_whole for part in step.parts):
        return None
    size = 2 << (max(shape[first.dimension] - 1, 1).bit_length() - 1) // 2
    return _listed((Part(first.dimension, size), Part(first.dimension, 1, size), *others), 1, first=1)


@lru_cache(maxsize=1024)
def unordered_list(step: Format) -> Format:
    """The format with its first sparse level unordered: entries may be written in any order below each coordinate."""
    levels = [replace(level, ordered=False) if at == 1 and isinstance(level, Compressed) else level for at, level in enumerate(step.levels)]
    return Format(levels, step.parts)


def _lists_between(source: Format, base: Format, countable: Sequence[bool]) -> tuple[Format, ...] | None:
    """The lists between two formats: by dimensions if the source is split, then by target parts; None if a dimension is not countable."""
    dimensions = tuple(map(Part, dict.fromkeys(part.dimension for part in base.parts if part.minus is None)))
    is_plain = source.is_plain and not any(_is_beside(source, part) for part in base.parts)
    plain = () if is_plain else _moved(source, dimensions, countable, None if base.is_plain else _listed(dimensions))
    if plain is None:
        return None
    start = plain[-1] if plain else source
    if start.parts == base.parts and all(level.is_ordered for level in start.levels[:-1]) and not _needs_list(base):
        return plain  # the last level is sorted during the copy
    listed = _moved(start, base.parts, countable, base if _needs_list(base) or not base.is_plain else None)
    return None if listed is None else (*plain, *listed)


def can_be_written(format: Format) -> bool:
    """Whether kernels can write a format: each level supports appending, or its positions follow from coordinates."""
    stored = all(level.is_located or level.appended for level in format.levels)
    lists = all(first == last or not format.levels[first].is_unique for first, last in runs_of(format))
    return stored and lists and can_be_empty(format) and not format.is_full


def can_be_spaced(format: Format) -> bool:
    """Whether a format has at most one spaced level, and only dense levels below it.

    >>> [can_be_spaced(Format(f"(i, j) -> (i: {i}, j: {j})")) for i, j in (("dense", "fixed"), ("hash", "dense"), ("hash", "hash"))]
    [True, True, False]
    """
    spaced = [at for at, level in enumerate(format.levels) if level.spaced]
    return not spaced or all(level == Dense() for level in format.levels[spaced[0] + 1 :])


def _compressed(format: Format, chosen: Callable[[Level], bool]) -> Format:
    """The format with the levels for which ``chosen`` is true replaced by compressed levels."""
    return Format([Compressed() if chosen(level) else level for level in format.levels], format.parts)


def _needs_list(format: Format) -> bool:
    """Whether writing creates or marks a position for each visited coordinate, so that the source must be a list of entries."""
    follows_located = any(end + 1 < len(format.levels) and format.levels[end + 1].is_located for _, end in runs_of(format))
    return follows_located or any(level.mark is not None for level in format.levels[:-1])


def _moved(source: Format, wanted: Parts, countable: Sequence[bool], target: Format | None = None) -> tuple[Format, ...] | None:
    """The lists that reorder entries to the wanted parts; None if a dimension is not countable.

    If a target is given, the last list contains nothing but entries, so that the target can be written from it.

    >>> from numscorch.ir.format import CSC, CSR, Format
    >>> [step.name for step in _moved(CSR, CSC.parts, (True, True))]
    ['CSC']
    >>> [str(step) for step in _moved(Format("sss"), Format("sss", (2, 1, 0)).parts, (True,) * 3)][:1]
    ['(i, j, k) -> (j: dense, i: compressed(unique=False, ordered=False), k: singleton)']
    """
    known = source.parts[: next((at for at, level in enumerate(source.levels) if not level.is_ordered), None)]  # sorted by these parts
    keys = tuple(part for part in wanted if not _follows(part, wanted))
    count = next(k for k in range(len(keys) + 1) if _is_implied(known, keys[:k], keys[k:]))
    if any(not countable[d] for key in keys[:count] for d in (key.dimension, key.minus) if d is not None):
        return None
    order, formats = _every_part(source, wanted), list[Format]()
    if count and len(order) == 1:
        return (_listed(wanted),)  # the only coordinate is sorted during the copy
    for left in range(count - 1, -1, -1):
        order = (keys[left], *(part for part in order if part != keys[left]))
        formats.append(_listed(order, 1 if left else None, first=1))
    if target is not None and not _lists(formats[-1] if formats else source, target):
        formats.append(_listed(wanted, first=int(target.levels[0].full and countable[wanted[0].dimension])))
    return tuple(formats)


def _lists(format: Format, target: Format) -> bool:
    """Whether a format is a list of entries by the target's parts; its first level may be dense if the target's is full."""
    return format == _listed(target.parts) or (target.levels[0].full and format == _listed(target.parts, first=1))


def _is_beside(format: Format, part: Part) -> bool:
    """Whether a part is a diagonal of a format that does not store columns in order below rows."""
    order = format.mode_order
    return part.minus is not None and (not format.is_ordered or order.index(part.minus) > order.index(part.dimension))


def _follows(part: Part, wanted: Parts) -> bool:
    """Whether earlier parts determine this one: of a diagonal, its row and its column, it is the last."""
    trios = ([p for p in wanted if p in (d, Part(d.minus), Part(d.dimension))] for d in wanted if d.minus is not None)
    return any(part == trio[-1] for trio in trios)


def _is_implied(known: Parts, moved: Parts, remaining: Parts) -> bool:
    """Whether, if entries are sorted by ``known``, entries with equal ``moved`` parts are sorted by ``remaining``."""
    if not remaining:
        return True
    fixed = {part.dimension for part in moved if part.is_whole}
    refined: list[Part] = []
    for part in known:
        if part.minus is not None:
            if part.minus not in fixed:
                return False  # across rows, diagonals do not order columns
            part = Part(part.dimension)
        refined += [piece for piece in _refined(part, remaining) if piece not in refined]
    needed = [piece for part in remaining for piece in (_refined(part, known) if _is_whole(part, known) else [part])]
    return [part for part in refined if part in needed] == needed


def _is_whole(part: Part, known: Parts) -> bool:
    """Whether the known parts of a dimension determine its coordinate."""
    pieces = _refined(part, known)
    return pieces[0].modulus == 0 and pieces[-1].divisor == 1 and all(b.modulus == a.divisor for a, b in pairwise(pieces))


def _refined(part: Part, parts: Parts) -> list[Part]:
    """Replace a whole dimension by the parts of it in ``parts``, if there are any."""
    pieces = [other for other in parts if other.dimension == part.dimension and other.minus is None]
    return sorted(pieces, key=lambda p: -p.divisor) if part.is_whole and pieces else [part]


def _every_part(source: Format, wanted: Parts) -> Parts:
    """All parts to list, in the source's order; parts that earlier ones determine come last."""
    every = [part for stored in source.parts if stored.minus is None for part in _refined(Part(stored.dimension), wanted)]
    every = [part for part in wanted if part.minus is not None] + every
    return tuple(sorted(dict.fromkeys(every), key=lambda part: _follows(part, wanted)))


@lru_cache(maxsize=1024)
def _listed(parts: Parts, depth: int | None = None, first: int = 0) -> Format:
    """A list of entries, sorted by the first ``depth`` parts (all by default), whose first ``first`` levels are dense."""
    end = len(parts)
    head = Compressed(unique=first == end - 1, ordered=first != depth)
    tail = [Singleton(unique=at == end - 1, ordered=at != depth) for at in range(first + 1, end)]
    return Format([*[Dense()] * first, head, *tail], parts)
