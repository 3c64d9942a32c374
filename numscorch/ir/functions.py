"""Element-wise functions and reductions: what they mean, and what they do to entries that aren't stored.

An entry that isn't stored is 0.  Whether an expression has a value there follows from putting 0 in
its place (:func:`simplified`): a product with it is 0, a sum is the other term, ``exp`` of it is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .function_table import FUNCTIONS as FUNCTIONS
from .function_table import maximum, minimum
from .index import Access, Apply, Binary, Expr, Literal, accesses_in, factors_of, mapped

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

TESTS = ("==", "!=", "<", "<=", ">", ">=")
REGISTER_FUNCTIONS = {
    **{"abs": "magnitudes", "exp": "exponentials", "maximum": "larger", "minimum": "smaller", "relu": "relus"},
    **{"sigmoid": "sigmoids", "sqrt": "roots", "where": "selected"},
    **{"+": "add", "-": "sub", "*": "mul", "/": "div"},
    **{"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"},
}
"""The functions and operators that SIMD registers have, and what generated source calls them there."""
REGISTER_REDUCTIONS = {"+": "hsum", "maximum": "hmax", "minimum": "hmin"}
"""What joins the lanes of a register into one number."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """How terms are joined: the operator, its identity, and the function it is written as.

    ``of_stored``: terms that aren't stored take no part; otherwise they are 0.  ``times`` is what the
    factors of a term are joined by: a semiring's product, in which an absent factor annihilates the term.
    """

    identity: float
    evaluate: Callable[[float, float], float]
    function: str = ""
    of_stored: bool = False
    times: str = "*"

    def start(self, dtype: str) -> float:
        """The identity as a value of a data type: integers have no infinity, but a largest and a smallest number.

        >>> REDUCTIONS["max="].start("int8"), REDUCTIONS["max="].start("float32"), REDUCTIONS["min="].start("bool")
        (-128, -inf, True)
        """
        if dtype == "bool":
            return self.identity > 0
        if math.isfinite(self.identity) or not dtype.startswith("int"):
            return self.identity
        largest = (1 << int(dtype.removeprefix("int")) - 1) - 1
        return largest if self.identity > 0 else -largest - 1


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
    """What terms of this kind are joined to: of tests, "any" starts as false and "all" as true.

    >>> from .notation import parse_expr
    >>> start_of("max=", parse_expr("A[i] != B[i]"), "float32"), start_of("max=", parse_expr("A[i]"), "float32")
    (0.0, -inf)
    """
    terms = _valued_factors(value)
    is_test = len(terms) == 1 and isinstance(terms[0], Binary) and terms[0].op in TESTS
    return float(op == "min=") if is_test and op in ("max=", "min=") else REDUCTIONS[op].start(dtype)


def counts_absent(op: str, value: Expr) -> bool:
    """Whether absent terms, which are 0, change the result of a reduction: not of sums, semirings, and "any".

    >>> from .notation import parse_expr
    >>> counts_absent("max=", parse_expr("A[i]")), counts_absent("max=", parse_expr("A[i] != 0"))
    (True, False)
    """
    if op in ("=", "+=") or REDUCTIONS[op].of_stored:
        return False
    return op != "max=" or start_of(op, value, "float32") != 0.0


def simplified(expr: Expr, zero: Iterable[str] = ()) -> Expr:
    """The expression where the tensors named ``zero`` are 0, with what follows from that.

    0 annihilates a product and the numerator of a quotient, and is the identity of a sum;
    functions of numbers are evaluated.

    >>> from .notation import parse_expr
    >>> print(simplified(parse_expr("A[i] * x[i] + B[i]"), {"A"}))
    B[i]
    >>> print(simplified(parse_expr("exp(A[i])"), {"A"}))
    1
    """
    zeros = frozenset(zero)
    if zeros:
        dtype = next((a.tensor.dtype for a in accesses_in(expr) if a.tensor.has_values), "float32")
        expr = mapped(expr, lambda a: Literal(0.0, a.tensor.dtype if a.tensor.has_values else dtype) if a.tensor.name in zeros else a)
    return _folded(expr)


def terms_of(expr: Expr, op: str) -> Expr:
    """What a reduction joins: a product in the semiring's sense."""
    times = REDUCTIONS[op].times if op in REDUCTIONS else "*"
    if times == "*":
        return expr
    factors = _valued_factors(expr)
    joined = factors[0]
    for factor in factors[1:]:
        joined = Binary(times, joined, factor)
    return joined


def _valued_factors(expr: Expr) -> list[Expr]:
    """The factors but for masks and what the compiler adds, of which no values are read."""
    return [factor for factor in factors_of(expr) if not isinstance(factor, Access) or factor.tensor.has_values]


@lru_cache(maxsize=4096)
def is_intersection(expr: Expr) -> bool:
    """Whether the value is 0 wherever one of the sparse operands stores nothing, as that of a product is.

    >>> from .format import CSR
    >>> from .index import TensorVar
    >>> from .notation import parse_expr
    >>> tensors = {name: TensorVar(name, CSR) for name in "AB"}
    >>> [is_intersection(parse_expr(text, tensors)) for text in ("A[i,j] * B[j,k] != 0", "A[i,j] + B[i,j]")]
    [True, False]
    """
    return all(is_zero(simplified(expr, {access.tensor.name})) for access in accesses_in(expr) if not access.tensor.is_dense)


def is_zero(expr: Expr) -> bool:
    """Whether it is the number 0."""
    return isinstance(expr, Literal) and expr.value == 0


def _folded(expr: Expr) -> Expr:
    match expr:
        case Binary(op, left, right):
            return _folded_operator(op, _folded(left), _folded(right))
        case Apply(function, args):
            return _folded_call(function, tuple(map(_folded, args)))
        case Access() | Literal():
            return expr


def _folded_operator(op: str, left: Expr, right: Expr) -> Expr:
    if op in "*/" and is_zero(left):
        return left
    if op == "*" and is_zero(right):
        return right
    if op == "+" and is_zero(left):
        return right
    if op in "+-" and is_zero(right):
        return left
    if isinstance(left, Literal) and isinstance(right, Literal):
        return Literal(INFIX[op](left.value, right.value), left.dtype)
    return Binary(op, left, right)


def _folded_call(function: str, args: tuple[Expr, ...]) -> Expr:
    if function == "where" and isinstance(args[0], Literal):
        return args[1] if args[0].value != 0 else args[2]
    if function == "where" and isinstance(args[1], Literal) and args[1] == args[2]:
        return args[1]
    if FUNCTIONS[function].annihilates and is_zero(args[0]):
        return args[0]
    numbers = [arg.value for arg in args if isinstance(arg, Literal) and not isinstance(arg.value, complex)]
    if len(numbers) == len(args):
        return Literal(FUNCTIONS[function].value(*numbers), next(arg.dtype for arg in args if isinstance(arg, Literal)))
    return Apply(function, args)


def is_annihilated(expr: Expr) -> bool:
    """Whether 0 in the place of an argument makes the expression 0 whatever the others are: of a product, a quotient, a remainder."""
    match expr:
        case Binary(op):
            return op in "*/"
        case Apply(function):
            return FUNCTIONS[function].annihilates
        case _:
            return False
