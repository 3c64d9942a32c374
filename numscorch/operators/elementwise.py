"""Element-wise functions of several operands, and comparisons, under torch's names; each is evaluated as a statement.

Operands broadcast as in torch. Unstored entries are 0. The result is dense if the operator is nonzero at 0 (``A + 1``, ``exp(A)``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from math import isfinite, prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..convert.construct import from_torch
from ..convert.values import densified
from ..errors import OperandError, UnsupportedError
from ..frontend.broadcasting import broadcast_shape
from ..frontend.datatypes import number_as
from ..frontend.operator_forms import FORMS
from ..frontend.requests import NAMES, access_of
from ..frontend.statements import parse_program
from ..ir.function_table import PAIRS
from ..ir.functions import COMPARISONS, is_zero, simplified
from ..ir.notation import parse_expr
from ..programs.dispatch import compute
from ..programs.evaluation import evaluate_parts
from ..tensors.ledgers import densifying
from ..tensors.packing import at_entries
from ..tensors.parameter import unwrapped
from ..tensors.sparse_tensor import OPERATORS, SparseTensor
from .naming import with_name
from .unary import FROM_ZERO, UNARY


def is_sparse(value: Any) -> bool:
    """Whether the value is a SparseTensor or a sparse torch tensor."""
    return isinstance(value, SparseTensor) or (isinstance(value, Tensor) and value.layout is not torch.strided)


def as_own(value: Any) -> Any:
    """Convert a sparse parameter or one of torch's sparse tensors to a SparseTensor; return other values unchanged."""
    value = unwrapped(value)
    return from_torch(value, copy=False) if isinstance(value, Tensor) and value.layout is not torch.strided else value


def _joined(name: str, left: Any, right: Any) -> Any:
    """Evaluate an operator of two tensors or numbers.

    Raises:
        OperandError: an operand is a list or a tuple.
    """
    if type(left) is SparseTensor and type(right) is SparseTensor and left.pattern is right.pattern and name in AT_ENTRIES:
        return SparseTensor(left.pattern, AT_ENTRIES[name](left._values, right._values))
    left_order, right_order = getattr(left, "ndim", 0), getattr(right, "ndim", 0)
    if listed := [operand for operand in (left, right) if isinstance(operand, list | tuple)]:
        raise OperandError(f"operators take tensors and numbers, not {type(listed[0]).__name__}: wrap it with torch.tensor(x)")
    if not (left_order and right_order):
        return _evaluated(name, left, right)
    text, value, is_dense = _statement(name, left_order, right_order)
    if is_dense:
        _warn_of_dense(value, (left, right))
    return compute(parse_program(text)[0].request, (left, right))


def _evaluated(name: str, *operands: Any, **options: Any) -> Any:
    """Evaluate an operator of tensors and numbers that broadcast; unstored entries are 0."""
    text, value, is_dense = _statement(name, *(getattr(operand, "ndim", 0) for operand in operands), options=tuple(options))
    if is_dense:
        _warn_of_dense(value, operands)
    return evaluate_parts(text, {**dict(zip(NAMES, operands, strict=False)), **options}, None)


@lru_cache(maxsize=1024)
def _statement(name: str, *orders: int | str, options: tuple[str, ...] = ()) -> tuple[str, str, bool]:
    """The statement of an operator, its right side without indices, and whether that side is nonzero where no tensor has an entry.

    ``orders`` has the number of dimensions of each operand A, B, ...; a text in ``orders`` is inserted unchanged.

    >>> _statement("add", 2, 1)
    ('R[i0,i1] = A[i0,i1] + B[i1]', 'A + B', False)
    >>> _statement("where", 1, 1, "0")
    ('R[i0] = where(A[i0], B[i0], 0)', 'where(A, B, 0)', False)
    """
    terms = [order if isinstance(order, str) else name for name, order in zip(NAMES, orders, strict=False)]
    tensors = {name: order for name, order in zip(NAMES, orders, strict=False) if isinstance(order, int)}
    indices = [f"i{at}" for at in range(max(tensors.values()))]
    accesses = {name: str(access_of(name, indices[len(indices) - order :])) for name, order in tensors.items()}
    numbers = dict(zip(options, options, strict=True))
    value = FORMS[name](*terms, **numbers)
    text = f"{access_of('R', indices)} = {FORMS[name](*(accesses.get(term, term) for term in terms), **numbers)}"
    return text, value, not is_zero(simplified(parse_expr(value), {name for name, order in tensors.items() if order}))


