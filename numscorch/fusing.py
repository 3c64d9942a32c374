"""fuse: a function of tensors as one program of index notation."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from os import PathLike
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .errors import UnsupportedError
from .explanation.explanation import Explanation
from .explanation.page import notebook, save, titled_program
from .explanation.programs import explain_program, explain_sparsified
from .ir.functions import FUNCTIONS
from .programs import traced_calls as traced_calls  # which says what is written down
from .programs.evaluation import evaluate_parts
from .programs.surroundings import SCALARS, Wrapper, surroundings
from .programs.traced_programs import TracedProgram, program_of, viewed
from .programs.tracing import TRACERS, Mismatch, Sparsified, Stop, Traced, Tracer, at_work
from .sparsifiers.results import evaluate_sparsified
from .tensors.parameter import SparseParameter
from .tensors.sparse_tensor import SparseTensor, beside_programs

TENSORS = (SparseTensor, Tensor, SparseParameter)
FUSED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
RESERVED = frozenset(FUNCTIONS) | {"forall", "format", "stored"}
MOST_PROGRAMS = 256  # programs that a function keeps
OURS = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Unfused:
    """Why a function runs as it is written; not for all shapes, if it is these that don't fit."""

    why: str
    always: bool = True


@dataclass(frozen=True, slots=True)
class FusedExplanation:
    """What became of a function: its program and how that is compiled, or what kept it from being one."""

    name: str
    program: TracedProgram | Unfused
    story: str
    explanation: Explanation | None = None

    @property
    def text(self) -> str:
        """The program; empty where there is none."""
        return self.program.text if isinstance(self.program, TracedProgram) else ""

    def __str__(self) -> str:
        if isinstance(self.program, Unfused):
            return f"{self.name} runs as it is written: {self.program.why}"
        return "\n".join([f"{self.name} is this program:", "", *(f"  {line}" for line in self.text.splitlines()), "", self.story])

    __repr__ = __str__

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as a page, as :meth:`Explanation.save`."""
        save(path, *self._titled())

    def _repr_html_(self) -> str:
        return notebook(*self._titled(anchored=False))

    def _titled(self, anchored: bool = True) -> tuple[str, str]:
        program = str(self).removesuffix(self.story).strip()
        return titled_program(self.name, program, self.story if self.explanation is None else "", self.explanation, anchored)


class Fused(Wrapper):
    """A function that :func:`fuse` made; ``function`` is the one it is made of."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.programs: dict[Hashable, TracedProgram | Unfused | None] = {}
        update_wrapper(self, function)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        bound = partial(self, instance)
        bound.explain = partial(self.explain, instance)  # type: ignore[attr-defined]
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _run(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<fused {getattr(self, '__qualname__', repr(self.function))}>"

    def __reduce__(self) -> str:
        """By its name in its module, as functions are pickled."""
        return str(getattr(self, "__qualname__", repr(self)))

    def __copy__(self) -> Fused:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Fused:
        """As a function: itself."""
        return self

    def explain(self, *args: Any, **kwargs: Any) -> FusedExplanation:
        """The program for these operands and the story of each of its parts, or the call that keeps the function from being one."""
        program, operands = self.program(args, kwargs)
        story, explanation = "", None
        if isinstance(program, TracedProgram):
            try:
                explanation = _explained(program, _read(program, operands))
                story = str(explanation)
            except UnsupportedError as error:
                story = str(error)  # all of it is torch's
        return FusedExplanation(getattr(self.function, "__qualname__", repr(self.function)), program, story, explanation)

    def program(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[TracedProgram | Unfused, dict[str, Any]]:
        """The program for these arguments, and its operands by their names."""
        named = self._named(args, kwargs)
        operands = {name: value for name, value in named.items() if isinstance(value, TENSORS)}
        if (why := _elsewhere() or _unfit(list(operands.values()))) is not None:
            return Unfused(why), operands
        around = surroundings(self.function, set())
        kinds = tuple(map(_kind, named.values()))
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        key = None if around is None or None in kinds else (*modes, *around, *named, *kinds)
        if key is not None and (known := self.programs.get(key)) is not None:
            return known, operands
        sized = None if key is None else (key, *(tuple(o.shape) for o in operands.values()))
        if sized is not None and (known := self.programs.get(sized)) is not None:
            return known, operands
        program, reads_sizes = self._traced(args, kwargs, named)
        if not (isinstance(program, Unfused) and not program.always) and key is not None:
            for oldest in list(self.programs)[: max(len(self.programs) - MOST_PROGRAMS + 1, 0)]:
                self.programs.pop(oldest, None)  # which another thread may have done
            self.programs[sized if reads_sizes else key] = program
        return program, operands

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by their names, in order; those that are called otherwise in a text get another one."""
        code = getattr(self.function, "__code__", None)
        known = code.co_varnames[: code.co_argcount] if isinstance(code, CodeType) else ()
        named: dict[str, Any] = {}
        for at, value in enumerate(args):
            named[_spelled(known[at] if at < len(known) else f"x{at}", named)] = value
        for name, value in kwargs.items():
            named[_spelled(name, named)] = value
        return named

    def _traced(self, args: Sequence[Any], kwargs: Mapping[str, Any], named: Mapping[str, Any]) -> tuple[TracedProgram | Unfused, bool]:
        """The program that one run on stand-ins writes down, and whether it is for these sizes only."""
        tracer = Tracer()
        given = [tracer.operand(name, v.shape, _is_sparse(v)) if isinstance(v, TENSORS) else v for name, v in named.items()]
        keywords = dict(zip(kwargs, given[len(args) :], strict=True))
        try:
            with at_work(tracer):
                result = self.function(*given[: len(args)], **keywords)
                if tracer.stopped is not None:
                    raise tracer.stopped
                return _program(result, tracer, list(named)), tracer.reads_sizes
        except Stop as stop:
            return Unfused(f"{stop}{_place_of(stop)}", always=not isinstance(stop, Mismatch)), tracer.reads_sizes
        except Exception as error:  # whatever it is, the function runs as it is written, and raises its own
            return Unfused(f"on stand-ins for tensors it raises {type(error).__name__}: {error}{_place_of(error)}", always=False), True


@beside_programs
def _run(fused: Fused, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result: of the program, or of the function as it is written."""
    program, operands = fused.program(args, kwargs)
    if isinstance(program, Unfused):
        return fused.function(*args, **kwargs)
    if program.sparsifier is not None:
        return evaluate_sparsified(program.text, _read(program, operands), program.sparsifier, program.format)
    result = evaluate_parts(program.text, _read(program, operands), program.format)
    for dimension in program.missing:
        result = result.unsqueeze(dimension)
    return result


def fuse(function: Callable[..., Any]) -> Fused:
    """A function of tensors, written with torch's or numscorch's operators, as one program that is compiled.

    It is run once on stand-ins for its operands, which write down what is done to them; the program is kept for
    operands of the same kinds, and :func:`numscorch.evaluate` runs it. What can't be fused runs as it is written, on the
    operands themselves: another operator, a decision or a loop that depends on values, several results, tensors that are
    no operands, and integers. ``fused.explain(*operands)`` prints the program, or says which call it was.

    An entry that isn't stored is 0, and softmax is that of the stored entries, as in numscorch's operators. A product of a
    sparse tensor and a dense matrix product is computed at the stored entries alone; nothing else is reordered. Where the
    function returns what ``numscorch.sparsify.sparsify`` makes, that is the program's ``sparsifier=``.

    Args:
        function: of tensors, numbers and whatever else it takes. It has no effect but its result: it may be run
            on stand-ins at any call, and not at all where its program is known.

    Returns:
        A function of the same arguments, through which gradients flow to every operand.

    Raises:
        UnsupportedError: it is no function.
        SizeError: shapes don't fit; errors of a function that isn't fused are its own.

    Source: Kjolstad, Kamil, Chou, Lugato, Amarasinghe, "The Tensor Algebra Compiler", OOPSLA 2017.

    >>> import torch, numscorch as ns
    >>> @ns.fuse
    ... def layer(A, X, W, b):
    ...     return torch.relu(A @ (X @ W) + b)
    >>> A, X, W, b = ns.eye(3, format=ns.CSR), torch.ones(3, 2), torch.ones(2, 2), torch.tensor([1.0, -3.0])
    >>> layer(A, X, W, b)
    tensor([[3., 0.],
            [3., 0.],
            [3., 0.]])
    >>> print(layer.explain(A, X, W, b).text)
    T[i,j] = X[i,k] * W[k,j]
    R[i,j] = relu(A[i,k] * T[k,j] + b[j])
    """
    if not callable(function):
        raise UnsupportedError(f"fuse takes a function of tensors, not {function!r}: write @ns.fuse above its def")
    return Fused(function)


def _program(result: Any, tracer: Tracer, names: list[str]) -> TracedProgram:
    """The program of what a function returns.

    Raises:
        Stop: it isn't one tensor that it computed, with a tensor's data type.
    """
    if isinstance(result, Sparsified):
        program = _program(Traced(tracer, result.node), tracer, names)
        if program.missing or program.format is not None:
            raise tracer.stop("what is sparsified is a sum, or has a dimension of size 1")
        return replace(program, sparsifier=result.sparsifier, format=result.format)
    if not isinstance(result, Traced):
        raise tracer.stop(f"it returns {'several results' if isinstance(result, list | tuple | dict) else type(result).__name__}")
    node = result._node
    if viewed(node).kind == "operand":
        raise tracer.stop("it computes nothing")
    if node.is_test:
        raise tracer.stop("it returns truth values")
    return program_of(node, names)


def _elsewhere() -> str | None:
    """What is at work that wants each operator by itself, if anything is."""
    if TRACERS:
        return "it is a part of what is fused"
    if torch.is_autocast_enabled("cpu"):
        return "torch.autocast chooses a data type for each operator"
    if forward_ad._current_level >= 0 or torch._C._functorch.maybe_current_level() is not None:
        return "a transform of torch.func, or forward-mode, is at work"
    return None


def _unfit(operands: list[Any]) -> str | None:
    """Why operands don't go into a program, if they don't."""
    if not any(map(_is_sparse, operands)):
        return "every operand is dense, so that it is torch's"
    kinds = {str(o.dtype).removeprefix("torch.") for o in operands}
    if len(kinds) > 1 or operands[0].dtype not in FUSED:
        return f"operands of {' and '.join(sorted(kinds))}: all have to be floats of one type"
    return None


def _is_sparse(operand: Any) -> bool:
    return not isinstance(operand, Tensor) or operand.layout is not torch.strided


def _kind(value: Any) -> Hashable:
    """What of an argument a program depends on; None if that can't be told."""
    if isinstance(value, TENSORS):
        return _is_sparse(value), tuple(size == 1 for size in value.shape), 0 in value.shape
    return (type(value), value) if isinstance(value, SCALARS) else None


def _spelled(name: str, used: Mapping[str, Any]) -> str:
    """The name as a tensor of a text may have it."""
    name = name if name[0].isalpha() and name.isascii() else f"x{name}" if name.isascii() else "x"
    while name in used or name in RESERVED:
        name += "_"
    return name


def _place_of(error: BaseException) -> str:
    """The line of the function that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_inside(frame.filename)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""


def _is_inside(filename: str) -> bool:
    return Path(filename).is_relative_to(OURS) or Path(filename).is_relative_to(Path(torch.__file__).parent)


def _explained(program: TracedProgram, read: Mapping[str, Any]) -> Explanation:
    """The story of a program's kernels."""
    if program.sparsifier is None:
        return explain_program(program.text, read, program.format)
    return explain_sparsified(program.text, read, program.sparsifier, program.format)


def _read(program: TracedProgram, operands: Mapping[str, Any]) -> Mapping[str, Any]:
    """The operands that a program reads."""
    return operands if len(operands) == len(program.reads) else {name: operands[name] for name in operands if name in program.reads}
