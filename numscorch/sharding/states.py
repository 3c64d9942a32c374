"""States of sharded matrices: each rank's part of the arrays of CSR, as ``torch.distributed.checkpoint`` saves and reshards them.

The arrays are those of the whole matrix in CSR, with the names that the state of a ``SparseParameter`` has. So a checkpoint does not
depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper

from ..errors import OperandError
from .agreement import collective
from .layout import Layout
from .partition import Grid

POS, CRD, VALUES = "level1_pos", "level1_crd", "values"
SHAPE, PERMUTATION = "shape", "permutation"  # every rank holds all of them


def part_of_whole(part: torch.Tensor, start: int, total: int, grid: Grid) -> DTensor:
    """This rank's consecutive part of a tensor of one dimension, for ``torch.distributed.checkpoint``.

    ``Shard(0)`` means equal parts elsewhere in torch, but a checkpoint reads where the part starts. Other operations of the ``DTensor``
    raise errors.

    Args:
        part: the part.
        start: its position in the whole tensor.
        total: the size of the whole tensor.
        grid: the ranks, each of which has whole rows.
    """
    offset = start if len(part) else total  # two parts with one offset count as copies
    shards: Any = LocalShardsWrapper([part], [(offset,)])
    return DTensor.from_local(shards, grid.mesh, grid.placements, run_check=False, shape=torch.Size((total,)), stride=(1,))


def local_part(array: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """The part of an array in a state: of this rank, if the array is a ``DTensor`` of :func:`part_of_whole`, or of a whole tensor.

    Raises:
        OperandError: the ``DTensor`` holds another part.
    """
    if not isinstance(array, DTensor):
        return array[start:stop]
    local: Any = array.to_local()
    parts = local.local_shards() if isinstance(local, LocalShardsWrapper) else [local]
    starts = [offset[0] for offset in local.local_offsets()] if isinstance(local, LocalShardsWrapper) else [None]
    if len(parts) != 1 or len(parts[0]) != stop - start or (stop > start and starts != [start]):
        raise OperandError(f"the state holds other parts than {start} to {stop} of {len(array)} numbers: load it with the same partition")
    return parts[0]


def state_of(layout: Layout, values: torch.Tensor) -> dict[str, DTensor]:
    """This rank's part of the arrays of the whole matrix in CSR."""
    order, columns = layout.in_order()
    return {
        name: part_of_whole(array, start, total, layout.grid)
        for name, (array, start, total) in (_pattern(layout, columns) | {VALUES: _entries(layout, values.detach()[order])}).items()
    }


def description_of(layout: Layout) -> dict[str, torch.Tensor]:
    """The shape, and the row of the original matrix at each place; empty if rows were not permuted."""
    permutation = torch.empty(0, dtype=torch.int64) if layout.permutation is None else layout.permutation.clone()
    return {SHAPE: torch.tensor(layout.shape), PERMUTATION: permutation}


def values_of_state(layout: Layout, state: Mapping[str, Any]) -> torch.Tensor:
    """The values of a state, in the order of the local values. A collective operation.

    Args:
        layout: the pattern, which the state must have, too.
        state: what :func:`state_of` returned for the same partition; or the state of a whole matrix, as a ``SparseParameter`` has it.

    Raises:
        OperandError: the state has no values, or another pattern.
        RankError: that of another rank has.
    """
    with collective(layout.ranks, "load_state_dict"):
        return _values_of_state(layout, state)


def _values_of_state(layout: Layout, state: Mapping[str, Any]) -> torch.Tensor:
    if VALUES not in state:
        raise OperandError(f"the state of a sharded matrix has {list(state)}, but not {VALUES!r}")
    order, columns = layout.in_order()
    expected = {name: (array, 0, len(array)) for name, array in description_of(layout).items()} | _pattern(layout, columns)
    for name, (array, start, total) in expected.items():
        if name in state and (
            len(state[name]) != total or not torch.equal(local_part(state[name], start, start + len(array)).long(), array.long())
        ):
            raise OperandError(
                f"the state has other entries than a sharded matrix of shape {layout.shape} with {layout.nnz} entries: {name} differs; "
                "ns.sharding.load(path, mesh) reads a matrix with its pattern from a checkpoint"
            )
    if len(state[VALUES]) != layout.nnz:
        raise OperandError(f"the state has {len(state[VALUES])} values, but the sharded matrix has {layout.nnz} entries")
    saved = local_part(state[VALUES], *layout.entries.range_of(layout.exchange.part))
    values = torch.empty_like(saved)
    values[order] = saved
    return values


def _pattern(layout: Layout, columns: torch.Tensor) -> dict[str, tuple[torch.Tensor, int, int]]:
    """The index arrays: this rank's part, where it starts, and the size of the whole array."""
    rank, rows = layout.exchange.part, layout.rows
    index = torch.int32 if max(*layout.shape, layout.nnz) < 2**31 else torch.int64
    pos = layout.matrix.pattern.arrays[1][0].long() + layout.entries.starts[rank]
    pos = pos if rank == rows.ranks - 1 else pos[:-1]  # the last rank has the end of the last row
    return {POS: (pos.to(index), rows.starts[rank], rows.size + 1), CRD: _entries(layout, columns.to(index))}


def _entries(layout: Layout, array: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    return array, layout.entries.starts[layout.exchange.part], layout.nnz
