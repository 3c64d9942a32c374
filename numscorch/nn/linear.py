"""SparseLinear: torch.nn.Linear with a sparse weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch

from ..ir.format import CSR, Format
from ..operators.products import linear
from ..sparsifiers.sparsify import Sparsifier
from ..tensors.sparse_tensor import SparseTensor
from .dtypes import check_dtype
from .weights import WithSparseWeight, new_weight

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class SparseLinear(WithSparseWeight):
    """A linear layer with a sparse weight: ``x @ weight.t() + bias``. Only the stored entries are trained.

    Give either ``density`` or ``pattern``; :meth:`from_dense` prunes a dense layer instead. Values are initialized like those of a
    ``torch.nn.Linear`` whose ``in_features`` is the average number of stored entries per row.

    Args:
        in_features: size of the last dimension of the input.
        out_features: size of the last dimension of the output.
        bias: whether to add a bias.
        density: share of entries to store, at random positions; the numbers of entries per row differ by at most one. For block
            formats, the share of blocks.
        pattern: entries to store, of shape (out_features, in_features): a sparse tensor of numscorch, torch or SciPy, or the
            nonzeros of a dense tensor or numpy array. Its values are ignored.
        format: storage format of the weight.
        device: only the CPU is supported.
        dtype: data type of the weight and the bias.

    Shape:
        input (\\*, in_features), output (\\*, out_features).

    Raises:
        SizeError: the pattern has another shape, or the density is not between 0 and 1.
        UnsupportedError: both or neither of density and pattern are given.

    Source: Scorch, section 5, sparse autoencoders.

    >>> layer = SparseLinear(8, 4, density=0.25)
    >>> layer(torch.ones(2, 8)).shape, layer.weight.nnz
    (torch.Size([2, 4]), 8)
    """

    DENSE, SHARED = torch.nn.Linear, ("in_features", "out_features", "bias")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        density: float | None = None,
        pattern: SparseTensor | torch.Tensor | ArrayLike | None = None,
        format: Format | str = CSR,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        shape, axes = (out_features, in_features), "(out_features, in_features)"
        self._set_weight(new_weight(self, shape, axes, density, pattern, format, dtype, device), bias)

    @classmethod
    def from_dense(cls, linear: torch.nn.Linear, sparsifier: Sparsifier | str, format: Format | str | None = None) -> Self:
        """Prune a dense layer; the result keeps its bias, data type, training mode, and frozen parameters.

        Args:
            linear: the dense layer; it is not modified.
            sparsifier: a callable from the weight to a boolean mask, True where a weight is kept; or the name of a registered one.
            format: storage format of the weight; defaults to the sparsifier's ``format`` if it has one, else CSR.

        Raises:
            OperandError: ``linear`` is not a torch.nn.Linear, or ``sparsifier`` is not a sparsifier.
            SizeError: the shapes of mask and weight differ.
            UnsupportedError: the layer is not on the CPU.

        >>> from numscorch.sparsify import magnitude
        >>> SparseLinear.from_dense(torch.nn.Linear(8, 4), magnitude(0.75)).weight.nnz
        8
        """
        return cls._from_dense(linear, sparsifier, format)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the output, (\\*, out_features)."""
        check_dtype(self, self.weight.values, input)
        return linear(input, self.weight.tensor, self.bias)

    def extra_repr(self) -> str:
        has_bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={has_bias}, {self._weight_summary()}"
