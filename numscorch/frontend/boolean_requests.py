"""Requests on boolean operands: a sum of products becomes a logical "any", and reductions test terms against 0."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ..errors import UnsupportedError
from ..ir.functions import TESTS
from ..ir.index import Binary, Literal, is_product
from ..schedule.facts import AUTOMATIC
from .requests import Request, reducing


def logical(request: Request) -> Request:
    """Rewrite a request for boolean operands: a sum of products is True if any product is nonzero, as in NumPy.

    Raises:
        UnsupportedError: the request sums terms that are not products.
    """
    if request.op in ("=", "+=") and (request.value is None or is_product(request.value)):
        return joined_by_or(request)
    if request.value is not None and request.op in ("max=", "min="):
        return as_test(request)
    summed = set().union(*request.subscripts.operands) - set(request.subscripts.result)
    if summed and request.op in ("=", "+=", "*="):
        raise UnsupportedError(
            f"only products of bool operands can be summed: count with .to(torch.int64), or use reduce='any'\n  {request}"
        )
    return request


@lru_cache(maxsize=1024)
def joined_by_or(request: Request) -> Request:
    """Rewrite a sum of products to test whether any product is nonzero.

    >>> from .requests import einsum_request
    >>> str(joined_by_or(einsum_request("ij,j->i", (2, 1))))
    'A[i,j] * B[j] != 0 over ij,j->i'
    """
    if request.value is None:
        tested = reducing(request.subscripts, "max=", test=True)
        return tested if request.options == AUTOMATIC else replace(tested, options=request.options)
    return replace(request, value=Binary("!=", request.value, Literal(0.0, "float32")), op="max=")


@lru_cache(maxsize=1024)
def as_test(request: Request) -> Request:
    """Rewrite the terms of a request to tests for nonzero."""
    value = request.value
    if value is None or (isinstance(value, Binary) and value.op in TESTS):
        return request
    return replace(request, value=Binary("!=", value, Literal(0.0, "float32")))
