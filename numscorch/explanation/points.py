"""Counts of the stored points of an iteration space: the coordinates of all index variables at which given operands store an entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from ..convert.construct import from_coo, from_torch
from ..frontend.parser import Subscripts
from ..programs.dispatch import compute
from ..tensors.sparse_tensor import SparseTensor

LETTERS = "abcdefghijklmnopqrstuvwxyz"  # index names of the counting einsum
Sizes = Mapping[str, int]


def is_dense(operand: Any) -> bool:
    """Whether a tensor (a SparseTensor or torch's) stores every entry."""
    return bool(operand.pattern.is_dense if isinstance(operand, SparseTensor) else operand.layout is torch.strided)


def points(needs: Sequence[int], subscripts: Subscripts, operands: Sequence[Any], sizes: Sizes) -> int:
    """The number of coordinates of all variables at which each of these sparse operands stores an entry.

    For one or two operands, the count follows from how often each coordinate of the shared variables occurs. For operands that share
    variables in a cycle, as in a masked product, an einsum of the counts computes it.

    >>> import numscorch as ns
    >>> A = ns.from_coo([[0, 1, 1], [2, 0, 2]], [1.0, 2.0, 3.0], (2, 3), format=ns.CSR)
    >>> product = Subscripts((("i", "j"), ("k", "j")), ("i", "k"))
    >>> points((0, 1), product, (A, A), product.sizes([A.shape, A.shape]))
    5
    """
    relations = [_Relation.of(subscripts.operands[at], operands[at], sizes) for at in dict.fromkeys(needs)]
    bound = {name for relation in relations for name in relation.names}
    free = prod(size for name, size in sizes.items() if name not in bound)
    return free * (_join_size(relations, sizes) if relations else 1)


@dataclass(frozen=True, slots=True)
class _Relation:
    """A multiset of points: the coordinates of some variables (a row per variable, a column per point) and each point's multiplicity."""

    names: tuple[str, ...]
    coordinates: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, indices: Sequence[str], operand: Any, sizes: Sizes) -> _Relation:
        """A sparse operand's entries. A broadcast dimension binds no variable; a repeated variable selects the diagonal."""
        coordinates = (operand if isinstance(operand, SparseTensor) else from_torch(operand, copy=False)).indices().numpy()
        mask = np.ones(coordinates.shape[1], bool)
        columns: dict[str, np.ndarray] = {}
        for name, coords, extent in zip(indices, coordinates, operand.shape, strict=True):
            if extent == sizes.get(name):
                mask &= coords == columns.setdefault(name, coords)
        selected = np.array([coords[mask] for coords in columns.values()], np.int64).reshape(len(columns), int(mask.sum()))
        return cls(tuple(columns), selected, np.ones(selected.shape[1], np.int64))

    def onto(self, names: Sequence[str]) -> _Relation:
        """The projection onto these variables, with summed multiplicities."""
        if tuple(names) == self.names:
            return self
        projected = self.coordinates[[self.names.index(name) for name in names]]
        rows, at = _unique(projected)
        return _Relation(tuple(names), rows, np.bincount(at, self.counts, rows.shape[1]).astype(np.int64))


def _join_size(relations: Sequence[_Relation], sizes: Sizes) -> int:
    """The size of the relations' natural join. Variables of a single relation are projected away first."""
    shared = [{name for other in relations if other is not relation for name in other.names} for relation in relations]
    reduced = [relation.onto([n for n in relation.names if n in names]) for relation, names in zip(relations, shared, strict=True)]
    if any(relation.names != before.names for relation, before in zip(reduced, relations, strict=True)):
        return _join_size(reduced, sizes)
    names = tuple(dict.fromkeys(name for relation in reduced for name in relation.names))
    if all(len(relation.names) == len(names) for relation in reduced):
        return _intersection_size([relation.onto(names) for relation in reduced])
    letters = dict(zip(names, LETTERS, strict=False))
    terms = ["".join(letters[name] for name in part.names) for part in reduced]
    tensors = [
        from_coo(part.coordinates, torch.from_numpy(part.counts.astype(np.float64)), [sizes[name] for name in part.names])
        for part in reduced
    ]
    return round(float(compute(f"{','.join(terms)}->", tensors)))  # an einsum of the multiplicities


def _intersection_size(relations: Sequence[_Relation]) -> int:
    """The join size of relations over the same variables: the sum of the products of multiplicities."""
    if len(relations) == 1:
        return int(relations[0].counts.sum())
    rows, at = _unique(np.concatenate([relation.coordinates for relation in relations], axis=1))
    ends = np.cumsum([relation.coordinates.shape[1] for relation in relations])[:-1]
    totals = [np.bincount(places, part.counts, rows.shape[1]) for part, places in zip(relations, np.split(at, ends), strict=True)]
    return round(np.prod(totals, axis=0).sum())


def _unique(coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct columns in order, and each column's index among them; without variables, all columns are equal."""
    if not len(coordinates):
        return coordinates[:, :1], np.zeros(coordinates.shape[1], np.int64)
    if len(coordinates) == 1:
        rows, at = np.unique(coordinates[0], return_inverse=True)
        return rows[None], at.ravel()
    rows, at = np.unique(coordinates, axis=1, return_inverse=True)
    return rows, at.ravel()
