"""Facts about a problem that passes may use: extents, counts, the target machine, and the options of a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, wraps
from math import ceil
from typing import Any, ParamSpec, TypeVar

from ..ir.dtype import DTYPES
from ..ir.format import Format
from ..ir.index import IndexVar
from ..ir.symbolic import Decisions, decides
from . import tuning

Answer = TypeVar("Answer")
P = ParamSpec("P")
Crossings = tuple[float, float, float]  # spreads of rows that rows choose, of rows that columns choose, of columns that columns choose


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that a kernel is compiled for.

    ``vector_bytes`` is the width of a SIMD register in bytes, and ``registers`` the number of SIMD registers; both are
    part of a kernel's hash. ``cache`` is the size of the last-level cache, and ``own_cache`` that of the largest private
    cache of a core, in bytes. The caches decide on tile sizes, which are part of the kernel's source.
    """

    vector_bytes: int = 32
    registers: int = 16
    cache: int = 1 << 25
    own_cache: int = 1 << 19

    @property
    def instructions(self) -> tuple[int, int]:
        """The properties that machine code depends on."""
        return self.vector_bytes, self.registers

    def lanes(self, dtype: str) -> int:
        """Number of values of a dtype in a SIMD register."""
        return self.vector_bytes // DTYPES[dtype].lane


