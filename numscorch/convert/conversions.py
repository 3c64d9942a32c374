"""Conversions: a tensor's entries in another format, by one of three routes.

* *Share*: formats that differ only in how the first index is stored share the other's array, and the values (``matrices``).
* *Kernels*: entries are copied to one format after the other (``conversion_plan``), where there are enough of them to pay for compiling.
* *Pack*: entries are sorted, by their numbers where rows are put in another order (``matrices``), else by their coordinates.

A pattern remembers its conversions, so that other values are only gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..frontend.copy_statements import copying
from ..frontend.datatypes import COMPILED
from ..ir.format import Format, sorted_format
from ..ir.implicit import Implicit
from ..ir.level import INT32_MAX, Level
from ..ir.levels import Compressed, Dense, Singleton
from ..ir.padded import Fixed, Nonzero
from ..machine import memory
from ..runtime.plans import launch
from ..schedule import tuning
from ..tensors.ledgers import is_listed, note
from ..tensors.methods import METHODS
from ..tensors.packing import EACH, at_positions, coordinates, is_identity, pack, positions_of
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .conversion_plan import steps_between
from .matrices import can_regroup, regrouped, sorted_rows, sorts
from .spaced import respaced

_converted_before: dict[tuple[Format, Format | None], int] = {}  # entries, by formats


def pays(source: Format, target: Format | None, entries: int, least: int) -> bool:
    """Whether a kernel for a conversion is worth its compilation: of so many entries, or of those that were converted so far."""
    return _converted_so_far(source, target, entries) >= least


def _converted_so_far(source: Format, target: Format | None, entries: int) -> int:
    """How many entries were converted between two formats, with these."""
    known = _converted_before.get((source, target), 0) + entries
    _converted_before[source, target] = known
    return known


@dataclass(frozen=True, eq=False)
class Conversion:
    """How values move from one pattern to another: ``target[slots] = source[order]``.

    ``slots`` is None when the target stores nothing but the source's entries, ``order`` where they stay in order, and are shared.
    """

    pattern: Pattern
    order: torch.Tensor | None
    slots: torch.Tensor | None

    def values(self, values: np.ndarray) -> np.ndarray:
        """The target's values, from the source's: these themselves where they stay in order. O(nnz)."""
        return self.tensor(torch.from_numpy(values)).numpy()

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """The same for a torch tensor; gradients flow."""
        if self.order is None:
            return values
        if is_listed():
            note("copy", f"values in the order of {self.pattern.format.name} {self.pattern.shape}", self.pattern.nnz * values.itemsize)
        gathered = values.index_select(0, self.order)
        if self.slots is None:
            return gathered
        zeros = values.new_zeros(self.pattern.nnz)
        return zeros.index_copy_(0, self.slots, gathered)  # in place: there may be far more positions than entries


def to_format(A: SparseTensor, format: Format) -> SparseTensor:
    """The same entries in another format; ``A`` itself if it has that format already.

    Every stored entry stays stored, explicit zeros too.  The new pattern is remembered with the old one, and from
    the second time on, so is the order of the entries: other values are then only gathered.  Gradients flow.
    Where only rows are stored otherwise (COO to CSR, say), values and columns are shared, as torch shares them.

    Raises:
        FormatError: the format has another number of levels.
    """
    if format == A.format:
        return A
    derived, moved = A.pattern.derived, ("moved", format)
    is_new = ("converted", format) not in derived and moved not in derived
    if is_new and can_copy(A.values) and (steps := _kernels_for(A.pattern, format)):
        copy = _copied(A, steps)
        note_conversion(A.pattern, copy.pattern, copy.values.nbytes)
        return type(A).trusted(derived.setdefault(moved, copy.pattern), copy.values)
    conversion = converted(A.pattern, format)
    return type(A).trusted(conversion.pattern, conversion.tensor(A._values))


def can_copy(values: torch.Tensor) -> bool:
    """Whether kernels copy these values, rather than their numbers: no derivative goes through a kernel."""
    if is_differentiated(values) or type(values) not in (torch.Tensor, torch.nn.Parameter):
        return False
    return values.dtype in COMPILED and not torch._C._functorch.is_functorch_wrapped_tensor(values)


def is_differentiated(values: torch.Tensor) -> bool:
    """Whether derivatives may be asked for."""
    return values.requires_grad or forward_ad._current_level >= 0


def dense_of(A: SparseTensor) -> torch.Tensor | None:
    """The dense tensor, by a kernel; None where it can't, or there is too little to copy."""
    if not can_copy(A.values) or not pays(A.format, None, A.pattern.nnz, tuning.COMPILE_ENTRIES):
        return None
    result: torch.Tensor = launch(copying(A.format, None), (A,), "dense")
    return result