def _warn_of_dense(what: str, operands: Iterable[Any]) -> None:
    """If all tensors are sparse, report that the result is dense because the function is nonzero at 0.

    Raises:
        UnsupportedError: in strict mode.
    """
    tensors = [value for value in operands if getattr(value, "ndim", 0)]
    if tensors and all(isinstance(value, SparseTensor) and not value.format.is_dense for value in tensors):
        names = " and ".join(f"{value.format.name} {tuple(value.shape)}" for value in tensors)
        size = prod(broadcast_shape(what, *(value.shape for value in tensors))) * max(value.dtype.itemsize for value in tensors)
        suggestion = "the function is nonzero at 0: A.with_values(...) keeps the pattern, A.to_dense() requests a dense tensor"
        densifying(what, names, size, suggestion)


AT_ENTRIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # torch's functions, applied to the values if both tensors have one pattern
    name: getattr(torch, name) for name in ("add", "sub", "mul", "maximum", "minimum")
}


def _scaled(operation: Callable[..., Tensor], tensor: Any, number: Any) -> Any:
    """Multiply or divide a SparseTensor's values by a number, in torch's result data type; None for other operands.

    Raises:
        UnsupportedError: the integer overflows the tensor's data type.
    """
    if type(tensor) is SparseTensor and (isinstance(number, int | float | complex) or (isinstance(number, Tensor) and number.ndim == 0)):
        scalar = number.item() if isinstance(number, Tensor) and not (number.is_floating_point() or number.is_complex()) else number
        if isinstance(scalar, int) and not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            number_as(scalar, tensor.dtype)
        return SparseTensor(tensor.pattern, at_entries(tensor.pattern, lambda values: operation(values, number), tensor._values))
    return None


