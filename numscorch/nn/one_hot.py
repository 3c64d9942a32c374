"""Table lookup as a matrix product with one-hot rows."""

from __future__ import annotations

import torch

from ..tensors.sparse_tensor import SparseTensor
from .functional import one_hot

PRODUCT = "ni,id->nd"  # one-hot rows times the table


def ones_at(numbers: torch.Tensor, table: SparseTensor) -> SparseTensor:
    """Return the one-hot matrix (n, num_embeddings) of row indices (n,).

    Raises:
        SizeError: an index is out of range.
    """
    return one_hot(numbers.long(), table.shape[0], sparse=True, dtype=table.dtype)
