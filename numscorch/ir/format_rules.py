"""Rules of formats: the levels store each dimension once, and each level fits the levels above and below it."""

from __future__ import annotations

from ..errors import FormatError
from .format_text import text_of
from .implicit import Implicit, Offset, Range
from .level import Level, check_parameters
from .levels import Singleton
from .parts import Part, check_parts

DIAGONALS = "(i, j) -> (j - i: compressed, i: range, j: offset)"  # the text of DIA


def check_levels(levels: tuple[Level, ...], parts: tuple[Part, ...]) -> None:
    """Check that a format can have these levels, each of which stores the part of the same number.

    Raises:
        FormatError: the parts do not cover each dimension exactly once, or a level does not fit its neighbours.
    """
    is_plain = all(part.is_whole for part in parts)
    mode_order = [part.dimension for part in parts]
    if len(parts) != len(levels) or (is_plain and sorted(mode_order) != list(range(len(levels)))):
        raise FormatError(f"mode order {mode_order} is not an order of the {len(levels)} dimensions: name each of them once")
    if not is_plain:
        check_parts(parts, text_of(levels, parts))
    for at, level in enumerate(levels):
        below = levels[at + 1] if at + 1 < len(levels) else None
        if not level.is_unique and not isinstance(below, Singleton):
            raise FormatError(f"level {at + 1} ({level}) repeats coordinates, so a singleton level must follow it, not {below}")
        if at == 0 and (level.branchless or isinstance(level, Implicit)):
            raise FormatError(f"the first level can't be {level}: it needs a level above it")
        if level.extent is not None:
            raise FormatError(
                f"{level} in {text_of(levels, parts)} has an extent, but extents are inferred from the shape and the blocks: "
                f"write {level.spelling}"
            )
        check_parameters(level)
        level.check(", ".join(map(str, levels[:at])))
        level.check_below(below)
        if isinstance(level, Range | Offset):
            _check_diagonal(levels, parts, at)


def _check_diagonal(levels: tuple[Level, ...], parts: tuple[Part, ...], at: int) -> None:
    """Check that a level of diagonals is above the levels of their rows and columns: (j - i, i: range, j: offset)."""
    first = at if isinstance(levels[at], Range) else at - 1
    row = parts[first]
    column = parts[first + 1] if first + 1 < len(parts) else row
    if first < 1 or parts[first - 1] != Part(column.dimension, minus=row.dimension) or not (row.is_whole and column.is_whole):
        raise FormatError(f"{levels[at]} in {text_of(levels, parts)} needs a level of diagonals above it, as in {DIAGONALS}")
    if levels[first].full:
        raise FormatError(f"{levels[first]} in {text_of(levels, parts)} has rows outside the diagonal: use range, as in {DIAGONALS}")
