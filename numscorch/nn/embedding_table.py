"""SparseEmbedding: torch.nn.Embedding with a sparse table."""

from __future__ import annotations

from typing import Self

import torch
from numpy.typing import ArrayLike

from ..errors import UnsupportedError
from ..interface.api import einsum
from ..ir.format import CSR, Format, dense
from ..sparsifiers.sparsify import Sparsifier
from ..tensors.sparse_tensor import SparseTensor
from .embedding import PRODUCT, check_indices, checked_padding, ones_at
from .weights import WithSparseWeight


class SparseEmbedding(WithSparseWeight):
    """An embedding table with sparse rows; only the stored entries are trained, and lookups return 0 elsewhere.

    A sparse table saves memory, not time: torch's lookup of a dense row is a copy. Give either ``density`` or ``pattern``.

    Args:
        num_embeddings: number of rows of the table.
        embedding_dim: number of columns of the table.
        padding_idx: index of an embedding that receives no gradient.
        density: share of entries to store, at random positions, as in :class:`SparseLinear`.
        pattern: entries to store, of shape (num_embeddings, embedding_dim), as in :class:`SparseLinear`.
        format: storage format of the table.
        device: only the CPU is supported.
        dtype: data type of the table.

    Shape:
        input (\\*), output (\\*, embedding_dim).

    Raises:
        SizeError: the pattern has another shape, or the density is not between 0 and 1.
        RangeError: an index or padding_idx is out of range.
        OperandError: indices are not of type int32 or int64.
        UnsupportedError: both or neither of density and pattern are given.

    >>> table = SparseEmbedding(10, 4, density=0.5)
    >>> table(torch.tensor([[1, 2, 4], [4, 3, 2]])).shape, table.weight.nnz
    (torch.Size([2, 3, 4]), 20)
    """

    DENSE, SHARED = torch.nn.Embedding, ("num_embeddings", "embedding_dim", "padding_idx")

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        density: float | None = None,
        pattern: SparseTensor | torch.Tensor | ArrayLike | None = None,
        format: Format | str = CSR,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = checked_padding(padding_idx, num_embeddings)
        shape, axes = (num_embeddings, embedding_dim), "(num_embeddings, embedding_dim)"
        self._make_weight(shape, axes, density, pattern, format, dtype, device, False)

    def reset_parameters(self) -> None:
        """Draw the values from a standard normal distribution."""
        torch.nn.init.normal_(self.weight.values)

    @classmethod
    def from_dense(cls, table: torch.nn.Embedding, sparsifier: Sparsifier, format: Format | str | None = None) -> Self:
        """Prune a dense table; the result keeps its data type, training mode, and whether it is frozen.

        Args:
            table: the dense table; it is not modified.
            sparsifier: a callable from the table to a boolean mask, True where an entry is kept.
            format: storage format of the table; defaults to the sparsifier's ``format`` if it has one, else CSR.

        Raises:
            OperandError: ``table`` is not a torch.nn.Embedding, or ``sparsifier`` is not a sparsifier.
            SizeError: the shapes of mask and table differ.
            UnsupportedError: the table has max_norm, scale_grad_by_freq or sparse set, or is not on the CPU.

        >>> from numscorch.sparsify import magnitude
        >>> SparseEmbedding.from_dense(torch.nn.Embedding(8, 4), magnitude(0.75)).weight.nnz
        8
        """
        for name, default in (("max_norm", None), ("scale_grad_by_freq", False), ("sparse", False)):
            if (value := getattr(table, name, default)) != default:
                raise UnsupportedError(f"{name}={value} is not supported by SparseEmbedding: make the table with {name}={default}")
        return cls._from_dense(table, sparsifier, format)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the embeddings, (\\*, embedding_dim), as the product of a one-hot matrix and the table.

        Autocast does not convert the table, as in torch.
        """
        check_indices(input)
        rows = self._rows(input.reshape(-1)).reshape(*input.shape, self.embedding_dim)
        return rows if self.padding_idx is None else torch.where((input == self.padding_idx)[..., None], rows.detach(), rows)

    def _rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of a vector of indices, (n, embedding_dim)."""
        if torch.compiler.is_compiling():
            from .lookup import lookup_rows  # deferred: it imports torch's compiler

            return lookup_rows(numbers, self.weight.tensor)
        table = self.weight.tensor
        with torch.autocast("cpu", enabled=False):
            return einsum(PRODUCT, ones_at(numbers, table), table, format=dense(2))

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, {self._weight_summary()}"
