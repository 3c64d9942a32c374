"""Conversion steps: the formats that kernels copy entries to, one after the other, from one format to another.

Entries are copied in the order in which they are stored, and either appended to the next format, or, where it stores them
in another order, placed. Where several keys are in another order, that takes several kernels, as in a sort by digits: each
one moves a key to the front, and keeps the order of the others. Blocks and diagonals are listed by the parts of their
coordinates first, from which they can be written block by block; and what is stored in them is first read into plain lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

from ..frontend.copy_statements import can_be_copied
from ..ir.derived_formats import runs_of
from ..ir.format import Format, sorted_format
from ..ir.implicit import Implicit
from ..ir.level import Level
from ..ir.levels import Compressed, Dense, Singleton
from ..ir.parts import Part
from .spaced import can_be_spaced

Parts = tuple[Part, ...]


@lru_cache(maxsize=1024)
def steps_between(source: Format, target: Format, countable: tuple[bool, ...]) -> tuple[Format, ...]:
    """The formats that kernels copy entries to, one after the other; none where they can't.

    ``countable`` says for each dimension whether entries can be counted for every coordinate.

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
    base, spread = _compressed(target, lambda level: level.spaced or _refuses(level)), _compressed(target, lambda level: level.spaced)
    if not can_be_written(base) or not can_be_written(spread) or not can_be_spaced(target):
        return ()
    listed = _lists_between(source, base, countable)
    if listed is None:
        return ()
    steps = list(listed)
    for last in (base, spread, target):
        steps += [] if steps and steps[-1] == last else [last]
    return tuple(steps) if _are_copied(source, steps) else ()


def steps_collecting(dimensions: Sequence[int]) -> tuple[Format, ...]:
    """The lists by which entries in any order, some of them twice, become one whose fibres alone are out of order, and then a tensor.

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
        formats.append(_placed(order, 1 if left else last))
    return (*formats, Format([Dense() if last else Compressed(), *(Compressed(),) * last], order))


def _lists_between(source: Format, base: Format, countable: Sequence[bool]) -> tuple[Format, ...] | None:
    """Plain lists of what is stored in parts, and then those by the target's parts; None where entries can't be counted."""
    dimensions = tuple(map(Part, dict.fromkeys(part.dimension for part in base.parts if part.minus is None)))
    is_plain = source.is_plain and not any(_is_beside(source, part) for part in base.parts)
    plain = () if is_plain else _moved(source, dimensions, countable, None if base.is_plain else _listed(dimensions))
    if plain is None:
        return None
    start = plain[-1] if plain else source
    if start.parts == base.parts and all(level.is_ordered for level in start.levels[:-1]) and not _needs_list(base):
        return plain  # what is out of order in the last level is sorted as it is copied
    listed = _moved(start, base.parts, countable, base if _needs_list(base) or not base.is_plain else None)
    return None if listed is None else (*plain, *listed)


def _are_copied(source: Format, steps: Sequence[Format]) -> bool:
    """Whether a kernel makes each step, but for spaced levels, from the one before, whose lists are taken as ordered."""
    starts = [source, *map(sorted_format, steps[:-1])]
    pairs = zip(starts, steps, strict=True)
    return all(can_be_copied(start, step) for start, step in pairs if not any(level.spaced for level in step.levels))


def can_be_written(format: Format) -> bool:
    """Whether kernels write it: levels are appended to, or positions follow from coordinates."""
    stored = all(level.is_located or level.appended for level in format.levels)
    lists = all(first == last or not format.levels[first].is_unique for first, last in runs_of(format))
    return stored and lists and not format.is_full


def _compressed(format: Format, chosen: Callable[[Level], bool]) -> Format:
    """The format with compressed levels in place of the chosen ones, which may refuse entries or are filled in their own way."""
    return Format([Compressed() if chosen(level) else level for level in format.levels], format.parts)


def _refuses(level: Level) -> bool:
    return isinstance(level, Implicit) and level.refuses


def _needs_list(format: Format) -> bool:
    """Whether positions are made, or marked, for all that a loop visits, so that it must visit nothing but entries."""
    follows_located = any(end + 1 < len(format.levels) and format.levels[end + 1].is_located for _, end in runs_of(format))
    return follows_located or any(level.mark is not None for level in format.levels[:-1])


def _moved(source: Format, wanted: Parts, countable: Sequence[bool], target: Format | None = None) -> tuple[Format, ...] | None:
    """Lists of the entries, the last of them in the wanted order, and if a target is written from it, one that has nothing else.

    None where entries can't be counted.

    >>> from numscorch.ir.format import CSC, CSR, Format
    >>> [step.name for step in _moved(CSR, CSC.parts, (True, True))]
    ['CSC']
    >>> [str(step) for step in _moved(Format("sss"), Format("sss", (2, 1, 0)).parts, (True,) * 3)][:1]
    ['(i, j, k) -> (j: dense, i: compressed(unique=False, ordered=False), k: singleton)']
    """
    known = _sorted_by(source)
    keys = tuple(part for part in wanted if not _follows(part, wanted))
    count = next(k for k in range(len(keys) + 1) if _is_implied(known, keys[:k], keys[k:]))
    if any(not countable[d] for key in keys[:count] for d in (key.dimension, key.minus) if d is not None):
        return None
    order, formats = _every_part(source, wanted), list[Format]()
    if count and len(order) == 1:
        return (_listed(wanted),)  # the only coordinate is sorted as it is copied
    for left in range(count - 1, -1, -1):
        order = (keys[left], *(part for part in order if part != keys[left]))
        formats.append(_placed(order, 1 if left else None))
    if target is not None and not _lists(formats[-1] if formats else source, target):
        formats.append(_placed(wanted) if target.levels[0].full and countable[wanted[0].dimension] else _listed(wanted))
    return tuple(formats)


def _lists(format: Format, target: Format) -> bool:
    """Whether a format lists entries by the target's parts; one with a coordinate that has none may be there if the target has it too."""
    return format == _listed(target.parts) or (target.levels[0].full and format == _placed(target.parts))


