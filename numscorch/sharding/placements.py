"""Placements of ``DTensor`` operands in an einsum: an index that is sharded in operands stays sharded in the result, or leaves a sum.

Each rank computes its part. A sharded index of the result stays sharded, and one that is summed over leaves a sum over ranks
(``Partial``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from ..errors import UnsupportedError
from .tensor import ShardedSparseTensor

Names = Sequence[str]
Operands = Sequence[tuple[Any, Names]]  # values and the names of their indices


def sharded_indices(text: str, operands: Operands, mesh: DeviceMesh, skipped: Collection[int] = ()) -> list[str | None]:
    """The index that ``DTensor`` operands shard over each dimension of the mesh; None for the skipped dimensions.

    Raises:
        UnsupportedError: operands are sharded in different ways, or are on another mesh.
    """
    sharded: list[str | None] = [None] * mesh.ndim
    for value, names in operands:
        if not isinstance(value, DTensor):
            continue
        if value.device_mesh != mesh:
            raise UnsupportedError(f"operands of {text!r} are on different meshes, {mesh} and {value.device_mesh}: use one mesh")
        for dim, placement in enumerate(value.placements):
            if isinstance(placement, Shard) and dim not in skipped:
                name = names[placement.dim % len(names)]
                if sharded[dim] not in (None, name):
                    raise UnsupportedError(f"operands of {text!r} are sharded by {sharded[dim]} and by {name}: redistribute one of them")
                sharded[dim] = name
    return sharded


def gradient_placements(value: Any, names: Names, sharded: Sequence[str | None], text: str) -> list[Placement]:
    """The placements of the gradient of an operand.

    Raises:
        UnsupportedError: the operand has an index that is sharded in another operand, but is not sharded itself.
    """
    placements = value.placements if isinstance(value, DTensor) else [Replicate()] * len(sharded)
    for dim, (name, placement) in enumerate(zip(sharded, placements, strict=True)):
        if name in names and not isinstance(placement, Shard):
            if isinstance(value, ShardedSparseTensor):
                way_out = f"redistribute that operand, with Replicate() over dimension {dim}"
            else:
                way_out = "redistribute it" if isinstance(value, torch.Tensor) else "shard the matrix, as ns.sharding.shard does"
            raise UnsupportedError(
                f"{text!r}: {name} is sharded in one operand over dimension {dim} of the mesh, but another one has all of it: {way_out}"
            )
    return [
        placement if isinstance(placement, Shard) or name is None else Partial()
        for name, placement in zip(sharded, placements, strict=True)
    ]


def result_placement(name: str | None, result: Names) -> Placement:
    """How the result is placed over a dimension of the mesh that shards this index."""
    return Replicate() if name is None else Shard(result.index(name)) if name in result else Partial()


def dtensor_of(local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]) -> DTensor:
    """A ``DTensor`` of this shape with the local part of this rank."""
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local.contiguous(), mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)
