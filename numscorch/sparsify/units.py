"""Units that dynamic sparse training drops and grows: entries, or the blocks that a format stores whole."""

from __future__ import annotations

import numpy as np
import torch

from ..errors import UnsupportedError
from ..ir.format import Format
from ..nn.weights import block_entries, block_of
from ..sparsifiers.magnitude import block_sums
from ..tensors.packing import coordinates, of_entries, pack
from ..tensors.pattern import Pattern


class Units:
    """The entries or blocks of a matrix in a format, numbered in row-major order.

    Attributes:
        block: rows and columns of a unit.
        grid: numbers of units along the rows and the columns of the matrix.
        count: the number of units of the matrix.

    Raises:
        UnsupportedError: the tensor is not a matrix; or the format stores a fixed number of entries per row or group,
            or diagonals.

    >>> import numscorch as ns
    >>> units = Units(ns.BCSR(2, 2), (4, 6))
    >>> units.grid, units.count
    ((2, 3), 6)
    >>> units.sums(units.pattern(torch.tensor([1, 5]), "int32"), torch.ones(8))
    (tensor([1, 5]), tensor([4., 4.]))
    """

    def __init__(self, format: Format, shape: tuple[int, ...]):
        if len(shape) != 2:
            raise UnsupportedError(f"a weight of shape {shape}: entries are dropped and grown only in matrices")
        if any(level.spaced for level in format.levels) or any(part.minus is not None for part in format.parts):
            raise UnsupportedError(
                f"a weight in {format.name}, which restricts the positions of entries: drop and grow in CSR or BCSR; "
                "for n:m patterns, use straight_through"
            )

        self.format, self.shape, self.block = format, shape, block_of(format)
        self.grid = -(-shape[0] // self.block[0]), -(-shape[1] // self.block[1])
        self.count = self.grid[0] * self.grid[1]

    def sums(self, pattern: Pattern, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sorted numbers of the stored units, and the sum of each unit's scores.

        ``scores`` has one score per stored value.
        """
        rows, columns = coordinates(pattern)
        keys, which = torch.unique(rows // self.block[0] * self.grid[1] + columns // self.block[1], return_inverse=True)
        return keys, scores.new_zeros(len(keys)).index_add_(0, which, of_entries(pattern, scores))

    def dense_sums(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the sums (count,) of all units, for scores of the whole matrix."""
        return block_sums(scores, *self.block).flatten()

    def pattern(self, keys: torch.Tensor, index_dtype: str) -> Pattern:
        """Return the pattern that stores the units with these numbers."""
        columns = max(self.grid[1], 1)
        indices = block_entries(torch.stack([keys // columns, keys % columns]), self.block, self.shape)
        return pack(indices.numpy(), self.shape, self.format, np.dtype(index_dtype))[0]
