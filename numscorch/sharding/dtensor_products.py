"""Einsums of sparse tensors that every rank holds, and ``DTensor`` operands: sharded features need no exchange.

Each rank computes its part. A sharded index of the result stays sharded, and one that is summed over leaves a sum over ranks
(``Partial``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from ..api import einsum
from ..compute.operands import call_form
from ..errors import UnsupportedError
from ..frontend.parser import Subscripts, parse_einsum
from ..frontend.requests import Request
from .dense_operands import without_sums
from .products import sharded_einsum, sharded_evaluate
from .tensor import ShardedSparseTensor

Names = Sequence[str]


def dtensor_einsum(expr: Any, *operands: Any, format: Any = None, **options: Any) -> Any:
    """:func:`numscorch.einsum` with ``DTensor`` operands. The result is a ``DTensor``; gradients have the placements of their operands.

    The gradient of the values of a sparse tensor is this rank's part of a sum, as in data-parallel training.

    Raises:
        ExpressionError: the text can't be parsed.
        UnsupportedError: operands are sharded in different ways, or a sparse tensor has a sharded index.
    """
    text = _text_of(expr)
    if any(isinstance(operand, ShardedSparseTensor) for operand in operands):
        return sharded_einsum(text, *operands, format=format, **options)
    if any(value not in (None, "sum") for value in options.values()):
        raise UnsupportedError("einsum of a DTensor takes no reduce=, mask=, out=, schedule= or sparsifier=")
    text, values = call_form(text, operands)
    subscripts = parse_einsum(text, tuple(value.ndim for value in values))
    mesh = next(value.device_mesh for value in values if isinstance(value, DTensor))
    if any(isinstance(value, DTensor) and value.device_mesh != mesh for value in values):
        raise UnsupportedError(f"operands of {text!r} are on different meshes: use one mesh")
    values = tuple(without_sums(value, f"an operand of {text!r}") if isinstance(value, DTensor) else value for value in values)
    sharded = _sharded_indices(text, values, subscripts, mesh)
    local = [_local(value, names, sharded, text) for value, names in zip(values, subscripts.operands, strict=True)]
    result: Any = einsum(text, *local, format=format)
    if not isinstance(result, torch.Tensor):
        raise UnsupportedError(f"{text!r} has a sparse result, but DTensors are dense: pass format='dense'")
    placements: list[Placement] = [_placement(name, subscripts.result) for name in sharded]
    sizes = subscripts.sizes(value.shape for value in values)
    shape = torch.Size(sizes[name] for name in subscripts.result)
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(result.contiguous(), mesh, placements, run_check=False, shape=shape, stride=stride)


def dtensor_evaluate(statement: str, **operands: Any) -> Any:
    """:func:`numscorch.evaluate` with ``DTensor`` operands and a sharded matrix.

    Raises:
        UnsupportedError: no operand is a sharded matrix.
    """
    if any(isinstance(operand, ShardedSparseTensor) for operand in operands.values()):
        return sharded_evaluate(statement, **operands)
    raise UnsupportedError(
        f"evaluate of a DTensor needs a sharded matrix, as ns.sharding.shard returns: use einsum, or to_local()\n  {statement}"
    )


def _text_of(expr: Any) -> Any:
    """The text of an einsum or of a request of the matrix product."""
    if not isinstance(expr, Request):
        return expr
    if not expr.is_product:
        raise UnsupportedError(f"{expr} of a DTensor: use einsum, or to_local()")
    return str(expr.subscripts)


def _sharded_indices(text: str, values: Sequence[Any], subscripts: Subscripts, mesh: DeviceMesh) -> list[str | None]:
    """The index that is sharded over each dimension of the mesh.

    Raises:
        UnsupportedError: operands are sharded in different ways.
    """
    sharded: list[str | None] = [None] * mesh.ndim
    for value, names in zip(values, subscripts.operands, strict=True):
        if not isinstance(value, DTensor):
            continue
        for dim, placement in enumerate(value.placements):
            if isinstance(placement, Shard):
                name = names[placement.dim % len(names)]
                if sharded[dim] not in (None, name):
                    raise UnsupportedError(f"operands of {text!r} are sharded by {sharded[dim]} and by {name}: redistribute one of them")
                sharded[dim] = name
    return sharded


def _local(value: Any, names: Names, sharded: Sequence[str | None], text: str) -> Any:
    """This rank's part of an operand.

    Raises:
        UnsupportedError: the operand has an index that is sharded in another operand, but is not sharded itself.
    """
    placements = value.placements if isinstance(value, DTensor) else [Replicate()] * len(sharded)
    for name, placement in zip(sharded, placements, strict=True):
        if name in names and not isinstance(placement, Shard):
            way_out = "shard the matrix, as ns.sharding.shard does" if not isinstance(value, torch.Tensor) else "redistribute it"
            raise UnsupportedError(f"{text!r}: {name} is sharded in one operand, but another one has all of it: {way_out}")
    if not isinstance(value, DTensor):
        return value
    gradients = [
        placement if isinstance(placement, Shard) or name is None else Partial()
        for name, placement in zip(sharded, placements, strict=True)
    ]
    return value.to_local(grad_placements=gradients)


def _placement(name: str | None, result: Names) -> Placement:
    """How the result is placed over a dimension of the mesh that shards this index."""
    return Replicate() if name is None else Shard(result.index(name)) if name in result else Partial()
