"""Pieces: products that are computed in pieces: parts of a matrix's long rows, or slabs or panels of a long batch.

A product splits a row with a large share of a matrix's entries into parts, so that threads have equal work. The first part stays in
the place of the row. Further parts become rows after all other rows, and their results are added to the row in order. So results are
bitwise equal for any number of threads.

A long index of dense tensors with copied layouts is processed in slabs of a few hundred coordinates. In ``x @ W.t()`` the copies of
``x`` and of the result have the batch contiguous. Copies of a whole batch of thousands exceed the cache, and each of their rows lies
on separate pages. Copies of a slab stay in the cache, and the next slab reuses their memory.

Where a table chooses rows (n:m:g), the copies consist of panels: all values of as many coordinates as a tile of registers holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch

from ..frontend.parser import Subscripts
from ..frontend.problem import Problem
from ..frontend.relayout import Panels, Slabs, panelled, slab_starts
from ..frontend.requests import Operand, Request, plain_request, row_major
from ..ir import index as ix
from ..ir.format import Format, dense
from ..ir.levels import Compressed
from ..ir.symbolic import evaluated
from ..machine.buffer_pool import room
from ..machine.memory import aligned, check_memory
from ..schedule import tuning
from ..schedule.facts import Target
from ..tensors.ledgers import note
from ..tensors.pattern import Pattern
from .binder import Bind


@dataclass(frozen=True, eq=False)
class Cut:
    """A matrix, of ``rows`` rows before its long rows were cut; ``parts`` has each long row and the rows with its further parts."""

    pattern: Pattern
    rows: int
    parts: tuple[tuple[int, slice], ...]

    def joined(self, result: torch.Tensor) -> torch.Tensor:
        """Add the results of further parts to their rows, and return the rows of the product."""
        values = result.numpy()
        for row, parts in self.parts:
            values[row : row + 1] += np.add.reduce(values[parts], axis=0, dtype=values.dtype)
        return result[: self.rows]


def cut(pattern: Pattern) -> Cut:
    """Cut the long rows of a pattern. The new pattern shares the coordinates, and the values keep their order. O(rows), cached."""
    return pattern.remember("cut rows", lambda: _cut(pattern, tuning.LONG_ROW_SHARE, tuning.ROW_PARTS))


def _cut(pattern: Pattern, share: int, parts: int) -> Cut:
    """Cut rows longer than ``nnz / share`` into parts of ``nnz / parts`` entries.

    >>> arrays = (torch.tensor([0, 1, 11, 12]), torch.arange(12))
    >>> made = _cut(Pattern(Format("ds"), (3, 12), ((), arrays)), 2, 3)
    >>> made.pattern.shape, [[array.tolist() for array in level] for level in made.pattern.arrays]
    ((5, 12), [[[0, 5], [0, 1, 3, 4, 2]], [[0, 1, 5, 9, 11, 12], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]])
    >>> made.parts
    ((1, slice(3, 5, None)),)
    """
    starts, crd = pattern.level_arrays(1)[0], pattern.arrays[1][1]
    rows, length = len(starts) - 1, max(pattern.nnz // parts, 1)
    long_rows = np.flatnonzero(np.diff(starts) * share > pattern.nnz)
    inner = [np.arange(starts[row] + length, starts[row + 1], length, dtype=starts.dtype) for row in long_rows]
    counts = [len(further) for further in inner]
    insertions = np.repeat(long_rows + 1, counts)
    ends = rows + np.cumsum([0, *counts])
    pos = np.insert(starts, insertions, np.concatenate(inner))
    target = np.insert(np.arange(rows, dtype=starts.dtype), insertions, np.arange(rows, ends[-1], dtype=starts.dtype))
    first = (torch.from_numpy(np.array([0, len(target)], starts.dtype)), torch.from_numpy(target))
    dimension = pattern.format.mode_order[0]
    shape = tuple(int(ends[-1]) if d == dimension else size for d, size in enumerate(pattern.shape))
    pieces = Pattern(Format((Compressed(ordered=False), Compressed()), pattern.format.parts), shape, (first, (torch.from_numpy(pos), crd)))
    places = zip(long_rows.tolist(), ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    return Cut(pieces, rows, tuple((row, slice(start, end)) for row, start, end in places))


def operand_to_cut(request: Request, problem: Problem, operands: Sequence[Operand]) -> int | None:
    """The number of the operand whose long rows may be cut; None if there is none.

    It must be the only sparse operand of a product, and the only operand with the index of its rows. The product must sum over
    its columns, and its result must be dense with the index of the rows first.
    """
    subscripts = request.subscripts
    sparse = [at for at, op in enumerate(operands) if not op.format.is_dense]
    if not request.is_product or len(sparse) != 1 or not operands[sparse[0]].has_long_rows or not problem.result.is_dense:
        return None
    indices = subscripts.operands[sparse[0]]
    row = indices[operands[sparse[0]].format.mode_order[0]]
    others = (name for at, names in enumerate(subscripts.operands) if at != sparse[0] for name in names)
    return sparse[0] if subscripts.result[:1] == (row,) and row not in others and not set(indices) <= set(subscripts.result) else None


def slabs_of(problem: Problem, request: Request, operands: Sequence[Operand], target: Target) -> Slabs | None:
    """The slabs of a problem whose copies of dense tensors exceed a core's own cache; None if copies are small, or the batch is short.

    The slabs are about equal in size, and a multiple of the lanes of a register.
    """
    layout = problem.layout
    if layout is None or layout.result != 0 or problem.members or not problem.result.is_dense:
        return None
    extent, lanes = problem.shape[0], target.lanes(problem.result.dtype)
    sizes = [prod(operands[at].shape) for at in layout.operands] + [prod(problem.shape)]
    if extent < 2 * tuning.SLAB or sum(sizes) * problem.result.type.itemsize <= 2 * target.own_cache:
        return None
    places = {at: indices.index(layout.index) for at, indices in enumerate(request.subscripts.operands) if layout.index in indices}
    if any(operands[at].shape[place] != extent for at, place in places.items()):
        return None  # an operand is broadcast along the index
    slabs = -(-extent // tuning.SLAB)
    size = -(-extent // (slabs * lanes)) * lanes
    return Slabs(layout.index, size, extent, places)


def in_slabs(slabs: Slabs, problem: Problem, bind: Bind) -> Bind:
    """Return a function from sizes to the function of the operands that runs all slabs; each slab writes to its part of the result."""
    return lambda sizes: _in_slabs(slabs, problem, bind(sizes), evaluated(problem.shape, sizes), evaluated(slabs.size, sizes))


def _in_slabs(slabs: Slabs, problem: Problem, run: Callable[..., Any], shape: tuple[int, ...], size: int) -> Callable[..., torch.Tensor]:
    dtype, starts = getattr(np, problem.result.dtype), slab_starts(shape[0], size)

    def run_slabs(*operands: Any, into: torch.Tensor | None = None) -> torch.Tensor:
        result = torch.from_numpy(room(shape, dtype)) if into is None else into
        for at in problem.layout.operands if problem.layout is not None else ():
            note("copy", "a dense tensor with another dimension contiguous", operands[at].nbytes)
        note("copy", "a dense tensor with another dimension contiguous", result.nbytes)
        for start in starts:
            pieces = [o.narrow(slabs.dimensions[at], start, size) if at in slabs.dimensions else o for at, o in enumerate(operands)]
            run(*pieces, result[start : start + size])
        return result

    return run_slabs


def panels_of(problem: Problem, request: Request, operands: Sequence[Operand], target: Target) -> Panels | None:
    """The panels of a problem in which a table chooses rows; None if there is no table, or no long index of dense tensors only.

    The kernel reads a few registers of a row of the dense operand at a time. Unless these rows are contiguous, they share few cache
    sets, and lie on separate pages. A panel holds a tile of registers of each row.
    """
    if not request.is_product or not problem.result.is_dense or not problem.result.type.in_registers or problem.requested is not None:
        return None
    all_names = request.subscripts.operands
    sparse = [at for at, operand in enumerate(operands) if not operand.format.is_dense]
    free = [name for name in request.subscripts.result if not any(name in all_names[at] for at in sparse)]
    if not free or not any(operands[at].format.levels[-1].constants for at in sparse):
        return None
    index = max(free, key=lambda name: problem.extents[ix.IndexVar(name)])
    extent, width = problem.extents[ix.IndexVar(index)], tuning.ACCUMULATORS * target.lanes(problem.result.dtype)
    places = {at: names.index(index) for at, names in enumerate(all_names) if index in names}
    if any(operands[at].shape[place] != extent for at, place in places.items()) or extent < 2 * width:
        return None
    blocks = [(at, part) for at in sparse for part in operands[at].format.parts]
    sizes = [(all_names[at][part.dimension], operands[at].shape[part.dimension], part.divisor) for at, part in blocks if part.divisor > 1]
    padded = {name: -(-size // block) * block for name, size, block in sizes if sum(name in names for names in all_names) == 1}
    panels, groups = -(-extent // width), -(-extent // tuning.PANEL_GROUP)
    return Panels(*panelled(request.subscripts, index), index, width, extent, max(-(-panels // groups), 2), places, padded)


Copying = Callable[[Request, Operand], Bind]  # from sizes to the function that copies an operand to a tensor


def in_panels(problem: Problem, panels: Panels, names: Subscripts, operands: Sequence[Operand], bind: Bind, copying: Copying) -> Bind:
    """Return a function from sizes to the function of the operands that packs, computes and unpacks each group of panels."""

    def bound(sizes: Sequence[int]) -> Callable[..., Any]:
        shape = evaluated(problem.shape, sizes)
        known = [replace(op, shape=evaluated(op.shape, sizes), strides=evaluated(op.strides, sizes)) for op in operands]
        extents = {name: evaluated(size, sizes) for name, size in panels.padded.items()}
        exact = replace(panels, extent=evaluated(panels.extent, sizes), group=evaluated(panels.group, sizes), padded=extents)
        check_memory(shape, problem.result.type.itemsize, problem.stmt)
        written = Operand(dense(len(shape)), shape, problem.result.dtype, strides=row_major(shape))
        return Packing(exact, names, known, written, copying).around(bind(sizes))

    return bound


class Packing:
    """The copies of dense tensors in panels, and of the result back; ``names`` are the indices of the tensors."""

    def __init__(self, panels: Panels, names: Subscripts, operands: Sequence[Operand], result: Operand, copying: Copying):
        self.panels, self.names, self.result, self.dtype = panels, names, result, getattr(torch, result.dtype)
        self.last = names.result.index(panels.index)
        self.buffers = {at: panels.shape(operands[at].shape, dimension) for at, dimension in panels.dimensions.items()}
        whole = tuple(panels.padded.get(name, size) for name, size in zip(names.result, result.shape, strict=True))
        self.sums = panels.shape(whole, self.last)
        self.groups = [self.parts(first) for first in slab_starts(-(-panels.extent // panels.width), panels.group)]
        numbers = {number for parts in self.groups for _, _, number in parts}
        copies = panels.request.subscripts
        self.packs, self.unpacks = dict[tuple[int, int], Callable[..., Any]](), dict[int, Callable[..., Any]]()
        for number in numbers:
            for at, dimension in panels.dimensions.items():
                viewed = self.viewed(replace(operands[at], dtype=result.dtype), dimension, number)
                into = Subscripts((panels.stored(names.operands[at]),), copies.operands[at])
                self.packs[at, number] = copying(plain_request(into), viewed)(())
            shape = (number, *panels.shape(result.shape, self.last)[1:])
            summed = Operand(dense(len(shape)), shape, result.dtype, strides=row_major((number, *self.sums[1:])))
            self.unpacks[number] = copying(plain_request(Subscripts((copies.result,), panels.stored(names.result))), summed)(())

    def parts(self, first: int) -> list[tuple[slice, int, int]]:
        """The panels of the group that starts at panel ``first``, those that overlap no other panel first.

        Each element has the panels' places in the group, the first coordinate, and the number of panels.
        """
        panels = self.panels
        full = min(panels.extent // panels.width - first, panels.group)
        parts = [(0, full, first * panels.width), (full, panels.group, panels.extent - panels.width)]
        return [(slice(start, stop), coordinate, stop - start) for start, stop, coordinate in parts if start < stop]

    def viewed(self, operand: Operand, dimension: int, number: int) -> Operand:
        """An operand of which ``number`` panels are viewed as two dimensions."""
        shape, strides, width = operand.shape, operand.strides, self.panels.width
        sizes = (*shape[:dimension], number, width, *shape[dimension + 1 :])
        return replace(
            operand, format=dense(len(sizes)), shape=sizes, strides=(*strides[:dimension], width * strides[dimension], *strides[dimension:])
        )

    def view(self, tensor: torch.Tensor, dimension: int, start: int, number: int) -> torch.Tensor:
        """The view of ``number`` panels of a tensor."""
        width = self.panels.width
        return tensor.narrow(dimension, start, number * width).unflatten(dimension, (number, width))

    def around(self, run: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        """The function of the operands that calls ``run`` for each group of panels."""
        dimensions, last, inside = self.panels.dimensions, self.last, tuple(slice(size) for size in self.result.shape)
        rows = (slice(None), *inside[:last], *inside[last + 1 :])

        def run_panels(*operands: Any, into: torch.Tensor | None = None) -> torch.Tensor:
            result = torch.from_numpy(room(self.result.shape, self.result.dtype)) if into is None else into
            sums = aligned(prod(self.sums), self.dtype).view(self.sums)
            copies = {at: aligned(prod(shape), self.dtype).view(shape) for at, shape in self.buffers.items()}
            for tensor in (*(operands[at] for at in copies), result):
                note("copy", "a dense tensor in panels", tensor.nbytes)
            arguments = [copies.get(at, operand) for at, operand in enumerate(operands)]
            summed = sums[rows]
            for parts in self.groups:
                for (at, dimension), (places, start, number) in product(dimensions.items(), parts):
                    self.packs[at, number](self.view(operands[at], dimension, start, number), copies[at][places])
                run(*arguments, sums)
                for places, start, number in parts:
                    written = self.view(result, last, start, number)
                    if written.is_contiguous():
                        self.unpacks[number](summed[places], written)
                    else:
                        written.copy_(summed[places].movedim(0, last).movedim(-1, last + 1))
            return result

        return run_panels
