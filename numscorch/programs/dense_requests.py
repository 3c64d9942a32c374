"""Requests with dense operands only, computed by torch's operators; gradients are supported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from math import prod
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor

from ..errors import DivisionError
from ..frontend.datatypes import check_powers, computed_in, target_of
from ..frontend.requests import NAMES, Request, product_of
from ..ir.function_table import BY_ZERO
from ..ir.functions import COMPARISONS, FUNCTIONS, REDUCTIONS, start_of, terms_of
from ..ir.index import Access, Apply, Binary, Expr, Literal
from ..machine import memory


def divided(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function of torch so that integer division by 0 raises numscorch's error.

    Raises:
        DivisionError: an integer is divided by 0.
    """

    def checked(*operands: Any) -> Tensor:
        try:
            return function(*operands)
        except RuntimeError as error:
            if str(error) != "ZeroDivisionError":
                raise
            raise DivisionError(BY_ZERO) from error

    return checked


OTHER_FUNCTIONS: dict[str, Any] = {
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),  # its gradient is 0
    "heaviside": lambda x, y: torch.where(x == 0, y, (x > 0).to(y.dtype)),  # torch.heaviside has no gradient
    "where": lambda c, a, b: torch.where(c != 0, a, b),
    "isfinite": lambda x: torch.isfinite(x).to(x.dtype),
    "isinf": lambda x: torch.isinf(x).to(x.dtype),
    "isnan": lambda x: torch.isnan(x).to(x.dtype),
}
DENSE_FUNCTIONS: dict[str, Any] = {  # the torch function of each statement function
    name: OTHER_FUNCTIONS.get(name) or getattr(torch, name, None) or getattr(torch.nn.functional, name) for name in FUNCTIONS
}
DENSE_FUNCTIONS |= {name: divided(DENSE_FUNCTIONS[name]) for name, function in FUNCTIONS.items() if function.divides}
TORCH_OPERATORS: dict[str, Any] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
    **{op: (lambda a, b, name=name: getattr(torch, name)(a, b).to(a.dtype)) for name, op in COMPARISONS.items()},
}
FLOATS = [{torch.float32}, {torch.float64}]  # data types of operands that need no promotion
REDUCERS: dict[str, Any] = {
    "=": torch.sum,
    "+=": torch.sum,
    "*=": lambda value, dim: value.flatten(dim[0]).prod(-1, dtype=value.dtype),  # ``dim`` are the last ones
    "max=": torch.amax,
    "min=": torch.amin,
    "stored max=": torch.amax,
    "max plus=": torch.amax,
    "min plus=": torch.amin,
}


def dense_result(request: Request, *tensors: Tensor) -> Tensor:
    """The result of a request on strided tensors, with the data type that sparse operands would give.

    Raises:
        SizeError: the result, or the value before its reduction, exceeds the memory limit.

    >>> from ..frontend.requests import einsum_request
    >>> dense_result(einsum_request("ij,kj->ik", (2, 2)), torch.ones(2, 3), torch.ones(1, 3))
    tensor([[3.],
            [3.]])
    """
    if prod([tensor.numel() for tensor in tensors]) > memory.ASK_FROM:  # an upper bound of the result's size
        _check_size(request, tensors, request.subscripts.result)
    if request.is_product and {tensor.dtype for tensor in tensors} in FLOATS:  # fast path
        return _einsum(einsum_text(request), tensors)
    target = target_of(request, tensors)
    check_powers(request, target.computed if target is not None else tensors[0].dtype)
    if target is None or (torch.bool is not target.computed is target.result and {target.result} == {tensor.dtype for tensor in tensors}):
        return _einsum(einsum_text(request), tensors) if request.is_product else _value(request, tensors)
    dtype = computed_in(torch.bool) if target.computed is torch.bool else target.computed
    return _value(target.of_kernels(request), [tensor.to(dtype) for tensor in tensors]).to(target.result)


def _einsum(text: str, tensors: Sequence[Tensor]) -> Tensor:
    """torch's einsum; ``torch.mm`` multiplies matrices, because einsum spends 6 us on parsing and permuting.

    >>> _einsum("ab,cb->ac", (torch.ones(1, 3), torch.ones(2, 3)))
    tensor([[3., 3.]])
    """
    if len(tensors) == 2 and tensors[0].ndim == tensors[1].ndim == 2 and (product := matrix_product(text)) is not None:
        is_swapped, is_first_transposed, is_second_transposed = product
        first, second = reversed(tensors) if is_swapped else tensors
        first, second = first.t() if is_first_transposed else first, second.t() if is_second_transposed else second
        if first.shape[1] == second.shape[0]:  # else a dimension broadcasts
            return torch.mm(first, second)
    return torch.einsum(text, *tensors)


