"""Layouts: the data that ranks compute once for each pattern: local matrices with renumbered columns, their parts, and the exchanges.

The state of a sharded matrix has each rank's part of the whole matrix's CSR arrays. Their names are those in the state of a
``SparseParameter``. ``torch.distributed.checkpoint`` saves and reshards it, so a checkpoint does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper

from ..convert.construct import from_csr
from ..errors import OperandError, UnsupportedError
from ..tensors.sparse_tensor import SparseTensor
from .exchange import HaloExchange
from .partition import Grid, Partition
from .ranks import agree, collective

POS, CRD, VALUES = "level1_pos", "level1_crd", "values"
SHAPE, PERMUTATION = "shape", "permutation"  # arrays of the state that every rank holds completely
SAVED = (
    "call torch.distributed.checkpoint.save({'A': A}, checkpoint_id=folder) on all ranks, or save the whole matrix on one, as in "
    "whole = A.full_tensor() and ns.save(whole, path)"
)


@dataclass(frozen=True, eq=False)
class ColumnPart:
    """The entries of some columns, as positions among the values of the local matrix.

    Args:
        positions: the positions of the part's values among the local values.
        rows: the rows that have entries in the part, or all rows.
        matrix: the part's pattern, with renumbered rows and columns; its values are not used.
    """

    positions: torch.Tensor
    rows: torch.Tensor
    matrix: SparseTensor


class Layout:
    """The data that ranks compute once for each pattern: the local pattern, its owned and its halo part, and the exchanges.

    Args:
        grid: the ranks.
        row_exchange: the exchange among the ranks that share a block of rows; its partition is that of the rows.
        exchange: the exchange of the halo; its partition is that of the columns.
        matrix: the entries of this rank, in CSR; owned rows and columns come first, then rows and columns of other ranks.
        permutation: the row of the original matrix at each place, if rows and columns were permuted.

    Attributes:
        shape: the shape of the whole matrix.
        entries: how the entries are split among ranks.
        nnz: the number of entries on all ranks.
    """

    def __init__(
        self,
        grid: Grid,
        row_exchange: HaloExchange,
        exchange: HaloExchange,
        matrix: SparseTensor,
        permutation: torch.Tensor | None = None,
    ):
        self.grid, self.ranks, self.row_exchange, self.exchange = grid, grid.ranks, row_exchange, exchange
        self.rows, self.columns, self.matrix, self.permutation = row_exchange.partition, exchange.partition, matrix, permutation
        row_of, columns = matrix.indices()
        is_halo = columns >= exchange.owned
        self.shape = torch.Size((self.rows.size, self.columns.size))
        self.entries = Partition.of_sizes(agree(self.ranks, "counts the entries of a matrix", matrix.nnz))
        self.nnz = self.entries.size
        self.owned = self._part(~is_halo, row_of, columns, is_compact=False)
        self.halo = self._part(is_halo, row_of, columns - exchange.owned, is_compact=True)

    def in_order(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The entries by rows and ascending columns of the whole matrix: their positions among the local values, and their columns."""
        rows, columns = self.matrix.indices()
        columns = self.exchange.known[columns]
        order = torch.argsort(columns, stable=True)
        order = order[torch.argsort(rows[order], stable=True)]
        return order, columns[order]

    def __deepcopy__(self, memo: dict[int, Any]) -> Layout:
        """Copies of matrices and modules share what the ranks have computed."""
        return self

    def __reduce__(self) -> Any:
        """Refuse to pickle a sharded matrix, its parameter or its transpose.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(f"pickle, or torch.save, of a sharded matrix, of which each rank holds a part: {SAVED}")

    def _part(self, chosen: torch.Tensor, row_of: torch.Tensor, columns: torch.Tensor, is_compact: bool) -> ColumnPart:
        """The entries that are ``chosen``, with these columns; only rows with entries if ``is_compact``."""
        positions = chosen.nonzero().flatten()
        rows = row_of[positions]
        kept = torch.arange(self.matrix.shape[0])
        if is_compact:
            kept, rows = torch.unique(rows, return_inverse=True)
        shape = len(kept), len(self.exchange.halo) if is_compact else self.exchange.owned
        return ColumnPart(positions, kept, _csr(rows, columns[positions], torch.empty(len(positions), dtype=torch.bool), shape))


def make_layout(
    local: SparseTensor, rows: Partition, columns: Partition, grid: Grid, permutation: torch.Tensor | None = None
) -> tuple[Layout, torch.Tensor]:
    """The layout of a matrix, and the values of this rank in the layout's order. A collective operation.

    Args:
        local: the rows of this rank's block in CSR, with columns of the whole matrix.
        rows: the partition of the rows into blocks.
        columns: the partition of the columns into as many blocks.
        grid: the ranks.
        permutation: the row of the original matrix at each place, if rows and columns were permuted.
    """
    row_of, column_of = local.indices()
    values = local.values
    columns = columns.split(grid.columns)
    if grid.columns > 1:
        chosen = (columns.owners(column_of) % grid.columns == grid.share).nonzero().flatten()
        row_of, column_of, values = row_of[chosen], column_of[chosen], values[chosen]
    row_of = row_of + rows.starts[grid.block]
    row_group, column_parts = grid.mesh.get_group(grid.row_dim), range(grid.share, grid.rows * grid.columns, grid.columns)
    column_group = None if grid.column_dim is None else grid.mesh.get_group(grid.column_dim)
    row_exchange = HaloExchange(grid.ranks, column_group, rows.split(grid.columns), grid.row_parts, row_of)
    exchange = HaloExchange(grid.ranks, row_group, columns, column_parts, column_of)
    row_of, column_of = row_exchange.numbered(row_of), exchange.numbered(column_of)
    order = torch.argsort(row_of * 2 + (column_of >= exchange.owned), stable=True)
    matrix = _csr(row_of, column_of[order], values[order], (row_exchange.extent, exchange.extent))
    return Layout(grid, row_exchange, exchange, matrix, permutation), matrix.values


def _csr(row_of: torch.Tensor, crd: torch.Tensor, values: torch.Tensor, shape: tuple[int, int]) -> SparseTensor:
    """The CSR matrix with columns ``crd`` and values, both sorted by rows. Rows in ``row_of`` are only counted, so their order is free."""
    pos = torch.nn.functional.pad(torch.bincount(row_of, minlength=shape[0]).cumsum(0), (1, 0))
    index = torch.int32 if max(*shape, len(crd)) < 2**31 else torch.int64
    return from_csr(pos.to(index), crd.to(index), values, shape, assume_sorted=True, copy=False, check_invariants=False)


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
    """This rank's part of an array in a state; the array is a whole tensor, or a ``DTensor`` of :func:`part_of_whole`.

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
        RankError: the state of another rank has no values, or another pattern.
    """
    with collective(layout.ranks, "load_state_dict"):
        if VALUES not in state:
            raise OperandError(f"the state of a sharded matrix has {list(state)}, but not {VALUES!r}")
        order, columns = layout.in_order()
        expected = {name: (array, 0, len(array)) for name, array in description_of(layout).items()} | _pattern(layout, columns)
        for name, (array, start, total) in expected.items():
            if name in state and (
                len(state[name]) != total or not torch.equal(local_part(state[name], start, start + len(array)).long(), array.long())
            ):
                raise OperandError(
                    f"the state has other entries than a sharded matrix of shape {tuple(layout.shape)} with {layout.nnz} entries: {name} "
                    "differs; ns.sharding.load(path, mesh) reads a matrix with its pattern from a checkpoint"
                )
        if len(state[VALUES]) != layout.nnz:
            raise OperandError(f"the state has {len(state[VALUES])} values, but the sharded matrix has {layout.nnz} entries")
        saved = local_part(state[VALUES], *layout.entries.range_of(layout.exchange.part))
        return torch.empty_like(saved).index_copy_(0, order, saved)


def _pattern(layout: Layout, columns: torch.Tensor) -> dict[str, tuple[torch.Tensor, int, int]]:
    """For each index array: this rank's part, the position where it starts, and the size of the whole array."""
    rank, rows = layout.exchange.part, layout.rows
    index = torch.int32 if max(*layout.shape, layout.nnz) < 2**31 else torch.int64
    pos = layout.matrix.pattern.arrays[1][0].long() + layout.entries.starts[rank]
    pos = pos if rank == rows.ranks - 1 else pos[:-1]  # the last rank has the end of the last row
    return {POS: (pos.to(index), rows.starts[rank], rows.size + 1), CRD: _entries(layout, columns.to(index))}


def _entries(layout: Layout, array: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    return array, layout.entries.starts[layout.exchange.part], layout.nnz
