"""``out=``: tensors that receive a result.

A strided tensor can receive any result, a SparseTensor only results with its own pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import SizeError, UnsupportedError
from ..runtime.plans import Plan
from ..tensors.sparse_tensor import SparseTensor
from .operands import STRIDED


def check_before(out: Any, plan: Plan) -> None:
    """Refuse, before computing, an ``out`` that cannot receive a plan's result.

    Raises:
        SizeError: the shapes differ.
        UnsupportedError: the kind of tensor or the data type does not fit, or the result is converted after the kernel.
    """
    result, requested = plan.problem.result, plan.problem.requested
    if isinstance(out, SparseTensor) and requested is not None:
        raise UnsupportedError(f"out and format={requested.name} together: the result is converted after the kernel, so leave one out")
    if isinstance(out, SparseTensor) and result.is_assembled:
        raise UnsupportedError(
            "out can't hold a sparse result, whose pattern is unknown beforehand: leave it out, or pass a strided tensor"
        )
    _check(out, plan.shape, getattr(torch, result.dtype), not result.is_dense)


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
