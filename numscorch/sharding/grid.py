"""Grid: which part of a matrix each rank of a mesh holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

from ..errors import UnsupportedError
from .agreement import Ranks
from .partition import Partition


@dataclass(frozen=True, eq=False)
class Grid:
    """The ranks of a mesh over which a matrix is distributed: its rows over one dimension, and possibly its columns over a later one.

    Rows and columns are divided into one part for each of these ranks, in row-major order, as ``DTensor`` does for
    ``[Shard(0), Shard(0)]``. A rank owns its part of both. It holds the entries whose rows a rank of the same mesh row owns, and whose
    columns a rank of the same mesh column owns.

    Args:
        mesh: the mesh.
        row_dim: the dimension of the mesh over which the rows are distributed.
        column_dim: the dimension over which the columns are; None if each rank has whole rows.
    """

    mesh: DeviceMesh
    row_dim: int
    column_dim: int | None

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions of the mesh over which the matrix is distributed; it is replicated over others."""
        return (self.row_dim,) if self.column_dim is None else (self.row_dim, self.column_dim)

    @property
    def placements(self) -> list[Placement]:
        """The placements of the matrix."""
        kinds: dict[int | None, Placement] = {self.row_dim: Shard(0), self.column_dim: Shard(1)}
        return [kinds.get(dim, Replicate()) for dim in range(self.mesh.ndim)]

    @property
    def ranks(self) -> Ranks:
        """The ranks that hold the matrix together, one for each part."""
        return Ranks.of(self.mesh, self.dims)

    @property
    def row_group(self) -> dist.ProcessGroup:
        """The ranks among which columns are exchanged: they have the same columns of several blocks of rows."""
        return self.mesh.get_group(self.row_dim)

    @property
    def column_group(self) -> dist.ProcessGroup | None:
        """The ranks that have several columns of one block of rows; None if each rank has whole rows."""
        return None if self.column_dim is None else self.mesh.get_group(self.column_dim)

    @property
    def rows(self) -> int:
        """The number of blocks of rows."""
        return self.mesh.size(self.row_dim)

    @property
    def columns(self) -> int:
        """The number of ranks that share a block of rows."""
        return 1 if self.column_dim is None else self.mesh.size(self.column_dim)

    @property
    def block(self) -> int:
        """The block of rows of this rank."""
        return self.mesh.get_local_rank(self.row_dim)

    @property
    def share(self) -> int:
        """The position of this rank among those that share its block of rows."""
        return 0 if self.column_dim is None else self.mesh.get_local_rank(self.column_dim)

    @property
    def row_parts(self) -> range:
        """The parts of the rows that ranks with this block own."""
        return range(self.block * self.columns, (self.block + 1) * self.columns)

    @property
    def column_parts(self) -> range:
        """The parts of the columns that ranks with this share own."""
        return range(self.share, self.rows * self.columns, self.columns)

    def chunks(self, size: int) -> Partition:
        """The parts that ``DTensor`` has: torch's chunks, divided into torch's chunks."""
        return Partition.even(size, self.rows).split(self.columns)


def read_grid(mesh: DeviceMesh, placements: Placement | Sequence[Placement]) -> Grid:
    """The grid that a user requests.

    Raises:
        UnsupportedError: there is not one placement for each dimension of the mesh, or they are not supported.
    """
    given = [placements] if isinstance(placements, Placement) else list(placements)
    dims = [placement.dim % 2 if isinstance(placement, Shard) else None for placement in given]
    known = all(isinstance(placement, Shard | Replicate) for placement in given)
    if len(given) != mesh.ndim or not known or [dim for dim in dims if dim is not None] not in ([0], [0, 1]):
        raise UnsupportedError(
            f"placements={given} on a mesh of {mesh.ndim} dimensions: give one for each dimension. Supported are Shard(0) for the rows, "
            "at most one Shard(1) for the columns after it, and Replicate() for other dimensions"
        )
    return Grid(mesh, dims.index(0), dims.index(1) if 1 in dims else None)
