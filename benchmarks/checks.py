"""Whether two results are the same, in whatever library and layout: a benchmark that isn't checked measures nothing.

Everything becomes a numpy array, a SciPy CSR array, or, for sparse tensors of another order than 2, entries
whose coordinates are numbered in row-major order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from scipy import sparse

import numscorch as ns

RELATIVE, ABSOLUTE = 1e-4, 1e-5  # of float32; the second one of the largest number


@dataclass(frozen=True, slots=True)
class Entries:
    """Stored values of a tensor, and the number of each one's place."""

    places: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]

    def dense(self) -> np.ndarray:
        """The tensor as an array."""
        return np.bincount(self.places, self.values, minlength=prod(self.shape)).reshape(self.shape)


def check(ours: Any, theirs: Any, who: str = "the peer", tolerance: float = RELATIVE) -> None:
    """Refuse to time two functions that don't compute the same.

    Args:
        ours: what ours returned: a tensor of any library, sparse or dense.
        theirs: what the peer returned.
        who: the peer, for the error.
        tolerance: the relative one.

    >>> check(torch.ones(2), np.array([1.0, 2.0]), "numpy")
    Traceback (most recent call last):
        ...
    AssertionError: not what numpy computes: they differ by up to 1, where values are up to 2
    """
    ours, theirs = plain(ours), plain(theirs)
    if ours.shape != theirs.shape:
        raise AssertionError(f"not what {who} computes: shapes are {ours.shape} and {theirs.shape}")
    if isinstance(ours, np.ndarray) or isinstance(theirs, np.ndarray):
        ours, theirs = _as_array(ours), _as_array(theirs)
    elif isinstance(ours, Entries):
        ours, theirs = _on_common_places(ours, theirs)
    difference, largest = abs(ours - theirs), _largest(abs(theirs))
    if not _largest(difference - tolerance * abs(theirs)) <= ABSOLUTE * largest:  # so that NaN is refused too
        raise AssertionError(
            f"not what {who} computes: they differ by up to {_largest(difference):.3g}, where values are up to {largest:.3g}"
        )


def plain(result: Any) -> Any:
    """A result of any library as an array, a CSR array, or entries."""
    library = type(result).__module__.partition(".")[0]
    if isinstance(result, ns.SparseTensor):
        return _of_ours(result)
    if isinstance(result, torch.Tensor):
        return _of_torch(result)
    if library == "graphblas":
        return _of_graphblas(result)
    if library == "sparse":
        return _entries(result.coords, result.data, result.shape)
    return result.tocsr() if sparse.issparse(result) else np.asarray(result)


def _of_ours(result: ns.SparseTensor) -> Any:
    if result.ndim != 2:
        return _entries(result.indices().numpy(), result.values.numpy(), result.shape)
    try:
        return result.to_scipy().tocsr()
    except ns.UnsupportedError:
        return result.to(ns.CSR).to_scipy()


def _of_torch(result: torch.Tensor) -> Any:
    if result.layout is torch.strided:
        return (result.float() if result.dtype is torch.bfloat16 else result).numpy()
    if result.layout is torch.sparse_csr:
        arrays = result.values(), result.col_indices(), result.crow_indices()
        return sparse.csr_array(tuple(array.numpy() for array in arrays), shape=tuple(result.shape))
    if result.layout is torch.sparse_csc:
        arrays = result.values(), result.row_indices(), result.ccol_indices()
        return sparse.csc_array(tuple(array.numpy() for array in arrays), shape=tuple(result.shape)).tocsr()
    return _entries(result._indices().numpy(), result._values().numpy(), result.shape)


def _of_graphblas(result: Any) -> Any:
    if not hasattr(result, "to_csr"):
        return np.asarray(result.value)
    pos, crd, values = result.to_csr()
    return sparse.csr_array((values, crd.astype(np.int64), pos.astype(np.int64)), shape=result.shape)


def _entries(indices: np.ndarray, values: np.ndarray, shape: Sequence[int]) -> Any:
    """Entries from coordinates; dimensions that have none are dense, and follow those that do."""
    shape = tuple(shape)
    if len(shape) == 2 and len(indices) == 2:
        return sparse.coo_array((values, tuple(indices)), shape=shape).tocsr()
    places = np.zeros(indices.shape[1], np.int64)
    for coordinates, size in zip(indices, shape, strict=False):
        places = places * size + coordinates
    inner = prod(shape[len(indices) :])
    return Entries((places[:, None] * inner + np.arange(inner)).ravel(), values.ravel(), shape)


def _as_array(result: Any) -> np.ndarray:
    if isinstance(result, Entries):
        return result.dense()
    return np.asarray(result.toarray() if sparse.issparse(result) else result)


def _on_common_places(ours: Entries, theirs: Entries) -> tuple[np.ndarray, np.ndarray]:
    places, at = np.unique(np.concatenate([ours.places, theirs.places]), return_inverse=True)
    own = len(ours.places)
    return np.bincount(at[:own], ours.values, len(places)), np.bincount(at[own:], theirs.values, len(places))


def _largest(array: Any) -> float:
    """The largest number of an array, sparse or dense; 0 of none."""
    return float(array.max()) if array.size and 0 not in array.shape else 0.0
