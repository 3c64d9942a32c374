"""Sparsifiers that keep to a pattern: so many in each slice, n of every m, or those that another tensor stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch

from ..convert.entries import numbered
from ..errors import OperandError, RangeError, SizeError
from ..ir.format import CSR, NM, Format
from ..tensors.packing import coordinates
from ..tensors.parameter import unwrapped
from ..tensors.sparse_tensor import SparseTensor
from .kinds import WHOLE, Block, Kind
from .magnitude import least, magnitudes
from .names import called_as, described


@called_as("topk(16)")
@dataclass(frozen=True)
class topk:
    """The k entries with the largest absolute values of each slice are kept.

    Args:
        k: how many; of equal entries, those that come last.
        dim: the dimension that a slice runs along.

    Shape:
        a tensor of any shape whose extent along ``dim`` is at least k, to a bool mask of that shape, True where an entry is kept.

    Raises:
        SizeError: a slice has fewer entries than k, or k is no whole number.
        RangeError: the tensor has no such dimension.
        OperandError: the tensor holds NaN, or no floating-point numbers.

    >>> topk(1)(torch.tensor([[3.0, -4.0], [2.0, 1.0]]))
    tensor([[False,  True],
            [ True, False]])
    """

    k: int
    dim: int = -1
    kind: ClassVar[Kind] = Kind.BLOCKING
    format: ClassVar[Format] = CSR

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 0 or not isinstance(self.dim, int):
            raise SizeError(f"topk({described(self.k)}, dim={described(self.dim)}): k is a whole number of at least 0, and dim a dimension")

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mask of what is kept."""
        if not -tensor.ndim <= self.dim < tensor.ndim:
            raise RangeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: it has {tensor.ndim} dimensions, so choose another dim")
        extent = tensor.shape[self.dim]
        if extent < self.k:
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: a slice has {extent} entries, so k is at most that")
        return ~least(magnitudes(self, tensor), extent - self.k, self.dim)

    @property
    def block(self) -> Block:
        """A row of a matrix, or a column."""
        return (1, WHOLE) if self.dim in (-1, 1) else (WHOLE, 1)

    def __repr__(self) -> str:
        return f"topk({self.k}, dim={self.dim})"


FEW = 8  # entries of a block up to which comparing each with each is faster than a partition


def ranks(scores: torch.Tensor) -> torch.Tensor:
    """How many of the last dimension are larger than each, or equal and behind it. O(m^2) for each m, without a sort.

    >>> ranks(torch.tensor([1.0, 3.0, 1.0, 2.0]))
    tensor([3, 0, 2, 1], dtype=torch.int8)
    """
    columns, ranks_ = scores.unbind(-1), []
    for at, column in enumerate(columns):
        above = torch.zeros_like(column, dtype=torch.int8)
        for other, score in enumerate(columns):
            if other != at:
                above += (score >= column) if other > at else (score > column)
        ranks_.append(above)
    return torch.stack(ranks_, -1)