def nonzeros_of(values: torch.Tensor, format: Format) -> SparseTensor | None:
    """What isn't 0 of a strided tensor, by kernels; None where they can't make the format."""
    return chosen_of(values, format, Nonzero()) if can_copy(values) else None


def chosen_of(values: torch.Tensor, format: Format, chooses: Level, *arrays: torch.Tensor) -> SparseTensor | None:
    """What a level, with its arrays, says is stored of a strided tensor, by kernels; None where they can't make the format.

    The level has room for every coordinate, and kernels can copy the values: see :func:`can_copy`.
    """
    source = Format([*(Dense(),) * (values.ndim - 1), chooses])
    known = _converted_so_far(source, format, values.numel())
    if known < tuning.COMPILE_VALUES or not _is_wide_enough(format, values.shape):
        return None
    steps = steps_between(source, format, (True,) * values.ndim) if values.ndim else ()
    if not steps or known < tuning.COMPILE_VALUES * len(steps) ** 2:
        return None
    read = Pattern(source, tuple(values.shape), (*((),) * (values.ndim - 1), arrays))
    return _copied(SparseTensor.trusted(read, values.contiguous().reshape(-1)), steps)


def converted(pattern: Pattern, format: Format) -> Conversion:
    """How to store the same entries in another format; remembered with the pattern.

    Every stored entry stays stored, explicit zeros too.  O(nnz log nnz) at the first call, O(nnz) by kernels.

    Raises:
        FormatError: the format has another number of levels.

    >>> csr = pack(np.array([[0, 0, 1], [0, 2, 0]]), (2, 3), Format("ds"))[0]
    >>> converted(csr, Format("ds", (1, 0))).values(np.array([1.0, 2.0, 3.0])).tolist()
    [1.0, 3.0, 2.0]
    """
    conversion: Conversion | None = pattern.derived.get(("converted", format))
    if conversion is None:
        conversion = pattern.remember(("converted", format), lambda: _converted(pattern, format))
        note_conversion(pattern, conversion.pattern)
    return conversion


def note_conversion(source: Pattern, target: Pattern, values: int = 0) -> None:
    """Enter a new pattern, and so many bytes of values, in the ledger: what it shares with the old one takes no memory."""
    if is_listed():
        shared = {array.data_ptr() for arrays in source.arrays for array in arrays}
        index = sum(array.nbytes for arrays in target.arrays for array in arrays if array.data_ptr() not in shared)
        what = f"{source.format.name} to {target.format.name} {source.shape}"
        note("transposition" if source.format.levels == target.format.levels else "conversion", what, index + values)


def _converted(pattern: Pattern, format: Format) -> Conversion:
    if _shares(pattern, format):
        return Conversion(regrouped(pattern, format), None, None)
    steps = _kernels_for(pattern, format)
    return _numbered(pattern, steps) if steps else _packed(pattern, format)


def _shares(pattern: Pattern, format: Format) -> bool:
    """Whether formats differ in the first index alone, whose coordinates are few enough to be counted, or are counted anyway."""
    if not can_regroup(pattern.format, format):
        return False
    extent = format.parts[0].extent(pattern.shape)
    if pattern.format.levels[0].full or (format.levels[0].full and extent * 2 * EACH <= memory.ASK_FROM):
        return True
    return extent <= tuning.COUNTED_COORDINATES * max(pattern.nnz, 1 << 10)


def _kernels_for(pattern: Pattern, format: Format) -> tuple[Format, ...]:
    """The formats that kernels copy a pattern's entries to, one after the other; none where another route is better, or they can't."""
    if _shares(pattern, format) or _is_sorted_faster(pattern, format) or (pattern.index_dtype == "int32" and pattern.nnz > INT32_MAX):
        return ()
    known = _converted_so_far(pattern.format, format, pattern.nnz)
    if known < tuning.COMPILE_ENTRIES or not _is_wide_enough(format, pattern.shape):
        return ()
    most = tuning.COUNTED_COORDINATES * pattern.nnz
    steps = steps_between(pattern.format, format, tuple([size <= most for size in pattern.shape]))
    return steps if known >= tuning.COMPILE_ENTRIES * len(steps) ** 2 else ()


def _is_sorted_faster(pattern: Pattern, format: Format) -> bool:
    """Whether sorting entries by their numbers is faster than a kernel: always within rows, and by columns where they are few."""
    few = min(tuning.SORTED_ENTRIES, tuning.COMPILE_ENTRIES)  # none where a kernel is always worth it
    return sorts(pattern, format) and (pattern.format.parts == format.parts or pattern.nnz <= few)


