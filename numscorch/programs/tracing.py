"""Tracing: what a function does to tensors, written down as nodes while it runs on stand-ins for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import local
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _OfThread(local):
    """The tracers at work in a thread, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[Tracer] = []

    def __bool__(self) -> bool:
        return bool(self.stack)

    def __getitem__(self, at: int) -> Tracer:
        return self.stack[at]


TRACERS = _OfThread()
ATTRIBUTES = ("__get__", "__len__", "dim", "size")  # what may be asked of a tensor that is no operand

CALLS: dict[str, Callable[..., Any]] = {}  # what torch's functions write down, by their names: filled by traced_calls


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


@dataclass(frozen=True, eq=False, slots=True)
class Sparsified:
    """What a sparsifier leaves of a tensor that a function makes, in a format: its result, and nothing else is done to it."""

    tracer: Tracer
    node: Node
    sparsifier: Any
    format: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.tracer.stop(f".{name} of what sparsify makes: only a function's result is sparsified by its kernel")

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        raise TRACERS[-1].stop(
            f"{getattr(func, '__name__', func)} of what sparsify makes: only a function's result is sparsified by its kernel"
        )


class Tracer:
    """One run of a function on stand-ins; ``reads_sizes`` where what it writes down depends on them."""

    def __init__(self) -> None:
        self.reads_sizes = False
        self.modes = modes()
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
    TRACERS.stack.append(tracer)
    try:
        with _TorchWatch(tracer):
            yield
    finally:
        TRACERS.stack.remove(tracer)


class _TorchWatch(TorchFunctionMode):
    """Stops at what torch computes of other things than stand-ins: it may be another value at the next call."""

    def __init__(self, tracer: Tracer):
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, given = getattr(func, "__name__", str(func)), kwargs or {}
        if name in ATTRIBUTES or holds_traced((*args, *given.values())):
            return func(*args, **given)
        raise self.tracer.stop(f"{name}: no operand is given to it, and it may differ from call to call")


def modes() -> tuple[bool, ...]:
    """What of torch's modes a result depends on."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")


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
        result: Traced = traced_call("permute", self, *reversed(range(self.ndim)))
        return result

    @property
    def mT(self) -> Traced:
        """The tensor with its last two dimensions exchanged."""
        result: Traced = traced_call("transpose", self, -2, -1)
        return result

    def dim(self) -> int:
        """The number of dimensions."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """The sizes, or one of them."""
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Traced:
        result: Traced = traced_call("getitem", self, key if isinstance(key, tuple) else (key,))
        return result

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
    if modes() != tracer.modes:
        raise tracer.stop(f"{name} in another mode of torch than the call's")
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
        if isinstance(value, list | tuple) and (traced := [v for v in value if isinstance(v, Traced)]):
            return traced[0]._tracer
    return TRACERS[-1]


def holds_traced(values: Sequence[Any]) -> bool:
    """Whether there are stand-ins among arguments."""
    return any(isinstance(v, Traced | Sparsified) or (isinstance(v, list | tuple) and holds_traced(v)) for v in values)


FLIPPED = ("add", "mul", "sub", "truediv", "matmul")


def _python_operator(name: str, flipped: bool) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        return traced_call(name, other, self) if flipped else traced_call(name, self, other)

    return operator


for _name in ("add", "sub", "mul", "truediv", "matmul", "pow", "gt", "ge", "lt", "le", "eq", "ne", "and", "or"):
    _call = {"truediv": "div", "and": "bitwise_and", "or": "bitwise_or"}.get(_name, _name)
    setattr(Traced, f"__{_name}__", _python_operator(_call, flipped=False))
    if _name in FLIPPED:
        setattr(Traced, f"__r{_name}__", _python_operator(_call, flipped=True))
for _name, _call in (("neg", "neg"), ("abs", "abs"), ("invert", "bitwise_not")):
    setattr(Traced, f"__{_name}__", lambda self, name=_call: traced_call(name, self))


def _in_place(self: Traced, other: Any) -> Any:
    """What Python would make ``x = x + 1`` of, though others may hold x too."""
    raise self._tracer.stop("an assignment in place")


for _name in ("add", "sub", "mul", "truediv", "matmul", "pow", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(Traced, f"__i{_name}__", _in_place)
