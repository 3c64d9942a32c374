"""Requests whose operands are all dense, by torch's own operators, gradients included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .ir.functions import terms_of
from .ir.index import Access, Binary, Call, Expr, Literal, is_product
from .statements import NAMES, Request

FUNCTIONS: dict[str, Any] = {
    "abs": torch.abs,
    "erf": torch.erf,
    "exp": torch.exp,
    "gelu": torch.nn.functional.gelu,
    "log": torch.log,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "where": lambda c, a, b: torch.where(c != 0, a, b),
}
OPERATORS: dict[str, Any] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
    **{
        op: (lambda a, b, name=name: getattr(torch, name)(a, b).to(a.dtype))
        for op, name in {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}.items()
    },
}
REDUCERS: dict[str, Any] = {
    "=": torch.sum,
    "+=": torch.sum,
    "max=": torch.amax,
    "min=": torch.amin,
    "stored max=": torch.amax,
    "max plus=": torch.amax,
    "min plus=": torch.amin,
}


def dense_value(request: Request, tensors: Sequence[Tensor]) -> Tensor:
    """What a request asks for; indices that the result lacks are reduced."""
    if request.op in ("=", "+=") and (request.value is None or is_product(request.value)) and _is_plain(request):
        product: Tensor = torch.einsum(_text(request), *tensors)
        is_view = any(product.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t in tensors)
        return product.clone(memory_format=torch.contiguous_format) if is_view else product
    names = list(dict.fromkeys([*request.subscripts.result, *(n for term in request.subscripts.operands for n in term)]))
    aligned = [_aligned(tensor, term, names) for tensor, term in zip(tensors, request.subscripts.operands, strict=True)]
    if request.value is None:
        raise ValueError(f"{request} has no value to compute")
    value = torch.broadcast_tensors(value_of(terms_of(request.value, request.op), aligned, tensors[0].dtype), *aligned)[0]
    summed = list(range(len(request.subscripts.result), len(names)))
    if not summed:
        copied: Tensor = value.clone(memory_format=torch.contiguous_format)  # never a view of an operand
        return copied
    if request.op == "*=":
        multiplied: Tensor = value.flatten(len(request.subscripts.result)).prod(-1)
        return multiplied
    reduced: Tensor = REDUCERS[request.op](value, dim=summed)
    return reduced


def _is_plain(request: Request) -> bool:
    """Whether the value is the product of the operands, each once and in order."""
    if request.value is None:
        return True
    text = " * ".join(f"{NAMES[at]}[{','.join(term)}]" if term else NAMES[at] for at, term in enumerate(request.subscripts.operands))
    return str(request.value) == text


def _text(request: Request) -> str:
    """torch's einsum of it, with a letter for each index."""
    names = list(dict.fromkeys(n for term in request.subscripts.operands for n in term))
    letters = {name: "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[at] for at, name in enumerate(names)}
    terms = ("".join(letters[n] for n in term) for term in (*request.subscripts.operands, request.subscripts.result))
    *left, right = terms
    return f"{','.join(left)}->{right}"


def _aligned(tensor: Tensor, term: Sequence[str], names: Sequence[str]) -> Tensor:
    """The tensor with a dimension for every name; a repeated one is its diagonal."""
    term = list(term)
    while len(set(term)) < len(term):
        name = next(n for n in term if term.count(n) > 1)
        first, second = [at for at, n in enumerate(term) if n == name][:2]
        tensor = tensor.diagonal(dim1=first, dim2=second)
        term = [n for at, n in enumerate(term) if at not in (first, second)] + [name]
    tensor = tensor.permute([term.index(n) for n in names if n in term])
    return tensor.reshape([tensor.shape[[n for n in names if n in term].index(n)] if n in term else 1 for n in names])


def value_of(expr: Expr, tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """An expression of tensors that have a dimension for each index, in one order."""
    match expr:
        case Access(tensor) if not tensor.has_values:
            return torch.ones_like(tensors[NAMES.index(tensor.name)], dtype=dtype)
        case Access(tensor):
            return tensors[NAMES.index(tensor.name)]
        case Literal(value):
            return torch.tensor(value, dtype=dtype)
        case Binary(op, left, right):
            result: Tensor = OPERATORS[op](value_of(left, tensors, dtype), value_of(right, tensors, dtype))
            return result
        case Call(function, args):
            called: Tensor = FUNCTIONS[function](*(value_of(arg, tensors, dtype) for arg in args))
            return called
