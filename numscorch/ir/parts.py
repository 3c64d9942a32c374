"""Parts: the coordinate that a level stores: a whole dimension, the block, the offset in a block, or the diagonal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from ..errors import FormatError

LARGEST = 2**31 - 1  # maximum size of a block
NAMES = "ijklmnopqrstuvwxyzabcdefgh"
PART = re.compile(r"([A-Za-z]\w*)\s*(?:-\s*([A-Za-z]\w*)|(?:%\s*(\d+))?\s*(?://\s*(\d+))?)\s*")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of dimension i: i, i // divisor, i % modulus, i % modulus // divisor, or the difference of i and dimension ``minus``.

    A difference numbers the diagonals from the lowest one, so that it starts at 0.

    >>> import numpy as np
    >>> str(Part(1, 4)), Part(1, 4).of(np.array([[7, 7], [0, 11]])).tolist(), Part(1, 4).extent((10, 11))
    ('j // 4', [0, 2], 3)
    """

    dimension: int
    divisor: int = 1
    modulus: int = 0
    minus: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the part is a whole dimension."""
        return self == Part(self.dimension)

    def of(self, coordinates: Any, shape: Sequence[int] = ()) -> Any:
        """The part of coordinates, an array of each dimension. A difference also needs the shape of the tensor."""
        coordinate = coordinates[self.dimension]
        if self.minus is not None:
            coordinate = coordinate - coordinates[self.minus] + (shape[self.minus] - 1)
        coordinate = coordinate % self.modulus if self.modulus else coordinate
        return coordinate // self.divisor if self.divisor > 1 else coordinate

    def extent(self, shape: Sequence[int]) -> int:
        """The number of coordinates of the part, for a tensor of this shape."""
        if self.minus is not None:
            return max(shape[self.dimension] + shape[self.minus] - 1, 0)
        return -(-(self.modulus or shape[self.dimension]) // self.divisor)

    def moved(self, places: Sequence[int] | dict[int, int]) -> Part:
        """The part after dimension d becomes dimension ``places[d]``."""
        minus = None if self.minus is None else places[self.minus]
        return Part(places[self.dimension], self.divisor, self.modulus, minus)

    def __str__(self) -> str:
        text = name_of(self.dimension)
        if self.minus is not None:
            return f"{text} - {name_of(self.minus)}"
        return text + (f" % {self.modulus}" if self.modulus else "") + (f" // {self.divisor}" if self.divisor > 1 else "")


def name_of(dimension: int) -> str:
    """The printed name of a dimension."""
    return NAMES[dimension] if dimension < len(NAMES) else f"i{dimension}"


def parse_part(text: str, names: Sequence[str], whole: str) -> Part:
    """Parse a part; ``whole`` is the format's text for errors.

    Raises:
        FormatError: the text is not a part, or names an unknown dimension.

    >>> parse_part("j % 4", ["i", "j"], "...")
    Part(dimension=1, divisor=1, modulus=4, minus=None)
    """
    match = PART.fullmatch(text.strip())
    if match is None:
        raise FormatError(f"can't read {text.strip()!r} in {whole!r}: a level stores i, i // 4, i % 4, i % 16 // 4, or j - i")
    for name in (match[1], match[2]):
        if name is not None and name not in names:
            raise FormatError(f"{name!r} in {whole!r} is not one of the dimensions ({', '.join(names)})")
    if match[2] is not None:
        return Part(names.index(match[1]), minus=names.index(match[2]))
    numbers = int(match[4] or 1), int(match[3] or 0)
    if max(numbers) > LARGEST:
        raise FormatError(f"{text.strip()!r} in {whole!r}: blocks have at most {LARGEST} coordinates")
    if numbers[0] < 1 or match[3] == "0":
        raise FormatError(f"{text.strip()!r} in {whole!r} divides by 0: blocks have at least one coordinate")
    return Part(names.index(match[1]), *numbers)


def parts_of(order: object) -> tuple[Part, ...]:
    """The parts of a mode order, in which an integer stands for a whole dimension.

    Raises:
        FormatError: the mode order contains something else.

    >>> parts_of((1, 0))
    (Part(dimension=1, divisor=1, modulus=0, minus=None), Part(dimension=0, divisor=1, modulus=0, minus=None))
    """
    try:
        return tuple(m if isinstance(m, Part) else Part(index(m)) for m in order)  # type: ignore[attr-defined]
    except TypeError as error:
        raise FormatError(f"mode_order={order!r} doesn't name dimensions: write their numbers, as mode_order=(1, 0)") from error


def whole_numbers(name: str, *numbers: object, least: int = 1) -> tuple[int, ...]:
    """Check the parameters of a format with this name and return them as integers.

    Raises:
        FormatError: a parameter is not an integer, is too small, or is too large.

    >>> import numpy as np
    >>> whole_numbers("BCSR", np.int32(2), 3)
    (2, 3)
    """
    try:
        integers = tuple(map(index, numbers))  # type: ignore[arg-type]
    except TypeError:
        integers = ()
    if not integers or min(integers) < least or max(integers) > LARGEST:
        raise FormatError(
            f"{name}({', '.join(map(repr, numbers))}) is not a format: its parameters are whole numbers from {least} to {LARGEST}"
        )
    return integers


def check_parts(parts: Sequence[Part], shown: str) -> None:
    """Check that the parts cover each dimension exactly once.

    Raises:
        FormatError: they do not, or the size of a block is not an integer.
    """
    if any(not isinstance(number, int) or number > LARGEST for part in parts for number in (part.divisor, part.modulus)):
        raise FormatError(f"{shown}: blocks have a whole number of coordinates, at most {LARGEST}")
    for dimension in sorted({part.dimension for part in parts} | set(range(max((p.dimension for p in parts), default=-1) + 1))):
        split = sorted((p for p in parts if p.dimension == dimension and p.minus is None), key=lambda p: -p.divisor)
        moduli = [part.modulus for part in split]
        if not split or moduli != [0, *(part.divisor for part in split[:-1])] or split[-1].divisor != 1:
            raise FormatError(
                f"{shown} doesn't store dimension {name_of(dimension)} exactly once: use {name_of(dimension)}, "
                f"or blocks, as in {name_of(dimension)} // 4 and {name_of(dimension)} % 4"
            )
