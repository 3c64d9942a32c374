"""Conversions: a tensor's entries in another format, copied by kernels where these can, else by way of coordinates.

The kernels of a conversion are those of ``conversion_steps``.
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
from ..machine.threads import must_run_serial
from ..runtime.plans import launch
from ..schedule import tuning
from ..tensors.ledgers import is_listed, note
from ..tensors.methods import METHODS
from ..tensors.packing import EACH, at_positions, coordinates, is_identity, pack, positions_of
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .conversion_plan import steps_between
from .matrices import can_regroup, regrouped
from .resorting import can_turn, resorted, resorts, turned
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

    ``slots`` is None when the target stores nothing but the source's entries, ``order`` where they stay in order.
    """

    pattern: Pattern
    order: torch.Tensor | None
    slots: torch.Tensor | None

    def values(self, values: np.ndarray) -> np.ndarray:
        """The target's values, from the source's: these themselves where they stay in order. O(nnz)."""
        if self.order is None:
            return values
        if not must_run_serial():  # torch's threads hang in a forked child
            return self.tensor(torch.from_numpy(values)).numpy()
        self._note(values.itemsize)
        gathered: np.ndarray = values[self.order.numpy()]
        if self.slots is None:
            return gathered
        target = np.zeros(self.pattern.nnz, dtype=values.dtype)
        target[self.slots.numpy()] = gathered
        return target

    def _note(self, itemsize: int) -> None:
        if is_listed():
            note("copy", f"values in the order of {self.pattern.format.name} {self.pattern.shape}", self.pattern.nnz * itemsize)

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """The same for a torch tensor, always a copy; gradients flow. O(nnz)."""
        self._note(values.itemsize)
        if self.order is None:
            return values.clone()
        gathered = values.index_select(0, self.order)
        if self.slots is None:
            return gathered
        return values.new_zeros(self.pattern.nnz).index_copy_(
            0, self.slots, gathered
        )  # in place: there may be far more positions than entries


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
    if can_regroup(A.pattern.format, format) and _is_regrouped(A.pattern, format):
        return type(A).trusted(_regrouped(A.pattern, format), A._values)
    derived, moved = A.pattern.derived, ("moved", format)
    is_new = ("converted", format) not in derived and moved not in derived and not _is_sorted_whole(A.pattern, format)
    if is_new and can_copy(A.values) and (steps := _steps(A.pattern, format)):
        made = _copied(A, steps)
        note_conversion(A.pattern, made.pattern, made.values.nbytes)
        return type(A).trusted(derived.setdefault(moved, made.pattern), made.values)
    conversion = converted(A.pattern, format)
    return type(A).trusted(conversion.pattern, conversion.tensor(A.values))


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
    made: torch.Tensor = launch(copying(A.format, None), (A,), "dense")
    return made


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
    found: Conversion | None = pattern.derived.get(("converted", format))
    if found is None:
        found = pattern.remember(("converted", format), lambda: _converted(pattern, format))
        if found.order is not None:
            note_conversion(pattern, found.pattern)
    return found


def note_conversion(source: Pattern, target: Pattern, values: int = 0) -> None:
    """Enter a new pattern, and so many bytes of values, in the ledger: what it shares with the old one takes no memory."""
    if is_listed():
        shared = {array.data_ptr() for own in source.arrays for array in own}
        index = sum(array.nbytes for own in target.arrays for array in own if array.data_ptr() not in shared)
        what = f"{source.format.name} to {target.format.name} {source.shape}"
        note("transposition" if source.format.levels == target.format.levels else "conversion", what, index + values)


def _converted(pattern: Pattern, format: Format) -> Conversion:
    if can_regroup(pattern.format, format) and _is_regrouped(pattern, format):
        return Conversion(_regrouped(pattern, format), None, None)
    if _is_sorted_whole(pattern, format) and (made := (resorted if resorts(pattern, format) else turned)(pattern, format)):
        return Conversion(made[0], torch.from_numpy(made[1]), None)
    if steps := _steps(pattern, format):
        return _numbered(pattern, steps)
    target, slots, order = pack(coordinates(pattern).numpy(), pattern.shape, format, pattern.index_dtype)
    order = positions_of(pattern, order)
    return Conversion(target, torch.from_numpy(order), None if is_identity(slots, target.nnz) else torch.from_numpy(slots))


