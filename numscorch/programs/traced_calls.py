"""Tracing rules of torch's functions: each returns a node, or stops the tracer if index notation cannot express the call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch

from ..errors import NumscorchError, SizeError
from ..frontend.broadcasting import broadcast_shape
from ..frontend.operator_forms import FORMS, SYNONYMS
from ..frontend.parser import parse_einsum
from ..frontend.problem import size_clash
from ..ir.functions import TESTS
from ..ir.index import Access, Apply, Binary, Expr, Literal, accesses_in
from ..ir.notation import parse_expr
from .operands import call_form
from .tracing import CALLS, TRACERS, Mismatch, Sparsified, Traced, TracedNode

OF_BOOLEANS = ("*", "maximum", "minimum", "where")  # torch returns booleans if all operands are booleans


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


def elementwise(name: str, *args: Any, **kwargs: Any) -> Traced:
    """Trace an element-wise operator of tensors and numbers that broadcast."""
    call = signature(FORMS[name])
    given = call.bind(*args, **kwargs).arguments
    defaults = {argument: call.parameters[argument].default for argument in given}
    arguments = {argument: value for argument, value in given.items() if isinstance(value, Traced) or value != defaults[argument]}
    expr = parse_expr(FORMS[name](**{argument: argument for argument in arguments}))
    if unread := arguments.keys() - {access.tensor.name for access in accesses_in(expr)}:
        raise ValueError(", ".join(f"{argument}={arguments[argument]!r}" for argument in unread))
    return _recorded(expr, arguments)


def _recorded(value: Expr, arguments: Mapping[str, Any]) -> Any:
    """Record the nodes of an expression; its accesses name the arguments."""
    match value:
        case Access(tensor):
            return arguments[tensor.name]
        case Literal(number):
            return number
        case Binary("!=", Access(tensor), Literal(0)) if _node_of(arguments[tensor.name]).is_test:
            return arguments[tensor.name]
        case Binary(op, left, right):
            return _computed("op", op, [_recorded(arg, arguments) for arg in (left, right)])
        case Apply(function, args):
            return _computed("call", function, [_recorded(arg, arguments) for arg in args])


def _computed(kind: str, form: str, values: Sequence[Any]) -> Traced:
    """Record an operator or function. Index notation computes booleans as 0 and 1; stop the tracer where torch's result differs."""
    nodes = tuple(map(_node_of, values))
    operands = nodes[1:] if form == "where" else nodes
    if form == "where" and not nodes[0].is_test:
        raise ValueError("the condition is not a comparison")
    is_test = form in TESTS or all(node.is_test for node in operands)
    has_floats = any(node.kind != "number" and not node.is_test for node in operands)
    is_as_in_torch = form in TESTS or (form in OF_BOOLEANS and is_test) or (form == "*" and has_floats)  # 2 * True is an integer in torch
    if any(node.is_test for node in operands) and not is_as_in_torch:
        raise TRACERS[-1].stop(f"{form} of booleans")
    try:
        shape = broadcast_shape(form, *(node.shape for node in nodes))
    except SizeError as error:
        raise TRACERS[-1].stop(str(error), Mismatch) from error
    used = frozenset(d + len(shape) - len(node.shape) for node in nodes for d in node.used)
    return Traced(TracedNode(kind, form, shape, used, nodes, is_test=is_test))


def power(input: Any, exponent: Any) -> Traced:
    """Trace ``input ** 2``; other exponents are not supported."""
    if exponent != 2:
        raise ValueError("only squares are fused")
    return elementwise("square", input)


def celu(input: Traced, alpha: float = 1.0, inplace: bool = False) -> Traced:
    """Trace celu; torch refuses ``alpha=0``."""
    if alpha == 0:
        raise ValueError("alpha=0")
    return elementwise("celu", input, alpha, inplace)


def bitwise(name: str, *comparisons: Any) -> Traced:
    """Trace a bitwise operator of comparisons as the logical operator ``name``."""
    if not all(_node_of(comparison).is_test for comparison in comparisons):
        raise ValueError("arguments other than comparisons")
    return elementwise(name, *comparisons)


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
        numbered = torch.empty(tuple(range(2, input.ndim + 2)), device="meta")  # sizes are distinct and identify dimensions
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
    return product if bias is None else elementwise("add", product, bias)


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
    return elementwise("div", total, count)


def softmax(name: str, input: Traced, dim: int, _stacklevel: int = 3, dtype: Any = None) -> Traced:
    """Trace a softmax over the stored entries, or its logarithm."""
    place, node = range(input.ndim)[dim], input._node
    if dtype is not None or place not in node.used or node.is_test:
        raise ValueError("dtype=, booleans, or a broadcast dimension")
    return Traced(TracedNode("softmax", name, node.shape, node.used, (node,), (place,)))


LOGICAL = ("and", "not", "or", "xor")
CALLS |= {
    **{name: partial(elementwise, name) for name in FORMS if name not in ("isfinite", "isinf")},  # index notation has no booleans
    **{f"bitwise_{name}": partial(bitwise, f"logical_{name}") for name in LOGICAL},
    **{name: partial(view, getattr(torch.Tensor, name)) for name in ("permute", "swapaxes", "swapdims", "t", "transpose", "unsqueeze")},
    "amax": partial(reduction, "max="),
    "amin": partial(reduction, "min="),
    "bmm": partial(matmul, ranks=(3, 3)),
    "celu": celu,
    "einsum": einsum,
    "getitem": getitem,
    "linear": linear,
    "log_sigmoid": partial(elementwise, "logsigmoid"),  # the name of torch's function
    "log_softmax": partial(softmax, "log_softmax"),
    "matmul": matmul,
    "mean": mean,
    "mm": partial(matmul, ranks=(2, 2)),
    "mv": partial(matmul, ranks=(2, 1)),
    "pow": power,
    "softmax": partial(softmax, "softmax"),
    "sparsify": sparsify,
    "sum": partial(reduction, "+="),
}
CALLS |= {other: CALLS[name] for other, name in SYNONYMS.items()}
