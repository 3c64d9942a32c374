"""SparseEmbedding: torch.nn.Embedding with a sparse table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch

from ..api import einsum
from ..errors import OperandError, RangeError, UnsupportedError
from ..ir.format import CSR, Format, dense
from ..sparsifiers.sparsify import Sparsifier, sparsify
from ..tensors.sparse_tensor import SparseTensor
from .one_hot import PRODUCT, ones_at
from .weights import WithSparseWeight, check_dense, new_weight

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

INDICES = (torch.int32, torch.int64)


class SparseEmbedding(WithSparseWeight):
    """Embeddings of which only some numbers are stored, which are what is trained; a lookup writes the others as 0.

    That saves memory, not time: torch's lookup of a dense row is a copy. Give either ``density`` or ``pattern``.

    Args:
        num_embeddings: rows of the table.
        embedding_dim: its columns.
        padding_idx: an embedding that isn't trained.
        density: the share of entries that is stored, at random places, as in :class:`SparseLinear`.
        pattern: the entries that are stored, of shape (num_embeddings, embedding_dim), as in :class:`SparseLinear`.
        format: how the table is stored.
        device: the CPU, if given.
        dtype: of the table.

    Shape:
        input (\\*), output (\\*, embedding_dim).

    Raises:
        SizeError: the pattern has another shape, the density is not between 0 and 1, or an index is no embedding's.
        RangeError: padding_idx is no embedding's.
        OperandError: indices that are no integers.
        UnsupportedError: both a density and a pattern are given, or neither.

    >>> table = SparseEmbedding(10, 4, density=0.5)
    >>> table(torch.tensor([[1, 2, 4], [4, 3, 2]])).shape, table.weight.nnz
    (torch.Size([2, 3, 4]), 20)
    """

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
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise RangeError(f"padding_idx={padding_idx}: there are num_embeddings={num_embeddings}")
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        shape, axes = (num_embeddings, embedding_dim), "(num_embeddings, embedding_dim)"
        self._set_weight(new_weight(self, shape, axes, density, pattern, format, dtype, device), False)

    def reset_parameters(self) -> None:
        """Draw the values anew."""
        torch.nn.init.normal_(self.weight.values)

    @classmethod
    def from_dense(cls, table: torch.nn.Embedding, sparsifier: Sparsifier, format: Format | str | None = None) -> Self:
        """A dense table with the entries that a sparsifier keeps, and its data type; frozen if it is.

        Args:
            table: the dense table, which stays as it is.
            sparsifier: a callable that makes a mask of the table, True where an entry is kept.
            format: how the table is stored; by default in the sparsifier's ``format`` if it has one, else CSR.

        Raises:
            OperandError: not a torch.nn.Embedding, or no sparsifier.
            SizeError: the mask has another shape than the table.
            UnsupportedError: the table renormalizes its rows, counts them for its gradient or makes that sparse, or is not on the CPU.

        >>> from numscorch.sparsify import magnitude
        >>> SparseEmbedding.from_dense(torch.nn.Embedding(8, 4), magnitude(0.75)).weight.nnz
        8
        """
        check_dense(cls, table, torch.nn.Embedding)
        for name, usual in (("max_norm", None), ("scale_grad_by_freq", False), ("sparse", False)):
            if getattr(table, name) != usual:
                raise UnsupportedError(f"{name}={getattr(table, name)} is not taken by SparseEmbedding: make the table with {name}={usual}")
        stored = sparsify(table.weight.detach(), sparsifier, format)
        sizes = table.num_embeddings, table.embedding_dim, table.padding_idx
        return cls(*sizes, pattern=stored, format=stored.format, dtype=stored.dtype)._copy_from_dense(table, stored)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The embeddings, (\\*, embedding_dim): the product of a matrix with a one in each row, and the table.

        Autocast leaves tables alone, as torch's does.
        """
        if not isinstance(input, torch.Tensor) or input.dtype not in INDICES:
            given = input.dtype if isinstance(input, torch.Tensor) else type(input).__name__
            raise OperandError(f"input is {given}: indices of embeddings are a tensor of torch.int64 or torch.int32")
        rows = self._rows(input.reshape(-1)).reshape(*input.shape, self.embedding_dim)
        return rows if self.padding_idx is None else torch.where((input == self.padding_idx)[..., None], rows.detach(), rows)

    def _rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """The embeddings of a list of numbers, (n, embedding_dim)."""
        if torch.compiler.is_compiling():
            from .lookup import lookup_rows  # late: it imports torch's compiler

            return lookup_rows(numbers, self.weight.tensor)
        table = self.weight.tensor
        with torch.autocast("cpu", enabled=False):
            rows: torch.Tensor = einsum(PRODUCT, ones_at(numbers, table), table, format=dense(2))
        return rows

    def to_dense(self) -> torch.nn.Embedding:
        """The table with all its entries."""
        table = torch.nn.Embedding(self.num_embeddings, self.embedding_dim, self.padding_idx, dtype=self.weight.dtype)
        self._copy_to_dense(table)
        return table

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, {self._weight_summary()}"
