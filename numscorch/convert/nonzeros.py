"""Nonzeros: what isn't 0 of a small dense tensor, as rows and their coordinates, by a few NumPy calls.

A kernel's call takes longer than that, and a list of coordinates that is packed, longer still.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from ..ir.format import COO, Format
from ..schedule import tuning
from ..tensors.packing import index_dtype_for
from ..tensors.pattern import Pattern
from .matrices import can_regroup, regrouped


def listed(values: torch.Tensor, format: Format) -> tuple[Pattern, torch.Tensor] | None:
    """The pattern and the values of what isn't 0; None where NumPy can't read them, there are many, or the format takes more than rows.

    Values are read as they are: no derivative flows to them. O(size).

    >>> from numscorch.ir.format import CSR
    >>> pattern, stored = listed(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), CSR)
    >>> [array.tolist() for array in pattern.arrays[1]], stored.tolist()
    ([[0, 1, 2], [1, 0]], [2.0, 3.0])
    """
    if not 0 < values.numel() <= tuning.LISTED_VALUES or values.dtype is torch.bfloat16 or not _is_listed(format):
        return None
    shape, flat = tuple(values.shape), values.numpy().reshape(-1)
    places = np.flatnonzero(flat != 0)
    dtype = index_dtype_for(shape, len(places))
    columns = [torch.from_numpy(column.astype(dtype)) for column in np.unravel_index(places, shape)]
    pos = torch.from_numpy(np.array([0, len(places)], dtype))
    arrays = ((pos, columns[0]), *((column,) for column in columns[1:]))
    pattern = Pattern.derived_from(COO(len(shape)), shape, arrays, dtype.name)
    return (pattern if format == pattern.format else regrouped(pattern, format)), torch.from_numpy(flat[places])


@lru_cache(maxsize=1024)
def _is_listed(format: Format) -> bool:
    return format.order > 0 and (format == COO(format.order) or can_regroup(COO(format.order), format))