def _is_beside(format: Format, part: Part) -> bool:
    """Whether a part is a diagonal whose columns don't come in order below its rows."""
    order = format.mode_order
    return part.minus is not None and (not format.is_ordered or order.index(part.minus) > order.index(part.dimension))


def _sorted_by(format: Format) -> Parts:
    """The parts by which entries are sorted: those of the levels down to one without order."""
    count = next((at for at, level in enumerate(format.levels) if not level.is_ordered), len(format.levels))
    return format.parts[:count]


def _follows(part: Part, wanted: Parts) -> bool:
    """Whether a coordinate follows from others before: a diagonal, its row or its column, whichever comes last."""
    for diagonal in wanted:
        trio = [p for p in wanted if diagonal.minus is not None and p in (diagonal, Part(diagonal.minus), Part(diagonal.dimension))]
        if trio and part == trio[-1]:
            return True
    return False


def _is_implied(known: Parts, moved: Parts, rest: Parts) -> bool:
    """Whether entries that agree in what is moved are sorted by the rest, if all are sorted by what is known."""
    if not rest:
        return True
    fixed = {part.dimension for part in moved if part.is_whole}
    refined: list[Part] = []
    for part in known:
        if part.minus is not None:
            if part.minus not in fixed:
                return False  # diagonals of several rows say little of their columns
            part = Part(part.dimension)
        refined += [piece for piece in _refined(part, rest) if piece not in refined]
    needed = [piece for part in rest for piece in (_refined(part, known) if _is_whole(part, known) else [part])]
    return [part for part in refined if part in needed] == needed


def _is_whole(part: Part, known: Parts) -> bool:
    """Whether what is known of a dimension makes it up."""
    pieces = _refined(part, known)
    return pieces[0].modulus == 0 and pieces[-1].divisor == 1 and all(b.modulus == a.divisor for a, b in pairwise(pieces))


def _refined(part: Part, others: Parts) -> list[Part]:
    """A whole dimension as the parts that others have of it."""
    pieces = [other for other in others if other.dimension == part.dimension and other.minus is None]
    return sorted(pieces, key=lambda p: -p.divisor) if part.is_whole and pieces else [part]


def _every_part(source: Format, wanted: Parts) -> Parts:
    """All the parts to list, in the order in which the source has them, but what follows from others at the end."""
    every = [part for stored in source.parts if stored.minus is None for part in _refined(Part(stored.dimension), wanted)]
    every = [part for part in wanted if part.minus is not None] + every
    return tuple(sorted(dict.fromkeys(every), key=lambda part: _follows(part, wanted)))


def _listed(parts: Parts, depth: int | None = None) -> Format:
    """A list of entries, sorted by so many parts, all by default."""
    return Format(_run(0, len(parts), depth), parts)


def _placed(parts: Parts, depth: int | None = None) -> Format:
    """A list of the entries of each coordinate of the first part, sorted by so many parts, all by default."""
    return Format([Dense(), *_run(1, len(parts), depth)], parts)


def _run(first: int, end: int, depth: int | None) -> list[Level]:
    """The levels of a list, from the first one; that at ``depth`` has no order, which says the same of those below it."""
    head = Compressed(unique=first == end - 1, ordered=first != depth)
    return [head, *(Singleton(unique=at == end - 1, ordered=at != depth) for at in range(first + 1, end))]
