"""Element-wise functions, comparisons and reductions under torch's names; each is evaluated as a statement.

Operands broadcast as in torch. Unstored entries are 0. The result is dense if the operator is not 0 at 0 (``A + 1``, ``exp(A)``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from operator import index
from typing import Any

import torch
from torch import Tensor

from ..compute.dispatch import compute
from ..convert.dense import densified
from ..errors import OperandError, RangeError, SizeError, UnsupportedError
from ..frontend.broadcasting import broadcast_shape
from ..frontend.datatypes import WIDENED
from ..frontend.statements import Request, parse_statement
from ..ir.functions import is_zero, simplified
from ..ir.notation import parse_expr
from ..programs.evaluation import as_tensor, evaluate_parts
from ..tensors.ledgers import densifying
from ..tensors.packing import at_entries
from ..tensors.sparse_tensor import OPERATORS, SparseTensor
from .naming import with_name
from .unary import UNARY

Dim = int | Sequence[int] | None


def is_sparse(value: Any) -> bool:
    """Whether the value is a SparseTensor or a sparse torch tensor."""
    return isinstance(value, SparseTensor) or (isinstance(value, Tensor) and value.layout is not torch.strided)


def _letters(order: int, max_order: int) -> str:
    """The indices of a tensor of ``order`` dimensions, right-aligned in ``max_order`` dimensions."""
    return ",".join(f"i{at}" for at in range(max_order - order, max_order))


def _term(name: str, order: int, max_order: int) -> str:
    return f"{name}[{_letters(order, max_order)}]" if order else name


def _joined(form: str, left: Any, right: Any, **numbers: float) -> Any:
    """Evaluate a form of A and B, such as ``{A} + {B}``, on two tensors or numbers."""
    if type(left) is SparseTensor and type(right) is SparseTensor and left.pattern is right.pattern and form in OF_VALUES and not numbers:
        return SparseTensor(left.pattern, OF_VALUES[form](left._values, right._values))
    ranks = getattr(left, "ndim", 0), getattr(right, "ndim", 0)
    if getattr(left, "dtype", None) is not getattr(right, "dtype", None):
        left, right = _promoted(left, right)
    if not (type(left) is Tensor and ranks[0]) and not (type(right) is Tensor and ranks[1]):
        _tell_if_filled(form, {"A": left, "B": right})
    if ranks[0] and ranks[1] and not numbers:
        return compute(_request(form, *ranks), (left, right))
    return evaluate_parts(_statement(form, *ranks), {"A": left, "B": right, **numbers}, None)


def _tell_if_filled(form: str, operands: Mapping[str, Any]) -> None:
    """Report a dense result of sparse operands, caused by a form that is not 0 at 0.

    Raises:
        UnsupportedError: in strict mode.
    """
    tensors = {name: value for name, value in operands.items() if getattr(value, "ndim", 0)}
    sparse = [value for value in tensors.values() if isinstance(value, SparseTensor) and not value.format.is_dense]
    if not sparse or len(sparse) < len(tensors) or not _is_filled(form, frozenset(tensors)):
        return
    names = " and ".join(f"{value.format.name} {tuple(value.shape)}" for value in sparse)
    form = form.format(A="A", B="B")
    size = prod(broadcast_shape(form, *(value.shape for value in sparse))) * sparse[0].dtype.itemsize
    way_out = "it is not 0 at 0: A.with_values(...) keeps to the stored entries, A.to_dense() requests a dense tensor"
    densifying(form, names, size, way_out)


@lru_cache(maxsize=1024)
def _is_filled(form: str, tensors: frozenset[str]) -> bool:
    """Whether a form is nonzero where none of these tensors stores an entry.

    >>> _is_filled("{A} + {B}", frozenset("AB")), _is_filled("{A} + {B}", frozenset("A")), _is_filled("{A} <= {B}", frozenset("AB"))
    (False, True, True)
    """
    return not is_zero(simplified(parse_expr(form.format(A="A", B="B", C="C")), tensors))


@lru_cache(maxsize=1024)
def _statement(form: str, left: int, right: int) -> str:
    """The statement of a form of A and B with these numbers of dimensions.

    >>> _statement("{A} + {B}", 2, 1)
    'R[i0,i1] = A[i0,i1] + B[i1]'
    """
    max_order = max(left, right)
    return f"{_term('R', max_order, max_order)} = {form.format(A=_term('A', left, max_order), B=_term('B', right, max_order))}"


@lru_cache(maxsize=1024)
def _request(form: str, left: int, right: int) -> Request:
    """The request of a form of A and B with these numbers of dimensions."""
    (part,) = parse_statement(_statement(form, left, right))
    return part.request


def _promoted(left: Any, right: Any) -> tuple[Any, Any]:
    """Convert tensors to the common data type by torch's rules; Python numbers do not widen tensors of the same kind."""
    dtype = torch.result_type(_example(left), _example(right))
    return tuple(t.to(dtype) if getattr(t, "ndim", 0) and t.dtype is not dtype else t for t in (left, right))