def add(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """input + alpha * other, for any mix of sparse and dense tensors and numbers.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> ns.add(A, A).values
    tensor([4., 6.])
    """
    return _joined("add", input, other) if alpha == 1 else _evaluated("add", input, other, alpha=alpha)


def sub(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """input - alpha * other."""
    return _joined("sub", input, other) if alpha == 1 else _evaluated("sub", input, other, alpha=alpha)


def mul(input: Any, other: Any) -> Any:
    """The element-wise product; nonzero only where both operands store an entry."""
    if getattr(input, "ndim", 0) and getattr(other, "ndim", 0):
        return _joined("mul", input, other)
    scaled = _scaled(torch.mul, input, other)
    scaled = _scaled(torch.mul, other, input) if scaled is None else scaled
    return _joined("mul", input, other) if scaled is None else scaled


def div(input: Any, other: Any) -> Any:
    """The quotient at the numerator's entries; 0 / 0 is not computed at unstored entries."""
    if (scaled := _scaled(torch.div, input, other)) is not None:
        return scaled
    return _joined("div", input, other)


def pow(input: Any, exponent: Any) -> Any:
    """Raise each entry to a power; dense unless the exponent is a positive number.

    >>> import numscorch as ns
    >>> pow(ns.from_torch(torch.tensor([[0.0, 3.0]])), 2).values
    tensor([9.])
    """
    if isinstance(input, SparseTensor) and isinstance(exponent, int | float) and exponent > 0:
        return SparseTensor(input.pattern, at_entries(input.pattern, lambda values: torch.pow(values, exponent), input._values))
    return torch.pow(densified(input, "pow", FROM_ZERO), densified(exponent, "pow", FROM_ZERO))


def _comparison(name: str) -> Callable[..., Any]:
    torch_function = getattr(torch, name)

    def comparison(input: Any, other: Any) -> Any:
        if type(input) is SparseTensor and isinstance(other, int | float):
            if getattr(operator, name)(0, other):
                return torch_function(densified(input, name, "it is True at unstored entries"), other)
            return SparseTensor(input.pattern, torch_function(input._values, other))
        return _joined(name, input, other).to(torch.bool)

    return with_name(
        comparison, name, f"Compare element-wise: input {COMPARISONS[name]} other. The result is dense if it is True for two zeros."
    )


def _pair(name: str) -> Callable[..., Any]:
    def function(input: Any, other: Any) -> Any:
        return _joined(name, input, other)

    return with_name(function, name, f"torch's {name} of operands that broadcast; unstored entries are 0.")


def _logical(name: str, function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def logical(input: Any, other: Any) -> Any:
        given = map(as_own, (input, other))
        left, right = ((t != 0).to(torch.int8) if isinstance(t, Tensor | SparseTensor) else int(bool(t)) for t in given)
        return function(left, right).to(torch.bool)

    return with_name(logical, name, f"torch's {name}: input {name.removeprefix('logical_')} other; nonzero entries are True.")


def where(condition: Any, input: Any, other: Any) -> Any:
    """Select input where the condition holds, other elsewhere; any operand may be sparse. Sparse if other is 0 or sparse, else dense."""
    operands = {"A": condition if condition.dtype is torch.bool else condition != 0, "B": input, "C": other}
    zeros = {name: str(value + 0) for name, value in operands.items() if isinstance(value, int | float) and value == 0}
    text, value, is_dense = _statement("where", *(zeros.get(name, getattr(value, "ndim", 0)) for name, value in operands.items()))
    if is_dense:
        _warn_of_dense(value, operands.values())
    return evaluate_parts(text, {name: value for name, value in operands.items() if name not in zeros}, None)


def lerp(input: Any, end: Any, weight: Any) -> Any:
    """input + weight * (end - input); the weight is a number or a tensor.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [4.0, 0.0]]), ns.CSR)
    >>> lerp(A, 3 * A, 0.5).values
    tensor([4., 8.])
    """
    return _evaluated("lerp", input, end, weight)


def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    """input + value * tensor1 * tensor2.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [4.0, 0.0]]), ns.CSR)
    >>> addcmul(A, A, A, value=2).values
    tensor([10., 36.])

    Raises:
        UnsupportedError: the value is infinite or NaN, and all tensors hold integers.
    """
    if isinstance(value, float) and not any(
        tensor.dtype.is_floating_point or tensor.dtype.is_complex for tensor in (input, tensor1, tensor2)
    ):
        if not isfinite(value):
            raise UnsupportedError(f"addcmul of integers takes no value={value}: convert the tensors with .to(torch.float64)")
        value = int(value)  # torch truncates it, too
    if isinstance(value, int | float) and value == 1:
        return _evaluated("addcmul", input, tensor1, tensor2)
    return _evaluated("addcmul", input, tensor1, tensor2, value=value)


def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """Clamp each entry between two bounds: numbers or tensors, sparse or dense. The result is dense if the bounds exclude 0.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> clamp(A, -1, 2).values, clamp(A, max=A / 2).values
    (tensor([2., 2.]), tensor([1.0000, 1.5000]))
    """
    if any(isinstance(bound, complex) for bound in (min, max)):
        raise UnsupportedError(f"clamp between {min} and {max}: complex numbers have no order; use real bounds")
    if any(isinstance(bound, Tensor | SparseTensor) for bound in (min, max)):
        input = input if min is None else _joined("clamp_min", input, min)
        return input if max is None else _joined("clamp_max", input, max)
    if (min is None or min <= 0) and (max is None or max >= 0):
        return SparseTensor(input.pattern, at_entries(input.pattern, lambda values: torch.clamp(values, min, max), input._values))
    return torch.clamp(densified(input, "clamp", FROM_ZERO), min, max)


def hardtanh(input: SparseTensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """torch.nn.functional.hardtanh; dense if the bounds exclude 0."""
    if not min_val <= 0 <= max_val:
        return functional.hardtanh(densified(input, "hardtanh", FROM_ZERO), min_val, max_val)
    return UNARY["hardtanh"](input, min_val, max_val, inplace)


def _boolean_operator(sign: str, name: str) -> Callable[..., Any]:
    """A Python operator that applies a logical function to boolean operands.

    Raises:
        UnsupportedError: an operand is not boolean.
    """

    def operator(*operands: Any) -> Any:
        for operand in operands:
            kind = getattr(operand, "dtype", type(operand))
            if kind not in (torch.bool, bool):
                dtype_name = kind if isinstance(kind, torch.dtype) else kind.__name__
                suggestion = f"use {name} to compare entries with 0, or .to_dense() for bitwise operations"
                raise UnsupportedError(f"{sign} of {dtype_name} works on bits, but SparseTensors support it for bool only: {suggestion}")
        return OPERATORS[name](*operands)

    return with_name(operator, name, f"{name} of boolean tensors.")


BITWISE: dict[str, Callable[..., Any]] = {
    "and": _boolean_operator("&", "logical_and"),
    "or": _boolean_operator("|", "logical_or"),
    "xor": _boolean_operator("^", "logical_xor"),
    "invert": _boolean_operator("~", "logical_not"),
}


NAMED: dict[str, Callable[..., Any]] = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "div": div,
    "where": where,
    "addcmul": addcmul,
    "clamp": clamp,
    "clamp_max": lambda input, max: clamp(input, None, max),
    "clamp_min": lambda input, min: clamp(input, min),
    "pow": pow,
    "lerp": lerp,
    **{name: _pair(name) for name in PAIRS},
    **UNARY,
    "hardtanh": hardtanh,
    **{name: _comparison(name) for name in COMPARISONS},
    "logical_and": _logical("logical_and", mul),
    "logical_or": _logical("logical_or", partial(_joined, "maximum")),
    "logical_xor": _logical("logical_xor", partial(_joined, "ne")),
}
