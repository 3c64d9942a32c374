"""Comparison of results across libraries and layouts, before they are timed.

Each result becomes a numpy array, or entries with row-major linear positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from ..tensors.sparse_tensor import SparseTensor

RELATIVE, ABSOLUTE = 1e-4, 1e-5  # tolerances of float32; ABSOLUTE is relative to the largest value


@dataclass(frozen=True, slots=True)
class NumberedValues:
    """The stored values of a tensor with their row-major linear positions."""

    positions: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]


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
    result, expected = as_numpy(result), as_numpy(expected)
    if result.shape != expected.shape:
        raise AssertionError(f"differs from {peer} in shape: {result.shape} and {expected.shape}")
    if isinstance(result, np.ndarray) or isinstance(expected, np.ndarray):
        result, expected = _as_array(result), _as_array(expected)
    else:
        result, expected = _at_common_positions(result, expected)
    result, expected = _as_double(result), _as_double(expected)
    largest = float(abs(expected[np.isfinite(expected)]).max(initial=0))
    if not np.allclose(result, expected, tolerance, ABSOLUTE * largest, equal_nan=True):
        with np.errstate(invalid="ignore"):  # inf - inf is NaN
            gaps = abs(result - expected)
        apart = float(gaps[~np.isnan(gaps)].max(initial=0))
        raise AssertionError(f"differs from {peer} by up to {apart:.3g}, with values up to {largest:.3g}")


def as_numpy(result: Any) -> Any:
    """A result of any library as an array, or as ``NumberedValues`` if it is sparse."""
    library = type(result).__module__.partition(".")[0]
    if isinstance(result, SparseTensor):
        return _entries(result.indices().numpy(), _array(result.values), result.shape)
    if isinstance(result, torch.Tensor) and result.layout is torch.strided:
        return _array(result)
    if isinstance(result, torch.Tensor):
        entries = result if result.layout is torch.sparse_coo else result.to_sparse_coo()
        return _entries(entries._indices().numpy(), _array(entries._values()), result.shape)
    if library == "graphblas":
        return _of_graphblas(result)
    if library == "sparse" and not result.ndim:  # a scalar, stored as the fill value
        return np.asarray(result.todense())
    if hasattr(result, "coords") or hasattr(result, "tocoo"):
        entries = result if hasattr(result, "coords") else result.tocoo()
        return _entries(np.stack(entries.coords), entries.data, result.shape)
    return np.asarray(result)


def _array(values: torch.Tensor) -> np.ndarray:
    values = values.detach()
    return (values.float() if values.dtype is torch.bfloat16 else values).numpy()  # numpy has no bfloat16


def _of_graphblas(result: Any) -> Any:
    if not hasattr(result, "to_coo") or result.ndim != 2:
        if not hasattr(result, "value"):
            return result.to_dense(fill_value=0)
        return np.asarray(0 if result.value is None else result.value)  # None: the sum of no entries
    rows, columns, values = result.to_coo()
    return _entries(np.stack([rows, columns]).astype(np.int64), values, result.shape)


def _entries(indices: np.ndarray, values: np.ndarray, shape: Sequence[int]) -> Any:
    """Entries from the coordinates of the leading dimensions; the remaining dimensions are dense."""
    shape = tuple(shape)
    positions = np.zeros(indices.shape[1], np.int64)
    for coordinates, size in zip(indices, shape, strict=False):
        positions = positions * size + coordinates
    inner = prod(shape[len(indices) :])
    return NumberedValues((positions[:, None] * inner + np.arange(inner)).ravel(), values.ravel(), shape)


def _as_array(result: Any) -> np.ndarray:
    if isinstance(result, NumberedValues):
        return _sum_at(result.positions, result.values, prod(result.shape)).reshape(result.shape)
    return np.asarray(result)


def _at_common_positions(result: NumberedValues, expected: NumberedValues) -> tuple[np.ndarray, np.ndarray]:
    if np.array_equal(result.positions, expected.positions):
        return result.values, expected.values
    positions, at = np.unique(np.concatenate([result.positions, expected.positions]), return_inverse=True)
    count = len(result.positions)
    return _sum_at(at[:count], result.values, len(positions)), _sum_at(at[count:], expected.values, len(positions))


def _sum_at(at: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """The sums of the values at each of ``count`` positions; numpy's bincount takes real numbers only."""
    if np.iscomplexobj(values):
        return np.bincount(at, values.real, count) + 1j * np.bincount(at, values.imag, count)
    return np.bincount(at, values, count)


def _as_double(array: np.ndarray) -> np.ndarray:
    """Integers and booleans as float64: integer differences could wrap around, and numpy doesn't subtract booleans."""
    return array if array.dtype.kind in "fc" else array.astype(np.float64)
