"""Data types of values: those in which kernels compute, those that are widened first, and promotion by torch's rules.

Kernels compute uint8 and bool values in wider integers, and reduce only the final result modulo 256. Requests whose intermediate
values may overflow are rejected, and so are operators that a data type does not support.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..ir.dtype import DTYPES
from ..ir.functions import FUNCTIONS, INFIX, REDUCTIONS, TESTS
from ..ir.index import Access, Apply, Binary, Expr, Literal, factors_of, operators_in, variables_in, walk
from .requests import NAMES, OPERANDS, Operand, Request, logical, only_patterns

STORED = {getattr(torch, name): dtype for name, dtype in DTYPES.items() if dtype.itemsize}  # data types of values, keyed by torch's dtype
WIDENED = {stored: getattr(torch, dtype.computed) for stored, dtype in STORED.items() if dtype.computed != dtype.name}
COMPILED = STORED.keys() - WIDENED.keys()  # dtypes that kernels read
LISTED = ", ".join(dtype.name for dtype in STORED.values())  # the supported data types, as text for errors
SUMMED_LONG = {dtype for dtype in STORED if not STORED[dtype].is_rounded} - {torch.int64}  # dtypes that torch.sum accumulates in int64
TypeAndOrder = tuple[torch.dtype, int]  # a tensor's data type and number of dimensions
NUMBERS = {int: 1, float: 0.5, complex: 1j}  # an example of each Python number type, in promotion order
EXACT = {dtype for dtype in COMPILED if STORED[dtype].is_rounded}  # dtypes that only complex numbers promote
SMALL = range(-128, 128)  # the numbers for which a comparison with booleans is computed in int8


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The data type in which kernels compute with values of a data type.

    >>> computed_in(torch.float16), computed_in(torch.bool), computed_in(torch.int64)
    (torch.float32, torch.int8, torch.int64)
    """
    return WIDENED.get(dtype, dtype)


def summed_in(dtype: torch.dtype) -> torch.dtype:
    """The data type in which values are summed before the sum is rounded once: float32 for 16-bit floats.

    >>> summed_in(torch.float16), summed_in(torch.int8)
    (torch.float32, torch.int8)
    """
    return computed_in(dtype) if dtype.is_floating_point else dtype


@dataclass(frozen=True, slots=True)
class Promotion:
    """The data type of a request's result, and the data type of its computation, to which operands are converted.

    They differ if booleans are compared with numbers that do not fit int8.
    """

    result: torch.dtype
    computed: torch.dtype

    def of_kernels(self, request: Request) -> Request:
        """The request that kernels compute: for booleans, a sum of products is True if any product is nonzero.

        Raises:
            UnsupportedError: the request sums terms of booleans that are not products.
        """
        return logical(request) if self.computed is torch.bool else request


def target_of(request: Request, operands: Sequence[Any]) -> Promotion | None:
    """The data types to which a request is converted; None if a kernel takes all operands unchanged.

    Raises:
        UnsupportedError: an integer literal does not fit the integer dtype of the computation, or a uint8 value that may have
            overflowed is converted.

    >>> from .requests import einsum_request
    >>> product = einsum_request("ij,j->i", (2, 1))
    >>> target_of(product, [torch.ones(2, 3), torch.ones(3)])
    >>> target_of(product, [torch.ones(2, 3), torch.ones(3, dtype=torch.int64)])
    Promotion(result=torch.float32, computed=torch.float32)
    """
    dtypes = {operand.dtype for operand in operands}
    if len(dtypes) == 1 and dtypes <= EXACT and not has_complex_number(request):
        return None
    target = promotion_of(request, tuple([(operand.dtype, operand.ndim) for operand in operands]))
    unread = unread_in(request, len(operands))
    read = {operand.dtype for at, operand in enumerate(operands) if at not in unread}
    return None if read == {target.computed} == {target.result} and WIDENED.keys().isdisjoint(dtypes) else target


def unread_in(request: Request, count: int) -> frozenset[int]:
    """The operands that promotion ignores, because their values are not read; empty if this holds for all operands."""
    unread = only_patterns(request)
    return unread if len(unread) < count else frozenset()


def promotion_of(request: Request, kinds: tuple[TypeAndOrder, ...]) -> Promotion:
    """The data types of a request, given the data type and number of dimensions of each operand.

    Raises:
        UnsupportedError: as for :func:`target_of`.

    >>> from .requests import einsum_request
    >>> [promotion_of(einsum_request(text, (2,)), ((torch.int8, 2),)).result for text in ("ij->i", "ij->ji")]
    [torch.int64, torch.int8]
    """
    return _promotion_of(request, kinds, torch.get_default_dtype())


