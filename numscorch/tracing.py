"""Tracing: what a function does to tensors, written down as nodes while it runs on stand-ins for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any

import torch

from .errors import NumscorchError
from .parser import parse_einsum

TRACERS: list[Tracer] = []  # those at work, the innermost last


class Stop(BaseException):  # no Exception, so that what is traced doesn't handle it
    """A function does what can't be written down; the text says what."""


class Mismatch(Stop):
    """Shapes don't fit: the function, run as it is written, says so."""


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A tensor that a function makes: of which others, and how.

    ``kind`` is operand (``form`` is its name), number, op, call, contract, reduce, softmax or view. ``used`` are the dimensions along
    which it may vary; the others have size 1, and no index. ``axes`` are for each dimension of a view that of what is viewed, or
    None; of a reduction, or a softmax, those that it goes along; of a contraction the indices of its terms, and after them of the result.
    """

    kind: str
    form: str
    shape: tuple[int, ...] = ()
    used: frozenset[int] = frozenset()
    args: tuple[Node, ...] = ()
    axes: tuple[Any, ...] = ()
    is_sparse: bool = False  # of an operand
    is_test: bool = False  # whether torch has truth values for it


class Tracer:
    """One run of a function on stand-ins; ``reads_sizes`` where what it writes down depends on them."""

    def __init__(self) -> None:
        self.reads_sizes = False
        self.thread = get_ident()
        self.stopped: Stop | None = None

    def stop(self, why: str, kind: type[Stop] = Stop) -> Stop:
        """Remember why nothing can be fused, though the function may catch what is raised."""
        self.stopped = self.stopped or kind(why)
        return self.stopped

    def operand(self, name: str, shape: Sequence[int], is_sparse: bool) -> Traced:
        """The stand-in for an operand."""
        return Traced(self, Node("operand", name, tuple(shape), frozenset(range(len(shape))), is_sparse=is_sparse))


@contextmanager
def at_work(tracer: Tracer) -> Iterator[None]:
    """Within it, what is done to stand-ins is this tracer's."""
    TRACERS.append(tracer)
    try:
        yield
    finally:
        TRACERS.remove(tracer)


