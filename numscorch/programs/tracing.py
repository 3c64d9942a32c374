"""Tracing: run a function on placeholders for its tensors, and record its operations as nodes."""

from __future__ import annotations

from collections import UserList
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import local
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _OfThread(UserList["Tracer"], local):
    """The active tracers of a thread, innermost last."""


TRACERS = _OfThread()
READABLE = ("__get__", "__len__", "dim", "size")  # attributes that traced functions may read of tensors other than operands

CALLS: dict[str, Callable[..., Any]] = {}  # tracing rules by the names of torch's functions; traced_calls fills it


class Stop(BaseException):  # not an Exception, so that the traced function does not catch it
    """A function cannot be traced; the text gives the reason."""


class Mismatch(Stop):
    """Shapes do not match; the function then runs unfused, and raises the error."""


@dataclass(frozen=True, eq=False, slots=True)
class TracedNode:
    """A tensor that a traced function computes.

    ``kind`` is operand, number, op, call, contract, reduce, softmax or view; ``form`` is the operand's name, the number, the operator or
    the function. ``used`` are the dimensions with an index; all other dimensions have size 1.

    The meaning of ``axes`` depends on the kind. View: the argument's dimension for each dimension of the view, None for a new
    dimension. Reduction and softmax: the dimensions they run over. Contraction: the indices of each term, then those of the result.
    """

    kind: str
    form: str
    shape: tuple[int, ...] = ()
    used: frozenset[int] = frozenset()
    args: tuple[TracedNode, ...] = ()
    axes: tuple[Any, ...] = ()
    is_sparse: bool = False  # whether it is a sparse operand
    is_test: bool = False  # whether torch's result is boolean


@dataclass(frozen=True, eq=False, slots=True)
class Sparsified:
    """A sparsified tensor; a traced function may only return it, and any other use stops the tracer."""

    node: TracedNode
    sparsifier: Any
    format: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TRACERS[-1].stop(f".{name} of a sparsified tensor: only the result of a function can be sparsified in its kernel")

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        raise TRACERS[-1].stop(
            f"{getattr(func, '__name__', func)} of a sparsified tensor: only the result of a function can be sparsified in its kernel"
        )


class Tracer(TorchFunctionMode):
    """One run of a function on placeholders; ``reads_sizes`` is True if the function read a size, so the trace may depend on it.

    As a torch function mode, it stops at functions whose arguments contain no placeholder: their results may change between calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads_sizes = False
        self.modes = modes()
        self.stopped: Stop | None = None

    def stop(self, why: str, kind: type[Stop] = Stop) -> Stop:
        """Record and return the first reason to stop, in case the function catches the exception."""
        self.stopped = self.stopped or kind(why)
        return self.stopped

    def operand(self, name: str, shape: Sequence[int], is_sparse: bool) -> Traced:
        """Make the placeholder of an operand."""
        return Traced(TracedNode("operand", name, tuple(shape), frozenset(range(len(shape))), is_sparse=is_sparse))

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", str(func)), kwargs or {}
        if name in READABLE or holds_traced((*args, *kwargs.values())):
            return func(*args, **kwargs)
        raise self.stop(f"{name} is called without operands, so its result may differ between calls")


@contextmanager
def at_work(tracer: Tracer) -> Iterator[None]:
    """Activate a tracer in the current thread."""
    TRACERS.append(tracer)
    try:
        with tracer:
            yield
    finally:
        TRACERS.remove(tracer)


def modes() -> tuple[bool, ...]:
    """Return the torch modes that results depend on: grad, inference and autocast."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")


class Traced:
    """A placeholder for a tensor that records all operations on it."""

    __slots__ = ("_node",)

    def __init__(self, node: TracedNode):
        self._node = node

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return traced_call(getattr(func, "__name__", str(func)), *args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in CALLS:
            raise TRACERS[-1].stop(f".{name} of a tensor")
        return partial(traced_call, name, self)

    @property
    def shape(self) -> torch.Size:
        """The sizes; reading them makes the trace valid for these sizes only."""
        TRACERS[-1].reads_sizes = True
        return torch.Size(self._node.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._node.shape)

    @property
    def T(self) -> Traced:
        """The tensor with its dimensions reversed."""
        return traced_call("permute", self, *reversed(range(self.ndim)))

    @property
    def mT(self) -> Traced:
        """The tensor with its last two dimensions exchanged."""
        return traced_call("transpose", self, -2, -1)

    def dim(self) -> int:
        """The number of dimensions."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """The sizes, or one of them."""
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Traced:
        return traced_call("getitem", self, key if isinstance(key, tuple) else (key,))

    __hash__ = object.__hash__


def traced_call(name: str, *args: Any, **kwargs: Any) -> Any:
    """Trace a call of the torch function of this name."""
    tracer = TRACERS[-1]
    if modes() != tracer.modes:
        raise tracer.stop(f"{name} under other torch modes than the function call")
    rule = CALLS.get(name)
    if rule is None:
        raise tracer.stop(f"{name}: index notation cannot express it")
    try:
        return rule(*args, **kwargs)
    except (TypeError, AttributeError, ValueError, LookupError, RuntimeError) as error:
        raise tracer.stop(f"{name} with these arguments ({error})") from error


def holds_traced(values: Sequence[Any]) -> bool:
    """Return whether arguments contain placeholders, in nested lists and tuples too."""
    return any(isinstance(v, Traced | Sparsified) or (isinstance(v, list | tuple) and holds_traced(v)) for v in values)


IN_PLACE = ("add", "sub", "mul", "truediv", "matmul", "pow", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift")


for _name in ("add", "sub", "mul", "truediv", "matmul", "pow", "gt", "ge", "lt", "le", "eq", "ne", "and", "or", "xor"):
    _call = f"bitwise_{_name}" if _name in ("and", "or", "xor") else {"truediv": "div"}.get(_name, _name)
    setattr(Traced, f"__{_name}__", lambda self, other, call=_call: traced_call(call, self, other))
    setattr(Traced, f"__r{_name}__", lambda self, other, call=_call: traced_call(call, other, self))
for _name, _call in (("neg", "neg"), ("abs", "abs"), ("invert", "bitwise_not")):
    setattr(Traced, f"__{_name}__", lambda self, name=_call: traced_call(name, self))


def _stopping(why: str) -> Callable[..., Any]:
    def method(self: Traced, *args: Any) -> Any:
        raise TRACERS[-1].stop(why)

    return method


STOPPING = {
    "__bool__": "a decision that depends on values (if, while, and, or)",
    "__float__": "float() of a tensor",
    "__iter__": "a loop over a tensor",
    "__setitem__": "an assignment to entries",
    # Python would rebind x in `x += 1` to a new tensor, but torch changes a tensor that other names may refer to
    **dict.fromkeys((f"__i{name}__" for name in IN_PLACE), "an assignment in place"),
}
for _name, _why in STOPPING.items():
    setattr(Traced, _name, _stopping(_why))
