"""fuse: trace a function of tensors into one program of index notation."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from ..errors import UnsupportedError
from ..explanation.explanation import Explanation
from ..explanation.page import Paged, contents
from ..explanation.programs import explain_program
from ..ir.functions import FUNCTIONS
from ..programs import traced_calls as traced_calls  # defines the calls that tracing records
from ..programs.evaluation import evaluate_parts
from ..programs.operands import is_plain_mode
from ..programs.surroundings import SCALARS, Wrapper, surroundings
from ..programs.traced_programs import TracedProgram, program_of, viewed
from ..programs.tracing import TRACERS, Mismatch, Sparsified, Stop, Traced, Tracer, at_work
from ..runtime.plans import keep
from ..sparsifiers.results import evaluate_sparsified
from ..tensors.graph_breaks import graph_break
from ..tensors.parameter import SparseParameter
from ..tensors.sparse_tensor import SparseTensor

TENSORS = (SparseTensor, torch.Tensor, SparseParameter)
RESERVED = frozenset(FUNCTIONS) | {"forall", "format", "stored"}  # names that operands can't have
MOST_PROGRAMS = 256  # cached programs per function
LIBRARIES = (Path(__file__).parents[1], Path(torch.__file__).parent)  # error texts name no lines of files in these folders


@dataclass(frozen=True, slots=True)
class Unfused:
    """The reason why a function runs unfused. ``always`` is False if the reason may not hold for other shapes."""

    why: str
    always: bool = True


@dataclass(frozen=True, slots=True)
class FusedExplanation(Paged):
    """The program of a fused function and its explanation, or the reason why the function runs unfused."""

    name: str
    program: TracedProgram | Unfused
    story: str
    explanation: Explanation | None = None

    @property
    def text(self) -> str:
        """The text of the program; empty if the function runs unfused."""
        return self.program.text if isinstance(self.program, TracedProgram) else ""

    def __str__(self) -> str:
        if isinstance(self.program, Unfused):
            return f"{self.name} runs unfused: {self.program.why}"
        return "\n".join([f"{self.name} is this program:", "", *(f"  {line}" for line in self.text.splitlines()), "", self.story])

    __repr__ = __str__

    def _contents(self) -> dict[str, Any]:
        program = str(self).removesuffix(self.story).strip()
        return contents(self.name, self.explanation, program, self.story if self.explanation is None else "")


class Fused(Wrapper):
    """A function returned by :func:`fuse`; ``function`` is the original function."""

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
        if torch.compiler.is_compiling():  # the compiled program contains the operators of the function
            return self.function(*args, **kwargs)
        return _run(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<fused {getattr(self, '__qualname__', repr(self.function))}>"

    def __reduce__(self) -> str:
        """Pickle by qualified name, like a function. Copies are the object itself."""
        return str(getattr(self, "__qualname__", repr(self)))

    def explain(self, *args: Any, **kwargs: Any) -> FusedExplanation:
        """Explain the program for these operands, or why the function runs unfused."""
        program, operands = self.program(args, kwargs)
        story, explanation = "", None
        if isinstance(program, TracedProgram):
            try:
                explanation = explain_program(program.text, _operands_of(program, operands), program.format, program.sparsifier)
                story = str(explanation)
            except UnsupportedError as error:
                story = str(error)  # torch computes all parts
        return FusedExplanation(getattr(self.function, "__qualname__", repr(self.function)), program, story, explanation)

    def program(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[TracedProgram | Unfused, dict[str, Any]]:
        """The program for these arguments, and its operands by name."""
        arguments = self._named_arguments(args, kwargs)
        operands = {name: value for name, value in arguments.items() if isinstance(value, TENSORS)}
        if (why := _active_mode() or _unsupported_operands(list(operands.values()))) is not None:
            return Unfused(why), operands
        environment = surroundings(self.function, set())
        kinds = tuple(map(_kind, arguments.values()))
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        key = None if environment is None or None in kinds else (*modes, *environment, *arguments, *kinds)
        if key is not None and (program := self.programs.get(key)) is not None:
            return program, operands
        sized_key = None if key is None else (key, *(tuple(o.shape) for o in operands.values()))
        if sized_key is not None and (program := self.programs.get(sized_key)) is not None:
            return program, operands
        program, reads_sizes = self._trace(args, kwargs, arguments)
        if not (isinstance(program, Unfused) and not program.always) and key is not None:
            keep(self.programs, sized_key if reads_sizes else key, program, MOST_PROGRAMS)
        return program, operands

    def _named_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, in order. Names that a program can't use are replaced."""
        code = getattr(self.function, "__code__", None)
        parameters = code.co_varnames[: code.co_argcount] if isinstance(code, CodeType) else ()
        names = [*parameters[: len(args)], *(f"x{at}" for at in range(len(parameters), len(args))), *kwargs]
        arguments: dict[str, Any] = {}
        for name, value in zip(names, (*args, *kwargs.values()), strict=True):
            arguments[_operand_name(name, arguments)] = value
        return arguments

    def _trace(self, args: Sequence[Any], kwargs: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[TracedProgram | Unfused, bool]:
        """The program recorded by one run on proxy operands, and whether it is valid for these sizes only."""
        tracer = Tracer()
        proxies = [tracer.operand(name, v.shape, _is_sparse(v)) if isinstance(v, TENSORS) else v for name, v in arguments.items()]
        keywords = dict(zip(kwargs, proxies[len(args) :], strict=True))
        try:
            with at_work(tracer):
                result = self.function(*proxies[: len(args)], **keywords)
                if tracer.stopped is not None:
                    raise tracer.stopped
                return _program(result, tracer, list(arguments)), tracer.reads_sizes
        except Stop as stop:
            return Unfused(f"{stop}{_line_of(stop)}", always=not isinstance(stop, Mismatch)), tracer.reads_sizes
        except Exception as error:  # the function then runs unfused, and raises its own error if it fails
            return Unfused(
                f"with proxies instead of tensors it raises {type(error).__name__}: {error}{_line_of(error)}", always=False
            ), True


@graph_break
def _run(fused: Fused, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the program, or the original function if it can't be fused."""
    program, operands = fused.program(args, kwargs)
    if isinstance(program, Unfused):
        return fused.function(*args, **kwargs)
    if program.sparsifier is not None:
        return evaluate_sparsified(program.text, _operands_of(program, operands), program.sparsifier, program.format)
    result = evaluate_parts(program.text, _operands_of(program, operands), program.format)
    for dimension in program.missing:
        result = result.unsqueeze(dimension)
    return result


def fuse(function: Callable[..., Any]) -> Fused:
    """Compile a function of tensors, written with torch's or numscorch's operators, as one program.

    The function runs once on proxies that record their operations. The recorded program is cached for operands of the same kinds, and
    :func:`numscorch.evaluate` runs it. Functions that can't be traced run unfused, on the operands themselves. These are functions with
    unsupported operators, with control flow that depends on values, with several results, with tensors that aren't arguments, or with
    integer operands. ``fused.explain(*operands)`` shows the program, or the call that prevents fusion.

    As in numscorch's operators, unstored entries are 0, and softmax runs over the stored entries. The elementwise product of a sparse
    tensor with a dense matrix product is computed only at the stored entries; nothing else is reordered. If the function returns the
    result of ``numscorch.sparsify.sparsify``, its sparsifier becomes the program's ``sparsifier=``.

    Args:
        function: a function of tensors, numbers and other arguments, without side effects: a call may run it on proxies, or not at all
            if its program is cached.

    Returns:
        A function with the same arguments. Gradients flow to every operand.

    Raises:
        UnsupportedError: the argument isn't a function.
        SizeError: shapes don't fit (raised by calls). An unfused function raises its own errors.

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
    """The program that computes the result of a traced function.

    Raises:
        Stop: the result isn't a single computed tensor, or is boolean.
    """
    if isinstance(result, Sparsified):
        program = _program(Traced(result.node), tracer, names)
        if program.missing or program.format is not None:
            raise tracer.stop("the sparsified result is a sum, or has a dimension of size 1")
        return replace(program, sparsifier=result.sparsifier, format=result.format)
    if not isinstance(result, Traced):
        raise tracer.stop(f"it returns {'several results' if isinstance(result, list | tuple | dict) else type(result).__name__}")
    node = result._node
    if viewed(node).kind == "operand":
        raise tracer.stop("it computes nothing")
    if node.is_test:
        raise tracer.stop("it returns a bool tensor")
    return program_of(node, names)


def _active_mode() -> str | None:
    """The active mode that handles each operator separately, in words; None if there is none."""
    if TRACERS:
        return "it is called within another fused function"
    if torch.is_autocast_enabled("cpu"):
        return "torch.autocast chooses a data type for each operator"
    if not is_plain_mode():
        return "a transform of torch.func, forward-mode AD, or a mode that sees each operator is active"
    return None


def _unsupported_operands(operands: list[Any]) -> str | None:
    """The reason why operands can't be fused, or None."""
    if not any(map(_is_sparse, operands)):
        return "every operand is dense, so torch computes it"
    kinds = {str(o.dtype).removeprefix("torch.") for o in operands}
    if len(kinds) > 1 or not operands[0].dtype.is_floating_point:
        return f"operands of data type {' and '.join(sorted(kinds))}: all must be floats of one type"
    return None


def _is_sparse(operand: Any) -> bool:
    return not isinstance(operand, torch.Tensor) or operand.layout is not torch.strided


def _kind(value: Any) -> Hashable:
    """The properties of an argument that enter the cache key; None if the argument can't be cached."""
    if isinstance(value, TENSORS):
        return _is_sparse(value), tuple(size == 1 for size in value.shape), 0 in value.shape
    return (type(value), value) if isinstance(value, SCALARS) else None


def _operand_name(name: str, used: Mapping[str, Any]) -> str:
    """An unused operand name, valid in a program, that resembles a parameter's name."""
    name = name if name[0].isalpha() and name.isascii() else f"x{name}" if name.isascii() else "x"
    while name in used or name in RESERVED:
        name += "_"
    return name


def _line_of(error: BaseException) -> str:
    """The innermost line of user code in an error's traceback."""
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if not any(Path(frame.filename).is_relative_to(folder) for folder in LIBRARIES)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""


def _operands_of(program: TracedProgram, operands: Mapping[str, Any]) -> Mapping[str, Any]:
    return operands if len(operands) == len(program.reads) else {name: operands[name] for name in operands if name in program.reads}