def _example(operand: Any) -> Any:
    """A number, or an empty tensor that promotes like the operand."""
    return torch.empty([0] * bool(operand.ndim), dtype=operand.dtype) if hasattr(operand, "dtype") else operand


OF_VALUES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # torch's functions on the values of tensors with one pattern
    "{A} + {B}": torch.add,
    "{A} - {B}": torch.sub,
    "{A} * {B}": torch.mul,
    "maximum({A}, {B})": torch.maximum,
    "minimum({A}, {B})": torch.minimum,
}


def _has_dimensions(value: Any) -> bool:
    """Whether the value is certainly a tensor with at least one dimension."""
    return (type(value) is SparseTensor and len(value.pattern.shape) > 0) or (type(value) is Tensor and value.ndim > 0)


def _scaled(operation: Callable[..., Tensor], tensor: Any, number: Any) -> Any:
    """Multiply or divide a SparseTensor's values by a number, in torch's result data type; None for other operands.

    Raises:
        UnsupportedError: the integer overflows the tensor's data type.
    """
    if type(tensor) is SparseTensor and (isinstance(number, int | float | complex) or (isinstance(number, Tensor) and number.ndim == 0)):
        scalar = number.item() if isinstance(number, Tensor) and not (number.is_floating_point() or number.is_complex()) else number
        if isinstance(scalar, int) and not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            as_tensor(scalar, tensor.dtype)
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
    product = _joined("{A} * {B}", input, other) if _has_dimensions(input) and _has_dimensions(other) else _scaled(torch.mul, input, other)
    product = product if product is not None else _scaled(torch.mul, other, input)
    return product if product is not None else _joined("{A} * {B}", input, other)


def div(input: Any, other: Any) -> Any:
    """The quotient at the numerator's entries; 0 / 0 is not computed at unstored entries."""
    if (scaled := _scaled(torch.div, input, other)) is not None:
        return scaled
    if all(getattr(t, "ndim", 0) and not (t.dtype.is_floating_point or t.dtype.is_complex) for t in (input, other)):
        input, other = input.to(torch.get_default_dtype()), other.to(torch.get_default_dtype())
    return _joined("{A} / {B}", input, other)


def maximum(input: Any, other: Any) -> Any:
    """The element-wise maximum."""
    return _joined("maximum({A}, {B})", input, other)


def minimum(input: Any, other: Any) -> Any:
    """The element-wise minimum."""
    return _joined("minimum({A}, {B})", input, other)


def _whole(dim: Any) -> int | tuple[int, ...] | None:
    """A dimension, or a tuple of dimensions, as Python integers.

    Raises:
        OperandError: ``dim`` is neither an integer nor a sequence of integers.
    """
    if dim is None or type(dim) is int:
        return dim
    try:
        return index(dim) if hasattr(dim, "__index__") else tuple(map(index, dim))
    except TypeError as error:
        raise OperandError(f"dim={dim!r}: name dimensions by integers, one or several in a tuple") from error


def _dims(dim: int | tuple[int, ...] | None, order: int) -> list[int]:
    given = range(order) if dim is None or dim == () else [dim] if isinstance(dim, int) else dim
    places = [d + order * (d < 0) for d in given]
    if len(set(places)) < len(places) or any(not 0 <= d < order for d in places):
        raise RangeError(f"dim={dim} of a {order}-dimensional tensor: name dimensions from {-order} to {order - 1}, each once")
    return places


