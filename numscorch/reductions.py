"""An einsum whose terms are joined by another operator than the sum (reduce=), or whose result has a mask (mask=)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor

from .computing import compute, lengthened
from .construct import from_torch
from .errors import ExpressionError, SizeError, UnsupportedError
from .ir.format import Format
from .operands import STRIDED, check_is_tensor
from .parser import Subscripts, parse_einsum
from .problem import wanted_format
from .sparse_tensor import SparseTensor
from .statements import Request, plain_request, reducing, scheduled

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
    request, operands = prepared(expr, operands, reduce, mask, schedule)
    terms = prod(_summed(request.subscripts, operands))
    wanted = format if terms or mask is not None else "dense"  # without terms, every entry is the identity
    result = compute(request, operands, wanted, out)
    if reduce == "mean":
        _divide(result, terms)
    return result if wanted == format or out is not None else _in_format(result, format)


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
    if reduce == "sum":
        operands = lengthened(expr, operands)
    subscripts = parse_einsum(expr, tuple(o.ndim for o in operands))
    if JOINED_BY[reduce] != "=":
        subscripts, operands = _diagonals(subscripts, operands)
    if mask is not None:
        sizes = _sizes(subscripts, operands)
        _check_mask(mask, tuple(sizes[name] for name in subscripts.result), expr)
        subscripts, operands = Subscripts((*subscripts.operands, subscripts.result), subscripts.result), (*operands, mask)
    request = _request(subscripts, reduce, mask is not None)
    return request if schedule is None else scheduled(request, schedule), operands


def _summed(subscripts: Subscripts, operands: Sequence[Any]) -> list[int]:
    """The extents of what is reduced."""
    return [size for name, size in _sizes(subscripts, operands).items() if name not in subscripts.result]


def _in_format(result: Tensor, format: Format | str | None) -> Any:
    """A dense result as it was asked for."""
    wanted = wanted_format(format, result.ndim)
    return result if wanted is None or wanted.is_dense else from_torch(result, wanted)


def _request(subscripts: Subscripts, reduce: str, masked: bool) -> Request:
    """The request for a reduction; the mask is the last operand."""
    if reduce == "sum" and not masked:
        return plain_request(subscripts)
    return reducing(subscripts, JOINED_BY[reduce], reduce in TESTS, len(subscripts.operands) - 1 if masked else None)


def _sizes(subscripts: Subscripts, operands: Sequence[Any]) -> dict[str, int]:
    """The extent of each index; size 1 gives way to any other."""
    sizes: dict[str, int] = {}
    for names, operand in zip(subscripts.operands, operands, strict=True):
        sizes |= {name: size for name, size in zip(names, operand.shape, strict=True) if sizes.get(name, 1) == 1}
    return sizes


def _diagonals(subscripts: Subscripts, operands: Sequence[Any]) -> tuple[Subscripts, tuple[Any, ...]]:
    """The operands' diagonals where indices repeat: entries off them are no terms of a reduction."""
    terms, taken = [], []
    for names, operand in zip(subscripts.operands, operands, strict=True):
        once = tuple(dict.fromkeys(names))
        terms.append(once)
        taken.append(operand if once == names else compute(plain_request(Subscripts((names,), once)), (operand,)))
    return Subscripts(tuple(terms), subscripts.result), tuple(taken)


def _check_mask(mask: Any, shape: tuple[int, ...], expr: str) -> None:
    """That it is sparse, and has the result's shape."""
    if not isinstance(mask, SparseTensor | Tensor):
        raise UnsupportedError(
            f"mask must be a sparse tensor, not {type(mask).__name__}: make one with ns.from_torch(torch.as_tensor(mask))"
        )
    if isinstance(mask, Tensor) and mask.layout is STRIDED:
        raise UnsupportedError("mask must be sparse, since its pattern selects the result: multiply by a dense one instead")
    if tuple(mask.shape) != shape:
        raise SizeError(f"mask has shape {tuple(mask.shape)}, but the result has {shape}\n  {expr}")


def _check_mean(operands: Sequence[Any]) -> None:
    """That a mean of these values is one of them."""
    dtype = operands[0].dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        raise UnsupportedError(f"the mean of {dtype} values would be cut off to whole numbers: convert with .to(torch.float32)")


def _divide(result: Any, terms: int) -> None:
    """Divide the result, or out, by the number of its terms."""
    values = result.values if isinstance(result, SparseTensor) else result
    values.mul_(1 / terms if terms else float("nan"))
