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
    """Evaluate an operator of two tensors or numbers."""
    if type(left) is SparseTensor and type(right) is SparseTensor and left.pattern is right.pattern and name in AT_ENTRIES:
        return SparseTensor(left.pattern, AT_ENTRIES[name](left._values, right._values))
    left_order, right_order = getattr(left, "ndim", 0), getattr(right, "ndim", 0)
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
    """Add two operands: input + alpha * other.

    The sum of two sparse tensors stores the entries of both. With a dense tensor or a number, the sum is dense.

    Args:
        input: a tensor, sparse or dense, or a number.
        other: a tensor that broadcasts with ``input``, or a number.
        alpha: a factor of ``other``.

    Returns:
        A SparseTensor if both operands are sparse, else a dense tensor.

    Raises:
        OperandError: an operand is neither a tensor nor a number.
        SizeError: the shapes do not broadcast.
        UnsupportedError: an operand is a number, within ``ns.strict()``, because the result is dense.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> ns.add(A, A).values
    tensor([4., 6.])
    """
    return _joined("add", input, other) if alpha == 1 else _evaluated("add", input, other, alpha=alpha)


def sub(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """Subtract an operand from another: input - alpha * other.

    The difference of two sparse tensors stores the entries of both. With a dense tensor or a number, the difference is dense.

    Args:
        input: a tensor, sparse or dense, or a number.
        other: a tensor that broadcasts with ``input``, or a number.
        alpha: a factor of ``other``.

    Returns:
        A SparseTensor if both operands are sparse, else a dense tensor.

    Raises:
        OperandError: an operand is neither a tensor nor a number.
        RuntimeError: both operands are boolean tensors, as in torch.
        SizeError: the shapes do not broadcast.
        UnsupportedError: an operand is a number, within ``ns.strict()``, because the result is dense.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> ns.sub(3 * A, A, alpha=2).values
    tensor([2., 3.])
    """
    return _joined("sub", input, other) if alpha == 1 else _evaluated("sub", input, other, alpha=alpha)


def mul(input: Any, other: Any) -> Any:
    """Multiply two operands element-wise.

    The product stores an entry where each sparse operand stores one. Infinite and NaN entries of a dense operand do not add entries.

    Args:
        input: a tensor, sparse or dense, or a number.
        other: a tensor that broadcasts with ``input``, or a number.

    Returns:
        A SparseTensor; with a number, it has the tensor's pattern.

    Raises:
        OperandError: an operand is neither a tensor nor a number.
        SizeError: the shapes do not broadcast.
        UnsupportedError: an integer does not fit the data type of an integer tensor.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> ns.mul(A, torch.tensor([10.0, 1.0])).to_dense()
    tensor([[ 0.,  2.],
            [30.,  0.]])
    """
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
    """Raise each entry to a power.

    The result is sparse if the exponent is a positive number. Other exponents, also tensors, make the result dense.

    Args:
        input: a tensor, sparse or dense, or a number.
        exponent: a number, or a tensor that broadcasts with ``input``.

    Returns:
        A SparseTensor with the pattern of ``input``, or a dense tensor.

    Raises:
        OperandError: an operand is neither a tensor nor a number.
        RuntimeError: the shapes do not broadcast, or an integer is raised to a negative integer power.
        UnsupportedError: the result would be dense, within ``ns.strict()``.

    >>> import numscorch as ns
    >>> ns.pow(ns.from_torch(torch.tensor([[0.0, 3.0]])), 2).values
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
        comparison,
        name,
        f"""Compare two operands element-wise: input {COMPARISONS[name]} other.

    For two sparse tensors, the result is {"dense, because two zeros give True" if getattr(operator, name)(0, 0) else "sparse"}.
    For a sparse tensor and a number, it is dense if the comparison of 0 with the number gives True.

    Args:
        input: a tensor, sparse or dense.
        other: a tensor that broadcasts with ``input``, or a number.

    Returns:
        A SparseTensor or a dense tensor of bool values.

    Raises:
        OperandError: an operand is neither a tensor nor a number.
        SizeError: the shapes do not broadcast.
        UnsupportedError: {"" if name in ("eq", "ne") else "values are complex; or "}all tensors are sparse but the result would be dense,
            within ``ns.strict()``.

    >>> A, B = ns.from_torch(torch.tensor([0.0, 1.0, 2.0])), ns.from_torch(torch.tensor([0.0, 2.0, 1.0]))
    >>> ns.{name}(A, B){"" if getattr(operator, name)(0, 0) else ".to_dense()"}
    tensor([{", ".join(f"{getattr(operator, name)(a, b)!s:>5}" for a, b in ((0, 0), (1, 2), (2, 1)))}])
    """,
    )


PAIR_MEANINGS = {  # what a function of two tensors computes, the entries of its result ("": dense), and the result of an example
    "atan2": ("The angle of the point (other, input) in radians, between -pi and pi", "both", "[ 0.0000, -0.9828]"),
    "copysign": ("The absolute value of ``input`` with the sign of ``other``", "``input``", "[0., 3.]"),
    "fmax": ("The larger of two entries; if one of them is NaN, the other one", "both", "[4., 2.]"),
    "fmin": ("The smaller of two entries; if one of them is NaN, the other one", "both", "[ 0., -3.]"),
    "hypot": ("The hypotenuse of a right triangle: the square root of input**2 + other**2", "both", "[4.0000, 3.6056]"),
    "logaddexp": ("The logarithm of exp(input) + exp(other)", "", "[4.0181, 2.0067]"),
    "logaddexp2": ("The logarithm to base 2 of 2**input + 2**other", "", "[4.0875, 2.0444]"),
    "maximum": ("The larger of two entries; NaN if one of them is NaN", "both", "[4., 2.]"),
    "minimum": ("The smaller of two entries; NaN if one of them is NaN", "both", "[ 0., -3.]"),
    "xlogy": ("The product input * log(other); 0 where ``input`` is 0", "``input``", "[ 0.0000, -2.0794]"),
}


def _pair(name: str, meaning: str, entries: str, shown: str) -> Callable[..., Any]:
    def function(input: Any, other: Any) -> Any:
        return _joined(name, input, other)

    return with_name(
        function,
        name,
        f"""{meaning}.

    For two sparse tensors, the result {f"stores the entries of {entries}" if entries else "is dense"}.

    Args:
        input: a tensor, sparse or dense, or a number.
        other: a tensor that broadcasts with ``input``, or a number.

    Returns:
        A SparseTensor if unstored entries of the result are 0; else a dense tensor.

    Raises:
        OperandError: an operand is neither a tensor nor a number.
        RuntimeError: torch's {name} does not support the data types.
        SizeError: the shapes do not broadcast.
        UnsupportedError: values are complex; or all tensors are sparse but the result would be dense, within ``ns.strict()``.

    >>> A, B = ns.from_torch(torch.tensor([0.0, -3.0])), ns.from_torch(torch.tensor([4.0, 2.0]))
    >>> ns.{name}(A, B){".to_dense()" if entries else ""}
    tensor({shown})
    """,
    )


def _logical(name: str, function: Callable[[Any, Any], Any], shown: str) -> Callable[..., Any]:
    def logical(input: Any, other: Any) -> Any:
        given = map(as_own, (input, other))
        # the sign refuses objects other than numbers
        left, right = ((t != 0).to(torch.int8) if isinstance(t, Tensor | SparseTensor) else int(bool(+t)) for t in given)
        return function(left, right).to(torch.bool)

    return with_name(
        logical,
        name,
        f"""Combine two operands by a logical {name.removeprefix("logical_")}; entries that are not 0 are True.

    Args:
        input: a tensor, sparse or dense, or a number.
        other: a tensor that broadcasts with ``input``, or a number.

    Returns:
        A SparseTensor of bool values if unstored entries of the result are False; else a dense tensor.

    Raises:
        OperandError: an operand is neither a tensor nor a number.
        SizeError: the shapes do not broadcast.
        UnsupportedError: a number would make the result dense, within ``ns.strict()``.

    >>> A, B = ns.from_torch(torch.tensor([0.0, 1.0, 2.0])), ns.from_torch(torch.tensor([0.0, 0.0, 3.0]))
    >>> ns.{name}(A, B).to_dense()
    tensor({shown})
    """,
    )


def where(condition: Any, input: Any, other: Any) -> Any:
    """Select entries of ``input`` where a condition holds, and of ``other`` elsewhere; any operand may be sparse.

    Args:
        condition: a tensor; entries that are not 0 are True.
        input: a tensor that broadcasts with ``condition``, or a number.
        other: a tensor that broadcasts with ``condition``, or a number.

    Returns:
        A SparseTensor if unstored entries of the result are 0, such as with ``other=0`` and a sparse condition; else a dense tensor.

    Raises:
        OperandError: ``condition`` is not a tensor, or ``input`` or ``other`` is neither a tensor nor a number.
        SizeError: the shapes do not broadcast.
        UnsupportedError: all tensors are sparse but the result would be dense, within ``ns.strict()``.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> ns.where(A > 2, A, 0).to_dense()
    tensor([[0., 0.],
            [3., 0.]])
    """
    if not hasattr(condition, "dtype"):
        raise OperandError(f"where takes a tensor as its condition, not {type(condition).__name__}: write A.where(A > 1, 0), for example")
    operands = {"A": condition if condition.dtype is torch.bool else condition != 0, "B": input, "C": other}
    zeros = {name: str(value + 0) for name, value in operands.items() if isinstance(value, int | float) and value == 0}
    text, value, is_dense = _statement("where", *(zeros.get(name, getattr(value, "ndim", 0)) for name, value in operands.items()))
    if is_dense:
        _warn_of_dense(value, operands.values())
    return evaluate_parts(text, {name: value for name, value in operands.items() if name not in zeros}, None)


def lerp(input: Any, end: Any, weight: Any) -> Any:
    """Interpolate linearly between two operands: input + weight * (end - input).

    Args:
        input: a tensor, sparse or dense.
        end: a tensor that broadcasts with ``input``, or a number.
        weight: a number, or a tensor that broadcasts with ``input``.

    Returns:
        A SparseTensor if unstored entries of the result are 0; else a dense tensor.

    Raises:
        OperandError: an operand is neither a tensor nor a number.
        SizeError: the shapes do not broadcast.
        UnsupportedError: all tensors are sparse but the result would be dense, within ``ns.strict()``.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [4.0, 0.0]]), ns.CSR)
    >>> ns.lerp(A, 3 * A, 0.5).values
    tensor([4., 8.])
    """
    return _evaluated("lerp", input, end, weight)


def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    """Add a scaled element-wise product: input + value * tensor1 * tensor2.

    Args:
        input: a tensor, sparse or dense.
        tensor1: a tensor that broadcasts with ``input``.
        tensor2: a tensor that broadcasts with ``input``.
        value: a factor of the product. It is truncated to an integer if all tensors hold integers.

    Returns:
        A SparseTensor if ``input`` and one of the other tensors are sparse; else a dense tensor.

    Raises:
        SizeError: the shapes do not broadcast.
        UnsupportedError: the value is infinite or NaN, and all tensors hold integers.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [4.0, 0.0]]), ns.CSR)
    >>> ns.addcmul(A, A, A, value=2).values
    tensor([10., 36.])
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
    """Clamp each entry between two bounds.

    The result is sparse if the bounds are numbers with 0 between them, or sparse tensors. Other bounds make the result dense.

    Args:
        input: a SparseTensor.
        min: the lower bound: a number, or a tensor that broadcasts with ``input``; None for no bound.
        max: the upper bound, likewise.

    Returns:
        A SparseTensor, or a dense tensor.

    Raises:
        OperandError: a bound is neither a number nor a tensor.
        RuntimeError: both bounds are None, or the entries are complex.
        SizeError: the shapes do not broadcast.
        UnsupportedError: a bound is complex; or the result would be dense, within ``ns.strict()``.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> ns.clamp(A, -1, 2).to_dense()
    tensor([[0., 2.],
            [2., 0.]])
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


ONE_BOUND = """Replace entries beyond a bound by the bound.

    The result is sparse if the bound is a sparse tensor, or a number that leaves 0 unchanged. Other bounds make the result dense.

    Args:
        input: a SparseTensor.
        {name}: the {name}imum: a number, or a tensor that broadcasts with ``input``.

    Returns:
        A SparseTensor, or a dense tensor.

    Raises:
        OperandError: the bound is neither a number nor a tensor.
        RuntimeError: the entries are complex.
        SizeError: the shapes do not broadcast.
        UnsupportedError: the bound is complex; or the result would be dense, within ``ns.strict()``.

    >>> A = ns.from_torch(torch.tensor([0.0, -2.0, 3.0]))
    >>> ns.clamp_{name}(A, 0).to_dense()
    tensor({shown})
    """
NAMED: dict[str, Callable[..., Any]] = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "div": div,
    "where": where,
    "addcmul": addcmul,
    "clamp": clamp,
    "clamp_max": with_name(lambda input, max: clamp(input, None, max), "clamp_max", ONE_BOUND.format(name="max", shown="[ 0., -2.,  0.]")),
    "clamp_min": with_name(lambda input, min: clamp(input, min), "clamp_min", ONE_BOUND.format(name="min", shown="[0., 0., 3.]")),
    "pow": pow,
    "lerp": lerp,
    **{name: _pair(name, *PAIR_MEANINGS[name]) for name in PAIRS},
    **UNARY,
    "hardtanh": hardtanh,
    **{name: _comparison(name) for name in COMPARISONS},
    "logical_and": _logical("logical_and", mul, "[False, False,  True]"),
    "logical_or": _logical("logical_or", partial(_joined, "maximum"), "[False,  True,  True]"),
    "logical_xor": _logical("logical_xor", partial(_joined, "ne"), "[False,  True, False]"),
}