@lru_cache(maxsize=256)
def _reducing(op: str, dim: int | tuple[int, ...] | None, order: int) -> tuple[tuple[int, ...], int, Request]:
    """The reduced dimensions, the number of remaining dimensions, and the request.

    >>> reduced, order, request = _reducing("+=", -1, 2)
    >>> reduced, order, str(request)
    ((1,), 1, 'A[i0,i1] over i0i1->i0')
    """
    reduced = _dims(dim, order)
    names = [f"i{at}" for at in range(order) if at not in reduced]
    result = f"R[{','.join(names)}]" if names else "R"
    (part,) = parse_statement(f"{result} {op} {_term('A', order, order)}")
    return tuple(reduced), len(names), part.request


REDUCTION = """torch's {name}: {what} over one, several or all dimensions. Unstored entries count as 0.

    Args:
        input: a SparseTensor of any format.
        dim: a dimension or a tuple of dimensions; all by default.
        keepdim: whether to keep reduced dimensions with size 1.
        dtype: the result's data type; defaults to the input's, or int64 for sums of integers and bool.

    Returns:
        A dense tensor if at most one dimension remains; otherwise a tensor in the format that einsum infers.

    Raises:
        RangeError: a dimension does not exist, or is repeated.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> A.{name}(), A.{name}(dim=1)
    {shown}
    """


