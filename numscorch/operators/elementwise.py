"""Element-wise functions of several operands, and comparisons, under torch's names; each is evaluated as a statement.

Operands broadcast as in torch. Unstored entries are 0. The result is dense if the operator is nonzero at 0 (``A + 1``, ``exp(A)``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
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
from ..frontend.requests import Request, access_of
from ..frontend.statements import parse_program
from ..ir.functions import COMPARISONS, is_zero, simplified
from ..ir.index import Access
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
    """A parameter, or a sparse tensor of torch, as a SparseTensor; other values unchanged."""
    value = unwrapped(value)
    return from_torch(value, copy=False) if isinstance(value, Tensor) and value.layout is not torch.strided else value


def _term(name: str, order: int, max_order: int) -> Access:
    """The access to a tensor of ``order`` dimensions, right-aligned in ``max_order`` dimensions."""
    return access_of(name, [f"i{at}" for at in range(max_order - order, max_order)])


def _joined(form: str, left: Any, right: Any, **numbers: float) -> Any:
    """Evaluate a form of A and B, such as ``{A} + {B}``, on two tensors or numbers.

    Raises:
        OperandError: an operand is a list or a tuple.
    """
    if type(left) is SparseTensor and type(right) is SparseTensor and left.pattern is right.pattern and form in OF_VALUES and not numbers:
        return SparseTensor(left.pattern, OF_VALUES[form](left._values, right._values))
    left_order, right_order = getattr(left, "ndim", 0), getattr(right, "ndim", 0)
    if listed := [operand for operand in (left, right) if isinstance(operand, list | tuple)]:
        raise OperandError(f"operators take tensors and numbers, not {type(listed[0]).__name__}: wrap it with torch.tensor(x)")
    if numbers or not (left_order and right_order):
        return _evaluate_form(form, {"A": left, "B": right}, **numbers)
    if type(left) is not Tensor and type(right) is not Tensor:
        _warn_if_dense(form, {"A": left, "B": right})
    return compute(_request(form, left_order, right_order), (left, right))


def _evaluate_form(form: str, operands: dict[str, Any], **numbers: Any) -> Any:
    """Evaluate a form of operands that broadcast, such as ``where({C}, {A}, 0)``; unstored entries are 0."""
    _warn_if_dense(form, operands)
    orders = {name: getattr(operand, "ndim", 0) for name, operand in operands.items()}
    return evaluate_parts(_statement(form, **orders), {**operands, **numbers}, None)


def _warn_if_dense(form: str, operands: Mapping[str, Any]) -> None:
    """Report a dense result of sparse operands, caused by a function that is nonzero at 0.

    Raises:
        UnsupportedError: in strict mode.
    """
    tensors = {name: value for name, value in operands.items() if getattr(value, "ndim", 0)}
    sparse = [value for value in tensors.values() if isinstance(value, SparseTensor) and not value.format.is_dense]
    if not sparse or len(sparse) < len(tensors) or not _is_dense_form(form, frozenset(tensors)):
        return
    names = " and ".join(f"{value.format.name} {tuple(value.shape)}" for value in sparse)
    form = form.format(A="A", B="B", C="C")
    size = prod(broadcast_shape(form, *(value.shape for value in sparse))) * sparse[0].dtype.itemsize
    suggestion = "the function is nonzero at 0: A.with_values(...) keeps the pattern, A.to_dense() requests a dense tensor"
    densifying(form, names, size, suggestion)


@lru_cache(maxsize=1024)
def _is_dense_form(form: str, tensors: frozenset[str]) -> bool:
    """Whether a form is nonzero where none of these tensors stores an entry.

    >>> _is_dense_form("{A} + {B}", frozenset("AB")), _is_dense_form("{A} + {B}", frozenset("A"))
    (False, True)
    >>> _is_dense_form("{A} <= {B}", frozenset("AB"))
    True
    """
    return not is_zero(simplified(parse_expr(form.format(A="A", B="B", C="C")), tensors))


@lru_cache(maxsize=1024)
def _statement(form: str, **orders: int) -> str:
    """The statement of a form of operands with these numbers of dimensions.

    >>> _statement("{A} + {B}", A=2, B=1)
    'R[i0,i1] = A[i0,i1] + B[i1]'
    """
    max_order = max(orders.values())
    terms = {name: _term(name, order, max_order) for name, order in orders.items()}
    return f"{_term('R', max_order, max_order)} = {form.format(**terms)}"


@lru_cache(maxsize=1024)
def _request(form: str, left: int, right: int) -> Request:
    (part,) = parse_program(_statement(form, A=left, B=right))
    return part.request


OF_VALUES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # torch's functions on the values of tensors with one pattern
    "{A} + {B}": torch.add,
    "{A} - {B}": torch.sub,
    "{A} * {B}": torch.mul,
    "maximum({A}, {B})": torch.maximum,
    "minimum({A}, {B})": torch.minimum,
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
    return _joined("{A} + {B}", input, other) if alpha == 1 else _joined("{A} + alpha * {B}", input, other, alpha=alpha)


def sub(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """input - alpha * other."""
    return _joined("{A} - {B}", input, other) if alpha == 1 else _joined("{A} - alpha * {B}", input, other, alpha=alpha)


def mul(input: Any, other: Any) -> Any:
    """The element-wise product; nonzero only where both operands store an entry."""
    if getattr(input, "ndim", 0) and getattr(other, "ndim", 0):
        return _joined("{A} * {B}", input, other)
    scaled = _scaled(torch.mul, input, other)
    scaled = _scaled(torch.mul, other, input) if scaled is None else scaled
    return _joined("{A} * {B}", input, other) if scaled is None else scaled


def div(input: Any, other: Any) -> Any:
    """The quotient at the numerator's entries; 0 / 0 is not computed at unstored entries."""
    if (scaled := _scaled(torch.div, input, other)) is not None:
        return scaled
    return _joined("{A} / {B}", input, other)


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
        return _joined(f"{{A}} {COMPARISONS[name]} {{B}}", input, other).to(torch.bool)

    return with_name(
        comparison, name, f"Compare element-wise: input {COMPARISONS[name]} other. The result is dense if it is True for two zeros."
    )


