"""Sparsifiers that keep a pattern: ``topk`` per slice, ``n_m`` of every m, and ``same_pattern`` as another tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch

from ..errors import OperandError, RangeError, SizeError
from ..ir.format import CSR, NM, Format
from ..tensors.packing import coordinates, numbered
from ..tensors.parameter import unwrapped
from ..tensors.sparse_tensor import SparseTensor
from .base import WHOLE, Block, BuiltIn, Kind, called_as, described
from .magnitude import block_sums, least, magnitudes


@called_as("topk(16)")
@dataclass(frozen=True, repr=False)
class topk(BuiltIn):
    """Keep the k entries with the largest absolute values of each slice.

    Args:
        k: entries to keep per slice; of equal entries, the last are kept.
        dim: the dimension along which a slice runs.

    Shape:
        the input has any shape with an extent of at least k along ``dim``; the bool mask has the input's shape, and is
        True where an entry is kept.

    Raises:
        SizeError: a slice has fewer than k entries, or k is not an integer.
        RangeError: the tensor has no dimension ``dim``.
        OperandError: the tensor holds NaN, or is not floating-point.

    >>> topk(1)(torch.tensor([[3.0, -4.0], [2.0, 1.0]]))
    tensor([[False,  True],
            [ True, False]])
    """

    k: int
    dim: int = -1
    kind: ClassVar[Kind] = Kind.BLOCKING

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 0 or not isinstance(self.dim, int):
            raise SizeError(f"topk({described(self.k)}, dim={described(self.dim)}): k is an integer of at least 0, and dim a dimension")

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if not -tensor.ndim <= self.dim < tensor.ndim:
            raise RangeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: it has {tensor.ndim} dimensions, so choose another dim")
        extent = tensor.shape[self.dim]
        if extent < self.k:
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: a slice has {extent} entries, so k is at most that")
        return ~least(magnitudes(self, tensor), extent - self.k, self.dim)

    @property
    def block(self) -> Block:
        """A row or a column of a matrix."""
        return (1, WHOLE) if self.dim in (-1, 1) else (WHOLE, 1)


FEW = 8  # largest block in which comparing all pairs is faster than a partition


def ranks(scores: torch.Tensor) -> torch.Tensor:
    """Return the rank of each score: the number of scores along the last dimension that are larger, or equal and at a later index.

    O(m^2) for a dimension of size m, without a sort.

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
@dataclass(frozen=True, repr=False)
class n_m(BuiltIn):
    """Keep the n entries with the largest absolute values of every m consecutive entries along the last dimension.

    Args:
        n: entries to keep per block; of equal entries, the last are kept.
        m: entries of a block. If the size is not a multiple of m, the last block is smaller, and keeps up to n entries.
        rows: number of neighbouring rows that keep the same columns, chosen by their sums of absolute values. The last
            group may have fewer rows.

    Shape:
        the input has at least one dimension, or two if ``rows`` is more than 1; the bool mask has the input's shape,
        and is True where an entry is kept.

    Raises:
        FormatError: n is greater than m, or an argument is not a positive integer.
        SizeError: the tensor has too few dimensions.
        OperandError: the tensor holds NaN, or is not floating-point.

    Source: Mishra, Latorre, Pool, Stosic, Stosic, Venkatesh, Yu, Micikevicius, "Accelerating sparse deep neural networks", 2021.

    >>> n_m(1, 2)(torch.tensor([[3.0, -4.0, 2.0, 1.0, 5.0]]))
    tensor([[False,  True,  True, False,  True]])
    """

    n: int
    m: int
    rows: int = 1
    kind: ClassVar[Kind] = Kind.BLOCKING

    def __post_init__(self) -> None:
        _ = self.format  # validates the arguments

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim < (1 if self.rows == 1 else 2):
            wanted = "blocks run along its last dimension" if self.rows == 1 else f"groups of {self.rows} rows need a matrix; reshape it"
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: {wanted}")
        scores = magnitudes(self, tensor)
        if self.rows == 1:
            return self._largest(scores)
        return self._largest(block_sums(scores, self.rows, 1)).repeat_interleave(self.rows, -2)[..., : tensor.shape[-2], :]

    def _largest(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the mask of the n largest scores of each block."""
        columns = scores.shape[-1]
        blocks = -(-columns // self.m)
        if blocks * self.m != columns:  # the padding is lower than any score
            scores = torch.nn.functional.pad(scores, (0, blocks * self.m - columns), value=-1.0)
        blocked = scores.unflatten(-1, (blocks, self.m))
        kept = ranks(blocked) < self.n if self.m <= FEW else ~least(blocked, self.m - self.n)
        return kept.flatten(-2)[..., :columns]

    @cached_property
    def format(self) -> Format:
        """NM, the format in which ``sparsify`` stores the kept entries of a matrix."""
        return NM(self.n, self.m, self.rows)

    @property
    def block(self) -> Block:
        """The rows and columns that are chosen together."""
        return self.rows, self.m

    def __repr__(self) -> str:
        return super().__repr__() if self.rows > 1 else f"n_m({self.n}, {self.m})"


@dataclass(frozen=True, eq=False, repr=False)
class same_pattern(BuiltIn):
    """Keep the entries that another tensor stores, whatever their values.

    Args:
        ref: a SparseTensor or a sparse parameter, whose explicit zeros count as stored; or a bool mask, True where an
            entry is kept.

    Shape:
        the input has the shape of ``ref``; the bool mask has the same shape, and is True where an entry is kept.

    Raises:
        OperandError: ``ref`` is neither a SparseTensor nor a mask.
        SizeError: the tensor has another shape.

    >>> keep = same_pattern(torch.tensor([[True, False], [False, True]]))
    >>> keep(torch.zeros(2, 2)).tolist()
    [[True, False], [False, True]]
    """

    ref: Any

    def __post_init__(self) -> None:
        ref = unwrapped(self.ref)
        if not isinstance(ref, SparseTensor) and not (isinstance(ref, torch.Tensor) and ref.dtype == torch.bool):
            given = f"a tensor of {ref.dtype}" if isinstance(ref, torch.Tensor) else type(ref).__name__
            raise OperandError(f"same_pattern takes a SparseTensor or a bool mask, not {given}: make a mask, as in tensor != 0")
        object.__setattr__(self, "ref", ref)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.mask_for(tensor.shape).clone()

    def mask_for(self, shape: Sequence[int]) -> torch.Tensor:
        """Return the cached mask for a shape; callers must not write to it.

        Raises:
            SizeError: the shape differs from that of ``ref``.
        """
        self._check(shape)
        return self._mask

    def holds(self, indices: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return whether the entries at coordinates (ndim, n) are kept, as a mask (n,). O(n log n), without a full mask.

        Raises:
            SizeError: the shape differs from that of ``ref``.
        """
        self._check(shape)
        if isinstance(self.ref, torch.Tensor):
            return self._mask[tuple(indices)]
        return torch.isin(numbered(list(indices), shape), numbered(list(coordinates(self.ref.pattern)), shape))

    def __eq__(self, other: object) -> bool:
        """Return whether another ``same_pattern`` keeps the same entries, and has the same format."""
        if not isinstance(other, same_pattern) or self.format != other.format or tuple(self.ref.shape) != tuple(other.ref.shape):
            return False
        if isinstance(self.ref, SparseTensor) and isinstance(other.ref, SparseTensor):
            return self.ref.pattern.stores_as(other.ref.pattern)
        return torch.equal(self._mask, other._mask)

    def __hash__(self) -> int:
        return hash((same_pattern, tuple(self.ref.shape)))

    def _check(self, shape: Sequence[int]) -> None:
        if tuple(shape) != tuple(self.ref.shape):
            raise SizeError(f"{self} of a tensor of shape {tuple(shape)}: the pattern has shape {tuple(self.ref.shape)}")

    @cached_property
    def _mask(self) -> torch.Tensor:
        if isinstance(self.ref, torch.Tensor):
            return self.ref.detach().clone()
        mask = torch.zeros(self.ref.shape, dtype=torch.bool)
        mask.reshape(-1)[numbered(list(coordinates(self.ref.pattern)), self.ref.shape)] = True
        return mask

    @property
    def format(self) -> Format:
        """The format of ``ref``; CSR for a mask."""
        return self.ref.format if isinstance(self.ref, SparseTensor) else CSR

    def __repr__(self) -> str:
        what = repr(self.ref) if isinstance(self.ref, SparseTensor) else f"a mask of shape {tuple(self.ref.shape)}"
        return f"same_pattern({what})"
