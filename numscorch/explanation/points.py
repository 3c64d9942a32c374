"""Points of an iteration space: at how many coordinates of all index variables some operands store an entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from ..compute.dispatch import compute
from ..convert.construct import from_coo, from_torch
from ..frontend.parser import Subscripts
from ..tensors.sparse_tensor import SparseTensor

LETTERS = "abcdefghijklmnopqrstuvwxyz"
Sizes = Mapping[str, int]


def is_dense(operand: Any) -> bool:
    """Whether a tensor, ours or torch's, stores every entry."""
    return bool(operand.pattern.is_dense if isinstance(operand, SparseTensor) else operand.layout is torch.strided)


def sizes_of(subscripts: Subscripts, operands: Sequence[Any]) -> dict[str, int]:
    """The extent of each index; size 1 gives way to any other."""
    sizes: dict[str, int] = {}
    for names, operand in zip(subscripts.operands, operands, strict=True):
        sizes |= {name: int(size) for name, size in zip(names, operand.shape, strict=True) if sizes.get(name, 1) == 1}
    return sizes


def points(needs: Sequence[int], subscripts: Subscripts, operands: Sequence[Any], sizes: Sizes) -> int:
    """At how many coordinates of all variables each of these operands, which are sparse, stores an entry.

    One operand's entries are counted, and so are two operands' that meet, by how often each coordinate occurs in them that they
    share; of more operands that share variables in a circle, as in a masked product, a kernel adds ones up.

    >>> import numscorch as ns
    >>> A = ns.from_coo([[0, 1, 1], [2, 0, 2]], [1.0, 2.0, 3.0], (2, 3), format=ns.CSR)
    >>> product = Subscripts((("i", "j"), ("k", "j")), ("i", "k"))
    >>> points((0, 1), product, (A, A), sizes_of(product, (A, A)))
    5
    """
    relations = [_Relation.of(subscripts.operands[at], operands[at], sizes) for at in dict.fromkeys(needs)]
    bound = {name for relation in relations for name in relation.names}
    free = prod(size for name, size in sizes.items() if name not in bound)
    return free * (_joined(relations, sizes) if relations else 1)


@dataclass(frozen=True, slots=True)
class _Relation:
    """Coordinates of some variables, one column each, and how many points each stands for."""

    names: tuple[str, ...]
    coordinates: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, indices: Sequence[str], operand: Any, sizes: Sizes) -> _Relation:
        """A sparse operand's entries; a dimension that is broadcast binds no variable, one that is repeated keeps the diagonal."""
        coordinates = (operand if isinstance(operand, SparseTensor) else from_torch(operand)).indices().numpy()
        kept = np.ones(coordinates.shape[1], bool)
        columns: dict[str, np.ndarray] = {}
        for name, coords, extent in zip(indices, coordinates, operand.shape, strict=True):
            if extent == sizes.get(name):
                kept &= coords == columns.setdefault(name, coords)
        kept_coords = np.array([coords[kept] for coords in columns.values()], np.int64).reshape(len(columns), int(kept.sum()))
        return cls(tuple(columns), kept_coords, np.ones(kept_coords.shape[1], np.int64))

    def onto(self, names: Sequence[str]) -> _Relation:
        """How many points there are at each coordinate of these variables."""
        if tuple(names) == self.names:
            return self
        projected = self.coordinates[[self.names.index(name) for name in names]]
        rows, at = _unique(projected)
        return _Relation(tuple(names), rows, _totals(at, self.counts, rows.shape[1]))


def _joined(relations: Sequence[_Relation], sizes: Sizes) -> int:
    """How many points lie in every relation; variables that only one of them has are counted first."""
    others = [{name for other in relations if other is not relation for name in other.names} for relation in relations]
    reduced = [relation.onto([name for name in relation.names if name in rest]) for relation, rest in zip(relations, others, strict=True)]
    if any(relation.names != before.names for relation, before in zip(reduced, relations, strict=True)):
        return _joined(reduced, sizes)
    names = tuple(dict.fromkeys(name for relation in reduced for name in relation.names))
    if all(len(relation.names) == len(names) for relation in reduced):
        return _in_all([relation.onto(names) for relation in reduced])
    return _added_up(reduced, names, sizes)


def _in_all(relations: Sequence[_Relation]) -> int:
    """Of relations of the same variables: the products of the counts at coordinates that all of them have."""
    if len(relations) == 1:
        return int(relations[0].counts.sum())
    rows, at = _unique(np.concatenate([relation.coordinates for relation in relations], axis=1))
    ends = np.cumsum([relation.coordinates.shape[1] for relation in relations])[:-1]
    totals = [_totals(places, relation.counts, rows.shape[1]) for relation, places in zip(relations, np.split(at, ends), strict=True)]
    return int(np.prod(totals, axis=0).sum())


def _added_up(relations: Sequence[_Relation], names: Sequence[str], sizes: Sizes) -> int:
    """The same of relations of any variables, as an einsum of the counts."""
    letters = dict(zip(names, LETTERS, strict=False))
    terms = ["".join(letters[name] for name in part.names) for part in relations]
    tensors = [
        from_coo(part.coordinates, torch.from_numpy(part.counts.astype(np.float64)), [sizes[name] for name in part.names])
        for part in relations
    ]
    return round(float(compute(f"{','.join(terms)}->", tensors)))


def _unique(coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The coordinates that differ, in order, and the place of each among them; without variables, all are alike."""
    if not len(coordinates):
        return coordinates[:, :1], np.zeros(coordinates.shape[1], np.int64)
    if len(coordinates) == 1:
        rows, at = np.unique(coordinates[0], return_inverse=True)
        return rows[None], at.ravel()
    rows, at = np.unique(coordinates, axis=1, return_inverse=True)
    return rows, at.ravel()


def _totals(places: np.ndarray, counts: np.ndarray, size: int) -> np.ndarray:
    totals = np.zeros(size, np.int64)
    np.add.at(totals, places, counts)
    return totals