EVEN = (1.0, 1.0, 1.0)  # crossings of a matrix with even rows and columns
GENERIC = Target()  # a processor with AVX2
FEWEST_LANES = 2  # minimum number of lanes in a register for a short extent


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the passes; None leaves a choice to the compiler.

    ``order`` is the loop order. ``parallel`` and ``vector`` name the variables of the parallel and the vectorised loop, or ""
    for none. ``workspace`` is the kind of workspace. ``tile`` is the tiled variable, or "" for none, and its tile size.
    """

    order: tuple[str, ...] | None = None
    parallel: str | None = None
    vector: str | None = None
    workspace: str | None = None
    tile: tuple[str, int] | None = None


AUTOMATIC = Options()


@dataclass(frozen=True, slots=True)
class Tiling:
    """Division of an extent into register tiles.

    A loop takes tiles of ``registers`` registers with ``lanes`` values each. One tile of ``tail`` registers follows, and
    ``masked`` says whether its last register is masked. ``fits`` says whether the extent holds at least one tile; the last
    tile may then overlap the previous one instead of leaving a tail.
    """

    registers: int
    tail: int
    masked: bool
    lanes: int
    fits: bool = field(default=False, repr=False)


def tiling(extent: int, lanes: int, most: int) -> Tiling:
    """Divide an extent into tiles of at most ``most`` registers: few tiles of about equal size.

    An extent of one tile needs no loop, and a small extent takes part of a register. A tile of full registers has no mask if
    its size is a common one; other sizes share the kernel of the masked tile.

    >>> tiling(256, 16, 8)
    Tiling(registers=8, tail=0, masked=False, lanes=16)
    >>> tiling(64, 16, 8)
    Tiling(registers=0, tail=4, masked=False, lanes=16)
    >>> tiling(33, 16, 8)
    Tiling(registers=0, tail=3, masked=True, lanes=16)
    >>> tiling(200, 16, 8)
    Tiling(registers=7, tail=6, masked=True, lanes=16)
    >>> tiling(3, 16, 8)
    Tiling(registers=0, tail=1, masked=True, lanes=4)
    """
    lanes = min(lanes, max(1 << max(extent - 1, 0).bit_length(), FEWEST_LANES))
    chunks = ceil(extent / lanes)
    if not chunks:
        return Tiling(1, 0, False, lanes)
    if chunks <= most:
        return Tiling(0, chunks, extent % lanes != 0 or not _is_usual(chunks), lanes)
    return _in_loop(_registers_of(chunks, most, tuning.TILE_PASS), extent, lanes, fits=True)


@lru_cache(maxsize=1024)
def _registers_of(chunks: int, most: int, pass_cost: float) -> int:
    """The number of registers per tile that minimizes the total cost of tiles and of passes of the loop."""
    return min(range(1, most + 1), key=lambda size: (ceil(chunks / size) * (size + pass_cost), -size))


def _in_loop(registers: int, extent: int, lanes: int, fits: bool = False) -> Tiling:
    """Tiles of ``registers`` registers in a loop, and a tail for the remainder of the extent."""
    remainder = extent % (registers * lanes)
    return Tiling(registers, ceil(remainder / lanes), remainder > 0, lanes, fits)


def _is_usual(chunks: int) -> bool:
    """Whether a number of registers is a common size, such as the width of a layer; common sizes have kernels without masks.

    >>> [chunks for chunks in range(1, 17) if _is_usual(chunks)]
    [1, 2, 3, 4, 8, 12, 16]
    """
    return chunks <= 4 or chunks % 4 == 0


def sum_tiling(extent: int, lanes: int) -> Tiling:
    """Divide the extent of a summed loop; all registers are added into one, so a tile of a common size may be longer.

    >>> sum_tiling(256, 16), sum_tiling(250, 16)
    (Tiling(registers=0, tail=16, masked=False, lanes=16), Tiling(registers=8, tail=8, masked=True, lanes=16))
    """
    chunks = ceil(extent / lanes)
    if extent % lanes == 0 and chunks <= tuning.LONGEST_SUM_TILE and _is_usual(chunks):
        return tiling(extent, lanes, tuning.LONGEST_SUM_TILE)
    return (
        tiling(extent, lanes, tuning.LONGEST_SUM_TILE // 2)
        if chunks <= tuning.LONGEST_SUM_TILE // 2
        else _in_loop(tuning.LONGEST_SUM_TILE // 2, extent, lanes)
    )


@decides
def tiling_within(extent: int, size: int, lanes: int, most: int) -> Tiling:
    """Divide loop tiles of ``size`` coordinates into equal register tiles; only the last coordinates of the extent need a tail.

    >>> tiling_within(100, 64, 8, 8)
    Tiling(registers=8, tail=5, masked=True, lanes=8)
    >>> tiling_within(96, 48, 8, 8)
    Tiling(registers=2, tail=0, masked=False, lanes=8)
    """
    return _in_loop(min(size // lanes & -(size // lanes), most), extent, lanes)


@dataclass(frozen=True, slots=True)
class Facts:
    """Extents of the variables, positions in each level of the operands, and divisions of the exact extents.

    Extents and counts are rounded to three significant bits, so that problems of similar size share a schedule. Loop nests also
    depend on the division of the ``exact`` extents into registers of ``lanes`` values. Comparisons of facts ignore the exact extents:
    these are symbolic sizes, which record what passes learn about them (``ir/symbolic.py``). ``tiles`` are the enclosing loops over
    tiles, as (variable, size, lanes). ``spreads`` tell how uneven the rows of an operand are, for each level
    (``Pattern.spreads``). ``peaks`` tell how many values share the most frequent coordinate of each variable (``Pattern.peaks``).
    ``crossings`` tell how long rows and columns are that a matrix itself chooses (``Pattern.crossings``).
    """

    extents: tuple[tuple[IndexVar, int], ...]
    counts: tuple[tuple[str, Format, tuple[int, ...]], ...] = ()
    spreads: tuple[tuple[str, tuple[int, ...]], ...] = ()
    peaks: tuple[tuple[str, tuple[tuple[IndexVar, int], ...]], ...] = ()
    crossings: tuple[tuple[str, Crossings], ...] = ()
    lanes: int = 0
    tiles: tuple[tuple[IndexVar, int, int], ...] = ()
    exact: Mapping[IndexVar, int] = field(default_factory=dict, repr=False, compare=False)
    sizes: Mapping[IndexVar, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", dict(self.extents))

    @classmethod
    def of(cls, extents: Mapping[IndexVar, int], counts: Mapping[str, tuple[Format, tuple[int, ...]]], lanes: int, target: Target) -> Facts:
        """Create the facts of a problem from exact extents, and from the format and level counts of each operand."""
        return cls(
            tuple((var, rounded(size)) for var, size in extents.items()),
            tuple((name, fmt, tuple(rounded(c) for c in levels)) for name, (fmt, levels) in counts.items()),
            lanes=lanes,
            exact=dict(extents),
        )

    def within(self, var: IndexVar, size: int, lanes: int, target: Target) -> Facts:
        """Facts inside a tile of a variable; the variable has no tiling if ``lanes`` does not divide the tile size."""
        return replace(self.narrowed(var, size), tiles=(*self.tiles, (var, size, lanes)))

    def narrowed(self, var: IndexVar, size: int) -> Facts:
        """Facts for a variable with at most ``size`` coordinates."""
        return replace(self, extents=tuple((v, min(extent, rounded(size)) if v == var else extent) for v, extent in self.extents))

    def extent(self, var: IndexVar) -> float:
        """Extent of a variable, rounded to three significant bits."""
        return float(self.sizes[var])

    def count(self, tensor: str) -> tuple[Format, tuple[float, ...]]:
        """Format of an operand, and the rounded number of positions in each of its levels."""
        return next((fmt, tuple(map(float, counts))) for name, fmt, counts in self.counts if name == tensor)

    def spread(self, tensor: str, level: int) -> float:
        """Average row length over the values, divided by the average over the rows, at a level of an operand; 1 if rows are even."""
        return float(next((levels[level] for name, levels in self.spreads if name == tensor), 1))

    def alike(self, tensor: str, other: str) -> bool:
        """Whether two operands have equal rounded counts and equal unevenness."""
        crossings = dict(self.crossings)
        counts = {name: (sorted(levels), dict(self.spreads).get(name), crossings.get(name)) for name, _, levels in self.counts}
        return tensor in counts and counts[tensor] == counts.get(other)

    def is_tiled(self, var: IndexVar) -> bool:
        """Whether a variable has a tiling."""
        return self.lanes > 0 and not any(size % lanes for size, lanes in self._tiles_of(var))

    def tiling(self, var: IndexVar, is_summed: bool = False) -> Tiling:
        """Tiling of a variable's extent."""
        return _tiling_inside(self.exact[var], self.lanes, self._tiles_of(var), is_summed)

    def _tiles_of(self, var: IndexVar) -> tuple[tuple[int, int], ...]:
        return tuple((size, lanes) for tiled, size, lanes in self.tiles if tiled == var)