@lru_cache(maxsize=1024)
def matrix_product(expr: str) -> tuple[bool, bool, bool] | None:
    """How an einsum multiplies two matrices: whether it swaps them, transposes the first, transposes the second; None for other einsums.

    >>> matrix_product("jf,of->jo")
    (False, False, True)
    >>> matrix_product("ki,jk->ji")
    (True, False, False)
    """
    terms, _, result = expr.partition("->")
    left, _, right = terms.partition(",")
    if any(len(set(term)) != 2 for term in (left, right, result)) or set(result) != set(left) ^ set(right):
        return None
    is_swapped = result[0] in right
    first, second = (right, left) if is_swapped else (left, right)
    return is_swapped, first[0] in second, second[1] in first


def _value(request: Request, tensors: Sequence[Tensor]) -> Tensor:
    """The result of a request on tensors of one data type; indices that the result lacks are reduced."""
    if _is_product(request):
        product = _einsum(einsum_text(request), tensors)
        if torch._C._functorch.is_functorch_wrapped_tensor(product):  # inside a transform, data pointers are unavailable
            return product.clone()
        is_view = any(product.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t in tensors)
        return product.clone(memory_format=torch.contiguous_format) if is_view else product
    names = list(dict.fromkeys([*request.subscripts.result, *(n for term in request.subscripts.operands for n in term)]))
    _check_size(request, tensors, names)
    aligned = [_align(tensor, term, names) for tensor, term in zip(tensors, request.subscripts.operands, strict=True)]
    term = terms_of(request.expr, request.op, str(tensors[0].dtype).removeprefix("torch."))
    value = torch.broadcast_tensors(value_of(term, aligned, tensors[0].dtype), *aligned)[0]
    summed = list(range(len(request.subscripts.result), len(names)))
    if not summed:
        return value.clone(memory_format=torch.contiguous_format)  # a result is never a view of an operand
    if request.op in REDUCTIONS and any(value.shape[dim] == 0 for dim in summed):  # the identity; the terms' gradient is 0
        start = start_of(request.op, request.expr, str(value.dtype).removeprefix("torch."))
        return value.sum(dim=summed).to(value.dtype).masked_fill(torch.ones((), dtype=torch.bool), start)
    return REDUCERS[request.op](value, dim=summed)


def _check_size(request: Request, tensors: Sequence[Tensor], names: Sequence[str]) -> None:
    """Check that a dense tensor with the indices ``names`` is within the memory limit.

    Raises:
        SizeError: the message has the sizes.
    """
    sizes = request.subscripts.sizes([tensor.shape for tensor in tensors])
    shape = [sizes[name] for name in names]
    what = f"the dense intermediate tensor {'x'.join(map(str, shape))}"
    suggestion = "to compute it only at a sparse operand's entries, multiply by that operand first, in a separate statement"
    memory.check_bytes(prod(shape) * max((tensor.itemsize for tensor in tensors), default=1), what, request, suggestion)


@lru_cache(maxsize=1024)
def _is_product(request: Request) -> bool:
    """Whether a request sums the product of its operands, like torch's einsum: it reads each operand once, in order."""
    return request.op in ("=", "+=") and str(request.expr) == str(product_of(request.subscripts))


@lru_cache(maxsize=1024)
def einsum_text(request: Request) -> str:
    """The subscripts of a request as text for torch's einsum, in which names are single letters.

    >>> from ..frontend.requests import einsum_request
    >>> einsum_text(einsum_request("...k,kj", (3, 2)))
    'abc,cd->abd'
    """
    operands = request.subscripts.operands
    letters = dict(zip(dict.fromkeys(chain(*operands)), ascii_letters, strict=False))
    *terms, result = ["".join(letters[name] for name in names) for names in (*operands, request.subscripts.result)]
    return f"{','.join(terms)}->{result}"


def _align(tensor: Tensor, term: Sequence[str], names: Sequence[str]) -> Tensor:
    """The tensor with a dimension for each name; a repeated name takes the diagonal."""
    sizes = dict(zip(term, tensor.shape, strict=True))
    return with_order(tensor, term, [name for name in names if name in sizes]).reshape([sizes.get(name, 1) for name in names])


def with_order(tensor: Tensor, names: Sequence[str], order: Sequence[str]) -> Tensor:
    """A view of the tensor with its dimensions in another order; a repeated name takes the diagonal.

    >>> with_order(torch.arange(4).reshape(2, 2), "ii", "i")
    tensor([0, 3])
    """
    if len(order) == len(names):
        return tensor.permute([names.index(name) for name in order])
    return torch.einsum(tensor, list(map(order.index, names)), list(range(len(order))))


def value_of(expr: Expr, tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Evaluate an expression on tensors that have one dimension for each index, in the same order."""
    match expr:
        case Access(tensor) if not tensor.has_values:
            return torch.ones_like(tensors[NAMES.index(tensor.name)], dtype=dtype)
        case Access(tensor):
            return tensors[NAMES.index(tensor.name)]
        case Literal(value):
            return torch.tensor(value, dtype=dtype)
        case Binary(op, left, right):
            return TORCH_OPERATORS[op](value_of(left, tensors, dtype), value_of(right, tensors, dtype))
        case Apply(function, args):
            return DENSE_FUNCTIONS[function](*(value_of(arg, tensors, dtype) for arg in args))
