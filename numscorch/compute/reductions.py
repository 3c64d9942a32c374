"""An einsum whose terms are joined by another operator than the sum (reduce=), or whose result has a mask (mask=)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from torch import Tensor

from ..errors import ExpressionError, SizeError, UnsupportedError
from ..frontend.parser import Subscripts, parse_einsum
from ..frontend.problem import wanted_format
from ..frontend.statements import Request, diagonal_request, plain_request, reducing, scheduled
from ..tensors.sparse_tensor import SparseTensor
from .dispatch import compute, stored_as
from .empty_reductions import semiring_zero
from .operands import check_is_tensor, is_strided

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
TESTS = ("any", "all", "or_and")  # ask of a term only whether it isn't 0


def reduced(expr: str, operands: Sequence[Any], format: Any, out: Any, reduce: str, mask: Any, schedule: str | None = None) -> Any:
    """The einsum, its arguments as :func:`numscorch.einsum` takes them.

    Raises:
        ExpressionError: there is no such reduction.
        SizeError: the mask has another shape than the result.
        UnsupportedError: an operand is no tensor, the mask is not sparse, or the mean of integers is asked for.
    """
    check_reduction(reduce, operands)
    asked = _asked_of(expr, operands, reduce, mask, schedule)
    operands_read = asked.with_mask(operands, mask)
    if reduce == "mean" and not asked.terms and out is None:  # every entry is nan
        undefined = _divided(compute(asked.request, operands_read, None if asked.is_masked else "dense"), 0)
        return stored_as(undefined, wanted_format(format, undefined.ndim), native=False)
    is_filled = is_strided(out) and format is None and semiring_zero(asked.request, operands[0].dtype) != 0
    result = compute(asked.request, operands_read, "dense" if is_filled else format, out)
    return _divided(result, asked.terms) if reduce == "mean" else result


def check_reduction(reduce: str, operands: Sequence[Any]) -> None:
    """That there is such a reduction, of tensors.

    Raises:
        ExpressionError: there is none.
        UnsupportedError: an operand is no tensor, or the mean of integers is asked for.
    """
    if not isinstance(reduce, str) or reduce not in JOINED_BY:
        raise ExpressionError(f"unknown reduction {reduce!r}: known are {', '.join(JOINED_BY)}")
    for operand in operands:
        check_is_tensor(operand)
    if reduce == "mean":
        _check_mean(operands)


def prepared(expr: str, operands: Sequence[Any], reduce: str, mask: Any, schedule: str | None = None) -> tuple[Request, Sequence[Any]]:
    """The request of a reduction, and its operands, the mask after the others.

    Raises:
        SizeError: the mask has another shape than the result.
        UnsupportedError: the mask is not sparse.
    """
    asked = _asked_of(expr, operands, reduce, mask, schedule)
    return asked.request, asked.with_mask(operands, mask)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What follows of a reduction from the shapes of its operands.

    Args:
        named: the indices of each operand, of whose dimensions the diagonal is taken where they repeat; None where none does.
        request: of the operands then, and the mask, unless that stores every coordinate.
        terms: how many are joined for each entry of the result.
    """

    named: tuple[tuple[str, ...], ...] | None
    request: Request
    terms: int

    @property
    def is_masked(self) -> bool:
        """Whether the mask is the request's last operand."""
        return self.request.mask is not None

    def with_mask(self, operands: Sequence[Any], mask: Any) -> Sequence[Any]:
        """The operands that the request takes."""
        if self.named is not None:
            operands = list(map(_diagonal, self.named, operands))
        return (*operands, mask) if self.is_masked else operands


def _asked_of(expr: str, operands: Sequence[Any], reduce: str, mask: Any, schedule: str | None) -> _Asked:
    if mask is not None:
        _check_is_mask(mask)
    shapes = tuple([tuple(operand.shape) for operand in operands])
    selects = not (isinstance(mask, SparseTensor) and mask.format.is_full)
    return _asked(expr, shapes, reduce, None if mask is None else tuple(mask.shape), schedule, selects)