@decides
def is_divisible(extent: int, times: int) -> bool:
    """Whether a number divides an extent."""
    return extent % times == 0


@decides
def _tiling_inside(extent: int, lanes: int, tiles: tuple[tuple[int, int], ...], is_summed: bool) -> Tiling:
    most = tuning.LONGEST_SUM_TILE if is_summed else tuning.ACCUMULATORS
    outer = sum_tiling(extent, lanes) if is_summed else tiling(extent, lanes, most)
    for size, lanes_within in tiles:
        inner = tiling_within(extent, size, lanes_within, most)
        outer = replace(inner, fits=outer.fits or inner.registers < outer.tail)
    return outer


FORGET: list[Callable[[], None]] = []  # functions that clear caches, which :func:`forget_answers` calls


def by_answers(function: Callable[P, Answer]) -> Callable[P, Answer]:
    """Cache a function of facts and other arguments. The key is the arguments and the function's decisions about exact extents.

    >>> @by_answers
    ... def tail(facts: Facts, var: IndexVar) -> int:
    ...     print("computed")
    ...     return facts.tiling(var).tail
    >>> i = IndexVar("i")
    >>> [tail(Facts.of({i: size}, {}, 16, GENERIC), i) for size in (250, 251, 256)]
    computed
    computed
    [8, 8, 0]
    """

    @lru_cache(maxsize=1024)
    def known(*arguments: Any, **named: Any) -> Decisions:
        return Decisions()

    @wraps(function)
    def remembered(*arguments: P.args, **named: P.kwargs) -> Answer:
        (facts,) = (argument for argument in arguments if isinstance(argument, Facts))

        def make(sizes: tuple[int, ...]) -> Answer:
            symbolic = replace(facts, exact=dict(zip(facts.exact, sizes, strict=True)))
            return function(*(symbolic if argument is facts else argument for argument in arguments), **named)  # type: ignore[arg-type]

        return known(*arguments, **named).of(tuple(facts.exact.values()), make)  # type: ignore[arg-type]

    FORGET.append(known.cache_clear)
    return remembered


def forget_answers() -> None:
    """Forget all results that :func:`by_answers` and code generation remember; tests that change thresholds call it."""
    for forget in FORGET:
        forget()


@decides
def rounded(size: int) -> int:
    """Round a size up to three significant bits.

    >>> [rounded(n) for n in (0, 1, 7, 9, 1000, 91756)]
    [0, 1, 7, 10, 1024, 98304]
    """
    step = 1 << max(size.bit_length() - 3, 0)
    return -(-size // step) * step