@lru_cache(maxsize=4096)
def _promotion_of(request: Request, kinds: tuple[TypeAndOrder, ...], default: torch.dtype) -> Promotion:
    """Cached part of :func:`promotion_of`; ``default`` is torch's default data type."""
    unread = unread_in(request, len(kinds))
    typing = _Typing(kinds, unread)
    typed = None if request.value is None else typing.of(request.value)
    dtype = typed[0] if isinstance(typed, tuple) else result_type(kind for at, kind in enumerate(kinds) if at not in unread)
    stored = {dtype_ for at, (dtype_, _) in enumerate(kinds) if at not in unread}
    if len(stored) > 1 and dtype in (torch.int64, *SUMMED_LONG) and request.op in REDUCTIONS and REDUCTIONS[request.op].times != "*":
        names = " and ".join(sorted(map(str, stored)))
        raise UnsupportedError(f"{request.op} of {names} values, whose numbers for infinity differ: convert them to one data type")
    if dtype in SUMMED_LONG and _is_summed_long(request, unread):
        for factor in (factor for value in request.read for factor in factors_of(value)):
            typing.convert(factor, dtype, torch.int64)
        dtype = torch.int64
    large = dtype is torch.bool and any(isinstance(n, complex) or n not in SMALL for n in typing.numbers)
    computed = torch.int64 if large or (dtype is torch.bool and typing.is_long) else dtype
    for number in typing.numbers:
        if isinstance(number, int) and computed is not torch.bool and not computed.is_floating_point and not computed.is_complex:
            number_as(number, computed)  # raises if it does not fit
    truths = frozenset(NAMES[at] for at, (dtype_, _) in enumerate(kinds) if dtype_ is torch.bool)
    check_wrapping(request, truths, typing.converted, is_uint8=dtype is torch.uint8)
    return Promotion(dtype, computed)


def _is_summed_long(request: Request, unread: frozenset[int]) -> bool:
    """Whether torch accumulates booleans or narrow integers in int64, as it does if some summed index occurs in only one factor."""
    if request.op not in ("=", "+="):
        return False
    uses = Counter(str(var) for factor in factors_of(request.expr) if not _is_unread(factor, unread) for var in set(variables_in(factor)))
    return any(count == 1 for name, count in uses.items() if name not in request.subscripts.result)


def _is_unread(factor: Expr, unread: frozenset[int]) -> bool:
    return isinstance(factor, Access) and (not factor.tensor.has_values or NAMES.index(factor.tensor.name) in unread)


@dataclass(slots=True)
class _Typing:
    """Infers the data type of an expression bottom-up, and collects the numbers and conversions to check afterwards.

    Attributes:
        kinds: the data type and number of dimensions of each operand.
        unread: the operands whose values are not read.
        numbers: the literals of the request, and the values of constant subexpressions.
        converted: the subexpressions of uint8 or bool that are promoted.
        is_long: whether a comparison with a 0-dimensional integer, which needs int64, gives a boolean.
    """

    kinds: tuple[TypeAndOrder, ...]
    unread: frozenset[int]
    numbers: list[complex] = field(default_factory=list)
    converted: list[Expr] = field(default_factory=list)
    is_long: bool = False

    def of(self, expr: Expr) -> TypeAndOrder | complex | None:
        """The kind of a tensor expression, the value of a constant one, or None for a pattern, which promotes nothing."""
        match expr:
            case Literal(value):
                return self._noted(value, is_whole=not expr.is_float)
            case Access(tensor) if tensor.name not in OPERANDS:
                return None  # an intermediate of a fused kernel, whose operands have one float dtype
            case Access(tensor):
                at = NAMES.index(tensor.name)
                return None if at in self.unread or (not tensor.has_values and len(self.unread) > 0) else self.kinds[at]
            case Binary(op, left, right):
                return self._applied((left, right), INFIX[op], op in TESTS, is_whole=op != "/")
            case Apply(function, args):
                rule = FUNCTIONS[function]
                return self._applied(args, rule.value, False, is_whole=rule.whole is not None)

    def _noted(self, value: complex, is_whole: bool) -> complex:
        number = int(value.real) if is_whole and not isinstance(value, complex) and float(value).is_integer() else value
        self.numbers.append(number)
        return number

    def _applied(self, args: Sequence[Expr], evaluate: Any, is_test: bool, is_whole: bool) -> TypeAndOrder | complex | None:
        """The kind of a function or operator applied to arguments; ``is_whole``: it maps integers to integers."""
        types = [self.of(arg) for arg in args]
        tensors = [kind for kind in types if isinstance(kind, tuple)]
        numbers = [kind for kind in types if kind is not None and not isinstance(kind, tuple)]
        widest = max(numbers, key=lambda number: list(NUMBERS).index(type(number)), default=None)
        if not tensors:
            folds = len(numbers) == len(args) and not any(isinstance(kind, complex) for kind in numbers)
            whole = is_whole and all(isinstance(kind, int) for kind in numbers)
            return self._noted(evaluate(*numbers), whole) if folds else widest
        order = max(order for _, order in tensors)
        if is_test:
            widest = None if isinstance(widest, int) else widest
            weak = [(dtype, kind) for dtype, kind in tensors if not kind and order and not dtype.is_floating_point and not dtype.is_complex]
            self.is_long |= any(dtype is not torch.bool for dtype, _ in weak)
            tensors = [kind for kind in tensors if kind not in weak]
        dtype = result_type(tensors, widest)
        if not is_whole and not dtype.is_floating_point and not dtype.is_complex:
            dtype = torch.get_default_dtype()
        for arg, kind in zip(args, types, strict=True):
            if isinstance(kind, tuple):
                self.convert(arg, kind[0], dtype)
        return dtype, order

    def convert(self, expr: Expr, dtype: torch.dtype, target: torch.dtype) -> None:
        """Record the conversion of a uint8 or bool subexpression to another data type."""
        if dtype in (torch.uint8, torch.bool) and dtype is not target:
            self.converted.append(expr)


