"""Tracing rules of torch's functions: each returns a node, or stops the tracer if index notation cannot express the call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import NumscorchError, SizeError
from ..frontend.broadcasting import broadcast_shape
from ..frontend.parser import parse_einsum
from ..frontend.problem import size_clash
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


def _broadcast(kind: str, form: str, nodes: tuple[TracedNode, ...], is_test: bool) -> Traced:
    """Make a node of arguments that broadcast."""
    try:
        shape = broadcast_shape(form, *(node.shape for node in nodes))
    except SizeError as error:
        raise TRACERS[-1].stop(str(error), Mismatch) from error
    used = frozenset(d + len(shape) - len(node.shape) for node in nodes for d in node.used)
    return Traced(TracedNode(kind, form, shape, used, nodes, is_test=is_test))


def _function(name: str, **defaults: Any) -> Callable[..., Traced]:
    """The rule of a function of one tensor, whose options must have their defaults."""

    def function(input: Any, **options: Any) -> Traced:
        if differing := options.items() - defaults.items():
            raise ValueError(", ".join(f"{option}={value!r}" for option, value in differing))
        return elementwise("call", name, input)

    return function


def _sum(op: str) -> Callable[..., Traced]:
    def function(input: Any, other: Any, *, alpha: float = 1) -> Traced:
        return elementwise("op", op, input, other if alpha == 1 else elementwise("op", "*", alpha, other))

    return function


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


def _logical(kind: str, form: str, *before: TracedNode) -> Callable[..., Traced]:
    """The rule of a function of comparisons, which follow the arguments ``before``."""

    def function(*comparisons: Any) -> Traced:
        nodes = tuple(map(_node_of, comparisons))
        if not all(node.is_test for node in nodes):
            raise ValueError("arguments other than comparisons")
        return _broadcast(kind, form, (*before, *nodes), is_test=True)

    return function


def sparsify(input: Traced, sparsifier: Any, format: Any) -> Sparsified:
    """Trace the sparsification of a tensor."""
    if input._node.is_test:
        raise ValueError("booleans")
    return Sparsified(input._node, sparsifier, format)


def transposed(input: Traced) -> Traced:
    """Trace the transpose of a matrix; vectors are unchanged."""
    if input.ndim > 2:
        raise ValueError(f"{input.ndim} dimensions")
    return _viewed(input, tuple(reversed(range(input.ndim))))


def getitem(input: Traced, key: tuple[Any, ...]) -> Traced:
    """Trace ``input[key]``, whose key may contain only full slices, ellipses and None."""
    if any(not (entry is None or entry is Ellipsis or (isinstance(entry, slice) and entry == slice(None))) for entry in key):
        raise TRACERS[-1].stop("an index that selects a part of a tensor: only full slices and None, such as [:, None], are fused")
    return _view(lambda array: array[key])(input)


def _view(function: Callable[..., Any]) -> Callable[..., Traced]:
    """The rule of a function that permutes dimensions and inserts those of size 1; ``function`` does so with numpy arrays."""

    def view(input: Traced, *args: Any, **kwargs: Any) -> Traced:
        numbered = np.broadcast_to(0, tuple(range(2, input.ndim + 2)))  # each size tells the dimension
        return _viewed(input, [None if size == 1 else size - 2 for size in function(numbered, *args, **kwargs).shape])

    return view


def _place(dim: int, order: int) -> int:
    if not -order <= dim < order:
        raise TRACERS[-1].stop(f"dim={dim} of {order} dimensions", Mismatch)
    return dim % order


def _viewed(input: Traced, axes: Sequence[int | None]) -> Traced:
    node = input._node
    shape = tuple(1 if axis is None else node.shape[axis] for axis in axes)
    used = frozenset(at for at, axis in enumerate(axes) if axis in node.used)
    return Traced(TracedNode("view", "", shape, used, (node,), tuple(axes), is_test=node.is_test))


def matmul(input: Any, other: Any) -> Traced:
    """Trace torch's matrix product."""
    left, right = _node_of(input).shape, _node_of(other).shape
    if not left or not right:
        raise ValueError("an operand without dimensions")
    if left[-1] != right[-2:][0]:
        raise TRACERS[-1].stop(f"sizes {left[-1]} and {right[-2:][0]}", Mismatch)
    rows, columns = "i" * (len(left) > 1), "j" * (len(right) > 1)
    return einsum(f"...{rows}k,...k{columns}->...{rows}{columns}", input, other)


