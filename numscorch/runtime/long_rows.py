"""Long rows: a product splits a row with a large share of a matrix's entries into parts, so that threads have equal work.

The first part stays in the place of the row. Further parts become rows after all other rows, and their results are added to
the row in order. So results are bitwise equal for any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..frontend.operand import Operand
from ..frontend.problem import Problem
from ..frontend.requests import Request
from ..ir.format import Format
from ..ir.levels import Compressed
from ..schedule import tuning
from ..tensors.pattern import Pattern


@dataclass(frozen=True, eq=False)
class Cut:
    """A matrix with ``rows`` rows before long rows were cut; ``parts`` has each long row with the slice of its further parts."""

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
    """Cut the long rows of a pattern. The new pattern shares the coordinates and the order of the values. O(rows), cached."""
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
