"""torch's element-wise operators in index notation.

A form takes the arguments of torch's function as texts, and returns the operator's value as an expression. Operators of sparse tensors
evaluate the form as a statement, and tracing records it as part of a program. Options that a form does not read must have their defaults.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.function_table import PAIRS, UNARY
from ..ir.functions import COMPARISONS, is_zero, simplified
from ..ir.notation import parse_expr

Form = Callable[..., str]


def _function(name: str) -> Form:
    return lambda input, inplace=False: f"{name}({input})"


def _function_of_two(name: str) -> Form:
    return lambda input, other: f"{name}({input}, {other})"


def _operator(op: str) -> Form:
    return lambda input, other: f"{input} {op} {other}"


def _clamp(input: str, min: str | None = None, max: str | None = None) -> str:
    """The form of clamp. With one bound, an entry that equals it gets the whole gradient; ``maximum`` would give it half."""
    if min is None or max is None:
        op, bound = ("<=", max) if min is None else (">=", min)
        return f"where({input} {op} {bound}, {input}, where({input} != {input}, {input}, {bound}))"
    return f"clamp({input}, {min}, {max})"


def _times(factor: float | str, value: str) -> str:
    """``factor * value``, without the factor if it is 1."""
    return value if factor == 1 else f"{factor} * {value}"


OF_ONE_TENSOR: dict[str, Form] = {
    **{name: _function(name) for name in UNARY},
    "celu": lambda input, alpha=1.0, inplace=False: _times(alpha, f"elu({input} / {alpha})"),
    "elu": lambda input, alpha=1.0, inplace=False: f"elu({input})",
    "gelu": lambda input, *, approximate="none": f"gelu({input})",
    "hardtanh": lambda input, min_val=-1.0, max_val=1.0, inplace=False: f"hardtanh({input})",
    "isnan": lambda input: f"{input} != {input}",
    "leaky_relu": lambda input, negative_slope=0.01, inplace=False: f"where({input} > 0, {input}, {negative_slope} * {input})",
    "logical_not": lambda input: f"{input} == 0",
    "logit": lambda input, eps=None: f"logit({input})",
    "neg": lambda input: f"0 - {input}",
    "round": lambda input, *, decimals=0: f"round({input})",
    "softplus": lambda input, beta=1.0, threshold=20.0: f"softplus({input})",
    "square": lambda input: f"{input} * {input}",
}
FORMS: dict[str, Form] = {
    **OF_ONE_TENSOR,
    **{name: _function_of_two(name) for name in PAIRS},
    **{name: _operator(op) for name, op in COMPARISONS.items()},
    "add": lambda input, other, *, alpha=1: f"{input} + {_times(alpha, other)}",
    "addcmul": lambda input, tensor1, tensor2, *, value=1: f"{input} + {_times(value, tensor1)} * {tensor2}",
    "clamp": _clamp,
    "clamp_max": lambda input, max: _clamp(input, max=max),
    "clamp_min": lambda input, min: _clamp(input, min),
    "div": lambda input, other, *, rounding_mode=None: f"{input} / {other}",
    "lerp": lambda input, end, weight: f"{input} + {weight} * ({end} - {input})",
    "logical_and": lambda input, other: f"({input} != 0) * ({other} != 0)",
    "logical_or": lambda input, other: f"maximum({input} != 0, {other} != 0)",
    "logical_xor": lambda input, other: f"({input} != 0) != ({other} != 0)",
    "mul": lambda input, other: f"{input} * {other}",
    "rsub": lambda input, other, *, alpha=1: f"{other} - {_times(alpha, input)}",
    "sub": lambda input, other, *, alpha=1: f"{input} - {_times(alpha, other)}",
    "where": lambda condition, input, other: f"where({condition}, {input}, {other})",
}
# torch's other names of operators
SYNONYMS = {
    **{f"arc{name}": f"a{name}" for name in ("cos", "cosh", "sin", "sinh", "tan", "tan2", "tanh")},
    "absolute": "abs",
    "clip": "clamp",
    "divide": "div",
    "fix": "trunc",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "subtract": "sub",
    "true_divide": "div",
}


def keeps_zero(form: Form) -> bool:
    """Whether an operator of one tensor is 0 at 0, if its options have their defaults.

    >>> keeps_zero(FORMS["sin"]), keeps_zero(FORMS["cos"])
    (True, False)
    """
    return is_zero(simplified(parse_expr(form("A")), {"A"}))