def result_type(kinds: Iterable[tuple[torch.dtype, int]], number: complex | None = None) -> torch.dtype:
    """The data type to which torch promotes tensors and an optional number, but complex64 instead of complex32.

    >>> result_type([(torch.int64, 1), (torch.float32, 2), (torch.float64, 0)])
    torch.float32
    >>> result_type([(torch.int64, 1)], 0.5), result_type([(torch.bool, 1)], 2), result_type([(torch.int8, 1)], 2)
    (torch.float32, torch.int64, torch.int8)
    """
    example = next((n for kind, n in NUMBERS.items() if isinstance(number, kind) and not isinstance(number, bool)), None)
    return _result_type(frozenset((dtype, order > 0) for dtype, order in kinds), example, torch.get_default_dtype())


@lru_cache(maxsize=1024)
def _result_type(kinds: frozenset[tuple[torch.dtype, bool]], number: complex | None, default: torch.dtype) -> torch.dtype:
    """Cached part of :func:`result_type`; ``default`` is torch's default data type, which ``torch.result_type`` reads."""
    tensors = [dtype for dtype, has_dimensions in kinds if has_dimensions]
    scalars = [dtype for dtype, has_dimensions in kinds if not has_dimensions]
    try:
        wide = [(size, reduce(torch.promote_types, dtypes)) for size, dtypes in (((1,), tensors), ((), scalars)) if dtypes]
        empty = [torch.empty(size, dtype=dtype) for size, dtype in wide]
        dtype = torch.result_type(empty[0], empty[-1])
    except RuntimeError as error:
        listed = ", ".join(sorted(str(dtype) for dtype, _ in kinds))
        raise UnsupportedError(f"{listed} have no common data type: convert the operands with .to(torch.float32)") from error
    if number is not None:
        dtype = torch.result_type(torch.empty([1] * bool(tensors), dtype=dtype), number)
    return torch.complex64 if dtype is torch.complex32 else dtype


@lru_cache(maxsize=4096)
def has_complex_number(request: Request) -> bool:
    """Whether a request has a complex literal, which promotes floats."""
    return any(isinstance(inner, Literal) and isinstance(inner.value, complex) for value in request.read for inner in walk(value))


def number_as(number: complex, dtype: torch.dtype) -> Tensor:
    """Convert a number to a 0-dimensional tensor of the data type to which torch promotes it together with a tensor of ``dtype``.

    Raises:
        UnsupportedError: the number does not fit the data type.

    >>> number_as(2, torch.float32), number_as(0.5, torch.int64), number_as(2, torch.bool)
    (tensor(2.), tensor(0.5000), tensor(2))
    """
    dtype = result_type([(dtype, 1)], number)
    try:
        return torch.tensor(number, dtype=dtype)
    except (RuntimeError, ValueError, OverflowError) as error:
        raise UnsupportedError(f"the number {number} does not fit {dtype}: convert the tensors with .to(torch.float64)") from error


