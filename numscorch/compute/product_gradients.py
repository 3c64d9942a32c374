"""Products along a dimension (``*=``, ``reduce="prod"``) through which gradients flow.

The gradient at a term is the product of the others, which a division by the term gives unless one is 0. So the terms are
computed first, with gradients of their own, and the product is written so that torch differentiates it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..convert.conversions import as_stored
from ..errors import UnsupportedError
from ..frontend.gradient_requests import value_of_request
from ..frontend.parser import Subscripts
from ..frontend.statements import Request, plain_request, reducing
from ..ir.format import Format
from ..tensors.sparse_tensor import SparseTensor


@dataclass(frozen=True, slots=True)
class _Steps:
    """The requests of a product: its terms, whose first ``kept`` dimensions are the result's, their sum, and that at a pattern."""

    terms: Request
    sum: Request
    sum_at: Request
    kept: int


@lru_cache(maxsize=256)
def _steps(request: Request) -> _Steps:
    subs = request.subscripts
    read = tuple(letters for at, letters in enumerate(subs.operands) if at != request.mask)
    summed = dict.fromkeys(name for letters in read for name in letters if name not in subs.result)
    names = (*subs.result, *summed)
    terms = Request(Subscripts(read, names), value_of_request(request))
    sum_at = reducing(Subscripts((names, subs.result), subs.result), "=", mask=1)
    return _Steps(terms, plain_request(Subscripts((names,), subs.result)), sum_at, len(subs.result))


def multiplied(
    request: Request, operands: Sequence[Any], format: Format | str | None, compute: Callable[..., Any]
) -> SparseTensor | Tensor:
    """The result of a request that multiplies terms, in the format unless there is a mask; O(terms) in memory.

    ``compute`` is ``dispatch.compute``.

    Raises:
        UnsupportedError: the terms are complex.
    """
    steps = _steps(request)
    result = compute(request, list(map(_detached, operands)), format if request.mask is None else None)
    terms = compute(steps.terms, [operand for at, operand in enumerate(operands) if at != request.mask])
    if isinstance(terms, Tensor):
        product: Tensor = terms.flatten(steps.kept).prod(-1)
        return product if isinstance(result, Tensor) else result.with_values(as_stored(product, result.pattern))

    def total(values: Tensor) -> Tensor:
        summed = terms.with_values(values)
        if isinstance(result, Tensor):
            sums: Tensor = compute(steps.sum, [summed], "dense")
            return sums
        return as_stored(compute(steps.sum_at, [summed, result]), result.pattern)

    slope = _with_slope(result if isinstance(result, Tensor) else result.values, terms.values, total, prod(terms.shape[steps.kept :]))
    return slope if isinstance(result, Tensor) else result.with_values(slope)


def _detached(operand: SparseTensor | Tensor) -> SparseTensor | Tensor:
    return operand.with_values(operand.values.detach()) if isinstance(operand, SparseTensor) else operand.detach()


def _with_slope(result: Tensor, values: Tensor, total: Callable[[Tensor], Tensor], count: int) -> Tensor:
    """A product of ``count`` terms with its gradient; ``values`` are those that are stored, of which ``total`` makes sums.

    It is the product, times e to the power of a sum of logarithms less itself; where one term is 0, that term times the product
    of the others, and where two are, the product of both, (s**2 - t)/2 for their sum s and that of their squares t. It is 0 where
    more are, with its first two derivatives.

    Raises:
        UnsupportedError: the terms are complex.
    """
    if values.is_complex():
        raise UnsupportedError("no gradient goes through products of complex terms along a dimension: use .to_dense().prod(dim)")
    is_zero = values.detach() == 0
    others = torch.where(is_zero, 1, values)
    zeros = torch.where(is_zero, values, 0)
    logarithms, one = total(others.abs().log()), total(zeros)
    two = (one * one - total(zeros * zeros)) / 2
    fixed, negative = logarithms.detach(), total((others.detach() < 0).to(values.dtype))
    product, missing = fixed.exp() * (1 - 2 * (negative % 2)), count - total((~is_zero).to(values.dtype))
    of_zeros = torch.where(missing == 1, one, torch.where(missing == 2, two, 0))
    return torch.where(missing == 0, result, product * of_zeros) * (logarithms - fixed).exp()
