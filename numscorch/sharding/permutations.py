"""Permutations of the rows and columns of a square matrix before they are distributed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..convert.construct import from_coo
from ..errors import SizeError, UnsupportedError
from ..ir.format import CSR
from ..tensors.sparse_tensor import SparseTensor

Permutation = str | Sequence[int] | torch.Tensor | None


def read_permutation(A: SparseTensor, permute: Permutation, ranks: int) -> torch.Tensor | None:
    """The original row at each place, or None if rows are not reordered.

    Args:
        A: a square matrix.
        permute: ``"nnz"``, ``"metis"``, the original row at each place, or None.
        ranks: the number of ranks.

    Raises:
        SizeError: the matrix is not square, or the permutation is unknown or does not fit.
        UnsupportedError: pymetis isn't installed.
    """
    if permute is None:
        return None
    size = A.shape[0]
    if A.shape[1] != size:
        raise SizeError(f"permute= of a matrix of shape {tuple(A.shape)}: rows and columns are reordered alike, so it must be square")
    if isinstance(permute, str):
        return _by_name(A, permute, ranks)
    places = torch.as_tensor(permute, dtype=torch.int64)
    if not torch.equal(places.sort().values, torch.arange(size)):
        raise SizeError(f"permute= has {len(places)} numbers, but must have each of 0 to {size - 1} once")
    return places


def _by_name(A: SparseTensor, name: str, ranks: int) -> torch.Tensor:
    if name == "nnz":  # rows sorted by length are dealt out like cards, so that each chunk gets rows of all lengths
        order = torch.argsort(torch.bincount(A.indices()[0], minlength=A.shape[0]), descending=True, stable=True)
        return torch.cat([order[rank::ranks] for rank in range(ranks)])
    if name == "metis":
        try:
            import pymetis  # type: ignore[import-not-found]
        except ImportError as error:
            raise UnsupportedError("permute='metis' needs pymetis: pip install pymetis") from error
        pos, crd = (A + A.t()).to(CSR).pattern.arrays[1]
        _, part = pymetis.part_graph(ranks, xadj=pos.tolist(), adjncy=crd.tolist())
        return torch.argsort(torch.tensor(part), stable=True)
    raise SizeError(f"permute={name!r}: give 'nnz', 'metis', or the original row at each place")


def permuted(A: SparseTensor, places: torch.Tensor) -> SparseTensor:
    """The matrix with reordered rows and columns."""
    to = torch.empty_like(places)
    to[places] = torch.arange(len(places))
    return from_coo(to[A.indices()], A.values, A.shape, format=CSR)