def _regrouped(pattern: Pattern, format: Format) -> Pattern:
    """The pattern with its first index stored otherwise; remembered with the old one."""
    found: Pattern | None = pattern.derived.get(("regrouped", format))
    if found is None:
        found = pattern.remember(("regrouped", format), lambda: regrouped(pattern, format))
        note_conversion(pattern, found)
    return found


def _numbered(pattern: Pattern, steps: Sequence[Format]) -> Conversion:
    """The conversion, by copying the numbers of the entries; its pattern is that of values that were converted before."""
    numbers = torch.from_numpy(np.arange(1, pattern.nnz + 1, dtype=pattern.index_dtype))
    made = _copied(SparseTensor.trusted(pattern, numbers), steps)
    target, written = pattern.derived.get(("moved", steps[-1]), made.pattern), made.values.numpy()
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
        A = _taken_as_ordered(A) if at else A
        if _is_unguarded(format):
            A = launch(copying(A.format, format), (A,), format)
            continue
        if any(level.spaced for level in format.levels):
            A = respaced(A, format)
            continue
        _check_places(A.pattern, format, steps[-1])
        made = launch(copying(A.format, format), (A,), format)
        for level in format.levels:
            level.tell(made.pattern.nnz, A.pattern.nnz)
        A = made
    return A


@lru_cache(maxsize=1024)
def _is_unguarded(format: Format) -> bool:
    """Whether no level is filled in its own way, refuses entries, or warns of how many places it wastes."""
    refusing = any(isinstance(level, Implicit) and level.refuses for level in format.levels)
    return not refusing and not any(level.spaced or type(level).tell is not Level.tell for level in format.levels)


def _taken_as_ordered(A: SparseTensor) -> SparseTensor:
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


def _is_sorted_whole(pattern: Pattern, format: Format) -> bool:
    """Whether entries are sorted by their numbers; torch, which gathers the values, must not start threads in a forked child."""
    if resorts(pattern, format):
        return True
    few = min(tuning.SORTED_ENTRIES, tuning.COMPILE_ENTRIES)  # nothing where a kernel is always worth it
    return can_turn(pattern.format, format) and pattern.nnz <= few and not must_run_serial()


def _is_regrouped(pattern: Pattern, format: Format) -> bool:
    """Whether coordinates of the first index, which may have to be counted, are few enough, or the format counts them itself."""
    if pattern.format.levels[0].full:
        return True
    extent = format.parts[0].extent(pattern.shape)
    if format.levels[0].full and extent * 2 * EACH <= memory.ASK_FROM:
        return True
    return extent <= tuning.COUNTED_COORDINATES * max(pattern.nnz, 1 << 10)


def _steps(pattern: Pattern, format: Format) -> tuple[Format, ...]:
    """The formats that kernels copy a pattern's entries to, one after the other; none where they can't, or are too few."""
    if pattern.index_dtype == "int32" and pattern.nnz > INT32_MAX:
        return ()
    known = _converted_so_far(pattern.format, format, pattern.nnz)
    if known < tuning.COMPILE_ENTRIES or not _is_wide_enough(format, pattern.shape):
        return ()
    most = tuning.COUNTED_COORDINATES * pattern.nnz
    steps = steps_between(pattern.format, format, tuple([size <= most for size in pattern.shape]))
    return steps if known >= tuning.COMPILE_ENTRIES * len(steps) ** 2 else ()


@lru_cache(maxsize=1024)
def _widths(format: Format) -> tuple[int, ...]:
    """How many bits the coordinates of each level have, 0 for those of no such width."""
    return tuple(level.bits if isinstance(level, Compressed | Singleton | Fixed) else 0 for level in format.levels)


def _is_wide_enough(format: Format, shape: Sequence[int]) -> bool:
    """Whether narrow coordinates hold the sizes."""
    widths = _widths(format)
    return not any(widths) or all(not bits or size <= 1 << bits for bits, size in zip(widths, format.sizes(shape), strict=True))


METHODS.update(converted=converted)


def as_stored(found: SparseTensor | Tensor, pattern: Pattern) -> Tensor:
    """The values of a gradient in the order of a pattern, of whose entries it may have been computed in another format."""
    if isinstance(found, Tensor):  # of a pattern that leaves nothing out
        return at_positions(pattern, found[tuple(coordinates(pattern))])
    if found.pattern is pattern:
        return found._values
    moved, values = converted(pattern, found.format), found._values
    if moved.order is None:
        return values
    values = values if moved.slots is None else values.index_select(0, moved.slots)
    return values.new_zeros(pattern.nnz).index_copy(0, moved.order.long(), values)  # which takes no narrower one
