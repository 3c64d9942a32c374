"""The format of a result: conversion to the requested one, the value of entries without terms, and ``out=``.

The sum of no terms is 0, their product 1, and their maximum -inf. Unstored entries of a sparse result are 0, so a result is
dense if it has entries without terms whose value is not 0. In a semiring, entries without terms are not stored. If a format stores
them as padding or in a dense level, they are the semiring's zero (inf for ``min_plus``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ..convert.construct import from_coo, from_torch
from ..convert.values import strided
from ..errors import SizeError, UnsupportedError
from ..frontend.requests import Request
from ..ir.format import COO, Format, sorted_format
from ..ir.functions import REDUCTIONS
from ..runtime.plans import Plan
from ..tensors.ledgers import note
from ..tensors.packing import at_positions, coordinates
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.torch_layouts import has_torch_layout
from .operands import STRIDED, is_plain_mode


def stored_as(result: Any, requested: Format | None, native: bool, asked: bool = True, zero: float = 0.0) -> Any:
    """Convert the result to the requested format.

    If all operands are torch tensors (``native``), a SparseTensor becomes a torch tensor. If torch lacks its layout, it becomes COO, or
    remains a SparseTensor if the user ``asked`` for a format. ``zero`` is the semiring's zero.
    """
    result = in_format(result, requested, zero)
    if isinstance(result, SparseTensor):
        result = result.to(sorted_format(result.format)) if native and not asked else result
        if not native or (asked and not has_torch_layout(result.pattern)):
            return result
        return (result if has_torch_layout(result.pattern) else result.to(COO(result.ndim))).to_torch(copy=False)
    order = list(requested.mode_order) if requested is not None else list(range(result.ndim))
    if order == sorted(order) and result.is_contiguous():
        return result
    if order != sorted(order):
        note("copy", f"the dense result {tuple(result.shape)} in mode order {tuple(order)}", result.nbytes)
    return result.permute(order).contiguous().permute([order.index(d) for d in range(result.ndim)])


def semiring_zero(request: Request, dtype: torch.dtype) -> float:
    """The value of a stored entry without terms: the semiring's zero, or 0 for other requests.

    >>> from ..frontend.requests import einsum_request, reducing
    >>> rows = einsum_request("ij->i", (2,))
    >>> semiring_zero(reducing(rows.subscripts, "min plus="), torch.float32), semiring_zero(rows, torch.float32)
    (inf, 0.0)
    """
    if request.op not in REDUCTIONS or not REDUCTIONS[request.op].of_stored:
        return 0.0
    return REDUCTIONS[request.op].start(str(dtype).removeprefix("torch."))


def in_format(result: SparseTensor | Tensor, format: Format | None, zero: float) -> SparseTensor | Tensor:
    """Convert a result to the requested format, if any; ``zero`` is the value of entries without terms."""
    if format is None:
        return result
    if not format.is_dense:
        return in_sparse_format(result, format, zero)
    if isinstance(result, Tensor) or zero == 0:
        return strided(result)
    is_stored = strided(result.with_values(torch.ones_like(result.values))) != 0
    return torch.where(is_stored, strided(result), zero)


def in_sparse_format(result: SparseTensor | Tensor, format: Format, zero: float) -> SparseTensor:
    """Convert a result to a sparse format; entries without terms become ``zero`` or are not stored.

    >>> inf = float("inf")
    >>> result = in_sparse_format(torch.tensor([[0.0, inf], [inf, inf]]), Format("sd"), inf)
    >>> result.indices().tolist(), result.values.tolist()
    ([[0, 0], [0, 1]], [0.0, inf])
    """
    if zero == 0 and isinstance(result, SparseTensor):
        return result.to(format)
    if zero == 0:
        tensor = from_torch(result.detach(), format, copy=False)
        if not result.requires_grad:
            return tensor
        # stored zeros receive gradients, too
        return tensor.with_values(at_positions(tensor.pattern, result[tuple(coordinates(tensor.pattern))]))
    if isinstance(result, Tensor):
        is_stored = result != zero
        result = from_coo(is_stored.nonzero().T, result[is_stored], tuple(result.shape), COO(result.ndim))
    tensor = result.to(format)
    if tensor.pattern.nnz == result.pattern.nnz:
        return tensor
    is_entry = result.with_values(torch.ones_like(result.values)).to(format).values != 0
    return tensor.with_values(torch.where(is_entry, tensor.values, zero))


# ---- out=


def receive(out: Any, plan: Any, *operands: Any) -> Any:
    """Run a plan or chain and return ``out``, which receives the result: from the kernel directly if possible, else by a copy.

    A strided tensor can receive any result, a SparseTensor only results with its own pattern.

    Raises:
        SizeError: the shapes differ.
        UnsupportedError: the kind of tensor or the data type does not fit, or the result is converted after the kernel.
    """
    if not isinstance(plan, Plan):
        return write(out, plan.run(*operands))
    result, requested = plan.problem.result, plan.problem.requested
    if isinstance(out, SparseTensor) and requested is not None:
        raise UnsupportedError(f"out and format={requested.name} together: the result is converted after the kernel, so leave one out")
    if isinstance(out, SparseTensor) and result.is_assembled:
        raise UnsupportedError(
            "out can't hold a sparse result, whose pattern is unknown beforehand: leave it out, or pass a strided tensor"
        )
    dtype = getattr(torch, result.dtype)
    if result.is_dense and type(out) is Tensor and out.shape == plan.shape and out.dtype is dtype and _is_free(out, operands):
        written = plan.run(*operands, into=out)
        increment_version(out)
        return out if written is out else write(out, written)
    _check(out, plan.shape, dtype, not result.is_dense)
    return write(out, plan.run(*operands))


def _is_free(out: Tensor, operands: Sequence[Any]) -> bool:
    """Whether kernels can write to ``out``: plain contiguous memory that it shares with no operand."""
    if out.layout is not STRIDED or not out.is_cpu or not out.is_contiguous() or out._is_zerotensor():
        return False
    if out.requires_grad or out.is_neg() or out.is_conj() or out.is_inference() or not is_plain_mode():
        return False
    first, last = out.data_ptr(), out.data_ptr() + out.nbytes
    for operand in operands:
        is_sparse = type(operand) is SparseTensor
        for array in (operand._values, *[array for array, _ in operand.pattern.watched]) if is_sparse else (operand,):
            start = array.data_ptr()
            if start < last and first < start + (array.nbytes if array.is_contiguous() else array.untyped_storage().nbytes()):
                return False
    return True


def write(out: Any, result: Any) -> Any:
    """Write the result into ``out`` and return it.

    >>> write(torch.zeros(2), torch.ones(2))
    tensor([1., 1.])
    """
    is_sparse = isinstance(result, SparseTensor)
    _check(out, result.shape, result.dtype, is_sparse)
    if not isinstance(out, SparseTensor):
        return out.copy_(result.to_dense() if is_sparse else result)
    if out.pattern is not result.pattern:
        raise SizeError("out must share the pattern that the result keeps: make it with A.with_values(...)")
    out.values.copy_(result.values)
    return out


def _check(out: Any, shape: Sequence[int], dtype: torch.dtype, is_sparse: bool) -> None:
    """Check that ``out`` fits a result of this shape, data type and kind."""
    if not (is_sparse and isinstance(out, SparseTensor)) and not (isinstance(out, Tensor) and out.layout is STRIDED):
        wanted = "a SparseTensor or a dense tensor" if is_sparse else "a dense tensor"
        raise UnsupportedError(f"out must be {wanted} for this expression, not {type(out).__name__}")
    if tuple(out.shape) != tuple(shape):
        raise SizeError(f"out has shape {tuple(out.shape)}, but the result has {tuple(shape)}")
    if not torch.can_cast(dtype, out.dtype):
        raise UnsupportedError(f"out has dtype {out.dtype}, but the result has {dtype}: pass an out of that data type")
