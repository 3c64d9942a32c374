"""Sparsifiers that combine other sparsifiers: ``compose`` and ``low_rank_plus_sparse``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..errors import OperandError, SizeError
from ..ir.format import CSR, Format
from ..tensors.sparse_tensor import SparseTensor
from .base import Block, BuiltIn, Kind, called_as, kept_by, kind_of, named
from .magnitude import magnitudes
from .sparsify import Sparsifier, mask_of, sparsify

OVERSAMPLED = 10  # extra random directions, for accuracy
ROUNDS = 2  # power iterations


@dataclass(frozen=True, init=False, repr=False)
class compose:
    """Keep the entries that every sparsifier keeps.

    Sparsifiers are applied in order. Each one sees 0 at the entries that earlier sparsifiers dropped. Fractions refer to all entries of
    the tensor.

    Args:
        sparsifiers: callables that make masks, or names of registered sparsifiers.

    Shape:
        the input has any shape that all sparsifiers accept; the bool mask has the input's shape, and is True where an entry is kept.

    Raises:
        OperandError: an argument is not a sparsifier. Calls raise it if a sparsifier returns no mask.
        SizeError: calls raise it if a mask has another shape than the tensor.

    >>> from numscorch.sparsify import n_m, threshold
    >>> few = compose(n_m(1, 2), threshold(1.0))
    >>> few, few(torch.tensor([3.0, -4.0, 0.5, 0.2])), str(few.kind)
    (compose(n_m(1, 2), threshold(1.0)), tensor([False,  True, False, False]), 'blocking')
    """

    sparsifiers: tuple[Any, ...]

    def __init__(self, *sparsifiers: Sparsifier | str):
        object.__setattr__(self, "sparsifiers", tuple(map(named, sparsifiers)))

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the mask of the entries that all sparsifiers keep."""
        kept = torch.ones_like(tensor, dtype=torch.bool)
        for sparsifier in self.sparsifiers:
            kept = kept & mask_of(torch.where(kept, tensor, torch.zeros((), dtype=tensor.dtype)), sparsifier)
        return kept

    def keeps_value(self, value: Any) -> Any:
        """Return whether a kernel keeps a value. NaN is kept, so that a later check of the kept values finds it.

        Args:
            value: a tensor, or a proxy of a traced value.

        Returns:
            The comparison, a bool tensor or a proxy; True if all values are kept.
        """
        kept: Any = True
        for sparsifier in self.sparsifiers:
            answer = kept_by(sparsifier, value if kept is True else torch.where(kept, value, 0.0))
            kept = answer if kept is True else kept if answer is True else kept & answer
        return kept if kept is True else kept | (value != value)

    @property
    def kind(self) -> Kind:
        """The kind of the composition.

        Streaming if all sparsifiers are streaming. Blocking if all sparsifiers that are not streaming are blocking, with one block shape.
        Otherwise materializing.
        """
        non_streaming = [sparsifier for sparsifier in self.sparsifiers if kind_of(sparsifier) != Kind.STREAMING]
        if not non_streaming:
            return Kind.STREAMING
        blocks = {getattr(sparsifier, "block", None) for sparsifier in non_streaming}
        are_blocking = len(blocks) == 1 and all(kind_of(sparsifier) == Kind.BLOCKING for sparsifier in non_streaming)
        return Kind.BLOCKING if are_blocking else Kind.MATERIALIZING

    @property
    def block(self) -> Block | None:
        """The block shape (rows, columns) of a blocking composition; None for other kinds."""
        if self.kind != Kind.BLOCKING:
            return None
        return next(sparsifier.block for sparsifier in self.sparsifiers if kind_of(sparsifier) == Kind.BLOCKING)

    @property
    def format(self) -> Format:
        """The last format of a sparsifier that is not CSR; CSR if there is none."""
        formats = [getattr(sparsifier, "format", None) for sparsifier in self.sparsifiers]
        return next((format_ for format_ in reversed(formats) if isinstance(format_, Format) and format_ != CSR), CSR)

    def __repr__(self) -> str:
        return f"compose({', '.join(map(repr, self.sparsifiers))})"