def computed_dtype(request: Request, operands: Sequence[Operand]) -> str:
    """The data type in which a request is computed."""
    return STORED[promotion_of(request, tuple([(getattr(torch, op.dtype), len(op.shape)) for op in operands])).computed].name


@lru_cache(maxsize=1024)
def check_powers(request: Request, dtype: torch.dtype) -> None:
    """Reject negative powers of integers, as torch does.

    Raises:
        UnsupportedError: an exponent is a negative number, and the data type is one of integers.
    """
    powers = (inner for value in request.read for inner in walk(value) if isinstance(inner, Apply) and inner.function == "pow")
    exponents = [power.args[1].value for power in powers if isinstance(power.args[1], Literal)]
    if any(not isinstance(n, complex) and n < 0 for n in exponents) and not dtype.is_floating_point and not dtype.is_complex:
        raise UnsupportedError(f"a negative power of {dtype} values: convert the operands with .to(torch.float64)\n  {request}")


def check_operators(request: Request, dtype: str) -> None:
    """Reject operators that a data type does not support: complex numbers have no order.

    Raises:
        UnsupportedError: a comparison, a function or a reduction needs real numbers, or an integer's exponent is negative.
    """
    check_powers(request, getattr(torch, dtype))
    if DTYPES[dtype].kind == "complex":
        operators = {request.op, *(name for value in request.read for name in operators_in(value))}
        refused = operators & {"<", "<=", ">", ">=", *FUNCTIONS, *REDUCTIONS} - {"where", "+=", "*="}
        if refused:
            suggestion = "convert the operands with .to(torch.float32), or use .values.real and .values.imag"
            raise UnsupportedError(f"{', '.join(sorted(refused))} of {dtype} values: {suggestion}\n  {request}")


def check_wrapping(request: Request, truths: frozenset[str], converted: Sequence[Expr] = (), is_uint8: bool = False) -> None:
    """Reject a request whose result would differ between uint8 arithmetic and wider integers.

    Sums, differences and products agree modulo 256. Other functions, comparisons and reductions agree only if their
    arguments do not overflow.

    Args:
        request: the request to check.
        truths: names of the bool operands.
        converted: subexpressions of uint8 or bool that are converted to another dtype, and must not overflow.
        is_uint8: whether the result has dtype uint8.

    Raises:
        UnsupportedError: an argument may have overflowed.
    """
    is_exact = request.op in REDUCTIONS and request.op not in ("+=", "*=")
    holds = all(_in_range(value, truths) if is_exact else _is_modular(value, truths) for value in request.read if is_uint8)
    if holds and all(_in_range(value, truths) for value in converted):
        return
    raise UnsupportedError(
        f"{f'the reduction {request.op}' if is_exact else 'a function, comparison or conversion'} reads a sum, difference or product of "
        f"uint8 or bool values, which may have overflowed: convert the operands with .to(torch.int16)\n  {request}"
    )


def _is_modular(expr: Expr, truths: frozenset[str]) -> bool:
    """Whether the value modulo 256 depends only on the operands modulo 256."""
    match expr:
        case Binary("+" | "-" | "*", left, right):
            return _is_modular(left, truths) and _is_modular(right, truths)
        case Apply("square", (arg,)):
            return _is_modular(arg, truths)
        case Literal():
            return True
        case _:
            return _in_range(expr, truths)


def _in_range(expr: Expr, truths: frozenset[str]) -> bool:
    """Whether the value cannot overflow: operands, numbers, functions and comparisons of these, and products with a boolean."""
    match expr:
        case Access():
            return True
        case Literal(value):
            return not isinstance(value, complex) and value >= 0
        case Binary("*", left, right):
            return (_is_truth(left, truths) or _is_truth(right, truths)) and _in_range(left, truths) and _in_range(right, truths)
        case Binary(op, left, right):
            return op in TESTS and _in_range(left, truths) and _in_range(right, truths)
        case Apply(function, args):
            return function != "square" and all(_in_range(arg, truths) for arg in args)


def _is_truth(expr: Expr, truths: frozenset[str]) -> bool:
    """Whether the value is always 0 or 1."""
    if isinstance(expr, Access):
        return not expr.tensor.has_values or expr.tensor.name in truths
    return isinstance(expr, Binary) and expr.op in TESTS
