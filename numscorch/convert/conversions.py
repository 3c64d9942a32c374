"""Convert tensors between formats by one of three routes, and coalesce entries.

* *Share*: formats that differ only in the level of the first index share the second index array and the values (``matrices``).
* *Kernels*: kernels copy the entries through a sequence of formats (``conversion_plan``), if enough entries amortize compilation.
* *Pack*: entries are sorted by one integer key (``matrices``), or by their coordinates (``packing``).

A pattern caches its conversions; a repeated conversion only gathers the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from ..errors import FormatError
from ..frontend.copy_statements import copying
from ..frontend.datatypes import COMPILED
from ..ir.format import Format, sorted_format
from ..ir.implicit import PartialLevel
from ..ir.level import INT32_MAX, Level, times
from ..ir.levels import Compressed, Dense, Singleton
from ..ir.padded import Fixed
from ..ir.parts import Part
from ..machine import memory
from ..machine.progress import Progress
from ..runtime.blocks import longest_row
from ..runtime.plans import launch
from ..schedule import tuning
from ..tensors.coordinate_order import are_in_order, are_new
from ..tensors.ledgers import is_listed, note
from ..tensors.modes import as_numpy
from ..tensors.packing import EACH, check_room, coordinates, entry_columns, index_dtype_for, is_identity, pack, placed, positions_of
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .conversion_plan import LINE_COORDINATES, buckets, steps_between, steps_collecting, unordered_list
from .matrices import can_regroup, list_format, regrouped, sorted_rows, sorts

COPIES_PER_STEP = 2  # upper bound
Convert = Callable[[Pattern, Format], "Conversion"]
_converted_before: dict[tuple[Format, Format | None], int] = {}  # cumulative number of converted entries, by source and target


def converted_so_far(source: Format, target: Format | None, entries: int) -> int:
    """Add to the number of entries converted between two formats, and return the sum; large sums amortize compiling a kernel."""
    known = _converted_before.get((source, target), 0) + entries
    _converted_before[source, target] = known
    return known


@dataclass(slots=True, eq=False)
class Conversion:
    """A target pattern, and the permutation of the values: ``target[slots] = source[order]``.

    ``slots`` is None if the target stores only the source's entries; ``order`` is None if the values stay in order, and are
    shared.
    """

    pattern: Pattern
    order: torch.Tensor | None
    slots: torch.Tensor | None

    @property
    def places(self) -> torch.Tensor:
        """For each position of a target that stores only the source's entries, the place of its value in the source."""
        nnz, dtype = self.pattern.nnz, getattr(torch, self.pattern.index_dtype)
        return self.pattern.remember("places", lambda: torch.arange(nnz, dtype=dtype)) if self.order is None else self.order

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """The target's values from the source's; the same tensor if the order does not change. O(nnz); gradients flow."""
        if self.order is None:
            return values
        if is_listed():
            note("copy", f"values in the order of {self.pattern.format.name} {self.pattern.shape}", self.pattern.nnz * values.itemsize)
        gathered = values.index_select(0, self.order)
        if self.slots is None:
            return gathered
        return placed(gathered, self.slots, self.pattern.nnz)  # in place: there may be far more positions


def to_format(A: SparseTensor, format: Format) -> SparseTensor:
    """Convert a tensor to another format; returns ``A`` itself if it has that format. Gradients flow.

    All stored entries are kept, including explicit zeros. The new pattern is cached with the old one, and from the second
    call on also the order of the entries, so that later calls only gather values. Conversions that change only the rows'
    level, such as COO to CSR, share values and columns.

    Raises:
        FormatError: the format has another number of dimensions, or a level cannot store these entries.
    """
    if format == A.format:
        return A
    pattern, moved = A.pattern, ("moved", format)
    conversion: Conversion | None = pattern.derived.get(("converted", format))
    if conversion is None:
        convert, steps = _route(pattern, format)
        if steps and moved not in pattern.derived and can_copy(A._values):
            copy = _copied(A, steps)
            note_conversion(pattern, copy.pattern, copy.values.nbytes)
            return type(A).trusted(pattern.derived.setdefault(moved, copy.pattern), copy.values)
        conversion = _remembered(pattern, format, convert)
    return type(A).trusted(conversion.pattern, conversion.tensor(A._values))


def can_copy(values: torch.Tensor) -> bool:
    """Whether kernels can copy these values directly; derivatives do not flow through a kernel."""
    if is_differentiated(values) or type(values) not in (torch.Tensor, torch.nn.Parameter):
        return False
    return values.dtype in COMPILED and not torch._C._functorch.is_functorch_wrapped_tensor(values)


