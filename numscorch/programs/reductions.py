"""Einsums with another reduction than the sum (``reduce=``) or with a mask on the result (``mask=``)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

from torch import Tensor

from ..errors import ExpressionError, SizeError, UnsupportedError
from ..frontend.parser import Subscripts, parse_einsum
from ..frontend.problem import wanted_format
from ..frontend.requests import Request, plain_request, reducing, scheduled
from ..tensors.sparse_tensor import SparseTensor
from .dispatch import compute
from .operands import EinsumCall, check_is_tensor, is_strided
from .results import semiring_zero, stored_as

Shape = tuple[int, ...]
JOINED_BY = {
    "sum": "=",
    "mean": "=",
    "max": "max=",
    "min": "min=",
    "prod": "*=",
    "any": "max=",
    "all": "min=",
    "min_plus": "min plus=",
    "max_plus": "max plus=",
    "or_and": "max=",
}
TESTS = ("any", "all", "or_and")  # reductions that only test whether terms are nonzero


def reduced(call: EinsumCall) -> Any:
    """The einsum with a reduction or mask.

    Raises:
        ExpressionError: the reduction is unknown.
        SizeError: the mask's shape differs from the result's.
        UnsupportedError: an operand is not a tensor, the mask is not sparse, or a mean of integers is requested.
    """
    request, operands_read, terms = prepared(call)
    format, out = call.format, call.out
    if call.reduce == "mean" and not terms and out is None:  # every entry is NaN
        nan_result = _divide_by_terms(compute(request, operands_read, "dense" if request.mask is None else None), 0)
        return stored_as(nan_result, wanted_format(format, nan_result.ndim), native=False)
    is_filled = is_strided(out) and format is None and semiring_zero(request, call.operands[0].dtype) != 0
    result = compute(request, operands_read, "dense" if is_filled else format, out)
    return _divide_by_terms(result, terms) if call.reduce == "mean" else result


def _check_reduction(call: EinsumCall) -> None:
    """Check the reduction's name, and that all operands are tensors.

    Raises:
        ExpressionError: the reduction is unknown.
        UnsupportedError: an operand is not a tensor, or a mean of integers is requested.
    """
    reduce, operands = call.reduce, call.operands
    if not isinstance(reduce, str) or reduce not in JOINED_BY:
        raise ExpressionError(f"unknown reduction {reduce!r}: use one of {', '.join(JOINED_BY)}")
    for operand in operands:
        check_is_tensor(operand)
    if reduce == "mean" and not ((dtype := operands[0].dtype).is_floating_point or dtype.is_complex):
        raise UnsupportedError(f"the mean of {dtype} values would be truncated to integers: convert with .to(torch.float32)")


def prepared(call: EinsumCall) -> tuple[Request, Sequence[Any], int]:
    """The request of a reduction, its operands, and the number of terms per entry of the result.

    The mask is the last operand.

    Raises:
        ExpressionError: the reduction is unknown.
        SizeError: the mask's shape differs from the result's.
        UnsupportedError: an operand is not a tensor, the mask is not sparse, or a mean of integers is requested.
    """
    _check_reduction(call)
    operands, mask = call.operands, call.mask
    if call.reduce in TESTS:
        operands = tuple([operand.detach() if operand.requires_grad else operand for operand in operands])
    if mask is not None and not isinstance(mask, SparseTensor | Tensor):
        raise UnsupportedError(
            f"mask must be a sparse tensor, not {type(mask).__name__}: make one with ns.from_torch(torch.as_tensor(mask))"
        )
    if is_strided(mask):
        raise UnsupportedError("mask must be sparse, since its pattern selects the result: multiply by a dense one instead")
    shapes = tuple([tuple(operand.shape) for operand in operands])
    selects = not (isinstance(mask, SparseTensor) and mask.format.is_full)
    request, terms = _reduction(call.expr, shapes, call.reduce, None if mask is None else tuple(mask.shape), call.schedule, selects)
    return request, operands if request.mask is None else (*operands, mask), terms


@lru_cache(maxsize=1024)
def _reduction(
    expr: str, shapes: tuple[Shape, ...], reduce: str, mask: Shape | None, schedule: str | None, selects: bool = True
) -> tuple[Request, int]:
    """The request of a reduction, and the number of terms per entry of the result; both depend on shapes only, so they are cached.

    A mask that stores every coordinate (``selects`` is False) is left out.

    >>> request, terms = _reduction("ij,jk->ik", ((2, 3), (3, 4)), "sum", (2, 4), None)
    >>> str(request.subscripts), terms
    ('ij,jk,ik->ik', 3)
    """
    subscripts = parse_einsum(expr, tuple(map(len, shapes)))
    sizes = subscripts.sizes(shapes)
    shape = tuple(sizes[name] for name in subscripts.result)
    if mask is not None and mask != shape:
        raise SizeError(f"mask has shape {mask}, but the result has {shape}\n  {expr}")
    if mask is not None and selects:
        subscripts = Subscripts((*subscripts.operands, subscripts.result), subscripts.result)
        request = reducing(subscripts, JOINED_BY[reduce], reduce in TESTS, len(shapes))
    else:
        request = plain_request(subscripts) if reduce == "sum" else reducing(subscripts, JOINED_BY[reduce], reduce in TESTS)
    request = request if schedule is None else scheduled(request, schedule)
    terms = prod(size for name, size in sizes.items() if name not in subscripts.result)
    return request, terms


def _divide_by_terms(result: Any, terms: int) -> Any:
    """Divide the result, or ``out``, by the number of terms; in place if no gradient flows.

    A result with one term per entry may share an operand's values, and is returned unchanged.
    """
    if terms == 1:
        return result
    values, factor = result.values if isinstance(result, SparseTensor) else result, 1 / terms if terms else float("nan")
    if values.requires_grad:
        return result.with_values(values * factor) if isinstance(result, SparseTensor) else values * factor
    values.mul_(factor)
    return result