def _packed(pattern: Pattern, format: Format) -> Conversion:
    if sorts(pattern, format):
        target, order = sorted_rows(pattern, format)
        return Conversion(target, torch.from_numpy(order), None)
    target, slots, order = pack(coordinates(pattern).numpy(), pattern.shape, format, pattern.index_dtype)
    order = positions_of(pattern, order)
    return Conversion(target, torch.from_numpy(order), None if is_identity(slots, target.nnz) else torch.from_numpy(slots))


def _numbered(pattern: Pattern, steps: Sequence[Format]) -> Conversion:
    """The conversion, by copying the numbers of the entries; its pattern is that of values that were converted before."""
    numbers = torch.from_numpy(np.arange(1, pattern.nnz + 1, dtype=pattern.index_dtype))
    copy = _copied(SparseTensor.trusted(pattern, numbers), steps)
    target, written = pattern.derived.get(("moved", steps[-1]), copy.pattern), copy.values.numpy()
    if (written > 0).all():
        return Conversion(target, torch.from_numpy(written - 1), None)
    slots = np.flatnonzero(written)
    return Conversion(target, torch.from_numpy(written[slots] - 1), torch.from_numpy(slots))


def _copied(A: SparseTensor, steps: Sequence[Format]) -> SparseTensor:
    """The tensor after one kernel for each format.

    Raises:
        FormatError: a level can't store these entries.
    """
    for at, format in enumerate(steps):
        A = _as_ordered(A) if at else A
        if _is_unguarded(format):
            A = launch(copying(A.format, format), (A,), format)
            continue
        if any(level.spaced for level in format.levels):
            A = respaced(A, format)
            continue
        _check_places(A.pattern, format, steps[-1])
        copy = launch(copying(A.format, format), (A,), format)
        for level in format.levels:
            level.tell(copy.pattern.nnz, A.pattern.nnz)
        A = copy
    return A


@lru_cache(maxsize=1024)
def _is_unguarded(format: Format) -> bool:
    """Whether no level is filled in its own way, refuses entries, or warns of how many places it wastes."""
    refusing = any(isinstance(level, Implicit) and level.refuses for level in format.levels)
    return not refusing and not any(level.spaced or type(level).tell is not Level.tell for level in format.levels)


def _as_ordered(A: SparseTensor) -> SparseTensor:
    """A list in which entries have the order that the next step builds upon, though its coordinates alone aren't sorted."""
    ordered = sorted_format(A.format)
    return A if ordered == A.format else type(A).trusted(Pattern(ordered, A.pattern.shape, A.pattern.arrays), A.values)


def _check_places(pattern: Pattern, format: Format, target: Format) -> None:
    """Refuse entries that a level without arrays has no position for, on the way to a target.

    Raises:
        FormatError: there are some.
    """
    refusing = [at for at, level in enumerate(format.levels) if isinstance(level, Implicit) and level.refuses]
    if not refusing:
        return
    indices, sizes = coordinates(pattern).numpy(), format.sizes(pattern.shape)
    columns = [part.of(indices, pattern.shape) for part in format.parts]
    for at in refusing:
        level = format.levels[at]
        if level.fits(at, sizes) is not None or (isinstance(level, Implicit) and level.outside(columns[at - 1], columns[at]).any()):
            pack(indices, pattern.shape, target)  # which says what is wrong


@lru_cache(maxsize=1024)
def _widths(format: Format) -> tuple[int, ...]:
    """How many bits the coordinates of each level have, 0 for those of no such width."""
    return tuple(level.bits if isinstance(level, Compressed | Singleton | Fixed) else 0 for level in format.levels)


def _is_wide_enough(format: Format, shape: Sequence[int]) -> bool:
    """Whether narrow coordinates hold the sizes."""
    widths = _widths(format)
    return not any(widths) or all(not bits or size <= 1 << bits for bits, size in zip(widths, format.sizes(shape), strict=True))


METHODS.update(converted=converted)


def as_stored(gradient: SparseTensor | Tensor, pattern: Pattern) -> Tensor:
    """The values of a gradient in the order of a pattern, of whose entries it may have been computed in another format."""
    if isinstance(gradient, Tensor):  # of a pattern that leaves nothing out
        return at_positions(pattern, gradient[tuple(coordinates(pattern))])
    if gradient.pattern is pattern:
        return gradient._values
    conversion, values = converted(pattern, gradient.format), gradient._values
    if conversion.order is None:
        return values
    values = values if conversion.slots is None else values.index_select(0, conversion.slots)
    return values.new_zeros(pattern.nnz).index_copy(0, conversion.order.long(), values)  # which takes no narrower one
