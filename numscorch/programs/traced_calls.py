"""Tracing rules of torch's functions: each returns a node, or stops the tracer if index notation cannot express the call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ..errors import NumscorchError, SizeError
from ..frontend.broadcasting import broadcast_shape
from ..frontend.parser import parse_einsum
from ..frontend.problem import size_clash
from ..ir.function_table import ALIASES, PAIRS, UNARY
from ..ir.functions import COMPARISONS
from .operands import call_form
from .tracing import CALLS, TRACERS, Mismatch, Sparsified, Traced, TracedNode


def _node_of(value: Any) -> TracedNode:
    """Return the node of an argument: a traced tensor or a finite number."""
    if isinstance(value, Traced):
        return value._node
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = type(value).__name__
        why = "a tensor that is not an argument: pass it as one" if hasattr(value, "dtype") else f"a {kind} as an operand"
        raise TRACERS[-1].stop(why)
    if not math.isfinite(value):
        raise TRACERS[-1].stop(f"the number {value}")
    return TracedNode("number", repr(float(value)))


def elementwise(kind: str, form: str, *values: Any, is_test: bool = False) -> Traced:
    """Trace an operator or function of tensors and numbers that broadcast."""
    nodes = tuple(map(_node_of, values))
    compared = nodes[1:] if form == "where" else nodes
    has_floats = any(node.kind != "number" and not node.is_test for node in compared)
    if any(node.is_test for node in compared) and not (form == "*" and has_floats):  # torch's 2 * True is an integer
        raise TRACERS[-1].stop(f"{form} of booleans")
    return _broadcast(kind, form, nodes, is_test)


def pair(kind: str, form: str, input: Any, other: Any, is_test: bool = False) -> Traced:
    """Trace an operator or function of two arguments."""
    return elementwise(kind, form, input, other, is_test=is_test)


def _broadcast(kind: str, form: str, nodes: tuple[TracedNode, ...], is_test: bool) -> Traced:
    """Make a node of arguments that broadcast."""
    try:
        shape = broadcast_shape(form, *(node.shape for node in nodes))
    except SizeError as error:
        raise TRACERS[-1].stop(str(error), Mismatch) from error
    used = frozenset(d + len(shape) - len(node.shape) for node in nodes for d in node.used)
    return Traced(TracedNode(kind, form, shape, used, nodes, is_test=is_test))


def function(name: str, input: Any, **options: Any) -> Traced:
    """Trace a function of the table, whose options must have their defaults."""
    if differing := options.items() - DEFAULTS.items():
        raise ValueError(", ".join(f"{option}={value!r}" for option, value in differing))
    return elementwise("call", name, input)


def total(op: str, input: Any, other: Any, *, alpha: float = 1) -> Traced:
    """Trace ``add`` or ``sub``."""
    return elementwise("op", op, input, other if alpha == 1 else elementwise("op", "*", alpha, other))


def power(input: Any, exponent: Any) -> Traced:
    """Trace ``input ** 2``; other exponents are not supported."""
    if exponent != 2:
        raise ValueError("only squares are fused")
    return input * input


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Traced:
    """Trace torch's leaky_relu, except in place."""
    if inplace:
        raise ValueError("inplace=True")
    return where(input > 0, input, negative_slope * input)


def where(condition: Any, input: Any, other: Any) -> Traced:
    """Trace ``where``, whose condition must be a comparison."""
    if not _node_of(condition).is_test:
        raise ValueError("the condition is not a comparison")
    return elementwise("call", "where", condition, input, other)


def logical(kind: str, form: str, before: tuple[TracedNode, ...], *comparisons: Any) -> Traced:
    """Trace a function of comparisons, which follow the arguments ``before``."""
    nodes = tuple(map(_node_of, comparisons))
    if not all(node.is_test for node in nodes):
        raise ValueError("arguments other than comparisons")
    return _broadcast(kind, form, (*before, *nodes), is_test=True)


