"""Fast second calls: generated functions check that operands match those of an earlier call, and call its plan.

Finding a plan by its operands' signatures takes about as long as the kernel of a small problem. A *fitting* checks all operands in
one step instead, and finds the plan by their patterns and shapes. A *shortcut* has the fittings of an expression or request; the
second call creates the first one.

One call of torch's guards checks all strided tensors: class, data type, layout, rank, requires_grad, and active modes
(``vmap``, ``autocast``, ``inference_mode``, but no ``TorchDispatchMode``). The remaining checks are generated source, as in the binder.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from itertools import combinations
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards
from torch.autograd import forward_ad
from torch.nn import Parameter

from ..frontend.requests import Request
from ..runtime.plans import SHORTCUTS, keep, tables_apart
from ..tensors.modes import dispatch_modes
from ..tensors.sparse_tensor import SparseTensor
from .operands import any_autocast, is_plain_mode
from .results import receive
from .torch_sparse import _wrappers, wrap

MOST_FITTINGS = 8  # fittings per expression; they differ in data types, ranks, tensor classes, or torch's modes
MOST_PLANS = 1024  # plans per fitting; they differ in patterns, shapes and strides
ABSENT: Any = object()
_code = lru_cache(maxsize=1024)(partial(compile, filename="<binder of a bound einsum>", mode="exec"))  # expressions share code
MOST_SHORTCUTS = 1024  # expressions and requests
MISSED: Any = object()


def is_fit(operand: Any) -> bool:
    """Whether guards can check an operand: a SparseTensor, a torch.Tensor or a Parameter, but no other subclass.

    A sparse torch tensor must have a cached wrapper, and a strided one must hold its values in memory.

    >>> is_fit(torch.ones(2)), is_fit([1.0, 2.0])
    (True, False)
    """
    if type(operand) is SparseTensor:
        return not operand.pattern.is_dense
    if type(operand) is not torch.Tensor and type(operand) is not Parameter:
        return False
    if operand.layout is torch.strided:
        return not (operand.is_neg() or operand._is_zerotensor())
    entry = _wrappers.get(id(operand))
    return entry is not None and entry[0]() is operand


def is_plain(operands: Sequence[Any]) -> bool:
    """Whether a fitting can check a call with these operands: no transform, forward-mode AD, dispatch mode or autocast is active, and
    plans are kept in the table of the process."""
    return is_plain_mode() and not (any_autocast() or tables_apart()) and all(map(is_fit, operands))


class Fitting:
    """A cache of plans for operands that match given ones except for patterns, shapes and strides.

    Plans are keyed by the signatures of patterns, and by the shapes and strides of strided operands.

    Args:
        operands: example operands; :func:`is_fit` holds for each.
        constants: further operands of the plans that are not call arguments: the mask.
        takes_out: whether ``call`` handles calls with ``out``.

    ``call`` is a ``__call__`` method that takes the operands and ``out``. It falls back to ``_checked`` if the operands do not
    match, and to ``_traced`` while torch compiles. ``find`` takes the operands and returns their plan, ABSENT for new patterns
    and shapes, or None for operands that differ otherwise. ``key_of`` takes the operands as plans take them, and returns the key of
    their plan.
    """

    __slots__ = ("call", "count", "find", "key_of", "plans")

    def __init__(self, operands: Sequence[Any], constants: Sequence[Any], takes_out: bool):
        self.count, self.plans = len(operands), dict[Hashable, Any]()
        source = _Source(operands, constants, takes_out)
        scope: dict[str, Any] = {
            "ABSENT": ABSENT,
            "SparseTensor": SparseTensor,
            "fits": _guards([_guarded(operands[at]) for at in source.apart]),
            "dispatch_modes": dispatch_modes,
            "forward_ad": forward_ad,
            "is_grad_enabled": torch.is_grad_enabled,
            "is_dynamo_compiling": torch.compiler.is_dynamo_compiling,
            "plans": self.plans,
            "receive": receive,
            "wrapped": _wrappers,
        }
        scope |= {f"o{at}": constant for at, constant in enumerate(constants, len(operands))}
        exec(_code(source.text()), scope)
        self.call, self.find, self.key_of = (scope[name] for name in ("call", "find", "key_of"))


class Fittings:
    """The fittings of one expression."""

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: tuple[Fitting, ...] = ()

    def look_up(self, operands: Sequence[Any]) -> Fitting | None:
        """The fitting with a plan for these operands, or None."""
        alike = (fitting for fitting in self.known if len(operands) == fitting.count)
        return next((fitting for fitting in alike if fitting.find(*operands) not in (None, ABSENT)), None)

    def learnt(self, operands: Sequence[Any], ready: Sequence[Any], plan: Any, takes_out: bool = True) -> Fitting:
        """A fitting that caches the plan of these operands.

        ``ready`` has the operands as the plan takes them, and the constants.
        """
        alike = (other for other in self.known if len(operands) == other.count and other.find(*operands) is not None)
        if (fitting := next(alike, None)) is None:
            fitting = Fitting(operands, ready[len(operands) :], takes_out)
            self.known = (fitting, *self.known[: MOST_FITTINGS - 1])  # the oldest one goes
        keep(fitting.plans, fitting.key_of(*ready), plan, MOST_PLANS)
        return fitting


class _Source:
    """The source text of a fitting's functions."""

    def __init__(self, operands: Sequence[Any], constants: Sequence[Any], takes_out: bool):
        names = [f"o{at}" for at in range(len(operands) + len(constants))]
        self.given, self.constants, self.takes_out = names[: len(operands)], names[len(operands) :], takes_out
        named = list(zip(self.given, operands, strict=True))
        self.ours = [name for name, value in named if type(value) is SparseTensor]
        self.strided = [name for name, value in named if type(value) is not SparseTensor and value.layout is torch.strided]
        self.native = [name for name in self.given if name not in (*self.ours, *self.strided)]
        self.sparse = [name for name in names if name not in self.strided]
        self.named = names
        tensors = list(map(_guarded, operands))
        numbers = list(map(id, tensors))
        self.first = list(map(numbers.index, numbers))  # the first operand with the same tensor; guards check each tensor once
        self.apart = sorted(set(self.first))
        self.of_gradients = any(tensor.requires_grad for tensor in tensors)  # guards compare requires_grad, but not the grad mode
        self.detached = [name for name, value in named if name in self.strided and value.requires_grad]

    def text(self) -> str:
        """The source of ``call``, ``find`` and ``key_of``."""
        given = ", ".join(f"{name}=ABSENT" for name in self.given)
        arguments = ", ".join(map(self.ready, (*self.given, *self.constants)))
        names = "".join(f"{name}, " for name in self.given)
        run = [f"{name} = {name}.detach()" for name in self.detached]
        run.append(f"return plan.run({arguments})" + (f" if out is None else receive(out, plan, {arguments})" if self.takes_out else ""))
        before = ["not more", *([] if self.takes_out else ["out is None"])]
        key = self.key()
        return "\n".join(
            [
                f"def call(self, {given}, *more, out=None):",
                "    if is_dynamo_compiling():",
                f"        return self._traced({names}*more, out=out)",
                *self.branches(before, [f"(plan := plans.get({key})) is not None"], run),
                f"    return self._checked({names}*more, out=out)",
                f"def find({given}):",
                *self.branches([], [], [f"return plans.get({key}, ABSENT)"]),
                f"def key_of({', '.join(map(self.ready, self.named))}):",
                f"    return {key}",
            ]
        )

    def branches(self, before: Sequence[str], last: Sequence[str], then: Sequence[str]) -> list[str]:
        """Lines that run ``then`` if the operands match."""
        kinds = [f"type({name}) is SparseTensor" for name in self.ours]
        for name in self.native:  # the checks of native.wrap for a cached wrapper
            entry = name.replace("o", "e")
            kinds += [f"({entry} := wrapped.get(id({name}))) is not None", f"{entry}[0]() is {name}", f"{entry}[1] == {name}._version"]
            kinds.append(f"not {name}.requires_grad")
        tests = [*before, *kinds, "forward_ad._current_level < 0", "not dispatch_modes()"]
        tests += ["not is_grad_enabled()"] if self.of_gradients else []
        guarded = [name if name in self.strided else f"{self.ready(name)}._values" for name in self.given]
        same = [f"{guarded[at]} is {guarded[first]}" for at, first in enumerate(self.first) if at != first]
        fits = f"fits({', '.join(guarded[at] for at in self.apart)})"
        lines = [f"{self.ready(name)} = {name.replace('o', 'e')}[2]" for name in self.native]
        lines += [f"if {' and '.join([fits, *same, *last])}:", *(f"    {line}" for line in then)]
        return [f"    if {' and '.join(tests)}:", *(f"        {line}" for line in lines)]

    def key(self) -> str:
        """The source of a plan's cache key: as in ``signatures_of``, but without data types, which guards check."""
        patterns = [f"{self.ready(name)}.pattern" for name in self.sparse]
        shapes = [f"{name}.shape if {name}.is_contiguous() else ({name}.shape, {name}.stride())" for name in self.strided]
        same = [f"{first} is {second}" for first, second in combinations(patterns, 2)]
        return f"({', '.join([*(f'{pattern}.signature' for pattern in patterns), *shapes, *same])},)"

    def ready(self, name: str) -> str:
        """The variable that holds an operand in the form that a plan takes."""
        return name.replace("o", "w") if name in self.native else name


