"""Tensor formats: a tuple of levels, and the dimension or part of a dimension that each level stores.

:class:`Format` accepts three spellings:

* text, as printed: ``(i, j) -> (i: dense, j: compressed)``, or a name such as ``CSR``; a level may store a part
  of a dimension: the block ``i // 4``, the offset ``i % 4`` in the block, or the diagonal ``j - i``
* one letter per level, as in Scorch (section D.1): ``d`` dense, ``s`` compressed, ``o`` coordinate
* level objects: ``Format((Dense(), Compressed()))``
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from ..errors import FormatError, RangeError
from .format_text import DIAGONALS, check_levels, levels_of_letters, parse_map, text_of
from .level import Level
from .levels import Compressed, Dense, Singleton
from .nmg import Combination, Grouped
from .padded import Fixed
from .parts import Part, parts_of, whole_numbers
from .symbolic import Size


@dataclass(frozen=True, init=False)
class Format:
    """The storage format of a tensor: a sequence of levels, each of which stores a dimension or a part of one.

    ``CSR``, ``CSC``, ``DCSR``, ``DCSC``, ``ELL`` and ``DIA`` are formats of matrices. :func:`COO`, :func:`CSF`, :func:`BCSR`,
    :func:`NM` and :func:`NMG` return formats for given parameters. Functions with a parameter ``format`` also accept the text.

    Args:
        levels: a name (``"CSR"``, ``"BCSR(4, 4)"``), a letter per level (``"ds"``), a map (see the examples), or level objects,
            outermost first. Letters are ``d`` dense, ``s`` compressed and ``o`` coordinate.
        mode_order: the dimension, or part of a dimension, that each level stores; by default 0, 1, 2, ...

    Attributes:
        levels: the level objects, outermost first.
        parts: the dimension, or part of a dimension, of each level.

    Raises:
        FormatError: the text can't be parsed, a level is unknown, the parts don't cover each dimension exactly once, or a level
            with repeated coordinates is not followed by a singleton level.

    Source: Chou, Kjolstad, Amarasinghe, "Format Abstraction for Sparse Tensor Algebra Compilers", OOPSLA 2018; Scorch, section D.1.

    >>> Format("(i, j) -> (i: dense, j: compressed)") == Format("ds")
    True
    >>> print(Format("ds", mode_order=[1, 0]))
    (i, j) -> (j: dense, i: compressed)
    >>> Format("(i, j) -> (i // 2: dense, j // 2: compressed, i % 2: dense, j % 2: dense)").name
    'BCSR(2, 2)'
    """

    levels: tuple[Level, ...]
    parts: tuple[Part, ...]

    def __init__(self, levels: str | Iterable[Level], mode_order: Sequence[int | Part] | None = None):
        order = None if mode_order is None else parts_of(mode_order)
        parsed, named = _parse(levels, order) if isinstance(levels, str) else (_levels(levels), order)
        object.__setattr__(self, "levels", parsed)
        object.__setattr__(self, "parts", parts_of(range(len(parsed)) if named is None else named))
        check_levels(self.levels, self.parts)
        _ = self.mode_order  # cached before torch.compile traces its use: Dynamo cannot enter the lock of a cached property

    @classmethod
    def flat(cls, levels: Sequence[Level], order: Sequence[int] | None = None) -> Format:
        """Build the format of a loop nest, in which each level stores a whole dimension. Nothing is checked.

        Args:
            levels: the level objects, outermost first.
            order: the dimension of each level; by default 0, 1, 2, ...

        Returns:
            The format.
        """
        format = cls.__new__(cls)
        object.__setattr__(format, "levels", tuple(levels))
        object.__setattr__(format, "parts", tuple(map(Part, range(len(levels)) if order is None else order)))
        return format

    @cached_property
    def _hash(self) -> int:
        return hash((self.levels, self.parts))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Format) and self._hash == other._hash and self.levels == other.levels and self.parts == other.parts

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the text, which later versions can read."""
        return Format, (str(self),)

    @cached_property
    def mode_order(self) -> tuple[int, ...]:
        """The dimension of each level."""
        return tuple(part.dimension for part in self.parts)

    @cached_property
    def order(self) -> int:
        """Number of dimensions."""
        return len({part.dimension for part in self.parts})

    @cached_property
    def is_plain(self) -> bool:
        """Whether each level stores a whole dimension."""
        return all(part.is_whole for part in self.parts)

    @cached_property
    def is_ordered(self) -> bool:
        """Whether every level stores its coordinates in order."""
        return all(level.is_ordered for level in self.levels)

    @cached_property
    def is_dense(self) -> bool:
        """Whether each level stores all coordinates of a whole dimension, so that strides address the values."""
        return self.is_full and self.is_plain

    @cached_property
    def is_full(self) -> bool:
        """Whether every coordinate is stored: the format is dense, or consists of dense blocks."""
        return all(level.full for level in self.levels)

    @cached_property
    def has_gaps(self) -> bool:
        """Whether a level may have positions without an entry, such as free slots of a hash table."""
        return any(level.gaps for level in self.levels)

    @cached_property
    def is_padded(self) -> bool:
        """Whether the format may store zeros at positions without an entry, as blocks do, without marking these positions.

        The innermost level decides. A branchless padded level leaves the decision to the level above it.

        >>> [Format(name).is_padded for name in ("CSR", "COO(2)", "ELL", "BCSR(2, 2)", "DIA")]
        [False, False, True, True, True]
        """
        for level in reversed(self.levels):
            if not level.padded or not level.branchless:
                return level.padded
        return True

    @cached_property
    def name(self) -> str:
        """The usual name (CSR, COO, ...); otherwise the letters of the levels or, if they do not suffice, the text."""
        for name, named in named_formats(self.order).items():
            if self == named:
                return name
        if all(level.is_ordered or isinstance(level, Compressed) for level in self.levels) and not self.is_ordered:
            return f"{sorted_format(self).name} unordered"
        if self.is_dense and not any(level.extent for level in self.levels):
            return "dense" if self.is_row_major else f"dense{list(self.mode_order)}"
        letters = "".join(level.letter if level.is_unique else "o" for level in self.levels)
        if not self.is_plain or set(letters) - set("dso") or Format(letters).levels != self.levels:
            return _name_with_parameters(self) or str(self)
        return letters if self.is_row_major else f"{letters}{list(self.mode_order)}"

    @cached_property
    def is_row_major(self) -> bool:
        """Whether the levels are in the order of the dimensions."""
        return self.mode_order == tuple(range(self.order))

    def sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The extent of each level.

        Args:
            shape: the shape of a tensor in this format, one size per dimension.

        Returns:
            One size per level, outermost first.

        Raises:
            FormatError: the shape has another number of dimensions.

        >>> BCSR(2, 4).sizes((3, 9))
        (2, 3, 2, 4)
        """
        if Size in map(type, shape):
            return tuple(part.extent(shape) for part in self.parts)
        return _sizes(self, tuple(shape))

    def permuted(self, permutation: Sequence[int]) -> Format:
        """The format of ``tensor.permute(permutation)``, which stores the same arrays.

        Args:
            permutation: each dimension once, as integers from 0; dimension ``permutation[d]`` of the tensor becomes dimension ``d``.

        Returns:
            The format.

        Raises:
            RangeError: ``permutation`` does not name each dimension once.

        >>> CSR.permuted((1, 0)) == CSC
        True
        """
        if sorted(permutation) != list(range(self.order)):
            raise RangeError(f"{self.name}.permuted({permutation!r}) of {self.order} dimensions: name each of them once, counted from 0")
        place = {old: new for new, old in enumerate(permutation)}
        return Format(self.levels, tuple(part.moved(place) for part in self.parts))

    def __str__(self) -> str:
        return text_of(self.levels, self.parts)

    def __repr__(self) -> str:
        return f'Format("{self}")'


@lru_cache(maxsize=4096)
def _sizes(format: Format, shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) != format.order:
        raise FormatError(f"{format.name}.sizes({shape}): the format has {format.order} dimensions, so give as many sizes")
    return tuple(part.extent(shape) for part in format.parts)


def _parse(text: str, order: tuple[Part, ...] | None) -> tuple[tuple[Level, ...], Sequence[int | Part] | None]:
    named = _from_name(text)
    if named is not None and order is None:
        return named.levels, named.parts
    if "->" not in text:
        return levels_of_letters(text), order
    if order is not None:
        raise FormatError(f"mode_order={[part.dimension for part in order]} was given, but the map {text!r} states the order: leave it out")
    return parse_map(text)


def _levels(argument: object) -> tuple[Level, ...]:
    levels = tuple(argument) if isinstance(argument, Iterable) else (argument,)
    for level in levels:
        if not isinstance(level, Level):
            raise FormatError(
                f"{level!r} is not a level: use level objects, as in Format((Dense(), Compressed())), or text, as in {str(CSR)!r}"
            )
    return levels


def _from_name(text: str) -> Format | None:
    """The format that a name stands for, such as CSR, COO(3) or BCSR(4, 4); None if the text is no such name."""
    match = re.fullmatch(r"\s*([A-Z]+)\s*(?:\(([\d\s,]*)\))?\s*", text.upper())
    if match is None or set(text) <= set("dso"):
        return None
    numbers = [int(n) for n in (match[2] or "").replace(",", " ").split()]
    if len(numbers) in PARAMETERS.get(match[1], ()):
        return BLOCKED[match[1]](*numbers)
    if match[1] in EXAMPLES and (numbers or match[1] != "ELL"):
        raise FormatError(f"the format {text.strip()!r} needs parameters, as in {EXAMPLES[match[1]]}")
    if len(numbers) > 1:
        return None
    order = numbers[0] if numbers else 2
    return named_formats(order).get(match[1], named_formats(order).get(f"{match[1]}({order})"))


_named = lru_cache(maxsize=1024)(Format)


def as_format(value: object) -> Format:
    """Return a Format unchanged, or convert its text to a Format.

    Raises:
        FormatError: the argument is neither, or is a function such as ``COO`` without its parameters.
    """
    if isinstance(value, Format):
        return value
    if isinstance(value, str):
        return _named(value)
    if value in (COO, CSF):
        raise FormatError(
            f"{getattr(value, '__name__', value)} needs the number of dimensions, as in {getattr(value, '__name__', value)}(2)"
        )
    if callable(value) and (name := getattr(value, "__name__", "")) in EXAMPLES:
        raise FormatError(f"{name} needs parameters, as in ns.{EXAMPLES[name]}")
    raise FormatError(
        f"{value!r} is not a format: use a Format, such as CSR, or its text, as in {str(CSR)!r}; data types are torch's, as torch.float32"
    )


@lru_cache(maxsize=1024)
def sorted_format(fmt: Format) -> Format:
    """The same format with the coordinates of every level in order."""
    levels = [_sorted_level(level).alone for level in fmt.levels]
    return Format.flat(levels, fmt.mode_order) if fmt.is_plain else Format(levels, fmt.parts)


def _sorted_level(level: Level) -> Level:
    """The ordered counterpart of a level: a compressed level replaces a hash table."""
    if level.is_ordered:
        return level
    if isinstance(level, Singleton):
        return Singleton(level.unique, bits=level.bits)
    return Compressed(level.is_unique, bits=level.bits if isinstance(level, Compressed) else 0)


def dense(order: int) -> Format:
    """The row-major dense format with ``order`` dimensions."""
    return _repeated("d", _order("dense", order))


MOST_DIMENSIONS = 64  # the maximum of torch and NumPy


@lru_cache(maxsize=192)
def _repeated(letter: str, order: int) -> Format:
    return Format(letter * order)


def COO(order: int) -> Format:
    """The coordinate format: a list of entries, sorted in row-major order, without duplicates.

    Args:
        order: the number of dimensions, from 0 to 64.

    Returns:
        A :class:`Format`.

    Raises:
        FormatError: ``order`` is not an integer from 0 to 64.

    >>> print(COO(3))
    (i, j, k) -> (i: compressed(unique=False), j: singleton(unique=False), k: singleton)
    """
    return _repeated("o", _order("COO", order))


def CSF(order: int) -> Format:
    """The format of compressed sparse fibers: a tree of coordinates, in which every level is compressed.

    Args:
        order: the number of dimensions, from 0 to 64.

    Returns:
        A :class:`Format`; ``CSF(2)`` is ``DCSR``.

    Raises:
        FormatError: ``order`` is not an integer from 0 to 64.

    Source: Smith, Karypis, "Tensor-matrix products with a compressed sparse tensor", IA3 2015.

    >>> print(CSF(3))
    (i, j, k) -> (i: compressed, j: compressed, k: compressed)
    """
    return _repeated("s", _order("CSF", order))


def _order(name: str, order: int) -> int:
    """Check the number of dimensions and return it as an integer.

    Raises:
        FormatError: it is not an integer from 0 to ``MOST_DIMENSIONS``.
    """
    (number,) = whole_numbers(name, order, least=0)
    if number > MOST_DIMENSIONS:
        raise FormatError(f"{name}({number}) has {number} dimensions, but a tensor has at most {MOST_DIMENSIONS}")
    return number


CSR = Format("ds")
CSC = Format("ds", (1, 0))
DCSR = Format("ss")
DCSC = Format("ss", (1, 0))


ELL = Format((Dense(), Fixed()))
DIA = Format(DIAGONALS)


def BCSR(rows: int, columns: int) -> Format:
    """Dense blocks, stored as in CSR.

    The last blocks may extend past the edge of the matrix. Zeros in stored blocks are stored entries.

    Args:
        rows: the number of rows of a block, at least 1.
        columns: the number of columns of a block, at least 1.

    Returns:
        A :class:`Format` of matrices; ``BCSR(1, 1)`` is ``CSR``.

    Raises:
        FormatError: a parameter is not a positive integer.

    >>> print(BCSR(2, 3))
    (i, j) -> (i // 2: dense, j // 3: compressed, i % 2: dense, j % 3: dense)
    """
    return _blocked(*whole_numbers("BCSR", rows, columns))


@lru_cache(maxsize=192)
def _blocked(rows: int, columns: int) -> Format:
    outer = (Part(0, rows), Dense()), (Part(1, columns), Compressed())
    return _of_pairs([*outer, *_inner(0, rows, Dense()), *_inner(1, columns, Dense())])


def NM(n: int, m: int, rows: int = 1) -> Format:
    """The n:m format: n of every m consecutive values in each row are stored.

    Groups with fewer than n nonzeros store zeros too. ``numscorch.sparsify.n_m`` prunes a tensor so that the format can store it.

    Args:
        n: the number of stored values per group, from 1 to m.
        m: the number of columns of a group.
        rows: the number of adjacent rows that store the same columns.

    Returns:
        A :class:`Format` of matrices.

    Raises:
        FormatError: a parameter is not a positive integer, or n is larger than m.

    >>> print(NM(2, 4))
    (i, j) -> (i: dense, j // 4: dense, j % 4: fixed(2))
    """
    n, m, rows = whole_numbers("NM", n, m, rows)
    if n > m:
        raise FormatError(f"NM({n}, {m}) keeps {n} of every {m} values: n is at most m")
    return _of_pairs([(Part(0, rows), Dense()), (Part(1, m), Dense()), *_inner(1, m, Fixed(n)), *_inner(0, rows, Dense())])


def NMG(n: int, m: int, g: int) -> Format:
    """The n:m:g format: n of every m consecutive values in each column are stored.

    In each chunk of C(m, n) * g columns, each combination of n rows is used by g columns.

    Args:
        n: the number of stored values per group, from 1 to m.
        m: the number of rows of a group, at least 2.
        g: the number of columns of a chunk that use the same combination, at least 1.

    Returns:
        A :class:`Format` of matrices.

    Raises:
        FormatError: a parameter is not a positive integer, n is larger than m, m is 1, or there are more than 4096 combinations of n rows.

    Source: Ivanov et al., "STen: Productive and Efficient Sparsity in PyTorch", 2023.

    >>> print(NMG(2, 4, 8))
    (i, j) -> (i // 4: dense, j: grouped(2, 4, 8), i % 4: combination(2, 4, 8))
    """
    n, m, g = whole_numbers("NMG", n, m, g)
    if n > m or m < 2:
        raise FormatError(f"NMG({n}, {m}, {g}) keeps n of every m values: n is at most m, and m at least 2")
    return _of_pairs([(Part(0, m), Dense()), (Part(1), Grouped(n, m, g)), (Part(0, 1, m), Combination(n, m, g))])


def _inner(dimension: int, size: int, level: Level) -> list[tuple[Part, Level]]:
    """The part and the level that store the offset inside blocks of this size; an empty list if the size is 1."""
    return [(Part(dimension, 1, size), level)] if size > 1 else []


def _of_pairs(stored: list[tuple[Part, Level]]) -> Format:
    return Format([level for _, level in stored], [part for part, _ in stored])


PARAMETERS = {"BCSR": (2,), "NM": (2, 3), "NMG": (3,), "ELL": (1,), "COO": (1,), "CSF": (1,)}
EXAMPLES = {"NM": "NM(2, 4)", "NMG": "NMG(2, 4, 8)", "BCSR": "BCSR(4, 4)", "BSR": "BCSR(4, 4)", "ELL": "ELL(4)"}
BLOCKED: dict[str, Callable[..., Format]] = {
    "BCSR": BCSR,
    "NM": NM,
    "NMG": NMG,
    "ELL": lambda width: Format((Dense(), Fixed(width))),
    "COO": COO,
    "CSF": CSF,
}


def _name_with_parameters(fmt: Format) -> str | None:
    """The name of a matrix format with parameters, such as BCSR(4, 4); None if it has no name."""
    rows, columns = (next((part.modulus for part in fmt.parts if part.dimension == d and part.modulus), 1) for d in (0, 1))
    candidates: list[tuple[str, tuple[int, ...]]] = [("BCSR", (rows, columns))]
    for level in fmt.levels:
        if isinstance(level, Grouped):
            candidates.append(("NMG", (level.n, level.m, level.g)))
        if isinstance(level, Fixed) and level.width:
            candidates.append(("ELL", (level.width,)))
            candidates += [("NM", (level.width, columns, rows)[: 2 if rows == 1 else 3])] if level.width <= columns else []
    names = (f"{name}({', '.join(map(str, numbers))})" for name, numbers in candidates if BLOCKED[name](*numbers) == fmt)
    return next(names, None)


def named_formats(order: int) -> dict[str, Format]:
    """The named formats of tensors with ``order`` dimensions."""
    matrix = {"CSR": CSR, "CSC": CSC, "DCSR": DCSR, "DCSC": DCSC, "ELL": ELL, "DIA": DIA} if order == 2 else {}
    lists = {f"COO({order})": COO(order)} if order > 1 else {}
    return matrix | lists | ({f"CSF({order})": CSF(order)} if order > 2 else {})