def sparsify(input: Traced, sparsifier: Any, format: Any) -> Sparsified:
    """Trace the sparsification of a tensor."""
    if input._node.is_test:
        raise ValueError("booleans")
    return Sparsified(input._node, sparsifier, format)


def getitem(input: Traced, key: tuple[Any, ...]) -> Traced:
    """Trace ``input[key]``, whose key may contain only full slices, ellipses and None."""
    if any(not (entry is None or entry is Ellipsis or (isinstance(entry, slice) and entry == slice(None))) for entry in key):
        raise TRACERS[-1].stop("an index that selects a part of a tensor: only full slices and None, such as [:, None], are fused")
    return view(torch.Tensor.__getitem__, input, key)


def view(function: Callable[..., Any], input: Traced, *args: Any, **kwargs: Any) -> Traced:
    """Trace a function of torch that permutes dimensions or inserts dimensions of size 1."""
    return _viewed(input, _axes(function, input, *args, **kwargs))


def _axes(function: Callable[..., Any], input: Traced, *args: Any, **kwargs: Any) -> list[int | None]:
    """The dimension of the input for each dimension of the result; None for a new one."""
    with torch._C.DisableTorchFunction():  # the tracer stops at functions without placeholders
        numbered = torch.empty(tuple(range(2, input.ndim + 2)), device="meta")  # each size tells the dimension
        return [None if size == 1 else size - 2 for size in function(numbered, *args, **kwargs).shape]


def _viewed(input: Traced, axes: Sequence[int | None]) -> Traced:
    node = input._node
    shape = tuple(1 if axis is None else node.shape[axis] for axis in axes)
    used = frozenset(at for at, axis in enumerate(axes) if axis in node.used)
    return Traced(TracedNode("view", "", shape, used, (node,), tuple(axes), is_test=node.is_test))


def matmul(input: Any, other: Any, ranks: tuple[int, int] | None = None) -> Traced:
    """Trace torch's matrix product; ``ranks`` are the numbers of dimensions that the operands must have."""
    left, right = _node_of(input).shape, _node_of(other).shape
    if not left or not right or ranks not in (None, (len(left), len(right))):
        raise ValueError(f"operands of {len(left)} and {len(right)} dimensions")
    if left[-1] != right[-2:][0]:
        raise TRACERS[-1].stop(f"sizes {left[-1]} and {right[-2:][0]}", Mismatch)
    rows, columns = "i" * (len(left) > 1), "j" * (len(right) > 1)
    return einsum(f"...{rows}k,...k{columns}->...{rows}{columns}", input, other)


def linear(input: Any, weight: Any, bias: Any = None) -> Traced:
    """Trace torch.nn.functional.linear."""
    product = matmul(input, view(torch.t, weight))
    return product if bias is None else elementwise("op", "+", product, bias)


def einsum(expr: Any, *operands: Any, **options: Any) -> Traced:
    """Trace an einsum of one or two operands."""
    if any(value is not None and value != "sum" for value in options.values()):
        raise ValueError("only einsum's text and operands are fused")
    expr, operands = call_form(expr, operands)
    if len(operands) > 2:
        raise ValueError("more than two operands need a contraction path")
    nodes = tuple(map(_node_of, operands))
    try:
        subscripts = parse_einsum(expr, tuple(len(node.shape) for node in nodes))
    except NumscorchError as error:
        raise TRACERS[-1].stop(str(error), Mismatch) from error
    shapes = [node.shape for node in nodes]
    if (clash := size_clash(subscripts, shapes)) is not None:
        raise TRACERS[-1].stop(f"sizes {clash[1][1]} and {clash[2][1]}", Mismatch)
    if any(node.is_test for node in nodes):
        raise ValueError("booleans")
    sizes, result = subscripts.sizes(shapes), subscripts.result
    varying = {names[d] for node, names in zip(nodes, subscripts.operands, strict=True) for d in node.used}
    used = frozenset(at for at, name in enumerate(result) if name in varying)
    return Traced(TracedNode("contract", "", tuple(sizes[name] for name in result), used, nodes, (*subscripts.operands, result)))