def is_differentiated(values: torch.Tensor) -> bool:
    """Whether derivatives of the values may be requested."""
    return values.requires_grad or forward_ad._current_level >= 0


def chosen_of(values: torch.Tensor, format: Format, chooses: Level, *arrays: torch.Tensor) -> SparseTensor | None:
    """Store the entries of a strided tensor that the level ``chooses`` selects; None if kernels do not support it, or do not pay.

    Args:
        values: the strided tensor.
        format: the result's format.
        chooses: the last level, such as ``Nonzero()``: it has a position for each coordinate, and selects some of them as entries.
        arrays: the index arrays of that level.
    """
    if not can_copy(values):
        return None
    source = Format([*(Dense(),) * (values.ndim - 1), chooses])
    known = converted_so_far(source, format, values.numel())
    if known < tuning.COMPILE_VALUES or not is_wide_enough(format, values.shape):
        return None
    steps = steps_between(source, format, (True,) * values.ndim) if values.ndim else ()
    if not steps or known < tuning.COMPILE_VALUES * len(steps) ** 2:
        return None
    read = Pattern(source, tuple(values.shape), (*((),) * (values.ndim - 1), arrays))
    return _copied(SparseTensor.trusted(read, values.contiguous().reshape(-1)), steps)


def converted(pattern: Pattern, format: Format) -> Conversion:
    """The conversion of a pattern to another format, cached with the pattern.

    All stored entries are kept, including explicit zeros. The first call takes O(nnz log nnz), or O(nnz) with kernels.

    Raises:
        FormatError: the format has another number of dimensions, or a level cannot store these entries.

    >>> csr = pack(np.array([[0, 0, 1], [0, 2, 0]]), (2, 3), Format("ds"))[0]
    >>> converted(csr, Format("ds", (1, 0))).tensor(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [1.0, 3.0, 2.0]
    """
    conversion: Conversion | None = pattern.derived.get(("converted", format))
    return _remembered(pattern, format, _route(pattern, format)[0]) if conversion is None else conversion


def _remembered(pattern: Pattern, format: Format, convert: Convert) -> Conversion:
    """Convert a pattern, and cache the conversion with the pattern."""
    conversion = pattern.remember(("converted", format), lambda: convert(pattern, format))
    note_conversion(pattern, conversion.pattern)
    return conversion


def note_conversion(source: Pattern, target: Pattern, values: int = 0) -> None:
    """Add a conversion to the ledgers: the index arrays that are not shared with the source, and ``values`` bytes of values."""
    if is_listed():
        shared = {array.data_ptr() for arrays in source.arrays for array in arrays}
        index = sum(array.nbytes for arrays in target.arrays for array in arrays if array.data_ptr() not in shared)
        what = f"{source.format.name} to {target.format.name} {source.shape}"
        note("transposition" if source.format.levels == target.format.levels else "conversion", what, index + values)


def shares(source: Format, target: Format, shape: Sequence[int], nnz: int) -> bool:
    """Whether :func:`regrouped` supports a conversion, and an array with one count for each row is affordable."""
    if not can_regroup(source, target):
        return False
    extent = target.parts[0].extent(shape)
    if source.levels[0].full or (target.levels[0].full and extent * 2 * EACH <= memory.ASK_FROM):
        return True
    return extent <= tuning.COUNTED_COORDINATES * max(nnz, 1 << 10)


def list_for(format: Format, shape: Sequence[int], nnz: int) -> Format | None:
    """The list of entries that equals a format, or from which the format shares arrays; None if there is none."""
    listed = list_format(format) if format.order and format.is_plain else None
    return listed if listed is not None and (format == listed or shares(listed, format, shape, nnz)) else None


def are_few(count: int) -> bool:
    """Whether sorting the numbers of this many entries is faster than kernels; False if kernels always pay."""
    return count <= min(tuning.SORTED_ENTRIES, tuning.COMPILE_ENTRIES)


def _route(pattern: Pattern, format: Format) -> tuple[Convert, tuple[Format, ...]]:
    """The function that converts a pattern, and the formats through which kernels copy its entries; empty if another route is faster."""
    if shares(pattern.format, format, pattern.shape, pattern.nnz):
        return _regrouped, ()
    by_arrays = _sorted if sorts(pattern, format) else _packed
    if (by_arrays is _sorted and are_few(pattern.nnz)) or (pattern.index_dtype == "int32" and pattern.nnz > INT32_MAX):
        return by_arrays, ()
    known = converted_so_far(pattern.format, format, pattern.nnz)
    if known < tuning.COMPILE_ENTRIES or not is_wide_enough(format, pattern.shape):
        return by_arrays, ()
    max_size = tuning.COUNTED_COORDINATES * pattern.nnz
    steps = steps_between(pattern.format, format, tuple([size <= max_size for size in pattern.shape]))
    if not steps or known < tuning.COMPILE_ENTRIES * len(steps) ** 2:
        return by_arrays, ()
    return (lambda pattern, _: _numbered(pattern, steps)), steps