def _pair(name: str) -> Callable[..., Any]:
    form = f"{name}({{A}}, {{B}})"

    def function(input: Any, other: Any) -> Any:
        return _joined(form, input, other)

    return with_name(function, name, f"torch's {name} of operands that broadcast; unstored entries are 0.")


maximum, minimum = _pair("maximum"), _pair("minimum")


def _logical(name: str, function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def logical(input: Any, other: Any) -> Any:
        given = map(as_own, (input, other))
        left, right = ((t != 0).to(torch.int8) if isinstance(t, Tensor | SparseTensor) else int(bool(t)) for t in given)
        return function(left, right).to(torch.bool)

    return with_name(logical, name, f"torch's {name}: input {name.removeprefix('logical_')} other; nonzero entries are True.")


def where(condition: Any, input: Any, other: Any) -> Any:
    """Select input where the condition holds, other elsewhere; any operand may be sparse. Sparse if other is 0 or sparse, else dense."""
    operands = {"A": input, "B": other, "C": condition if condition.dtype is torch.bool else condition != 0}
    zeros = {name: str(value + 0) for name, value in operands.items() if isinstance(value, int | float) and value == 0}
    terms = [zeros.get(name, f"{{{name}}}") for name in "CAB"]
    return _evaluate_form(f"where({', '.join(terms)})", {name: value for name, value in operands.items() if name not in zeros})


def lerp(input: Any, end: Any, weight: Any) -> Any:
    """input + weight * (end - input); the weight is a number or a tensor.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [4.0, 0.0]]), ns.CSR)
    >>> lerp(A, 3 * A, 0.5).values
    tensor([4., 8.])
    """
    if getattr(weight, "ndim", 0):
        return _evaluate_form("{A} + {C} * ({B} - {A})", {"A": input, "B": end, "C": weight})
    return _evaluate_form("{A} + weight * ({B} - {A})", {"A": input, "B": end}, weight=weight)


def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    """input + value * tensor1 * tensor2.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [4.0, 0.0]]), ns.CSR)
    >>> addcmul(A, A, A, value=2).values
    tensor([10., 36.])

    Raises:
        UnsupportedError: the value is infinite or NaN, and all tensors hold integers.
    """
    operands = {"A": input, "B": tensor1, "C": tensor2}
    if isinstance(value, float) and not any(tensor.dtype.is_floating_point or tensor.dtype.is_complex for tensor in operands.values()):
        if not isfinite(value):
            raise UnsupportedError(f"addcmul of integers takes no value={value}: convert the tensors with .to(torch.float64)")
        value = int(value)  # torch truncates it, too
    if isinstance(value, int | float) and value == 1:
        return _evaluate_form("{A} + {B} * {C}", operands)
    return _evaluate_form("{A} + value * {B} * {C}", operands, value=value)


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
        # where entry and bound are equal, the entry receives the whole gradient, unlike that of maximum and minimum
        input = input if min is None else _joined("where({A} >= {B}, {A}, where({A} != {A}, {A}, {B}))", input, min)
        return input if max is None else _joined("where({A} <= {B}, {A}, where({A} != {A}, {A}, {B}))", input, max)
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
    "maximum": maximum,
    "minimum": minimum,
    "where": where,
    "addcmul": addcmul,
    "arctan2": _pair("atan2"),
    "clamp": clamp,
    "clamp_max": lambda input, max: clamp(input, None, max),
    "clamp_min": lambda input, min: clamp(input, min),
    "clip": clamp,
    "pow": pow,
    "lerp": lerp,
    **{name: _pair(name) for name in ("atan2", "copysign", "fmax", "fmin", "hypot", "logaddexp", "logaddexp2", "xlogy")},
    **UNARY,
    "hardtanh": hardtanh,
    **{name: _comparison(name) for name in COMPARISONS},
    "logical_and": _logical("logical_and", mul),
    "logical_or": _logical("logical_or", maximum),
    "logical_xor": _logical("logical_xor", lambda a, b: _joined("{A} != {B}", a, b)),
}
