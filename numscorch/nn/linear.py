"""SparseLinear: torch.nn.Linear with a sparse weight."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ..arrays import as_tensor
from ..construct import from_coo, from_scipy, from_torch
from ..errors import SizeError, UnsupportedError
from ..ir.format import CSR, Format, as_format
from ..operators.products import linear
from ..sparse_parameter import SparseParameter
from ..sparse_tensor import SparseTensor

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class SparseLinear(torch.nn.Module):
    """``x @ weight.t() + bias``, where the weight stores only some of its entries, which are what is trained.

    Give either ``density`` or ``pattern``. Values start as those of ``torch.nn.Linear`` with as many inputs as a row stores
    on average.

    Args:
        in_features: size of the last dimension of the input.
        out_features: size of the last dimension of the output.
        bias: whether there is one.
        density: the share of entries that is stored, at random places, equally many in each row up to one.
        pattern: the entries that are stored, of shape (out_features, in_features): a SparseTensor, or a tensor or numpy array whose
            nonzeros count.
        format: how the weight is stored.
        dtype: of the weight and the bias.

    Shape:
        input (\\*, in_features), output (\\*, out_features).

    Raises:
        SizeError: the pattern has another shape, or the density is not between 0 and 1.
        UnsupportedError: both a density and a pattern are given, or neither.

    >>> layer = SparseLinear(8, 4, density=0.25)
    >>> layer(torch.ones(2, 8)).shape, layer.weight.nnz
    (torch.Size([2, 4]), 8)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        density: float | None = None,
        pattern: SparseTensor | torch.Tensor | ArrayLike | None = None,
        format: Format | str = CSR,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        shape, dtype = (out_features, in_features), dtype or torch.get_default_dtype()
        if (density is None) == (pattern is None):
            raise UnsupportedError("SparseLinear needs to know which entries it stores: give density= or pattern=, one of them")
        stored = _random(shape, density, dtype) if density is not None else _taken(pattern, shape, dtype)
        self.weight = SparseParameter(stored.to(as_format(format)))
        self.bias = torch.nn.Parameter(torch.empty(out_features, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the values anew."""
        bound = 1 / math.sqrt(max(self.weight.nnz / max(self.out_features, 1), 1))
        for values in (self.weight.values, *([] if self.bias is None else [self.bias])):
            torch.nn.init.uniform_(values, -bound, bound)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The layer's output, of shape (\\*, out_features)."""
        result: torch.Tensor = linear(input, self.weight.tensor, self.bias)
        return result

    def to_dense(self) -> torch.nn.Linear:
        """The layer with a dense weight."""
        layer = torch.nn.Linear(self.in_features, self.out_features, self.bias is not None, dtype=self.weight.values.dtype)
        with torch.no_grad():
            layer.weight.copy_(self.weight.tensor.to_dense())
            if self.bias is not None:
                layer.bias.copy_(self.bias)
        return layer

    def extra_repr(self) -> str:
        weight = self.weight.tensor
        has = "True" if self.bias is not None else "False"
        stored = f"density={weight.density:.3g}, {weight.format.name}"
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={has}, {stored}"


def _random(shape: tuple[int, int], density: float, dtype: torch.dtype) -> SparseTensor:
    """A CSR matrix with this share of its entries, spread evenly over the rows."""
    rows, columns = shape
    if not 0 <= density <= 1:
        raise SizeError(f"density={density}: the share of entries that are stored lies between 0 and 1")
    total = round(density * rows * columns)
    counts = torch.full((rows,), total // max(rows, 1))
    counts[torch.randperm(rows)[: total - int(counts.sum())]] += 1
    places = [torch.randperm(columns)[: int(count)].sort().values for count in counts]
    indices = torch.stack([torch.arange(rows).repeat_interleave(counts), torch.cat([torch.empty(0, dtype=torch.int64), *places])])
    return from_coo(indices, torch.zeros(indices.shape[1], dtype=dtype), shape, CSR)


def _taken(pattern: Any, shape: tuple[int, int], dtype: torch.dtype) -> SparseTensor:
    """The entries of a pattern, in the data type that is wanted."""
    if not isinstance(pattern, SparseTensor | torch.Tensor):
        pattern = from_scipy(pattern) if hasattr(pattern, "tocsr") else as_tensor(pattern, "pattern")
    stored = pattern if isinstance(pattern, SparseTensor) else from_torch(pattern != 0 if pattern.layout is torch.strided else pattern)
    if tuple(stored.shape) != shape:
        raise SizeError(f"pattern has shape {tuple(stored.shape)}, but the weight has {shape}: (out_features, in_features)")
    return stored.with_values(torch.zeros(stored.pattern.nnz, dtype=dtype))