def reduction(op: str, input: Traced, dim: Any = None, keepdim: bool = False) -> Traced:
    """Trace a reduction over some dimensions; over all by default."""
    node, axes = input._node, _axes(torch.sum, input, dim, keepdim)
    if node.is_test or (op != "+=" and 0 in node.shape):
        raise ValueError("booleans, or an empty tensor")
    kept = [axis for axis in axes if axis is not None]
    shape, used = tuple(node.shape[d] for d in kept), frozenset(at for at, d in enumerate(kept) if d in node.used)
    result = Traced(TracedNode("reduce", op, shape, used, (node,), tuple(d for d in range(input.ndim) if d not in kept)))
    return _viewed(result, [None if axis is None else kept.index(axis) for axis in axes]) if keepdim else result


def mean(input: Traced, dim: Any = None, keepdim: bool = False) -> Traced:
    """Trace a mean: the sum over some dimensions, divided by its number of terms."""
    total = reduction("+=", input, dim, keepdim)
    count = math.prod(input.shape) // max(math.prod(total._node.shape), 1)
    return elementwise("op", "/", total, count)


def softmax(input: Traced, dim: int, _stacklevel: int = 3, dtype: Any = None) -> Traced:
    """Trace a softmax over the stored entries."""
    place, node = range(input.ndim)[dim], input._node
    if dtype is not None or place not in node.used or node.is_test:
        raise ValueError("dtype=, booleans, or a broadcast dimension")
    return Traced(TracedNode("softmax", "", node.shape, node.used, (node,), (place,)))


DEFAULTS: dict[str, Any] = {
    **{"alpha": 1.0, "approximate": "none", "beta": 1.0, "decimals": 0, "eps": None, "inplace": False},
    **{"max_val": 1.0, "min_val": -1.0, "threshold": 20.0},
}
"""torch's options of functions of the table, with the values that these functions compute."""
CALLS |= {
    **{name: partial(function, ALIASES.get(name, name)) for name in (*UNARY, *ALIASES) if name not in ("isfinite", "isinf")},
    **{name: partial(pair, "call", name) for name in PAIRS},
    **{name: partial(pair, "op", op, is_test=True) for name, op in COMPARISONS.items()},
    **dict.fromkeys(("mul", "multiply"), partial(pair, "op", "*")),
    **dict.fromkeys(("div", "divide", "true_divide"), partial(pair, "op", "/")),
    **dict.fromkeys(("logical_and", "bitwise_and"), partial(logical, "op", "*", ())),
    **dict.fromkeys(("logical_or", "bitwise_or"), partial(logical, "call", "maximum", ())),
    **dict.fromkeys(("logical_not", "bitwise_not"), partial(logical, "op", "-", (TracedNode("number", "1.0"),))),
    **dict.fromkeys(("neg", "negative"), lambda input: 0 - input),
    **dict.fromkeys(("sub", "subtract"), partial(total, "-")),
    **{name: partial(view, getattr(torch.Tensor, name)) for name in ("permute", "swapaxes", "swapdims", "t", "transpose", "unsqueeze")},
    "add": partial(total, "+"),
    "amax": partial(reduction, "max="),
    "amin": partial(reduction, "min="),
    "bmm": partial(matmul, ranks=(3, 3)),
    "einsum": einsum,
    "getitem": getitem,
    "isnan": lambda input: input != input,
    "leaky_relu": leaky_relu,
    "linear": linear,
    "matmul": matmul,
    "mean": mean,
    "mm": partial(matmul, ranks=(2, 2)),
    "mv": partial(matmul, ranks=(2, 1)),
    "pow": power,
    "rsub": lambda input, other: other - input,
    "softmax": softmax,
    "sparsify": sparsify,
    "square": lambda input: input * input,
    "sum": partial(reduction, "+="),
    "where": where,
}
