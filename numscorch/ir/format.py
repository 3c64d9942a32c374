"""Formats: a tuple of levels, and the dimension that each level stores.

Three spellings, all accepted by :class:`Format`:

* text, which is also how a format prints: ``(i, j) -> (i: dense, j: compressed)``, or its name, ``CSR``
* one letter a level, as in Scorch (section D.1): ``d`` dense, ``s`` compressed, ``o`` coordinate
* level objects: ``Format((Dense(), Compressed()))``
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import FormatError, UnsupportedError
from .levels import Compressed, Dense, Identity, Level, Singleton

NAMES = "ijklmnopqrstuvwxyzabcdefgh"
LEVELS: dict[str, Level] = {
    "dense": Dense(),
    "compressed": Compressed(),
    "compressed(unique=False)": Compressed(unique=False),
    "singleton": Singleton(),
    "singleton(unique=False)": Singleton(unique=False),
    "identity": Identity(),
}
MAP = re.compile(r"\s*\(([^()]*)\)\s*->\s*\((.*)\)\s*")


@dataclass(frozen=True, slots=True, init=False)
class Format:
    """How a tensor is stored: one level after another, each for one dimension.

    Args:
        levels: text (``"ds"`` or the map form) or level objects, outermost first.
        mode_order: the dimension each level stores; by default 0, 1, 2, ...

    Raises:
        FormatError: unknown levels, a mode order that is no permutation, or a level with
            repeated coordinates that no singleton level follows.

    >>> Format("(i, j) -> (i: dense, j: compressed)") == Format("ds")
    True
    >>> print(Format("ds", mode_order=[1, 0]))
    (i, j) -> (j: dense, i: compressed)
    """

    levels: tuple[Level, ...]
    mode_order: tuple[int, ...]

    def __init__(self, levels: str | Iterable[Level], mode_order: Sequence[int] | None = None):
        if isinstance(levels, str):
            parsed, order = _parse(levels, mode_order)
        else:
            parsed = tuple(levels)
            order = tuple(mode_order) if mode_order is not None else tuple(range(len(parsed)))
        object.__setattr__(self, "levels", parsed)
        object.__setattr__(self, "mode_order", order)
        _check(self)

    @property
    def order(self) -> int:
        """Number of dimensions."""
        return len(self.levels)

    @property
    def is_dense(self) -> bool:
        """Whether every level is full, so that nothing but values is stored."""
        return all(level.full for level in self.levels)

    @property
    def name(self) -> str:
        """The usual name (CSR, COO, ...), or the letters where there is none."""
        for name, other in named_formats(self.order).items():
            if self == other:
                return name
        if self.is_dense:
            return "dense" if self.is_row_major else f"dense{list(self.mode_order)}"
        letters = "".join(level.letter if level.is_unique else "o" for level in self.levels)
        if set(letters) - set("dso") or Format(letters).levels != self.levels:
            return str(self)
        return letters if self.is_row_major else f"{letters}{list(self.mode_order)}"

    @property
    def is_row_major(self) -> bool:
        """Whether levels come in the order of the dimensions."""
        return self.mode_order == tuple(range(self.order))

    def level_of(self, dimension: int) -> Level:
        """The level that stores a dimension."""
        return self.levels[self.mode_order.index(dimension)]

    def permuted(self, permutation: Sequence[int]) -> Format:
        """The format of the tensor whose dimension d is this one's ``permutation[d]``.

        >>> CSR.permuted((1, 0)) == CSC
        True
        """
        place = {old: new for new, old in enumerate(permutation)}
        return Format(self.levels, tuple(place[m] for m in self.mode_order))

    def __str__(self) -> str:
        names = [NAMES[d] if d < len(NAMES) else f"i{d}" for d in range(self.order)]
        stored = ", ".join(f"{names[m]}: {level}" for m, level in zip(self.mode_order, self.levels, strict=True))
        return f"({', '.join(names)}) -> ({stored})"

    def __repr__(self) -> str:
        return f'Format("{self}")'


def _parse(text: str, mode_order: Sequence[int] | None) -> tuple[tuple[Level, ...], tuple[int, ...]]:
    named = _from_name(text)
    if named is not None and mode_order is None:
        return named.levels, named.mode_order
    if "->" not in text:
        levels = _from_letters(text)
        return levels, tuple(mode_order) if mode_order is not None else tuple(range(len(levels)))
    if mode_order is not None:
        raise FormatError(f"mode_order={list(mode_order)} was given beside the map {text!r}, which already says it: leave it out")
    return _from_map(text)


def _from_name(text: str) -> Format | None:
    """The format with a usual name, as CSR or COO(3)."""
    found = re.fullmatch(r"([A-Z]+)(?:\((\d+)\))?", text.strip().upper())
    if found is None or set(text) <= set("dso"):
        return None
    order = int(found[2] or 2)
    return named_formats(order).get(found[0], named_formats(order).get(f"{found[1]}({order})"))


def _from_letters(text: str) -> tuple[Level, ...]:
    """A run of ``o`` is a list of coordinates: all but its last level repeat coordinates."""
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
                raise FormatError(
                    f"unknown level {letter!r} in format {text!r}: use d (dense), s (compressed), o (coordinate), "
                    f"or the map form, as in {CSR!r}"
                )
    return tuple(levels)


def _from_map(text: str) -> tuple[tuple[Level, ...], tuple[int, ...]]:
    found = MAP.fullmatch(text)
    if found is None:
        raise FormatError(f"can't read the format {text!r}: write it as {str(CSR)!r}")
    names = [name.strip() for name in found[1].split(",") if name.strip()]
    levels, order = [], []
    for part in re.split(r",(?![^()]*\))", found[2]):
        if not part.strip():
            continue
        dimension, _, level = (piece.strip() for piece in part.partition(":"))
        if "//" in dimension or "%" in dimension:
            raise UnsupportedError(f"blocked levels ({dimension!r} in {text!r}) are not compiled yet: store the dimension in one level")
        if dimension not in names:
            raise FormatError(f"{dimension!r} in {text!r} is not one of the dimensions ({', '.join(names)})")
        if level not in LEVELS:
            raise FormatError(f"unknown level {level!r} in {text!r}: the levels are {', '.join(LEVELS)}")
        levels.append(LEVELS[level])
        order.append(names.index(dimension))
    if len(set(names)) != len(names):
        raise FormatError(f"a dimension is named twice in {text!r}")
    return tuple(levels), tuple(order)


def _check(fmt: Format) -> None:
    if sorted(fmt.mode_order) != list(range(len(fmt.levels))):
        raise FormatError(f"mode order {list(fmt.mode_order)} is not an order of the {len(fmt.levels)} dimensions: name each of them once")
    for at, level in enumerate(fmt.levels):
        below = fmt.levels[at + 1] if at + 1 < len(fmt.levels) else None
        if not level.is_unique and not isinstance(below, Singleton):
            raise FormatError(f"level {at + 1} ({level}) repeats coordinates, so a singleton level must follow it, not {below}")
        if at == 0 and level.branchless:
            raise FormatError(f"the first level can't be {level}: it needs a level above it")


def as_format(value: object) -> Format:
    """A format from a Format or its text.

    Raises:
        FormatError: it is neither; ``COO`` and ``CSF`` need their order.
    """
    if isinstance(value, Format):
        return value
    if isinstance(value, str):
        return Format(value)
    if value in (COO, CSF):
        raise FormatError(f"{getattr(value, '__name__', value)} needs the number of dimensions, as {getattr(value, '__name__', value)}(2)")
    raise FormatError(f"{value!r} is no format: use a Format, as CSR, or its text, as {str(CSR)!r}")


def runs_of(fmt: Format) -> list[tuple[int, int]]:
    """(first, last) level of each run: a compressed level, and the singletons below it.

    >>> runs_of(Format("dsds")), runs_of(Format("doo"))
    ([(1, 1), (3, 3)], [(1, 2)])
    """
    runs: list[tuple[int, int]] = []
    for at, level in enumerate(fmt.levels):
        if level.branchless and runs:
            runs[-1] = (runs[-1][0], at)
        elif not level.full:
            runs.append((at, at))
    return runs


def can_be_assembled(fmt: Format) -> bool:
    """Whether every run is one unique level, or a list of coordinates that ends in values."""
    stored = all(level.full or level.arrays for level in fmt.levels)
    lists = all(first == last or (last == fmt.order - 1 and not fmt.levels[first].is_unique) for first, last in runs_of(fmt))
    return stored and lists and bool(runs_of(fmt))


def dense(order: int) -> Format:
    """All levels dense, row-major."""
    return Format("d" * order)


def COO(order: int) -> Format:
    """Coordinate list of an order-n tensor, sorted by rows, without duplicates."""
    return Format("o" * order)


def CSF(order: int) -> Format:
    """Compressed sparse fibres: every level compressed (Smith, Karypis, 2015)."""
    return Format("s" * order)


CSR = Format("ds")
CSC = Format("ds", (1, 0))
DCSR = Format("ss")
DCSC = Format("ss", (1, 0))


def named_formats(order: int) -> dict[str, Format]:
    """The formats of an order that have a usual name."""
    matrix = {"CSR": CSR, "CSC": CSC, "DCSR": DCSR, "DCSC": DCSC} if order == 2 else {}
    lists = {f"COO({order})": COO(order)} if order > 1 else {}
    return matrix | lists | ({f"CSF({order})": CSF(order)} if order > 2 else {})