@called_as("n_m(2, 4)")
@dataclass(frozen=True)
class n_m:
    """n entries of every m consecutive ones along the last dimension are kept, those with the largest absolute values.

    Args:
        n: how many of a block are kept; of equal ones, those that come last.
        m: entries of a block. Where the size isn't a multiple, the last block is smaller, and up to n of it are kept.
        rows: how many neighbouring rows keep the same places, chosen by sums of absolute values; the last ones may be fewer.

    Shape:
        a tensor with at least one dimension, or two if ``rows`` is more than 1, to a bool mask of its shape, True where an
        entry is kept.

    Raises:
        FormatError: n is greater than m, or a number is no positive whole one.
        SizeError: the tensor has too few dimensions.
        OperandError: the tensor holds NaN, or no floating-point numbers.

    Source: Mishra, Latorre, Pool, Stosic, Stosic, Venkatesh, Yu, Micikevicius, "Accelerating sparse deep neural networks", 2021.

    >>> n_m(1, 2)(torch.tensor([[3.0, -4.0, 2.0, 1.0, 5.0]]))
    tensor([[False,  True,  True, False,  True]])
    """

    n: int
    m: int
    rows: int = 1
    kind: ClassVar[Kind] = Kind.BLOCKING

    def __post_init__(self) -> None:
        _ = self.format  # which refuses what makes no format

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mask of what is kept."""
        if tensor.ndim < (1 if self.rows == 1 else 2):
            wanted = "blocks run along its last dimension" if self.rows == 1 else f"{self.rows} rows are those of a matrix; reshape it"
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: {wanted}")
        scores = magnitudes(self, tensor)
        return self._spread(self._best(scores if self.rows == 1 else self._summed(scores)), tensor)

    def _summed(self, scores: torch.Tensor) -> torch.Tensor:
        """The sums over groups of rows, (..., groups, columns)."""
        groups = -(-scores.shape[-2] // self.rows)
        padded = torch.nn.functional.pad(scores, (0, 0, 0, groups * self.rows - scores.shape[-2]))
        sums: torch.Tensor = padded.unflatten(-2, (groups, self.rows)).sum(-2)
        return sums

    def _best(self, scores: torch.Tensor) -> torch.Tensor:
        """The mask of the n largest scores of each block."""
        columns = scores.shape[-1]
        blocks = -(-columns // self.m)
        if blocks * self.m != columns:  # what lies behind the end is less than any score
            scores = torch.nn.functional.pad(scores, (0, blocks * self.m - columns), value=-1.0)
        blocked = scores.unflatten(-1, (blocks, self.m))
        kept = ranks(blocked) < self.n if self.m <= FEW else ~least(blocked, self.m - self.n)
        return kept.flatten(-2)[..., :columns]

    def _spread(self, kept: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """The mask of groups of rows, for each of their rows."""
        return kept if self.rows == 1 else kept.repeat_interleave(self.rows, -2)[..., : tensor.shape[-2], :]

    @cached_property
    def format(self) -> Format:
        """NM, in which ``sparsify`` stores what is left of a matrix."""
        return NM(self.n, self.m, self.rows)

    @property
    def block(self) -> Block:
        """The rows and columns that are chosen together."""
        return self.rows, self.m

    def __repr__(self) -> str:
        return f"n_m({self.n}, {self.m})" if self.rows == 1 else f"n_m({self.n}, {self.m}, rows={self.rows})"


@dataclass(frozen=True, eq=False)
class same_pattern:
    """The entries that another tensor stores are kept, whatever their values.

    Args:
        ref: a SparseTensor or a sparse parameter, explicit zeros of which count; or a bool mask, True where an entry is kept.

    Shape:
        a tensor of the other one's shape, to a bool mask of that shape, True where an entry is kept.

    Raises:
        OperandError: no SparseTensor and no mask.
        SizeError: the tensor has another shape.

    >>> keep = same_pattern(torch.tensor([[True, False], [False, True]]))
    >>> keep(torch.zeros(2, 2)).tolist()
    [[True, False], [False, True]]
    """

    ref: Any
    kind: ClassVar[Kind] = Kind.MATERIALIZING

    def __post_init__(self) -> None:
        ref = unwrapped(self.ref)
        if not isinstance(ref, SparseTensor) and not (isinstance(ref, torch.Tensor) and ref.dtype == torch.bool):
            given = f"a tensor of {ref.dtype}" if isinstance(ref, torch.Tensor) else type(ref).__name__
            raise OperandError(f"same_pattern takes a SparseTensor or a bool mask, not {given}: make a mask, as with tensor != 0")
        object.__setattr__(self, "ref", ref)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mask of what is kept."""
        return self.mask_for(tensor.shape).clone()

    def mask_for(self, shape: Sequence[int]) -> torch.Tensor:
        """The mask of any tensor of a shape, which isn't to be written to.

        Raises:
            SizeError: it has another shape.
        """
        self._check(shape)
        return self._mask

    def holds(self, indices: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Whether entries are kept, of shape (n,), by their coordinates (ndim, n) in a tensor of a shape. O(n log n), without a mask.

        Raises:
            SizeError: it has another shape.
        """
        self._check(shape)
        if isinstance(self.ref, torch.Tensor):
            return self._mask[tuple(indices)]
        return torch.isin(numbered(list(indices), shape), numbered(list(coordinates(self.ref.pattern)), shape))

    def __eq__(self, other: object) -> bool:
        """Whether another one keeps the same entries, and has them stored alike."""
        if not isinstance(other, same_pattern) or self.format != other.format or tuple(self.ref.shape) != tuple(other.ref.shape):
            return False
        if isinstance(self.ref, SparseTensor) and isinstance(other.ref, SparseTensor):
            return self.ref.pattern.stores_as(other.ref.pattern)
        return torch.equal(self._mask, other._mask)

    def __hash__(self) -> int:
        return hash((same_pattern, tuple(self.ref.shape)))

    def _check(self, shape: Sequence[int]) -> None:
        if tuple(shape) != tuple(self.ref.shape):
            raise SizeError(f"{self} of a tensor of shape {tuple(shape)}: the pattern has the shape {tuple(self.ref.shape)}")

    @cached_property
    def _mask(self) -> torch.Tensor:
        if isinstance(self.ref, torch.Tensor):
            return self.ref.detach().clone()
        mask = torch.zeros(self.ref.shape, dtype=torch.bool)
        mask.reshape(-1)[numbered(list(coordinates(self.ref.pattern)), self.ref.shape)] = True
        return mask

    @property
    def format(self) -> Format:
        """The other tensor's format; of a mask, CSR."""
        return self.ref.format if isinstance(self.ref, SparseTensor) else CSR

    def __repr__(self) -> str:
        what = repr(self.ref) if isinstance(self.ref, SparseTensor) else f"a mask of shape {tuple(self.ref.shape)}"
        return f"same_pattern({what})"
