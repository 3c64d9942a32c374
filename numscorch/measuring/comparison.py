"""Comparison of results across libraries and layouts, before they are timed.

Each result becomes a tensor of torch, strided or COO.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..tensors.sparse_tensor import SparseTensor

RELATIVE, ABSOLUTE = 1e-4, 1e-5  # tolerances of float32; ABSOLUTE is relative to the largest value


def check(result: Any, expected: Any, peer: str = "the peer", tolerance: float = RELATIVE) -> None:
    """Raise an error if two results differ.

    Args:
        result: the result: a tensor of any library, sparse or dense.
        expected: the peer's result.
        peer: the peer's name, for the error text.
        tolerance: the relative tolerance.

    Raises:
        AssertionError: the shapes or the values differ.

    >>> check(torch.ones(2), np.array([1.0, 2.0]), "numpy")
    Traceback (most recent call last):
        ...
    AssertionError: differs from numpy by up to 1, with values up to 2
    """
    result, expected = as_torch(result), as_torch(expected)
    if result.shape != expected.shape:
        raise AssertionError(f"differs from {peer} in shape: {tuple(result.shape)} and {tuple(expected.shape)}")
    result, expected = (values.numpy() for values in _values_at_each_entry(result, expected))
    largest = float(abs(expected[np.isfinite(expected)]).max(initial=0))
    if not np.allclose(result, expected, tolerance, ABSOLUTE * largest, equal_nan=True):
        with np.errstate(invalid="ignore"):  # inf - inf is NaN
            gaps = abs(result - expected)
        apart = float(gaps[~np.isnan(gaps)].max(initial=0))
        raise AssertionError(f"differs from {peer} by up to {apart:.3g}, with values up to {largest:.3g}")


def as_torch(result: Any) -> torch.Tensor:
    """A result of any library as a tensor of float64 or complex128: a COO tensor if it is sparse."""
    library = type(result).__module__.partition(".")[0]
    if isinstance(result, SparseTensor):
        return _coo(result.indices(), result.values, result.shape)
    if isinstance(result, torch.Tensor):
        return _as_double(result.detach() if result.layout in (torch.strided, torch.sparse_coo) else result.detach().to_sparse_coo())
    if library == "graphblas":
        return _of_graphblas(result)
    if library == "sparse" and not result.ndim:  # a scalar, stored as the fill value
        return _as_double(torch.as_tensor(result.todense()))
    if hasattr(result, "coords") or hasattr(result, "tocoo"):
        entries = result if hasattr(result, "coords") else result.tocoo()
        return _coo(np.stack(entries.coords), entries.data, result.shape)
    return _as_double(torch.as_tensor(result))


def _of_graphblas(result: Any) -> torch.Tensor:
    if not hasattr(result, "to_coo") or result.ndim != 2:
        if not hasattr(result, "value"):
            return _as_double(torch.as_tensor(result.to_dense(fill_value=0)))
        return _as_double(torch.as_tensor(0 if result.value is None else result.value))  # None: the sum of no entries
    rows, columns, values = result.to_coo()
    return _coo(np.stack([rows, columns]).astype(np.int64), values, result.shape)


def _coo(indices: Any, values: Any, shape: Any) -> torch.Tensor:
    values = _as_double(torch.as_tensor(values).detach())
    return torch.sparse_coo_tensor(torch.as_tensor(indices), values, tuple(shape), check_invariants=False)


def _as_double(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in double precision: differences of integers could wrap around."""
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def _values_at_each_entry(result: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The values of both tensors at each coordinate that one of them stores; at all coordinates if one is dense."""
    if torch.strided in (result.layout, expected.layout):
        return result.to_dense(), expected.to_dense()
    result, expected = map(_with_sparse_dimensions, (result, expected))
    pairs = [torch.nn.functional.pad(result._values()[:, None], (0, 1)), torch.nn.functional.pad(expected._values()[:, None], (1, 0))]
    indices = torch.cat([result._indices(), expected._indices()], 1)
    return torch.sparse_coo_tensor(indices, torch.cat(pairs), (*result.shape, 2), check_invariants=False).coalesce().values().unbind(1)


def _with_sparse_dimensions(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without dense dimensions: an entry for each of their values.

    >>> hybrid = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.tensor([[2.0, 3.0]]), (2, 2))
    >>> _with_sparse_dimensions(hybrid).to_dense()
    tensor([[0., 0.],
            [2., 3.]])
    """
    if not tensor.dense_dim():
        return tensor
    values, outer = tensor._values(), tensor._indices()
    inner = torch.ones(values.shape[1:]).nonzero().t()
    indices = torch.cat([outer.repeat_interleave(inner.shape[1], 1), inner.repeat(1, outer.shape[1])])
    return torch.sparse_coo_tensor(indices, values.reshape(-1), tensor.shape, check_invariants=False)
