"""Ranks: the ranks of one or several dimensions of a mesh, and collective operations over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..errors import OperandError, RankError


@dataclass(frozen=True)
class Ranks:
    """The ranks of some dimensions of a mesh, in row-major order.

    Args:
        groups: the process groups of the dimensions, each with ranks that differ in this dimension only.
    """

    groups: tuple[dist.ProcessGroup, ...]

    @classmethod
    def of(cls, mesh: DeviceMesh, dims: Sequence[int] | None = None) -> Ranks:
        """The ranks of these dimensions of a mesh, of all by default.

        Raises:
            OperandError: it is not a mesh.
            RankError: this rank is not part of it.
        """
        if not isinstance(mesh, DeviceMesh):
            raise OperandError(
                f"the mesh is of type {type(mesh).__name__}: pass torch.distributed.init_device_mesh('cpu', (ranks,)), or "
                "DeviceMesh.from_group(group, 'cpu') for the ranks of a process group"
            )
        if mesh.get_coordinate() is None:
            raise RankError(
                f"rank {dist.get_rank()} is not part of the mesh, which has ranks {mesh.mesh.tolist()}: call it on these ranks only, or "
                "pass a mesh of all ranks"
            )
        return cls(tuple(mesh.get_group(dim) for dim in (range(mesh.ndim) if dims is None else dims)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the groups."""
        return tuple(group.group_name for group in self.groups)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return prod(group.size() for group in self.groups)

    @property
    def rank(self) -> int:
        """The number of this rank."""
        number = 0
        for group in self.groups:
            number = number * group.size() + group.rank()
        return number

    def gathered(self, mine: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks, which have the same shape; shape (size, \\*).

        The ranks send their tensors directly to each other; the all_gather of gloo passes them along a ring, which takes longer.
        """
        rows = mine[None]
        for group in reversed(self.groups):
            parts = rows.new_empty(group.size(), *rows.shape)
            dist.all_to_all_single(parts, rows.expand_as(parts).contiguous(), group=group)
            rows = parts.flatten(0, 1)
        return rows

    def gathered_objects(self, mine: Any) -> list[Any]:
        """The objects of all ranks."""
        values = [mine]
        for group in reversed(self.groups):
            parts: list[Any] = [None] * group.size()
            dist.all_gather_object(parts, values, group)
            values = [value for part in parts for value in part]
        return values

    def broadcast_object(self, mine: Any, source: int) -> Any:
        """The object of one rank."""
        box = [mine]
        for group in reversed(self.groups):  # ranks that do not have it yet broadcast theirs to each other
            source, at = divmod(source, group.size())
            dist.broadcast_object_list(box, group=group, group_src=at)
        return box[0]

    def reduce(self, total: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        """Replace a tensor by the sum of those of all ranks, or by another reduction."""
        for group in self.groups:
            dist.all_reduce(total, op, group)