class LowRankPlusSparse(NamedTuple):
    """The parts of a matrix that :meth:`low_rank_plus_sparse.split` returns: ``U @ V + sparse``.

    ``parts @ x`` multiplies the sum by a dense tensor without computing it. Gradients flow to all parts.

    Attributes:
        U: the left factor, a dense tensor (rows, rank).
        V: the right factor, a dense tensor (rank, columns).
        sparse: the kept entries of the residual, a SparseTensor (rows, columns).

    >>> from numscorch.sparsify import topk
    >>> parts = low_rank_plus_sparse(1, topk(1)).split(torch.tensor([[1.0, 1.0], [1.0, 5.0]]))
    >>> parts.to_dense().shape, (parts @ torch.ones(2, 3)).shape, parts.sparse.nnz
    (torch.Size([2, 2]), torch.Size([2, 3]), 2)
    """

    U: torch.Tensor
    V: torch.Tensor
    sparse: SparseTensor

    def to_dense(self) -> torch.Tensor:
        """Return the sum of the parts as a dense matrix (rows, columns)."""
        return self.U @ self.V + self.sparse.to_dense()

    def __matmul__(self, other: torch.Tensor) -> torch.Tensor:
        """Multiply by a dense tensor, part by part; gradients flow to all parts."""
        return self.U @ (self.V @ other) + self.sparse @ other


@called_as("low_rank_plus_sparse(8, magnitude(0.9))")
@dataclass(frozen=True, repr=False)
class low_rank_plus_sparse(BuiltIn):
    """Approximate a matrix by a product of low rank, and keep the entries of the residual that another sparsifier keeps.

    A call returns the mask of the residual. :meth:`split` returns all three parts.

    Args:
        rank: the rank of the product. The factors are a truncated singular value decomposition. If the rank is small relative to the
            matrix, the decomposition is randomized, with a fixed seed.
        sparsifier: the sparsifier of the residual, or the name of a registered one.

    Shape:
        the input is a matrix; the bool mask has the input's shape, and is True where an entry of the residual is kept.

    Raises:
        SizeError: the tensor is not a matrix, or smaller than the rank; or the rank is negative.
        OperandError: the tensor is not finite, or not floating-point; or the second argument is not a sparsifier.

    Source: Candès, Li, Ma, Wright, "Robust principal component analysis?", 2009; Halko, Martinsson, Tropp, "Finding structure
    with randomness", 2011.

    >>> from numscorch.sparsify import topk
    >>> W = torch.ones(3, 3); W[1, 2] = 101.0
    >>> U, V, S = low_rank_plus_sparse(1, topk(1, dim=0)).split(W)
    >>> U.shape, V.shape, S.nnz
    (torch.Size([3, 1]), torch.Size([1, 3]), 3)
    """

    rank: int
    sparsifier: Any

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or self.rank < 0:
            raise SizeError(f"{self}: the rank has to be an integer of at least 0")
        object.__setattr__(self, "sparsifier", named(self.sparsifier))

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the mask of the residual's kept entries."""
        U, V = self._factors(tensor)
        return mask_of(tensor.detach() - U @ V, self.sparsifier)

    def split(self, tensor: torch.Tensor, format: Format | str | None = None) -> LowRankPlusSparse:
        """Split a matrix into three parts, detached from it.

        Args:
            tensor: a dense floating-point matrix.
            format: the format of the sparse part; by default as in :func:`sparsify`.

        Returns:
            The parts.

        Raises:
            SizeError: the tensor is not a matrix, or smaller than the rank.
            OperandError: the tensor is not finite, or not floating-point.
            FormatError: the format cannot store the kept entries.
        """
        U, V = self._factors(tensor)
        return LowRankPlusSparse(U, V, sparsify(tensor.detach() - U @ V, self.sparsifier, format))

    def _factors(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return U and V; each is scaled by the square roots of the singular values."""
        if tensor.ndim != 2 or self.rank > min(tensor.shape):
            raise SizeError(
                f"{self} of a tensor of shape {tuple(tensor.shape)}: it takes a matrix with {self.rank} rows and columns or more"
            )
        if not bool(magnitudes(self, tensor).isfinite().all()):
            raise OperandError(
                f"{self} of a tensor with infinite entries, which has no singular values: replace them, for example with nan_to_num()"
            )
        wide = tensor.detach().to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)
        left, values, right = _truncated_svd(wide, self.rank)
        roots = values.sqrt()
        return (left * roots).to(tensor.dtype), (roots[:, None] * right).to(tensor.dtype)

    @property
    def format(self) -> Format:
        """The format of the residual's sparsifier."""
        return getattr(self.sparsifier, "format", CSR)


def _truncated_svd(matrix: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the largest singular values with their left and right vectors. O(rank * size) if the rank is small."""
    width = rank + OVERSAMPLED
    if 2 * width >= min(matrix.shape):
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        return left[:, :rank], values[:rank], right[:rank]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        left, values, right = torch.svd_lowrank(matrix, width, ROUNDS)
    return left[:, :rank], values[:rank], right.t()[:rank]