class Traced:
    """A stand-in for a tensor: whatever is done to it is written down."""

    __slots__ = ("_node", "_tracer")

    def __init__(self, tracer: Tracer, node: Node):
        self._tracer, self._node = tracer, node

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return traced_call(getattr(func, "__name__", str(func)), *args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in CALLS:
            raise self._tracer.stop(f".{name} of a tensor")
        return partial(traced_call, name, self)

    @property
    def shape(self) -> torch.Size:
        """The sizes; what is written down is then for these only."""
        self._tracer.reads_sizes = True
        return torch.Size(self._node.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._node.shape)

    @property
    def T(self) -> Traced:
        """The tensor with its dimensions reversed."""
        return permute(self, *reversed(range(self.ndim)))

    @property
    def mT(self) -> Traced:
        """The tensor with its last two dimensions exchanged."""
        return transpose(self, -2, -1)

    def dim(self) -> int:
        """The number of dimensions."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """The sizes, or one of them."""
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Traced:
        return inserted(self, key if isinstance(key, tuple) else (key,))

    def __bool__(self) -> bool:
        raise self._tracer.stop("a decision that depends on values (if, while, and, or)")

    def __iter__(self) -> Any:
        raise self._tracer.stop("a loop over a tensor")

    def __float__(self) -> float:
        raise self._tracer.stop("float() of a tensor")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise self._tracer.stop("an assignment to entries")

    __hash__ = object.__hash__


def traced_call(name: str, *args: Any, **kwargs: Any) -> Any:
    """A call of torch's function of this name, with stand-ins among its arguments."""
    tracer = _tracer_of((*args, *kwargs.values()))
    rule = CALLS.get(name)
    if rule is None:
        raise tracer.stop(f"{name}: only what index notation can say is fused")
    try:
        return rule(*args, **kwargs)
    except (TypeError, AttributeError, ValueError, IndexError) as error:
        raise tracer.stop(f"{name} with these arguments ({error})") from error


def _tracer_of(values: Sequence[Any]) -> Tracer:
    for value in values:
        if isinstance(value, Traced):
            return value._tracer
        if isinstance(value, list | tuple) and (found := [v for v in value if isinstance(v, Traced)]):
            return found[0]._tracer
    return TRACERS[-1]


def holds_traced(values: Sequence[Any]) -> bool:
    """Whether there are stand-ins among arguments."""
    return any(isinstance(v, Traced) or (isinstance(v, list | tuple) and holds_traced(v)) for v in values)


def _node_of(value: Any) -> Node:
    """The node of an argument, which may be a number."""
    if isinstance(value, Traced):
        return value._node
    if isinstance(value, bool) or not isinstance(value, int | float):
        what = (
            "a tensor that is no operand: pass it as an argument" if hasattr(value, "dtype") else f"a {type(value).__name__} as an operand"
        )
        raise TRACERS[-1].stop(what)
    if not math.isfinite(value):
        raise TRACERS[-1].stop(f"the number {value}")
    return Node("number", repr(float(value)))


def _made(node: Node) -> Traced:
    return Traced(TRACERS[-1], node)


def _is_mixed(nodes: Sequence[Node]) -> bool:
    """Whether torch's result has other values, or another data type, than numbers have for truth values."""
    return any(node.is_test for node in nodes) and not any(node.kind != "number" and not node.is_test for node in nodes)


def joined(kind: str, form: str, *values: Any, is_test: bool = False) -> Traced:
    """An operator, or a function, of tensors and numbers that broadcast."""
    nodes = tuple(map(_node_of, values))
    tests = nodes[1:] if form == "where" else nodes
    if _is_mixed(tests) or (any(node.is_test for node in tests) and form != "*"):
        raise TRACERS[-1].stop(f"{form} of truth values")
    try:
        shape = tuple(torch.broadcast_shapes(*(node.shape for node in nodes)))
    except RuntimeError as error:
        raise TRACERS[-1].stop(str(error), Mismatch) from error
    used = frozenset(d + len(shape) - len(node.shape) for node in nodes for d in node.used)
    return _made(Node(kind, form, shape, used, nodes, is_test=is_test))


def _operator(op: str, is_test: bool = False) -> Callable[..., Traced]:
    def operator(input: Any, other: Any) -> Traced:
        return joined("op", op, input, other, is_test=is_test)

    return operator


def _function(name: str) -> Callable[..., Traced]:
    def function(input: Any) -> Traced:
        return joined("call", name, input)

    return function


def add(input: Any, other: Any, *, alpha: float = 1) -> Traced:
    """input + alpha * other"""
    return joined("op", "+", input, other if alpha == 1 else joined("op", "*", alpha, other))


def sub(input: Any, other: Any, *, alpha: float = 1) -> Traced:
    """input - alpha * other"""
    return joined("op", "-", input, other if alpha == 1 else joined("op", "*", alpha, other))


def rsub(input: Any, other: Any) -> Traced:
    """other - input"""
    return joined("op", "-", other, input)


def negative(input: Traced) -> Traced:
    """-input"""
    return joined("op", "-", 0, input)


def square(input: Traced) -> Traced:
    """input * input"""
    return joined("op", "*", input, input)


def power(input: Traced, exponent: Any) -> Traced:
    """input ** exponent, for an exponent of 2."""
    if exponent != 2:
        raise ValueError("only squares are fused")
    return square(input)


def relu(input: Traced, inplace: bool = False) -> Traced:
    """torch's relu; what it would write to is a stand-in."""
    if inplace:
        raise ValueError("inplace=True")
    return joined("call", "relu", input)


def leaky_relu(input: Traced, negative_slope: float = 0.01, inplace: bool = False) -> Traced:
    """input where it is positive, and its product with the slope elsewhere."""
    if inplace:
        raise ValueError("inplace=True")
    return where(joined("op", ">", input, 0, is_test=True), input, joined("op", "*", negative_slope, input))


def gelu(input: Traced, *, approximate: str = "none") -> Traced:
    """torch's gelu, without an approximation."""
    if approximate != "none":
        raise ValueError(f"approximate={approximate!r}")
    return joined("call", "gelu", input)


def where(condition: Any, input: Any, other: Any) -> Traced:
    """input where a comparison holds, else other."""
    if not _node_of(condition).is_test:
        raise ValueError("the condition is no comparison")
    return joined("call", "where", condition, input, other)


def permute(input: Traced, *dims: Any) -> Traced:
    """The tensor with its dimensions in another order."""
    given = dims[0] if len(dims) == 1 and isinstance(dims[0], Sequence) else dims
    order = tuple(_place(d, input.ndim) for d in given)
    if sorted(order) != list(range(input.ndim)):
        raise ValueError(f"the order {order}")
    return _viewed(input, order)


def transpose(input: Traced, dim0: int, dim1: int) -> Traced:
    """The tensor with two dimensions exchanged."""
    order = list(range(input.ndim))
    first, second = _place(dim0, input.ndim), _place(dim1, input.ndim)
    order[first], order[second] = order[second], order[first]
    return _viewed(input, order)


def transposed(input: Traced) -> Traced:
    """The transposed matrix; a vector as it is."""
    if input.ndim > 2:
        raise ValueError(f"{input.ndim} dimensions")
    return _viewed(input, tuple(reversed(range(input.ndim))))


def unsqueeze(input: Traced, dim: int) -> Traced:
    """The tensor with a dimension of size 1 more."""
    order: list[int | None] = list(range(input.ndim))
    order.insert(_place(dim, input.ndim + 1), None)
    return _viewed(input, order)


def inserted(input: Traced, key: tuple[Any, ...]) -> Traced:
    """input[key], where the key keeps every dimension whole, and puts in new ones."""
    if any(not (own is None or own is Ellipsis or (isinstance(own, slice) and own == slice(None))) for own in key):
        raise input._tracer.stop("an index that takes parts of a tensor: only [:, None] and such are fused")
    missing = [slice(None)] * (input.ndim - sum(isinstance(own, slice) for own in key))
    at = next((at for at, own in enumerate(key) if own is Ellipsis), len(key))
    order: list[int | None] = []
    for own in (*key[:at], *missing, *key[at + 1 :]):
        order.append(None if own is None else sum(place is not None for place in order))
    return _viewed(input, order)


def _place(dim: int, order: int) -> int:
    if not -order <= dim < order:
        raise TRACERS[-1].stop(f"dim={dim} of {order} dimensions", Mismatch)
    return dim % order


def _viewed(input: Traced, axes: Sequence[int | None]) -> Traced:
    node = input._node
    shape = tuple(1 if axis is None else node.shape[axis] for axis in axes)
    used = frozenset(at for at, axis in enumerate(axes) if axis in node.used)
    return _made(Node("view", "", shape, used, (node,), tuple(axes), is_test=node.is_test))


def matmul(input: Any, other: Any) -> Traced:
    """torch's matrix product."""
    left, right = _node_of(input), _node_of(other)
    if not left.shape or not right.shape:
        raise ValueError("an operand without dimensions")
    batch = [f"b{at}" for at in range(max(len(left.shape), len(right.shape)) - 2)]
    first = [*batch[len(batch) - len(left.shape) + 2 :], "i", "k"] if len(left.shape) > 1 else ["k"]
    second = [*batch[len(batch) - len(right.shape) + 2 :], "k", "j"] if len(right.shape) > 1 else ["k"]
    result = [*batch, *(["i"] if len(left.shape) > 1 else []), *(["j"] if len(right.shape) > 1 else [])]
    return contracted((left, right), (first, second), result, exact="k")


def _of_ranks(name: str, first: int, second: int) -> Callable[..., Traced]:
    def product(input: Any, other: Any) -> Traced:
        ranks = len(_node_of(input).shape), len(_node_of(other).shape)
        if ranks != (first, second):
            raise TRACERS[-1].stop(f"{name} of {ranks[0]} and {ranks[1]} dimensions", Mismatch)
        return matmul(input, other)

    return product


def linear(input: Any, weight: Any, bias: Any = None) -> Traced:
    """torch.nn.functional.linear"""
    made = matmul(input, transposed(weight))
    return made if bias is None else joined("op", "+", made, bias)


def einsum(expr: Any, *operands: Any, **options: Any) -> Traced:
    """The einsum of one operand or two."""
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    if not isinstance(expr, str) or any(value is not None and value != "sum" for value in options.values()):
        raise ValueError("only einsum's text and operands are fused")
    if len(operands) > 2:
        raise ValueError("more than two operands are contracted in the pairs that cost least")
    nodes = tuple(map(_node_of, operands))
    try:
        subscripts = parse_einsum(expr, tuple(len(node.shape) for node in nodes))
    except NumscorchError as error:
        raise TRACERS[-1].stop(str(error), Mismatch) from error
    return contracted(nodes, subscripts.operands, subscripts.result)


def contracted(nodes: tuple[Node, ...], terms: Sequence[Sequence[str]], result: Sequence[str], exact: str = "") -> Traced:
    """The sum of the products of tensors with these indices; the sizes of an ``exact`` one don't broadcast."""
    sizes: dict[str, int] = {}
    for node, names in zip(nodes, terms, strict=True):
        for name, size in zip(names, node.shape, strict=True):
            known = sizes.setdefault(name, size)
            if known != size and (name == exact or 1 not in (known, size)):
                raise TRACERS[-1].stop(f"sizes {known} and {size}", Mismatch)
            sizes[name] = max(known, size) if known and size else 0
    varying = {names[d] for node, names in zip(nodes, terms, strict=True) for d in node.used}
    if any(node.is_test for node in nodes):
        raise ValueError("truth values")
    used = frozenset(at for at, name in enumerate(result) if name in varying)
    axes = (*map(tuple, terms), tuple(result))
    return _made(Node("contract", "", tuple(sizes[name] for name in result), used, nodes, axes))


def _reduction(op: str) -> Callable[..., Traced]:
    def reduction(input: Traced, dim: Any = None, keepdim: bool = False) -> Traced:
        node = input._node
        if node.is_test:
            raise ValueError("truth values")
        given = range(input.ndim) if dim is None or dim == () else dim if isinstance(dim, Sequence) else (dim,)
        gone = {_place(d, input.ndim) for d in given}
        if op != "+=" and 0 in node.shape:
            raise TRACERS[-1].stop("the largest of no entries", Mismatch)
        kept = [d for d in range(input.ndim) if d not in gone]
        shape, used = tuple(node.shape[d] for d in kept), frozenset(at for at, d in enumerate(kept) if d in node.used)
        made = _made(Node("reduce", op, shape, used, (node,), tuple(sorted(gone))))
        return _viewed(made, [kept.index(d) if d in kept else None for d in range(input.ndim)]) if keepdim else made

    return reduction


def mean(input: Traced, dim: Any = None, keepdim: bool = False) -> Traced:
    """The sum over some dimensions, divided by how many terms it has."""
    total = _reduction("+=")(input, dim, keepdim)
    count = math.prod(input.shape) // max(math.prod(total._node.shape), 1)
    return joined("op", "/", total, count)


def softmax(input: Traced, dim: int, _stacklevel: int = 3, dtype: Any = None) -> Traced:
    """softmax over the entries that are stored."""
    place, node = _place(dim, input.ndim), input._node
    if dtype is not None or place not in node.used or node.is_test:
        raise ValueError("a data type, or a dimension that is only broadcast")
    return _made(Node("softmax", "", node.shape, node.used, (node,), (place,)))


CALLS: dict[str, Callable[..., Traced]] = {
    **{name: _function(name) for name in ("abs", "erf", "exp", "log", "sigmoid", "sqrt", "tanh", "maximum", "minimum")},
    **{name: _operator(op) for op, names in {"*": ("mul", "multiply"), "/": ("div", "divide", "true_divide")}.items() for name in names},
    **{name: _operator(op, True) for name, op in {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}.items()},
    **{name: lambda input, other, name=name: joined("call", name, input, other) for name in ("maximum", "minimum")},
    **{"add": add, "sub": sub, "subtract": sub, "rsub": rsub, "neg": negative, "negative": negative, "square": square, "pow": power},
    **{"relu": relu, "leaky_relu": leaky_relu, "gelu": gelu, "where": where, "absolute": _function("abs"), "softmax": softmax},
    **{"permute": permute, "transpose": transpose, "swapaxes": transpose, "swapdims": transpose, "t": transposed, "unsqueeze": unsqueeze},
    **{"matmul": matmul, "mm": _of_ranks("mm", 2, 2), "mv": _of_ranks("mv", 2, 1), "bmm": _of_ranks("bmm", 3, 3)},
    **{"linear": linear, "einsum": einsum, "sum": _reduction("+="), "amax": _reduction("max="), "amin": _reduction("min="), "mean": mean},
}
FLIPPED = ("add", "mul", "sub", "truediv", "matmul")


def _python_operator(name: str, flipped: bool) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        return traced_call(name, other, self) if flipped else traced_call(name, self, other)

    return operator


for _name in ("add", "sub", "mul", "truediv", "matmul", "pow", "gt", "ge", "lt", "le", "eq", "ne"):
    _call = {"truediv": "div"}.get(_name, _name)
    setattr(Traced, f"__{_name}__", _python_operator(_call, flipped=False))
    if _name in FLIPPED:
        setattr(Traced, f"__r{_name}__", _python_operator(_call, flipped=True))
for _name in ("neg", "abs"):
    setattr(Traced, f"__{_name}__", lambda self, name=_name: traced_call(name, self))