def _guarded(operand: Any) -> torch.Tensor:
    """The tensor of an operand that guards check: the values of a sparse operand."""
    if type(operand) is SparseTensor:
        return operand._values
    return operand if operand.layout is torch.strided else wrap(operand)._values


def _guards(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A function that checks whether other tensors match ``tensors`` except for sizes and strides."""
    guards: Any = TensorGuards
    free = [[None] * tensor.ndim for tensor in tensors]
    return guards(*tensors, dynamic_dims_sizes=free, dynamic_dims_strides=free).check


class Shortcut:
    """The fittings of an expression or request; ``run(shortcut, *operands)`` returns the result, or MISSED if no fitting matches."""

    __slots__ = ("fittings", "request", "run")

    def __init__(self, request: Request) -> None:
        self.request, self.fittings = request, Fittings()
        self.run: Callable[..., Any] = Shortcut._checked

    def _checked(self, *arguments: Any, out: Any = None) -> Any:
        """The result for operands that do not match the last call."""
        operands = tuple([operand for operand in arguments if operand is not ABSENT])
        if (fitting := self.fittings.look_up(operands)) is None:
            return MISSED
        self.run = fitting.call
        return fitting.call(self, *operands, out=out)

    _traced = _checked  # fittings call it while torch compiles; einsum uses no shortcuts there


def quick_result(key: Hashable, operands: Sequence[Any], out: Any = None) -> Any:
    """The result by the shortcut of an expression, a request, or a product's name and ranks; MISSED if there is none."""
    shortcut = SHORTCUTS.get(key) if tables_apart() is None else None
    return MISSED if shortcut is None else shortcut.run(shortcut, *operands, out=out)


def remember_call(key: Hashable, request: Request, operands: Sequence[Any], ready: Sequence[Any], plan: Any) -> None:
    """Create the shortcut of an expression or request; from the second call on, add the plan to it.

    Args:
        key: the key of the shortcut.
        request: the request.
        operands: the arguments of the call.
        ready: the arguments of the plan.
        plan: a plan, or a chain of plans; it must compute the final result without a later conversion.
    """
    if (shortcut := SHORTCUTS.get(key)) is None:
        keep(SHORTCUTS, key, Shortcut(request), MOST_SHORTCUTS)
    elif is_plain(operands):
        shortcut.run = shortcut.fittings.learnt(operands, ready, plan).call
