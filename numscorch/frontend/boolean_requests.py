"""Requests of truth values: sums of products are joined by or, and reductions ask whether terms are 0."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ..errors import UnsupportedError
from ..ir.functions import TESTS
from ..ir.index import Binary, Literal, is_product
from ..schedule.options import AUTOMATIC
from .statements import Request, reducing


def logical(request: Request) -> Request:
    """The request that is computed of truth values: whether some product isn't 0, as numpy has it.

    Raises:
        UnsupportedError: other things than products would be added up.
    """
    if request.op in ("=", "+=") and (request.value is None or is_product(request.value)):
        return joined_by_or(request)
    if request.value is not None and request.op in ("max=", "min="):
        return as_test(request)
    summed = set().union(*request.subscripts.operands) - set(request.subscripts.result)
    if summed and request.op in ("=", "+=", "*="):
        raise UnsupportedError(f"sums of truth values that aren't products: count with .to(torch.int64), or use reduce='any'\n  {request}")
    return request


@lru_cache(maxsize=1024)
def joined_by_or(request: Request) -> Request:
    """The request of a sum of products that asks whether some product isn't 0.

    >>> from .statements import einsum_request
    >>> str(joined_by_or(einsum_request("ij,j->i", (2, 1))))
    'A[i,j] * B[j] != 0 over ij,j->i'
    """
    if request.value is None:
        tested = reducing(request.subscripts, "max=", test=True)
        return tested if request.options == AUTOMATIC else replace(tested, options=request.options)
    return replace(request, value=Binary("!=", request.value, Literal(0.0, "float32")), op="max=")


@lru_cache(maxsize=1024)
def as_test(request: Request) -> Request:
    """The request that asks only whether terms are not 0."""
    value = request.value
    if value is None or (isinstance(value, Binary) and value.op in TESTS):
        return request
    return replace(request, value=Binary("!=", value, Literal(0.0, "float32")))
