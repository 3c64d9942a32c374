"""Texts of formats (letters, and maps from dimensions to levels), and the rules that their levels and parts obey."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from difflib import get_close_matches

from ..errors import FormatError
from .hash_table import Hash
from .implicit import Band, Causal, Identity, Implicit, Offset, Range
from .level import Level, check_parameters
from .levels import Compressed, Dense, Singleton
from .nmg import Combination, Grouped
from .padded import Bitmap, Fixed
from .parts import LARGEST, Part, check_parts, name_of, parse_part

LEVELS: dict[str, type[Level]] = {
    level.spelling: level
    for level in (Dense, Compressed, Singleton, Fixed, Bitmap, Hash, Identity, Band, Causal, Range, Offset, Grouped, Combination)
}
MAP = re.compile(r"\s*\(([^()]*)\)\s*->\s*\((.*)\)\s*", re.DOTALL)
LEVEL = re.compile(r"(\w+)\s*(?:\((.*)\))?")
NAMES = ("CSR", "CSC", "DCSR", "DCSC", "COO(2)", "CSF(3)", "ELL", "DIA", "BCSR(4, 4)", "NM(2, 4)", "NMG(2, 4, 8)")
CSR = "(i, j) -> (i: dense, j: compressed)"
DIAGONALS = "(i, j) -> (j - i: compressed, i: range, j: offset)"  # the text of DIA


def levels_of_letters(text: str) -> tuple[Level, ...]:
    """Parse letters. A run of ``o`` is a coordinate list: all its levels but the last may repeat coordinates."""
    levels: list[Level] = []
    for at, letter in enumerate(text):
        inside, last = at > 0 and text[at - 1] == "o", text[at + 1 : at + 2] != "o"
        match letter:
            case "d":
                levels.append(Dense())
            case "s":
                levels.append(Compressed())
            case "o":
                levels.append(Singleton(unique=last) if inside else Compressed(unique=last))
            case _:
                raise FormatError(_unknown(text, letter))
    return tuple(levels)


def _unknown(text: str, letter: str) -> str:
    """The error text for a format that is neither a name nor letters; it suggests the closest name and lists all names.

    >>> print(_unknown("CRS", "C"))
    unknown format 'CRS': did you mean CSR? valid formats are CSR, CSC, DCSR, DCSC, COO(2), CSF(3), ELL, DIA, BCSR(4, 4), NM(2, 4), ...
    """
    letters = "d (dense), s (compressed), o (coordinate), or the map form, as in"
    if sum(char not in "dso" for char in text) == 1:
        return f'unknown level {letter!r} in format {text!r}: use {letters} Format("{CSR}")'
    heads = {name.partition("(")[0]: name for name in NAMES}
    near = get_close_matches(text.partition("(")[0].strip().upper(), heads, 1)
    suggestion = f"did you mean {heads[near[0]]}? " if near else ""
    if (level := text.strip().lower()) in LEVELS:
        suggestion = f"{level} is a level, as in '(i, j) -> (i: dense, j: {level})'" + ", or as in 'dd'" * (level == "dense") + "; "
    return f"unknown format {text!r}: {suggestion}valid formats are {', '.join(NAMES)}, letters for the levels, {letters} {CSR!r}"


def parse_map(text: str) -> tuple[tuple[Level, ...], tuple[int | Part, ...]]:
    """Parse the map form, ``(i, j) -> (i: dense, j: compressed)``, into levels and the parts they store."""
    match = MAP.fullmatch(text)
    if match is None:
        raise FormatError(f"can't read the format {text!r}: write it as {CSR!r}")
    names = [name.strip() for name in match[1].split(",") if name.strip()]
    if len(set(names)) != len(names):
        raise FormatError(f"a dimension is named twice in {text!r}")
    levels: list[Level] = []
    parts: list[int | Part] = []
    for piece in re.split(r",(?![^()]*\))", match[2]):
        if piece.strip():
            part, _, level = piece.partition(":")
            parts.append(parse_part(part, names, text))
            levels.append(_level(level.strip(), text))
    stored = {part.dimension for part in parts if isinstance(part, Part)}
    if missing := [name for at, name in enumerate(names) if at not in stored]:
        raise FormatError(f"no level stores {', '.join(missing)} in {text!r}: name each dimension's level")
    return tuple(levels), tuple(parts)


def _level(text: str, shown: str) -> Level:
    """Parse a level, such as fixed(2) or compressed(unique=False); ``shown`` is the format's text for errors."""
    match = LEVEL.fullmatch(text)
    if match is None or match[1] not in LEVELS:
        raise FormatError(f"unknown level {text!r} in {shown!r}: the levels are {', '.join(LEVELS)}")
    try:
        call = ast.parse(f"f({match[2] or ''})", mode="eval").body
        positional = [ast.literal_eval(arg) for arg in call.args] if isinstance(call, ast.Call) else []
        keywords = {word.arg or "": ast.literal_eval(word.value) for word in call.keywords} if isinstance(call, ast.Call) else {}
        if any(not isinstance(value, int) or abs(value) > LARGEST for value in [*positional, *keywords.values()]):
            raise TypeError(f"arguments are True, False, or integers of at most {LARGEST}")
        return LEVELS[match[1]](*positional, **keywords)
    except (SyntaxError, TypeError, ValueError) as error:
        raise FormatError(f"can't make the level {text!r} in {shown!r}: {error}") from error


def text_of(levels: Sequence[Level], parts: Sequence[Part]) -> str:
    """The map form of a format, which :func:`parse_map` reads.

    >>> text_of((Dense(), Compressed()), (Part(0), Part(1)))
    '(i, j) -> (i: dense, j: compressed)'
    """
    dimensions = ", ".join(map(name_of, range(len({part.dimension for part in parts}))))
    stored = ", ".join(f"{part}: {level}" for part, level in zip(parts, levels, strict=True))
    return f"({dimensions}) -> ({stored})"


def check_levels(levels: tuple[Level, ...], parts: tuple[Part, ...]) -> None:
    """Check that these levels form a format, in which ``levels[n]`` stores ``parts[n]``.

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
        if isinstance(level, Grouped) and below != Combination(level.n, level.m, level.g):
            raise FormatError(
                f"{level} needs {Combination(level.n, level.m, level.g)} as the level below it, as in NMG(n, m, g), not {below}"
            )
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
