"""One-hot rows: lookups in a table as a product of matrices."""

from __future__ import annotations

import torch

from ..tensors.sparse_tensor import SparseTensor
from .functional import one_hot

PRODUCT = "ni,id->nd"  # of ones at the numbers, and the table


def ones_at(numbers: torch.Tensor, table: SparseTensor) -> SparseTensor:
    """The matrix with a one in each row, (n, num_embeddings), at the row of the table that is looked up.

    Raises:
        SizeError: a number is no row's.
    """
    encoded: SparseTensor = one_hot(numbers.long(), table.shape[0], sparse=True, dtype=table.dtype)
    return encoded