def _of_ranks(name: str, first: int, second: int) -> Callable[..., Traced]:
    def product(input: Any, other: Any) -> Traced:
        ranks = len(_node_of(input).shape), len(_node_of(other).shape)
        if ranks != (first, second):
            raise TRACERS[-1].stop(f"{name} of {ranks[0]} and {ranks[1]} dimensions", Mismatch)
        return matmul(input, other)

    return product


def linear(input: Any, weight: Any, bias: Any = None) -> Traced:
    """Trace torch.nn.functional.linear."""
    product = matmul(input, transposed(weight))
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


def _reduction(op: str) -> Callable[..., Traced]:
    def reduction(input: Traced, dim: Any = None, keepdim: bool = False) -> Traced:
        node = input._node
        if node.is_test:
            raise ValueError("booleans")
        dims = range(input.ndim) if dim is None or dim == () else dim if isinstance(dim, Sequence) else (dim,)
        reduced = {_place(d, input.ndim) for d in dims}
        if op != "+=" and 0 in node.shape:
            raise TRACERS[-1].stop("the maximum or minimum of an empty tensor", Mismatch)
        result_dims = [d for d in range(input.ndim) if d not in reduced]
        shape, used = tuple(node.shape[d] for d in result_dims), frozenset(at for at, d in enumerate(result_dims) if d in node.used)
        result = Traced(TracedNode("reduce", op, shape, used, (node,), tuple(sorted(reduced))))
        return _viewed(result, [result_dims.index(d) if d in result_dims else None for d in range(input.ndim)]) if keepdim else result

    return reduction


def mean(input: Traced, dim: Any = None, keepdim: bool = False) -> Traced:
    """Trace a mean: the sum over some dimensions, divided by its number of terms."""
    total = _reduction("+=")(input, dim, keepdim)
    count = math.prod(input.shape) // max(math.prod(total._node.shape), 1)
    return elementwise("op", "/", total, count)


def softmax(input: Traced, dim: int, _stacklevel: int = 3, dtype: Any = None) -> Traced:
    """Trace a softmax over the stored entries."""
    place, node = _place(dim, input.ndim), input._node
    if dtype is not None or place not in node.used or node.is_test:
        raise ValueError("dtype=, booleans, or a broadcast dimension")
    return Traced(TracedNode("softmax", "", node.shape, node.used, (node,), (place,)))


CALLS |= {
    **{name: _function(name) for name in ("abs", "erf", "exp", "log", "sigmoid", "sqrt", "tanh")},
    **dict.fromkeys(("mul", "multiply"), lambda input, other: elementwise("op", "*", input, other)),
    **dict.fromkeys(("div", "divide", "true_divide"), lambda input, other: elementwise("op", "/", input, other)),
    **{name: lambda input, other, *, op=op: elementwise("op", op, input, other, is_test=True) for name, op in COMPARISONS.items()},
    **{name: lambda input, other, name=name: elementwise("call", name, input, other) for name in ("maximum", "minimum")},
    **dict.fromkeys(("logical_and", "bitwise_and"), _logical("op", "*")),
    **dict.fromkeys(("logical_or", "bitwise_or"), _logical("call", "maximum")),
    **dict.fromkeys(("logical_not", "bitwise_not"), _logical("op", "-", TracedNode("number", "1.0"))),
    **dict.fromkeys(("neg", "negative"), lambda input: 0 - input),
    **dict.fromkeys(("sub", "subtract"), _sum("-")),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _view(lambda array, dim0, dim1: array.swapaxes(dim0, dim1))),
    "absolute": _function("abs"),
    "add": _sum("+"),
    "amax": _reduction("max="),
    "amin": _reduction("min="),
    "bmm": _of_ranks("bmm", 3, 3),
    "einsum": einsum,
    "gelu": _function("gelu", approximate="none"),
    "getitem": getitem,
    "isnan": lambda input: input != input,
    "leaky_relu": leaky_relu,
    "linear": linear,
    "matmul": matmul,
    "mean": mean,
    "mm": _of_ranks("mm", 2, 2),
    "mv": _of_ranks("mv", 2, 1),
    "permute": _view(lambda array, *dims: np.transpose(array, *dims) if isinstance(dims[0], Sequence) else array.transpose(dims)),
    "pow": power,
    "relu": _function("relu", inplace=False),
    "rsub": lambda input, other: other - input,
    "softmax": softmax,
    "sparsify": sparsify,
    "square": lambda input: input * input,
    "sum": _reduction("+="),
    "t": transposed,
    "unsqueeze": _view(lambda array, dim: np.expand_dims(array, dim)),
    "where": where,
}
