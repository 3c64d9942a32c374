"""Gradients of products along a dimension (``*=``, ``reduce="prod"``).

The gradient of a term is the product of the other terms: product / term unless a term is 0. The terms are computed first, as a
differentiable request; the product is then an expression that torch can differentiate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..convert.values import as_stored
from ..errors import UnsupportedError
from ..frontend.gradient_requests import value_of_request
from ..frontend.parser import Subscripts
from ..frontend.requests import Request, plain_request, reducing
from ..ir.format import Format
from ..tensors.sparse_tensor import SparseTensor


@lru_cache(maxsize=256)
def _steps(request: Request) -> tuple[Request, Request, Request, int]:
    """The requests of a product: its terms, their sum, and their sum at a pattern; and the number of the result's dimensions."""
    subs = request.subscripts
    read = tuple(letters for at, letters in enumerate(subs.operands) if at != request.mask)
    summed = dict.fromkeys(name for letters in read for name in letters if name not in subs.result)
    names = (*subs.result, *summed)
    terms = Request(Subscripts(read, names), value_of_request(request))
    sum_at = reducing(Subscripts((names, subs.result), subs.result), "=", mask=1)
    return terms, plain_request(Subscripts((names,), subs.result)), sum_at, len(subs.result)


def multiplied(
    request: Request, operands: Sequence[Any], format: Format | str | None, compute: Callable[..., Any]
) -> SparseTensor | Tensor:
    """The result of a request that multiplies terms, in the format unless there is a mask. Memory O(terms).

    ``compute`` is ``dispatch.compute``.

    Raises:
        UnsupportedError: the terms are complex.
    """
    term_request, sum_request, masked_sum_request, kept = _steps(request)
    result = compute(request, [operand.detach() for operand in operands], format if request.mask is None else None)
    terms = compute(term_request, [operand for at, operand in enumerate(operands) if at != request.mask])
    if isinstance(terms, Tensor):
        product: Tensor = terms.flatten(kept).prod(-1)
        return product if isinstance(result, Tensor) else result.with_values(as_stored(product, result.pattern))

    def total(values: Tensor) -> Tensor:
        summed = terms.with_values(values)
        if isinstance(result, Tensor):
            return compute(sum_request, [summed], "dense")
        return as_stored(compute(masked_sum_request, [summed, result]), result.pattern)

    values = _with_gradient(result if isinstance(result, Tensor) else result.values, terms.values, total, prod(terms.shape[kept:]))
    return values if isinstance(result, Tensor) else result.with_values(values)


def _with_gradient(result: Tensor, values: Tensor, total: Callable[[Tensor], Tensor], count: int) -> Tensor:
    """The product of ``count`` terms with its gradient; ``values`` are the stored terms, and ``total`` sums values.

    Without zero terms, it is the product times exp(sum of logarithms - its detached copy), a factor of 1. A single zero term is
    multiplied by the product of the others. Two zero terms are multiplied by each other as (s**2 - t)/2, with their sum s and the
    sum t of their squares. With more zero terms, the product and its first two derivatives are 0.

    Raises:
        UnsupportedError: the terms are complex.
    """
    if values.is_complex():
        raise UnsupportedError("products of complex terms along a dimension have no gradient: use .to_dense().prod(dim)")
    is_zero = values.detach() == 0
    nonzeros = torch.where(is_zero, 1, values)
    zeros = torch.where(is_zero, values, 0)
    logarithms, zero_sum = total(nonzeros.abs().log()), total(zeros)
    zero_pairs = (zero_sum * zero_sum - total(zeros * zeros)) / 2
    detached, negative = logarithms.detach(), (total((nonzeros.detach() < 0).to(torch.float64)) % 2).to(values.dtype)
    product, missing = detached.exp() * (1 - 2 * negative), float(count) - total((~is_zero).to(torch.float64))
    of_zeros = torch.where(missing == 1, zero_sum, torch.where(missing == 2, zero_pairs, 0))
    return torch.where(missing == 0, result, product * of_zeros) * (logarithms - detached).exp()