def _regrouped(pattern: Pattern, format: Format) -> Conversion:
    return Conversion(regrouped(pattern, format), None, None)


def _sorted(pattern: Pattern, format: Format) -> Conversion:
    target, order = sorted_rows(pattern, format)
    return Conversion(target, torch.from_numpy(order.astype(_order_dtype(pattern), copy=False)), None)


def _packed(pattern: Pattern, format: Format) -> Conversion:
    target, slots, order = pack(entry_columns(pattern), pattern.shape, format, pattern.index_dtype)
    order = positions_of(pattern, order).astype(_order_dtype(pattern), copy=False)
    return Conversion(target, torch.from_numpy(order), None if is_identity(slots, target.nnz) else torch.from_numpy(slots))


def _order_dtype(pattern: Pattern) -> str:
    """The index type that can number a pattern's entries."""
    return pattern.index_dtype if pattern.nnz <= INT32_MAX else "int64"


def _numbered(pattern: Pattern, steps: Sequence[Format]) -> Conversion:
    """The conversion, found by kernels that copy the numbers of the entries instead of values; reuses a pattern converted earlier."""
    numbers = torch.from_numpy(np.arange(1, pattern.nnz + 1, dtype=pattern.index_dtype))
    copy = _copied(SparseTensor.trusted(pattern, numbers), steps)
    target, written = pattern.derived.get(("moved", steps[-1]), copy.pattern), copy.values.numpy()
    if (written > 0).all():
        return Conversion(target, torch.from_numpy(written - 1), None)
    slots = np.flatnonzero(written)
    return Conversion(target, torch.from_numpy(written[slots] - 1), torch.from_numpy(slots))


def _copied(A: SparseTensor, steps: Sequence[Format]) -> SparseTensor:
    """Copy a tensor through a sequence of formats, with one kernel for each.

    Raises:
        FormatError: a level cannot store these entries.
    """
    for at, format in enumerate(steps):
        A = with_format(A, sorted_format(A.format) if at else A.format)  # so that the next step keeps the order of entries in lists
        if any(level.spaced for level in format.levels):
            A = _respaced(A, format)
            continue
        _check_places(A.pattern, format, steps[-1])
        stored = A.pattern.nnz
        for step in copy_steps(A.pattern, format):
            A = copied(A, step)
        A = with_format(A, format)
        for level in format.levels:
            level.tell(A.pattern.nnz, stored)
    return A


