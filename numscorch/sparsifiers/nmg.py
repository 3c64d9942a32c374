"""n:m:g: every column of a block of m rows keeps n values, and as many columns keep the same rows as any others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from ..errors import SizeError
from ..ir.format import NMG, Format
from ..ir.nmg_combinations import table
from .kinds import Block, Kind
from .magnitude import magnitudes
from .names import called_as
from .nmg_kernel import shared_out

SLAB = 1 << 22  # magnitudes that are looked at together, so that what is made beside the tensor stays small


@called_as("n_m_g(2, 4, 8)")
@dataclass(frozen=True)
class n_m_g:
    """Of every m values along the first dimension n are kept, such that in a chunk of C(m, n) * g columns each choice of n rows
    has g columns: of all ways to share them out, that which keeps the most.

    Args:
        n: rows that a column keeps of a block.
        m: rows of a block; where their number is no multiple, the last block is smaller, and its columns may keep fewer.
        g: columns of a chunk that keep the same rows; a last chunk with fewer columns shares them out evenly.

    Shape:
        a matrix of any size, to a bool mask of its shape, True where an entry is kept.

    Raises:
        SizeError: the tensor is no matrix.
        FormatError: n, m and g make no format.
        OperandError: the tensor holds NaN, or no floating-point numbers.

    Complexity:
        O(rows * columns * C(m, n) / m), and more where many columns prefer the same rows.

    Source: Ivanov, Ben-Nun, Hoefler et al., "STen: Productive and Efficient Sparsity in PyTorch", 2023, section 5, whose greedy
    choice keeps at most as much.

    >>> n_m_g(1, 2, 1)(torch.tensor([[3.0, 4.0], [1.0, 3.0]]))
    tensor([[ True, False],
            [False,  True]])
    """

    n: int
    m: int
    g: int
    kind: ClassVar[Kind] = Kind.BLOCKING

    def __post_init__(self) -> None:
        NMG(self.n, self.m, self.g)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mask of what is kept."""
        if tensor.ndim != 2:
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: n:m:g is for matrices; reshape it")
        step = max(SLAB // max(tensor.shape[1], 1) // self.m, 1) * self.m
        weights = magnitudes(self, tensor)
        return torch.cat([self._kept(weights[first : first + step]) for first in range(0, max(len(weights), 1), step)])

    def _kept(self, weights: torch.Tensor) -> torch.Tensor:
        """The mask of a few blocks."""
        rows, columns = weights.shape
        blocks = -(-rows // self.m)
        if weights.isinf().any():  # a number that is larger than all others will do
            weights = weights.where(~weights.isinf(), 2 * weights.where(~weights.isinf(), 0).max() + 1)
        padded = torch.nn.functional.pad(weights, (0, 0, 0, blocks * self.m - rows)).reshape(blocks, self.m, columns)
        kinds = torch.from_numpy(shared_out(padded.numpy(), self.n, self.g))
        choices = torch.zeros((len(table(self.n, self.m)), self.m), dtype=torch.bool)
        choices.scatter_(1, torch.from_numpy(table(self.n, self.m)), True)
        return choices[kinds].transpose(1, 2).reshape(blocks * self.m, columns)[:rows]

    @cached_property
    def format(self) -> Format:
        """NMG, in which ``sparsify`` stores what is left."""
        return NMG(self.n, self.m, self.g)

    @property
    def block(self) -> Block:
        """The rows of a block, and the columns of a chunk."""
        return self.m, len(table(self.n, self.m)) * self.g

    def __repr__(self) -> str:
        return f"n_m_g({self.n}, {self.m}, {self.g})"
