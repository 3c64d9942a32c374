"""Products along a dimension (``*=``, ``reduce="prod"``) through which gradients flow.

The gradient at a term is the product of the others, which a division by the term gives unless one is 0. So the terms are
computed first, with gradients of their own, and the product is written so that torch differentiates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch

from .errors import UnsupportedError
from .parser import Subscripts
from .sparse_tensor import SparseTensor
from .statements import Request, plain_request, reducing


@lru_cache(maxsize=256)
def _steps(request: Request) -> tuple[Request, Request, Request, tuple[str, ...]]:
    """The terms of a product, their product, their sum, and the indices of the terms, which those of the result come first of."""
    subs = request.subscripts
    summed = dict.fromkeys(name for own in subs.operands for name in own if name not in subs.result)
    names = (*subs.result, *summed)
    terms = Request(Subscripts(subs.operands, names), request.value) if request.value is not None else plain_request(subs)
    along = Subscripts((names,), subs.result)
    return terms, reducing(along, "*="), plain_request(along), names


def multiplied(request: Request, operands: Sequence[Any]) -> torch.Tensor:
    """The dense result of a request that multiplies terms, O(terms) in memory.

    Raises:
        UnsupportedError: it has a mask.
    """
    from .computing import compute  # late: it computes with gradients where these are asked for

    if request.mask is not None:
        raise UnsupportedError(f"no gradient goes through a product of terms at a mask: multiply by the mask afterwards\n  {request}")
    of_terms, of_product, of_sum, names = _steps(request)
    terms = compute(of_terms, operands)
    kept = len(request.subscripts.result)
    if isinstance(terms, torch.Tensor):
        flat: torch.Tensor = terms.flatten(kept).prod(-1)
        return flat
    made = compute(of_product, [terms.with_values(terms.values.detach())], "dense")
    return _with_slope(made, terms, of_sum, prod(terms.shape[kept : len(names)]))


def _with_slope(made: torch.Tensor, terms: SparseTensor, of_sum: Request, count: int) -> torch.Tensor:
    """A product with its gradient.

    It is the product, times e to the power of a sum of logarithms less itself; where one term is 0, that term times the product
    of the others, and where two are, the product of both, (s**2 - t)/2 for their sum s and that of their squares t. It is 0 where
    more are, with its first two derivatives.

    Raises:
        UnsupportedError: the terms are complex.
    """
    from .computing import compute

    def total(values: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = compute(of_sum, [terms.with_values(values)], "dense")
        return summed

    if terms.dtype.is_complex:
        raise UnsupportedError("no gradient goes through products of complex terms along a dimension: use .to_dense().prod(dim)")
    values, is_zero = terms.values, terms.values.detach() == 0
    others = torch.where(is_zero, 1, values)
    zeros = torch.where(is_zero, values, 0)
    logarithms, one = total(others.abs().log()), total(zeros)
    two = (one * one - total(zeros * zeros)) / 2
    fixed, negative = logarithms.detach(), total((others.detach() < 0).to(values.dtype))
    product, missing = fixed.exp() * (1 - 2 * (negative % 2)), count - total((~is_zero).to(values.dtype))
    of_zeros = torch.where(missing == 1, one, torch.where(missing == 2, two, 0))
    return torch.where(missing == 0, made, product * of_zeros) * (logarithms - fixed).exp()