@lru_cache(maxsize=1024)
def _asked(expr: str, shapes: tuple[Shape, ...], reduce: str, mask: Shape | None, schedule: str | None, selects: bool = True) -> _Asked:
    """The request for operands of these shapes, and a mask of that shape, where there is one.

    A mask that selects nothing, since it stores every coordinate, takes no part.

    >>> asked = _asked("ij,jk->ik", ((2, 3), (3, 4)), "sum", (2, 4), None)
    >>> str(asked.request.subscripts), asked.terms
    ('ij,jk,ik->ik', 3)
    """
    subscripts = parse_einsum(expr, tuple(map(len, shapes)))
    named, sizes = subscripts.operands, _sizes(subscripts, shapes)
    if JOINED_BY[reduce] != "=":  # entries off the diagonal are no terms of a reduction
        subscripts = Subscripts(tuple([tuple(dict.fromkeys(names)) for names in named]), subscripts.result)
    of_diagonals = subscripts.operands != named
    if mask is not None:
        _check_shape(mask, tuple(sizes[name] for name in subscripts.result), expr)
    is_masked = mask is not None and selects
    if is_masked:
        subscripts = Subscripts((*subscripts.operands, subscripts.result), subscripts.result)
    request = _request(subscripts, reduce, is_masked)
    request = request if schedule is None else scheduled(request, schedule)
    terms = prod(size for name, size in sizes.items() if name not in subscripts.result)
    return _Asked(named if of_diagonals else None, request, terms)


def _request(subscripts: Subscripts, reduce: str, masked: bool) -> Request:
    """The request for a reduction; the mask is the last operand."""
    if reduce == "sum" and not masked:
        return plain_request(subscripts)
    return reducing(subscripts, JOINED_BY[reduce], reduce in TESTS, len(subscripts.operands) - 1 if masked else None)


def _sizes(subscripts: Subscripts, shapes: Sequence[Shape]) -> dict[str, int]:
    """The extent of each index; size 1 gives way to any other."""
    sizes: dict[str, int] = {}
    for names, shape in zip(subscripts.operands, shapes, strict=True):
        sizes |= {name: size for name, size in zip(names, shape, strict=True) if sizes.get(name, 1) == 1}
    return sizes


def _diagonal(names: tuple[str, ...], operand: Any) -> Any:
    """The operand's diagonal where indices repeat, else the operand; of a sparse one, only stored entries are stored."""
    once = tuple(dict.fromkeys(names))
    return operand if once == names else compute(diagonal_request(names), (operand,))


def _check_is_mask(mask: Any) -> None:
    """That it is sparse."""
    if not isinstance(mask, SparseTensor | Tensor):
        raise UnsupportedError(
            f"mask must be a sparse tensor, not {type(mask).__name__}: make one with ns.from_torch(torch.as_tensor(mask))"
        )
    if is_strided(mask):
        raise UnsupportedError("mask must be sparse, since its pattern selects the result: multiply by a dense one instead")


def _check_shape(mask: Shape, shape: Shape, expr: str) -> None:
    """That a mask has the result's shape."""
    if mask != shape:
        raise SizeError(f"mask has shape {mask}, but the result has {shape}\n  {expr}")


def _check_mean(operands: Sequence[Any]) -> None:
    """That a mean of these values is one of them."""
    dtype = operands[0].dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        raise UnsupportedError(f"the mean of {dtype} values would be cut off to whole numbers: convert with .to(torch.float32)")


def _divided(result: Any, terms: int) -> Any:
    """The result, or out, divided by the number of its terms: in place where no gradient flows.

    The result of single terms may be an operand's values.
    """
    if terms == 1:
        return result
    values, factor = result.values if isinstance(result, SparseTensor) else result, 1 / terms if terms else float("nan")
    if values.requires_grad:
        return result.with_values(values * factor) if isinstance(result, SparseTensor) else values * factor
    values.mul_(factor)
    return result
