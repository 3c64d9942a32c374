"""Semantics of operators, functions and reductions, in particular for absent entries.

An absent entry has the value 0. :func:`simplified` substitutes 0 for absent operands to find out where an expression is
nonzero: a product becomes 0, a sum becomes its other term, ``exp`` becomes 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import DivisionError
from .dtype import DTYPES
from .function_table import FUNCTIONS as FUNCTIONS, maximum, minimum
from .index import Access, Apply, Binary, Expr, Literal, accesses_in, factors_of, product, walk

INFIX: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else math.nan if a == 0 or a != a else math.copysign(math.inf, a),
    "==": lambda a, b: float(a == b),
    "!=": lambda a, b: float(a != b),
    "<": lambda a, b: float(a < b),
    "<=": lambda a, b: float(a <= b),
    ">": lambda a, b: float(a > b),
    ">=": lambda a, b: float(a >= b),
}

COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}  # keyed by the name of torch's function
TESTS = tuple(COMPARISONS.values())
# the functions and operators of SIMD registers, and their names in generated source
REGISTER_FUNCTIONS = {
    **{name: function.register for name, function in FUNCTIONS.items() if function.register},
    **{"+": "add", "-": "sub", "*": "mul", "/": "div"},
    **{op: name for name, op in COMPARISONS.items()},
}
# the horizontal reductions of a register, by operator or function
REGISTER_REDUCTIONS = {"+": "hsum", "maximum": "hmax", "minimum": "hmin"}


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction of terms.

    Args:
        identity: the initial value.
        evaluate: combines two terms.
        function: the element-wise function that combines two terms; empty if an operator does.
        of_stored: whether absent terms are skipped; otherwise they count as 0.
        times: the operator that joins the factors of a term. If it is not ``*``, it is the product of a semiring: an
            absent factor removes the term.
    """

    identity: float
    evaluate: Callable[[float, float], float]
    function: str = ""
    of_stored: bool = False
    times: str = "*"

    def start(self, dtype: str) -> float:
        """The identity in a data type. For integers, the largest or smallest number replaces an infinity.

        >>> REDUCTIONS["max="].start("int8"), REDUCTIONS["max="].start("float32"), REDUCTIONS["min="].start("bool")
        (-128, -inf, True)
        """
        if dtype == "bool":
            return self.identity > 0
        if math.isfinite(self.identity) or DTYPES[dtype].kind != "integer":
            return self.identity
        return np.iinfo(dtype).max if self.identity > 0 else np.iinfo(dtype).min


REDUCTIONS = {
    "+=": Reduction(0.0, INFIX["+"]),
    "*=": Reduction(1.0, INFIX["*"]),
    "max=": Reduction(-math.inf, maximum, "maximum"),
    "min=": Reduction(math.inf, minimum, "minimum"),
    "stored max=": Reduction(-math.inf, maximum, "maximum", of_stored=True),
    "min plus=": Reduction(math.inf, minimum, "minimum", of_stored=True, times="+"),
    "max plus=": Reduction(-math.inf, maximum, "maximum", of_stored=True, times="+"),
}


def start_of(op: str, value: Expr, dtype: str) -> float:
    """The initial value of a reduction. For comparisons, ``max=`` means "any" and starts as 0, ``min=`` means "all" and starts as 1.

    >>> from .notation import parse_expr
    >>> start_of("max=", parse_expr("A[i] != B[i]"), "float32"), start_of("max=", parse_expr("A[i]"), "float32")
    (0.0, -inf)
    """
    terms = valued_factors(value)
    is_test = len(terms) == 1 and isinstance(terms[0], Binary) and terms[0].op in TESTS
    return float(op == "min=") if is_test and op in ("max=", "min=") else REDUCTIONS[op].start(dtype)


def counts_absent(op: str, value: Expr) -> bool:
    """Whether absent terms, which count as 0, can change the result. They cannot change sums, semiring reductions and "any".

    >>> from .notation import parse_expr
    >>> counts_absent("max=", parse_expr("A[i]")), counts_absent("max=", parse_expr("A[i] != 0"))
    (True, False)
    """
    if op in ("=", "+=") or REDUCTIONS[op].of_stored:
        return False
    return op != "max=" or start_of(op, value, "float32") != 0.0


def simplified(expr: Expr, zero: Iterable[str] = ()) -> Expr:
    """Simplify the expression, with the tensors named in ``zero`` replaced by 0.

    Products and quotients with 0 become 0. Terms that are 0 and factors that are 1 are dropped. Functions of numbers are
    evaluated.

    >>> from .notation import parse_expr
    >>> print(simplified(parse_expr("A[i] * x[i] + B[i]"), {"A"}))
    B[i]
    >>> print(simplified(parse_expr("exp(A[i])"), {"A"}))
    1
    """
    zeros = frozenset(zero)
    dtype = next((a.tensor.dtype for a in accesses_in(expr) if a.tensor.has_values), "float32") if zeros else ""
    return _simplified(expr, zeros, dtype)


