"""What ranks compute once for each pattern: local matrices with renumbered columns, their owned and halo parts, and the exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from ..convert.construct import from_csr
from ..tensors.sparse_tensor import SparseTensor
from .agreement import agree
from .exchange import HaloExchange
from .partition import Partition


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
    """What the ranks compute once for each pattern: the local pattern, its owned and its halo part, and the exchange.

    Args:
        mesh: a mesh of one dimension.
        shape: the shape of the whole matrix.
        rows: the partition of the rows.
        exchange: the exchange of the halo, which has the partition of the columns.
        matrix: the entries of this rank's rows, in CSR; owned columns come first, then the halo.
        permutation: the row of the original matrix at each place, if rows and columns were permuted.

    Attributes:
        entries: the entries of the whole matrix in the order of its rows, as a partition.
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        shape: tuple[int, int],
        rows: Partition,
        exchange: HaloExchange,
        matrix: SparseTensor,
        permutation: torch.Tensor | None = None,
    ):
        self.mesh, self.group, self.shape, self.rows, self.columns = mesh, mesh.get_group(), shape, rows, exchange.columns
        self.exchange, self.matrix, self.permutation = exchange, matrix, permutation
        row_of, columns = matrix.indices()
        is_halo = columns >= exchange.owned
        self.entries = Partition.of_sizes(agree(self.group, "counts the entries of a matrix", matrix.nnz))
        self.owned = self._part(~is_halo, row_of, columns, is_compact=False)
        self.halo = self._part(is_halo, row_of, columns - exchange.owned, is_compact=True)

    @property
    def nnz(self) -> int:
        """The number of entries on all ranks."""
        return self.entries.size

    @property
    def numbers(self) -> torch.Tensor:
        """The column of the whole matrix for each local column."""
        return torch.cat([torch.arange(*self.columns.range_of(self.exchange.rank)), self.exchange.halo])

    def in_order(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The entries by rows and ascending columns of the whole matrix: their positions among the local values, and their columns."""
        rows, columns = self.matrix.indices()
        columns = self.numbers[columns]
        order = torch.argsort(columns, stable=True)
        order = order[torch.argsort(rows[order], stable=True)]
        return order, columns[order]

    def __deepcopy__(self, memo: dict[int, Any]) -> Layout:
        """Copies of matrices and modules share what the ranks have computed."""
        return self

    def _part(self, chosen: torch.Tensor, row_of: torch.Tensor, columns: torch.Tensor, is_compact: bool) -> ColumnPart:
        """The entries that are ``chosen``, with these columns; only rows with entries if ``is_compact``."""
        positions = chosen.nonzero().flatten()
        rows = row_of[positions]
        kept = torch.arange(self.matrix.shape[0])
        if is_compact:
            kept, rows = torch.unique(rows, return_inverse=True)
        pos = torch.zeros(len(kept) + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(rows, minlength=len(kept)), 0, out=pos[1:])
        size = len(self.exchange.halo) if is_compact else self.exchange.owned
        return ColumnPart(positions, kept, _csr(pos, columns[positions], torch.empty(len(positions), dtype=torch.bool), (len(kept), size)))


def local_matrix(local: SparseTensor, columns: Partition, mesh: DeviceMesh) -> tuple[HaloExchange, SparseTensor]:
    """The exchange for these local rows, and the rows with renumbered columns: owned ones first, then the halo. A collective operation.

    Args:
        local: this rank's rows in CSR, with columns of the whole matrix.
        columns: the partition of the columns.
        mesh: the mesh.
    """
    pos, crd = local.pattern.arrays[1]
    start, stop = columns.range_of(mesh.get_group().rank())
    crd = crd.long()
    is_halo = (crd < start) | (crd >= stop)
    halo = torch.unique(crd[is_halo])
    exchange = HaloExchange(mesh.get_group(), columns, halo)
    rows = torch.repeat_interleave(torch.arange(local.shape[0]), pos.diff().long())
    order = torch.argsort(rows * 2 + is_halo, stable=True)
    numbered = torch.where(is_halo, exchange.owned + torch.searchsorted(halo, crd), crd - start)[order]
    return exchange, _csr(pos, numbered, local.values[order], (local.shape[0], exchange.extent))


def _csr(pos: torch.Tensor, crd: torch.Tensor, values: torch.Tensor, shape: tuple[int, int]) -> SparseTensor:
    index = torch.int32 if max(*shape, len(crd)) < 2**31 else torch.int64
    return from_csr(pos.to(index), crd.to(index), values, shape, assume_sorted=True, check_invariants=False)
