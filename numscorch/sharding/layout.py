"""What ranks compute once for each pattern: local matrices with renumbered columns, their owned and halo parts, and the exchanges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..convert.construct import from_csr
from ..errors import UnsupportedError
from ..tensors.sparse_tensor import SparseTensor
from .agreement import agree
from .exchange import HaloExchange
from .partition import Grid, Partition

SAVED = (
    "call torch.distributed.checkpoint.save({'A': A}, checkpoint_id=folder) on all ranks, or save the whole matrix on one, as in "
    "whole = A.full_tensor() and ns.save(whole, path)"
)


@dataclass(frozen=True, eq=False)
class ColumnPart:
    """The entries of some columns, as positions among the values of the local matrix.

    Args:
        positions: of the part's values.
        rows: the rows that have entries in the part, or all rows.
        matrix: the part's pattern, with renumbered rows and columns; its values are not used.
    """

    positions: torch.Tensor
    rows: torch.Tensor
    matrix: SparseTensor


class Layout:
    """What the ranks compute once for each pattern: the local pattern, its owned and its halo part, and the exchanges.

    Args:
        grid: the ranks.
        row_exchange: the exchange of rows among the ranks that share a block of rows, which has the partition of the rows.
        exchange: the exchange of the halo, which has the partition of the columns.
        matrix: the entries of this rank, in CSR; owned rows and columns come first, then those that others own.
        permutation: the row of the original matrix at each place, if rows and columns were permuted.

    Attributes:
        entries: the entries of all ranks, as a partition.
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
        self.entries = Partition.of_sizes(agree(self.ranks, "counts the entries of a matrix", matrix.nnz))
        self.owned = self._part(~is_halo, row_of, columns, is_compact=False)
        self.halo = self._part(is_halo, row_of, columns - exchange.owned, is_compact=True)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the whole matrix."""
        return self.rows.size, self.columns.size

    @property
    def nnz(self) -> int:
        """The number of entries on all ranks."""
        return self.entries.size

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
    """The layout of a matrix, and the values of this rank in its order. A collective operation.

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
    """The matrix with these columns and values, which are sorted by rows, and entries in these rows, in any order."""
    pos = torch.zeros(shape[0] + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(row_of, minlength=shape[0]), 0, out=pos[1:])
    index = torch.int32 if max(*shape, len(crd)) < 2**31 else torch.int64
    return from_csr(pos.to(index), crd.to(index), values, shape, assume_sorted=True, copy=False, check_invariants=False)