def _reduction(name: str, op: str, what: str, shown: str) -> Callable[..., Any]:
    def reduction(input: Any, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
        input = input if dtype is None else input.to(dtype)
        reduced, order, request = _reducing(op, _whole(dim), input.ndim)
        if op != "+=" and 0 in input.shape and any(input.shape[d] == 0 for d in reduced):
            raise SizeError(f"{name} of no entries: dim={dim} of shape {tuple(input.shape)} has size 0")
        result = compute(request, (input,), "dense" if order < 2 else None)
        if not keepdim:
            return result
        sizes = [1 if at in reduced else size for at, size in enumerate(input.shape)]
        return OPERATORS["reshape"](result, sizes) if isinstance(result, SparseTensor) else result.reshape(sizes)

    return with_name(reduction, name, REDUCTION.format(name=name, what=what, shown=shown))


sum = _reduction("sum", "+=", "the sum", "(tensor(9.), tensor([2., 7.]))")
amax = _reduction("amax", "max=", "the largest entry", "(tensor(4.), tensor([2., 4.]))")
amin = _reduction("amin", "min=", "the smallest entry", "(tensor(0.), tensor([0., 3.]))")


def mean(input: Any, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """The mean over all entries, including unstored ones."""
    input = input if dtype is None else input.to(dtype)
    if not (input.dtype.is_floating_point or input.dtype.is_complex):
        raise UnsupportedError(f"the mean of {input.dtype} values would be truncated to integers: convert with .to(torch.float32)")
    terms = prod(input.shape[d] for d in _dims(_whole(dim), input.ndim))
    total = sum(input.to(WIDENED.get(input.dtype, input.dtype)), dim, keepdim)  # 16-bit types are rounded only at the end
    return (total / float(terms) if isinstance(total, Tensor) else div(total, float(terms))).to(input.dtype)


def softmax(input: Any, dim: int, dtype: torch.dtype | None = None, *, _stacklevel: int = 3) -> Any:
    """softmax over the stored entries; unstored entries count as -inf and stay unstored.

    Args:
        input: a SparseTensor of any format.
        dim: the dimension along which entries sum to 1.
        dtype: the data type of the computation; defaults to the input's.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[2.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> ns.softmax(A, 1).values
    tensor([0.5000, 0.5000, 1.0000])
    """
    return _softmax("softmax", input, dim, dtype)


def log_softmax(input: Any, dim: int, dtype: torch.dtype | None = None, *, _stacklevel: int = 3) -> Any:
    """The logarithm of :func:`softmax` at the stored entries."""
    return _softmax("log_softmax", input, dim, dtype)


def _softmax(name: str, input: Any, dim: int, dtype: torch.dtype | None) -> Any:
    input = input if dtype is None else input.to(dtype)
    (place,) = _dims(_whole(dim), input.ndim)
    wide = input.to(WIDENED[input.dtype]) if input.dtype in WIDENED else input  # 16-bit types are rounded only at the end
    result = evaluate_parts(_softmax_program(name, input.ndim, place), {"A": wide}, None)
    return result if wide is input else result.to(input.dtype)


@lru_cache(maxsize=64)
def _softmax_program(name: str, order: int, dim: int) -> str:
    """softmax or log_softmax in index notation. The subtracted maximum does not change the result, so no gradient flows through it.

    >>> print(_softmax_program("softmax", 2, 1))
    m[i0] stored max= A[i0,i1]
    E[i0,i1] = stored(A[i0,i1]) * exp(A[i0,i1] - m[i0])
    l[i0] += E[i0,i1]
    R[i0,i1] = E[i0,i1] / l[i0]
    """
    names = _letters(order, order)
    outer = ",".join(f"i{at}" for at in range(order) if at != dim)
    row = f"[{outer}]" if outer else ""
    result = f"E[{names}] / l{row}" if name == "softmax" else f"stored(A[{names}]) * (A[{names}] - m{row} - log(l{row}))"
    return f"""m{row} stored max= A[{names}]
E[{names}] = stored(A[{names}]) * exp(A[{names}] - m{row})
l{row} += E[{names}]
R[{names}] = {result}"""


COMPARE = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}


def _comparison(name: str) -> Callable[..., Any]:
    torch_function = getattr(torch, name)

    def comparison(input: Any, other: Any) -> Any:
        if type(input) is SparseTensor and isinstance(other, int | float):
            if torch_function(torch.zeros(()), other):
                return torch_function(densified(input, name, "it is True at unstored entries"), other)
            return SparseTensor(input.pattern, torch_function(input._values, other))
        return _joined(f"{{A}} {COMPARE[name]} {{B}}", input, other).to(torch.bool)

    return with_name(
        comparison, name, f"Compare element-wise: input {COMPARE[name]} other. The result is dense if it is True for two zeros."
    )


def _logical(name: str, function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def logical(input: Any, other: Any) -> Any:
        left, right = ((t != 0).to(torch.int8) if isinstance(t, Tensor | SparseTensor) else int(bool(t)) for t in (input, other))
        return function(left, right).to(torch.bool)

    return with_name(logical, name, f"torch's {name}: input {name.removeprefix('logical_')} other; nonzero entries are True.")


LOGICAL = {
    "logical_and": _logical("logical_and", mul),
    "logical_or": _logical("logical_or", maximum),
    "logical_xor": _logical("logical_xor", lambda a, b: _joined("{A} != {B}", a, b)),
}
COMPARISONS = {name: _comparison(name) for name in COMPARE}


def where(condition: Any, input: Any, other: Any) -> Any:
    """Select input where the condition holds, other elsewhere; any operand may be sparse. Sparse if other is 0 or sparse, else dense."""
    if getattr(input, "dtype", None) is not getattr(other, "dtype", None):
        input, other = _promoted(input, other)
    tensors = [value for value in (input, other) if isinstance(value, Tensor | SparseTensor)]
    condition = condition if condition.dtype is torch.bool else condition != 0
    operands = {"C": condition.to(tensors[0].dtype if tensors else torch.get_default_dtype()), "A": input, "B": other}
    zeros = {name for name, value in operands.items() if isinstance(value, int | float) and value == 0}
    operands = {name: value for name, value in operands.items() if name not in zeros}
    orders = {name: getattr(value, "ndim", 0) for name, value in operands.items()}
    max_order = max(orders.values())
    terms = {name: _term(name, orders[name], max_order) if name in orders else "0" for name in "CAB"}
    _tell_if_filled(f"where(C, {'{A}' if 'A' in orders else '0'}, {'{B}' if 'B' in orders else '0'})", operands)
    return evaluate_parts(f"{_term('R', max_order, max_order)} = where({', '.join(terms.values())})", operands, None)


NAMED: dict[str, Callable[..., Any]] = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "div": div,
    "maximum": maximum,
    "minimum": minimum,
    "sum": sum,
    "amax": amax,
    "amin": amin,
    "mean": mean,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "where": where,
    **UNARY,
    **COMPARISONS,
    **LOGICAL,
}
