"""low_rank_plus_sparse: a matrix as the product of two thin factors, plus a sparse residual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..errors import OperandError, SizeError
from ..ir.format import CSR, Format
from ..tensors.sparse_tensor import SparseTensor
from .base import BuiltIn, called_as, named
from .magnitude import magnitudes
from .sparsify import mask_of, sparsify

OVERSAMPLED = 10  # extra random directions, for accuracy
ROUNDS = 2  # power iterations


class LowRankPlusSparse(NamedTuple):
    """U @ V + sparse: the parts of a matrix (rows, columns).

    U is (rows, rank), V is (rank, columns), and ``sparse`` is a SparseTensor.
    """

    U: torch.Tensor
    V: torch.Tensor
    sparse: SparseTensor

    def to_dense(self) -> torch.Tensor:
        """Return the sum of the parts as a dense matrix."""
        return self.U @ self.V + self.sparse.to_dense()

    def __matmul__(self, other: torch.Tensor) -> torch.Tensor:
        """Multiply by a dense tensor, part by part; gradients flow to all parts."""
        return self.U @ (self.V @ other) + self.sparse @ other


@called_as("low_rank_plus_sparse(8, magnitude(0.9))")
@dataclass(frozen=True, repr=False)
class low_rank_plus_sparse(BuiltIn):
    """Approximate a matrix by a product of low rank, and keep the entries of the residual that another sparsifier keeps.

    A call returns the mask of the residual; ``split`` returns all three parts.

    Args:
        rank: the rank of the product, whose factors come from the largest singular values. If the rank is small
            relative to the matrix, they are found by random projections with a fixed seed.
        sparsifier: the sparsifier of the residual, or the name of a registered one.

    Shape:
        the input is a matrix; the bool mask has the input's shape, and is True where an entry of the residual is kept.

    Raises:
        SizeError: the tensor is not a matrix, or smaller than the rank; or the rank is negative.
        OperandError: the tensor is not finite, or not floating-point; or the second argument is not a sparsifier.

    Sources: Candès, Li, Ma, Wright, "Robust principal component analysis?", 2009; Halko, Martinsson, Tropp, "Finding structure
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
        return mask_of(_residual(tensor, U, V), self.sparsifier)

    def split(self, tensor: torch.Tensor, format: Format | str | None = None) -> LowRankPlusSparse:
        """Return the three parts, detached from the matrix.

        Args:
            tensor: a dense matrix.
            format: the format of the sparse part; by default as in ``sparsify``.
        """
        U, V = self._factors(tensor)
        return LowRankPlusSparse(U, V, sparsify(_residual(tensor, U, V), self.sparsifier, format))

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


def _residual(tensor: torch.Tensor, U: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    return tensor.detach() - U @ V


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
