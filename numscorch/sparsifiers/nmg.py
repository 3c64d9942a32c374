"""n:m:g sparsity: each column keeps n of every m rows, and each choice of n rows is kept by equally many columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from ..errors import SizeError
from ..ir.format import NMG, Format
from ..ir.nmg_combinations import table
from .built_in import BuiltIn
from .kinds import Block, Kind
from .magnitude import magnitudes
from .names import called_as
from .nmg_kernel import shared_out

SLAB = 1 << 22  # magnitudes per step, which bounds the extra memory


@called_as("n_m_g(2, 4, 8)")
@dataclass(frozen=True, repr=False)
class n_m_g(BuiltIn):
    """Keep n of every m values along the first dimension, balanced over the choices of rows.

    In a chunk of C(m, n) * g columns, each choice of n rows is kept by g columns. Of all such assignments, the one that
    keeps the largest sum of magnitudes is used.

    Args:
        n: rows that a column keeps of a block.
        m: rows of a block. If the number of rows is not a multiple of m, the last block is smaller, and its columns may
            keep fewer.
        g: columns of a chunk that keep the same rows. A smaller last chunk divides its columns evenly.

    Shape:
        the input is a matrix of any size; the bool mask has the input's shape, and is True where an entry is kept.

    Raises:
        SizeError: the tensor is not a matrix.
        FormatError: n, m and g do not make a format.
        OperandError: the tensor holds NaN, or is not floating-point.

    Complexity:
        O(rows * columns * C(m, n) / m), and more if many columns prefer the same rows.

    Source: Ivanov, Ben-Nun, Hoefler et al., "STen: Productive and Efficient Sparsity in PyTorch", 2023, section 5. The
    greedy choice described there keeps at most as much.

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
        """Return the mask of kept entries."""
        if tensor.ndim != 2:
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: n:m:g is for matrices; reshape it")
        step = max(SLAB // max(tensor.shape[1], 1) // self.m, 1) * self.m
        weights = magnitudes(self, tensor)
        return torch.cat([self._mask(weights[first : first + step]) for first in range(0, max(len(weights), 1), step)])

    def _mask(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the mask of a slab of blocks."""
        rows, columns = weights.shape
        blocks = -(-rows // self.m)
        if weights.isinf().any():  # replace infinity by a number larger than all others
            weights = weights.where(~weights.isinf(), 2 * weights.where(~weights.isinf(), 0).max() + 1)
        padded = torch.nn.functional.pad(weights, (0, 0, 0, blocks * self.m - rows)).reshape(blocks, self.m, columns)
        kinds = torch.from_numpy(shared_out(padded.numpy(), self.n, self.g))
        choices = torch.zeros((len(table(self.n, self.m)), self.m), dtype=torch.bool)
        choices.scatter_(1, torch.from_numpy(table(self.n, self.m)), True)
        return choices[kinds].transpose(1, 2).reshape(blocks * self.m, columns)[:rows]

    @cached_property
    def format(self) -> Format:
        """NMG, the format in which ``sparsify`` stores the kept entries."""
        return NMG(self.n, self.m, self.g)

    @property
    def block(self) -> Block:
        """The rows of a block, and the columns of a chunk."""
        return self.m, len(table(self.n, self.m)) * self.g