def copied(A: SparseTensor, format: Format | None, nonzeros: int | None = None) -> Any:
    """Copy a tensor to another format, or to a dense tensor, with one kernel; only its ``nonzeros``, if their number is given.

    The kernel depends on no statistics of the pattern but the longest row, if unordered rows are collected in workspaces.
    """
    levels, collects = A.format.levels, format is not None and not A.format.is_ordered
    if levels and (nonzeros is not None or not collects or "pos" in levels[-1].arrays):
        peak = 4 ** ((max(longest_row(A.pattern), 1).bit_length() - 1) // 2) if collects else 0  # as in Pattern.peaks
        A = type(A).trusted(A.pattern.unmeasured(peak), A.values)
    if nonzeros is not None:
        A.pattern.derived["most kept"] = nonzeros + 1  # a zero is written, too, and then overwritten
    return launch(copying(A.format, format, nonzeros is not None), (A,), "dense" if format is None else format)


def _respaced(A: SparseTensor, format: Format) -> SparseTensor:
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
    spaced = copied(type(A).trusted(part, A.values), target)
    levels = (*format.levels[:at], level, *format.levels[at + 1 :])
    stored = (*A.pattern.arrays[:at], *spaced.pattern.arrays[1:])
    return type(A).trusted(Pattern(Format(levels, format.parts), A.pattern.shape, stored), spaced.values)


def copy_steps(pattern: Pattern, format: Format) -> tuple[Format, ...]:
    """The formats to which kernels copy entries in sequence: two if entries go to many scattered places, else one."""
    first = buckets(pattern.format, format, pattern.shape)
    return (format,) if first is None or not _is_scattered(pattern, first.parts[0].dimension) else (first, unordered_list(format))


def with_format(A: SparseTensor, format: Format) -> SparseTensor:
    """A tensor of the same arrays, in a format that differs only in whether its levels count as ordered."""
    return A if A.format == format else type(A).trusted(Pattern(format, A.pattern.shape, A.pattern.arrays), A.values)


def _is_scattered(pattern: Pattern, dimension: int) -> bool:
    """Whether consecutive entries are far apart in a dimension: the coordinates of a sample span too many cache lines."""
    if pattern.nnz < tuning.SAMPLED_ENTRIES or Part(dimension) not in pattern.format.parts:
        return False
    crd = pattern.level_arrays(pattern.format.parts.index(Part(dimension)))[-1:]
    if not crd or len(crd[0]) != pattern.nnz:
        return False
    start = (pattern.nnz - tuning.SAMPLED_ENTRIES) // 2
    sample = crd[0][start : start + tuning.SAMPLED_ENTRIES]
    return int(are_new(np.sort(sample // LINE_COORDINATES)).sum()) > tuning.SCATTERED_LINES


def _check_places(pattern: Pattern, format: Format, target: Format) -> None:
    """Check that levels without arrays have a position for every entry.

    Raises:
        FormatError: an entry has no position; the error is the one that packing to ``target`` raises.
    """
    partial = [(at, level) for at, level in enumerate(format.levels) if isinstance(level, PartialLevel)]
    if not partial:
        return
    indices, sizes = as_numpy(coordinates(pattern)), format.sizes(pattern.shape)
    columns = [part.of(indices, pattern.shape) for part in format.parts]
    for at, level in partial:
        if level.fits(at, sizes) is not None or level.outside(columns[at - 1], columns[at]).any():
            pack(indices, pattern.shape, target)  # raises


def is_wide_enough(format: Format, shape: Sequence[int]) -> bool:
    """Whether the coordinate types of narrow levels can hold the sizes of the shape."""
    sizes = zip(format.levels, format.sizes(shape), strict=True)
    return all(not (isinstance(level, Compressed | Singleton | Fixed) and level.bits) or size <= 1 << level.bits for level, size in sizes)


def coalesced(
    indices: Sequence[np.ndarray] | np.ndarray, values: torch.Tensor, shape: tuple[int, ...], format: Format, dtype: np.dtype | None
) -> SparseTensor | None:
    """Sort many entries and sum duplicates; None if kernels do not support the values, do not pay, or have nothing to sort. O(nnz).

    Each kernel copies the entries once. The first kernels are stable bucket sorts, one for each coordinate except the last. The
    last kernel collects each fibre in a workspace, which sums duplicates, and appends it in order. For matrices, this is the
    algorithm of Gustavson, "Two Fast Algorithms for Sparse Matrices: Multiplication and Permuted Transposition", 1978.

    Args:
        indices: coordinates of integers, as an array of shape (ndim, n) or as one array for each dimension.
        values: values, shape (n,).
        shape: the tensor's shape.
        format: the tensor's format.
        dtype: dtype of the index arrays; by default the smallest that fits.
    """
    n = len(values)
    if not shape or n < tuning.COMPILE_ENTRIES or not can_copy(values):
        return None
    dimensions = tuple(dict.fromkeys(part.dimension for part in format.parts if part.minus is None))
    listed, *steps = steps_collecting(dimensions)
    if max((shape[d] for d in dimensions[:-1]), default=0) > tuning.COUNTED_COORDINATES * n:
        return None
    is_costly = converted_so_far(listed, format, n) < tuning.COMPILE_ENTRIES * len(shape) ** 2
    if is_costly or are_in_order([indices[d] for d in dimensions]):
        return None
    pos = torch.from_numpy(np.array([0, n], index_dtype_for(shape, n, dtype)))
    first, *others = (torch.from_numpy(indices[d]).to(pos.dtype).contiguous() for d in listed.mode_order)  # several threads, unlike NumPy
    A = SparseTensor.trusted(Pattern(listed, shape, ((pos, first), *((crd,) for crd in others))), values.contiguous())
    with Progress(f"sorting {n:,} entries", COPIES_PER_STEP * len(steps), size=values.nbytes) as progress:
        for at, step in enumerate(steps):
            parts = copy_steps(A.pattern, step)
            for part_at, part in enumerate(parts):
                progress.reach(COPIES_PER_STEP * at + COPIES_PER_STEP * part_at // len(parts))
                A = copied(A, part)
            A = with_format(A, step)
    return A.to(format)
