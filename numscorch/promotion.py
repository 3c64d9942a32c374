"""Promotion: the data type in which operands of several types are computed, as torch's binary operators choose it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from typing import Any

import torch
from torch import Tensor

from .datatypes import WIDENED
from .errors import UnsupportedError
from .ir.index import literals_in
from .statements import Request, only_patterns

Kind = tuple[torch.dtype, bool]  # a data type, and whether its tensor has dimensions
NUMBERS = {"int": 1, "float": 0.5, "complex": 1j}  # one of each type, by which torch promotes
EXACT = frozenset({torch.float32, torch.float64, torch.complex64, torch.complex128})  # which no number but a complex one promotes


def target_of(expr: str | Request, operands: Sequence[Any]) -> torch.dtype | None:
    """The result's data type where operands are converted for it; None where a kernel takes all of them unchanged.

    Raises:
        UnsupportedError: a whole number of the request does not fit the integers that it is computed in.

    >>> target_of("ij,j->i", [torch.ones(2, 3), torch.ones(3)])
    >>> target_of("ij,j->i", [torch.ones(2, 3), torch.ones(3, dtype=torch.int64)])
    torch.float32
    """
    dtypes = {operand.dtype for operand in operands}
    number = number_in(expr) if isinstance(expr, Request) else None
    if len(dtypes) == 1 and dtypes <= EXACT and not isinstance(number, complex):
        return None
    unread = unread_in(expr, len(operands))
    read = [operand for at, operand in enumerate(operands) if at not in unread]
    target = result_type(((operand.dtype, operand.ndim > 0) for operand in read), number)
    if isinstance(expr, Request):
        _check_numbers(expr, target)
    is_exact = {operand.dtype for operand in read} == {target} and WIDENED.keys().isdisjoint(dtypes)
    return None if is_exact else target


def unread_in(expr: str | Request, count: int) -> frozenset[int]:
    """The operands of which just the pattern is read, whose data types don't matter; none if that is so of all of them."""
    unread = only_patterns(expr) if isinstance(expr, Request) else frozenset()
    return unread if len(unread) < count else frozenset()


def result_type(kinds: Iterable[Kind], number: complex | None = None) -> torch.dtype:
    """torch's data type for tensors, and a number, joined by operators; complex64 where torch has complex32.

    >>> result_type([(torch.int64, True), (torch.float32, True), (torch.float64, False)])
    torch.float32
    >>> result_type([(torch.int64, True)], 0.5), result_type([(torch.bool, True)], 2), result_type([(torch.int8, True)], 2)
    (torch.float32, torch.int64, torch.int8)
    """
    return _result_type(frozenset(kinds), type(number).__name__)


@lru_cache(maxsize=1024)
def _result_type(kinds: frozenset[Kind], number: str) -> torch.dtype:
    tensors = [dtype for dtype, has_dimensions in kinds if has_dimensions]
    scalars = [dtype for dtype, has_dimensions in kinds if not has_dimensions]
    made = [torch.empty(shape, dtype=reduce(torch.promote_types, own)) for shape, own in (((1,), tensors), ((), scalars)) if own]
    dtype = torch.result_type(made[0], made[-1])
    if number in NUMBERS:
        dtype = torch.result_type(torch.empty([1] * bool(tensors), dtype=dtype), NUMBERS[number])
    return torch.complex64 if dtype is torch.complex32 else dtype


@lru_cache(maxsize=4096)
def number_in(request: Request) -> complex | None:
    """A number of a request that promotes others: complex, a fraction, or a whole one, which promotes truth values.

    A 0 promotes nothing: requests have one where a text has none, as in ``-A``.
    """
    numbers = [number for value in request.read for number in literals_in(value)]
    found = [n for n in numbers if isinstance(n, complex)] or [n for n in numbers if not float(n.real).is_integer()]
    return found[0] if found else next((int(n.real) for n in numbers if n), None)


@lru_cache(maxsize=4096)
def _check_numbers(request: Request, dtype: torch.dtype) -> None:
    """Refuse whole numbers that an integer data type lacks."""
    if dtype is torch.bool or dtype.is_floating_point or dtype.is_complex:
        return
    for value in request.read:
        for number in literals_in(value):
            if not isinstance(number, complex) and float(number).is_integer():
                number_as(int(number), dtype)


def number_as(number: complex, dtype: torch.dtype) -> Tensor:
    """A number in a data type.

    Raises:
        UnsupportedError: the data type lacks it.

    >>> number_as(2, torch.float32)
    tensor(2.)
    """
    try:
        return torch.tensor(number, dtype=dtype)
    except (RuntimeError, ValueError, OverflowError) as error:
        raise UnsupportedError(f"the number {number} does not fit {dtype}: convert the tensors with .to(torch.float64)") from error
