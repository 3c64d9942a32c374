"""Row lookup in a sparse table as a custom torch operator, for programs that torch compiles or exports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..frontend.requests import einsum_request
from ..programs.dispatch import compute
from ..programs.gradients import DifferentiableCall, attached
from ..programs.torch_compile import arrays_of, operand_of, shape_of, text_of
from ..tensors.sparse_tensor import SparseTensor
from .functional import PRODUCT, ones_at


def lookup_rows(numbers: Tensor, table: SparseTensor) -> Tensor:
    """Look up rows (n, d) of a table by their indices (n,) while torch compiles or exports a program.

    When the program runs, an index out of range raises RangeError, or torch's IndexError if all levels of the table are dense.
    """
    if table.pattern.is_dense:
        return torch.nn.functional.embedding(numbers, attached(table))
    return torch.ops.numscorch.lookup(text_of(table.pattern), numbers, table._values, arrays_of(table.pattern))


@torch.library.custom_op("numscorch::lookup", mutates_args=())
def _lookup(text: str, numbers: Tensor, values: Tensor, arrays: Sequence[Tensor]) -> Tensor:
    table = operand_of(text, values, arrays)
    return compute(PRODUCT, [ones_at(numbers, table), table], "dense")


@_lookup.register_fake
def _(text: str, numbers: Tensor, values: Tensor, arrays: Sequence[Tensor]) -> Tensor:
    return values.new_empty((numbers.shape[0], shape_of(text)[1]))


@torch.library.custom_op("numscorch::lookup_gradient", mutates_args=())
def _gradient(text: str, upstream: Tensor, numbers: Tensor, values: Tensor, arrays: Sequence[Tensor]) -> Tensor:
    table = operand_of(text, values, arrays)
    operands = [ones_at(numbers, table), table]
    call = DifferentiableCall(einsum_request(PRODUCT, (2, 2)), "dense", operands, compute)
    gradient = call.gradient(1, upstream, [operand.values for operand in operands], None)
    return torch.zeros_like(values) if gradient is None else gradient.contiguous()


@_gradient.register_fake
def _(text: str, upstream: Tensor, numbers: Tensor, values: Tensor, arrays: Sequence[Tensor]) -> Tensor:
    return values.new_empty(values.shape)


def _setup(ctx: Any, inputs: tuple[str, Tensor, Tensor, list[Tensor]], output: Tensor) -> None:
    ctx.text, numbers, values, arrays = inputs
    ctx.save_for_backward(numbers, values, *arrays)


def _backward(ctx: Any, upstream: Tensor) -> tuple[None, None, Tensor | None, list[None]]:
    numbers, values, *arrays = ctx.saved_tensors
    wanted = ctx.needs_input_grad[2]
    gradient = torch.ops.numscorch.lookup_gradient(ctx.text, upstream, numbers, values, arrays) if wanted else None
    return None, None, gradient, [None] * len(arrays)


_lookup.register_autograd(_backward, setup_context=_setup)