def terms_of(expr: Expr, op: str, dtype: str) -> Expr:
    """The expression as a term of the reduction ``op``: a product becomes a product of the reduction's semiring.

    A term with an infinite factor is infinite. For integers, the identity of the reduction stands for infinity.

    >>> from .notation import parse_expr
    >>> print(terms_of(parse_expr("A[i,j] * x[j]"), "min plus=", "int8"))
    where((A[i,j] == 127) + (x[j] == 127), 127, A[i,j] + x[j])
    """
    times = REDUCTIONS[op].times if op in REDUCTIONS else "*"
    if times == "*":
        return expr
    factors = valued_factors(expr)
    term = product(factors, times)
    if len(factors) < 2 or DTYPES[dtype].kind != "integer":
        return term
    infinity = Literal(REDUCTIONS[op].start(dtype), dtype)
    return Apply("where", (product([Binary("==", factor, infinity) for factor in factors], "+"), infinity, term))


def valued_factors(expr: Expr) -> list[Expr]:
    """The factors of a product, without the patterns and relations, which have no values."""
    return [factor for factor in factors_of(expr) if not isinstance(factor, Access) or factor.tensor.has_values]


@lru_cache(maxsize=4096)
def is_intersection(expr: Expr) -> bool:
    """Whether the value is 0 wherever any of the sparse operands is absent, as for a product.

    >>> from .format import CSR
    >>> from .index import TensorVar
    >>> from .notation import parse_expr
    >>> tensors = {name: TensorVar(name, CSR) for name in "AB"}
    >>> [is_intersection(parse_expr(text, tensors)) for text in ("A[i,j] * B[j,k] != 0", "A[i,j] + B[i,j]")]
    [True, False]
    """
    return all(is_zero(simplified(expr, {access.tensor.name})) for access in accesses_in(expr) if not access.tensor.is_dense)


def is_zero(expr: Expr) -> bool:
    """Whether an expression is the number 0."""
    return isinstance(expr, Literal) and expr.value == 0


def is_one(expr: Expr) -> bool:
    """Whether an expression is the number 1."""
    return isinstance(expr, Literal) and expr.value == 1


def _simplified(expr: Expr, zeros: Container[str], dtype: str) -> Expr:
    """Simplify the expression; a zero that replaces a tensor without values gets the data type ``dtype``."""
    match expr:
        case Access(tensor):
            return Literal(0.0, tensor.dtype if tensor.has_values else dtype) if tensor.name in zeros else expr
        case Binary(op, left, right):
            new_left, new_right = _simplified(left, zeros, dtype), _simplified(right, zeros, dtype)
            if (simple := _operator_without_zeros(op, new_left, new_right)) is not None:
                return simple
            if isinstance(new_left, Literal) and isinstance(new_right, Literal):
                return Literal(INFIX[op](new_left.value, new_right.value), new_left.dtype)
            return expr if new_left is left and new_right is right else Binary(op, new_left, new_right)
        case Apply(function, args):
            return _call_without_zeros(function, tuple(_simplified(arg, zeros, dtype) for arg in args))
        case Literal():
            return expr


def _operator_without_zeros(op: str, left: Expr, right: Expr) -> Expr | None:
    """``left op right``, simplified where an operand is 0 or 1; None if no rule applies."""
    if op in "*/" and is_zero(left):
        return left
    if (op == "+" and is_zero(left)) or (op == "*" and (is_one(left) or is_zero(right))):
        return right
    if (op in "+-" and is_zero(right)) or (op in "*/" and is_one(right)):
        return left
    return None


def combined(op: str, left: Expr, right: Expr) -> Expr:
    """``left op right`` without terms that are 0 and factors that are 1. Other numbers remain, so that 1 - 1 counts as a derivative."""
    simple = _operator_without_zeros(op, left, right)
    return Binary(op, left, right) if simple is None else simple


def _call_without_zeros(function: str, args: tuple[Expr, ...]) -> Expr:
    if function == "where" and isinstance(args[0], Literal):
        return args[1] if args[0].value != 0 else args[2]
    if function == "where" and isinstance(args[1], Literal) and args[1] == args[2]:
        return args[1]
    if FUNCTIONS[function].annihilates and is_zero(args[0]):
        return args[0]
    numbers = [arg.value for arg in args if isinstance(arg, Literal) and not isinstance(arg.value, complex)]
    if len(numbers) == len(args):
        dtype = next(arg.dtype for arg in args if isinstance(arg, Literal))
        with suppress(DivisionError):  # the kernel raises it instead, if it computes the value
            return Literal(FUNCTIONS[function].value(*numbers, dtype=dtype), dtype)
    return Apply(function, args)


def may_raise(expr: Expr) -> bool:
    """Whether the expression divides integers by an operand, which raises DivisionError if the operand is 0.

    >>> from .format import CSR
    >>> from .index import TensorVar
    >>> from .notation import parse_expr
    >>> tensors = {name: TensorVar(name, CSR, dtype="int64") for name in "AB"}
    >>> [may_raise(parse_expr(text, tensors)) for text in ("A[i,j] + A[i,j] % B[i,j]", "A[i,j] // 2")]
    [True, False]
    """
    calls = [inner for inner in walk(expr) if isinstance(inner, Apply) and FUNCTIONS[inner.function].divides]
    return any(access.tensor.type.kind == "integer" for call in calls for access in accesses_in(call.args[-1]))


def is_annihilated(expr: Expr) -> bool:
    """Whether a zero first argument makes the expression 0, whatever its other arguments are, as for products and quotients."""
    match expr:
        case Binary(op):
            return op in "*/"
        case Apply(function):
            return FUNCTIONS[function].annihilates
        case _:
            return False
