"""Einsums of sparse tensors that every rank holds, and ``DTensor`` operands: sharded features need no exchange."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..api import einsum
from ..errors import UnsupportedError
from ..frontend.parser import parse_einsum
from ..frontend.requests import Request
from ..programs.call import EinsumCall
from ..programs.operands import call_form
from .agreement import Ranks
from .dense_operands import dtensor_of, gradient_placements, result_placement, sharded_indices, without_sums
from .products import sharded_einsum, sharded_evaluate
from .tensor import ShardedSparseTensor


def dtensor_einsum(call: EinsumCall) -> Any:
    """:func:`numscorch.einsum` with ``DTensor`` operands. The result is a ``DTensor``; gradients have the placements of their operands.

    The gradient of the values of a sparse tensor is this rank's part of a sum, as in data-parallel training.

    Raises:
        ExpressionError: the text can't be parsed.
        UnsupportedError: operands are sharded in different ways, or a sparse tensor has a sharded index.
    """
    text = _text_of(call.expr)
    if any(isinstance(operand, ShardedSparseTensor) for operand in call.operands):
        return sharded_einsum(call._replace(expr=text))
    if not call.takes_only("format"):
        raise UnsupportedError("einsum of a DTensor takes no reduce=, mask=, out=, schedule= or sparsifier=")
    text, values = call_form(text, call.operands)
    subscripts = parse_einsum(text, tuple(value.ndim for value in values))
    mesh = next(value.device_mesh for value in values if isinstance(value, DTensor))
    ranks, what = Ranks.of(mesh), f"an operand of {text!r}"
    values = tuple(without_sums(value, what, ranks) if isinstance(value, DTensor) else value for value in values)
    sharded = sharded_indices(text, list(zip(values, subscripts.operands, strict=True)), mesh)
    gradients = [gradient_placements(value, names, sharded, text) for value, names in zip(values, subscripts.operands, strict=True)]
    local = [
        value.to_local(grad_placements=placements) if isinstance(value, DTensor) else value
        for value, placements in zip(values, gradients, strict=True)
    ]
    result: Any = einsum(text, *local, format=call.format)
    if not isinstance(result, torch.Tensor):
        raise UnsupportedError(f"{text!r} has a sparse result, but DTensors are dense: pass format='dense'")
    sizes = subscripts.sizes(value.shape for value in values)
    placements = [result_placement(name, subscripts.result) for name in sharded]
    return dtensor_of(result, mesh, placements, [sizes[name] for name in subscripts.result])


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


def dtensor_add_bias(product: DTensor, bias: Any) -> Any:
    """The product with a bias added to its last dimension. The gradient of a plain bias, which every rank holds, is this rank's part of a
    sum, as that of the values of a sparse tensor.

    Raises:
        UnsupportedError: the last dimension of the product is sharded, but the bias is not.
    """
    if isinstance(bias, DTensor):
        return product + bias
    mesh, names = product.device_mesh, tuple(map(str, range(product.ndim)))
    product = without_sums(product, "the product of a layer", Ranks.of(mesh))
    gradient_placements(bias, names[-1:], sharded_indices("product + bias", [(product, names)], mesh), "product + bias")
    return dtensor_of(product.to_local() + bias, mesh, product.placements, product.shape)


def _text_of(expr: Any) -> Any:
    """The text of an einsum or of a request of the matrix product."""
    if not isinstance(expr, Request):
        return expr
    if not expr.is_product:
        raise UnsupportedError(f"{expr} of a DTensor: use einsum, or to_local()")
    return str(expr.subscripts)
