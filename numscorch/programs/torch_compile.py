"""Tracing: how calls of numscorch enter programs that torch compiles, exports or records.

Dynamo traces into every call, and cannot trace planning and binding. So a call becomes one operator (``torch_operators.py``). The kind
of its result is found by a trial: the call runs once, while torch traces, with the real patterns and other values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from ..errors import UnsupportedError
from ..frontend.datatypes import promotion_of
from ..frontend.parser import Names, parse_einsum, parse_rearrangement
from ..frontend.requests import NAMES, Operand, einsum_request
from ..ir.format import COO, Format, dense
from ..schedule.facts import rounded
from ..tensors.aside import aside
from ..tensors.dynamo import constant
from ..tensors.graph_breaks import TRACED
from ..tensors.modes import as_if_running, lifted, recorder
from ..tensors.packing import has_gaps
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .dense_requests import einsum_text
from .gradients import attached
from .pairing import paired
from .program_texts import FORMAT, NUMBER, OPERAND, described, printed, read_call, text_of_shape
from .torch_operators import CALL, arrays_of

SCALING = ("mul", "div")  # functions whose outcome does not depend on a number among their arguments
Part = tuple[str, tuple[int, ...]]  # an einsum, and the numbers of its operands; results are numbered after operands


# ---- any function


def as_operator(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Add a call of a traced function to the program: as an operator, or as torch's function of the values.

    A call that no operator can compute runs outside of the compiled program instead.

    Raises:
        UnsupportedError: a program is recorded, as by ``make_fx``, and no operator can compute the call.
    """
    operands: list[Any] = []
    formats: list[Format] = []
    numbers: list[Any] | None = [] if name in SCALING else None
    places = _placed(tuple(args), operands, formats, numbers)
    named = tuple([(key, _placed(value, operands, formats, numbers)) for key, value in kwargs.items()])
    if kwargs.get("sparsifier") is not None:
        return outside(TRACED[name].function, "its entries depend on values", args, kwargs)
    sizes = tuple([() if isinstance(o, SparseTensor) else tuple([_static(size) for size in o.shape]) for o in operands])
    # Dynamo guards the identity of objects that are arguments themselves, and refuses them in tuples
    objects: list[Any] = [*(o.pattern for o in operands if isinstance(o, SparseTensor)), *formats]
    is_sparse, dtypes = tuple([isinstance(o, SparseTensor) for o in operands]), tuple([o.dtype for o in operands])
    kind, text, place, value, name_of_pattern = _outcome(name, places, named, is_sparse, sizes, dtypes, *objects)
    if kind == "aside":
        return outside(TRACED[name].function, value, args, kwargs)
    if kind == "dense":
        return _called(text, operands, [])
    pattern = getattr(objects[0].successors, name_of_pattern) if place < 0 else operands[place].pattern
    values = _in_program([operand._values if isinstance(operand, SparseTensor) else operand for operand in operands])
    if kind == "values":
        given = {key: _refilled(value, values) for key, value in named}
        positional = _refilled(places, values)
        if numbers:
            positional = _refilled(positional, numbers, NUMBER)
        return SparseTensor.trusted(pattern, TRACED[name].at_values(*positional, **given))  # type: ignore[misc]
    if kind == "view":
        return SparseTensor.trusted(pattern, values[value])
    return SparseTensor.trusted(pattern, _called(text, operands, arrays_of(pattern) if place < 0 else []))


def _placed(value: Any, operands: list[Any], formats: list[Format], numbers: list[Any] | None = None) -> Any:
    """The argument with a mark and a number in the place of each tensor, which is appended to ``operands``, and of each format.

    With ``numbers``, floats are appended to that list: the outcome does not depend on them, and Dynamo may keep them symbolic.
    """
    if isinstance(value, SparseParameter):
        value = value.tensor
    if isinstance(value, SparseTensor | Tensor):
        operands.append(value)
        return (OPERAND, len(operands) - 1)
    if isinstance(value, Format):
        formats.append(value)
        return (FORMAT, len(formats) - 1)
    if isinstance(value, list):
        return [_placed(member, operands, formats, numbers) for member in value]
    if isinstance(value, tuple):
        return tuple([_placed(member, operands, formats, numbers) for member in value])
    if numbers is not None and isinstance(value, float):
        numbers.append(value)
        return (NUMBER, len(numbers) - 1)
    if isinstance(value, int) and not isinstance(value, bool):
        return range(value).stop  # Dynamo keeps integers symbolic that differ between calls; this one becomes a constant
    return value


def _refilled(value: Any, members: Sequence[Any], mark: str = OPERAND) -> Any:
    """The argument with tensors in the place of their numbers; with formats or numbers for another mark."""
    if isinstance(value, tuple) and len(value) == 2 and value[0] == mark:
        return members[value[1]]
    if isinstance(value, list):
        return [_refilled(member, members, mark) for member in value]
    return tuple([_refilled(member, members, mark) for member in value]) if isinstance(value, tuple) else value


def _static(size: Any) -> int | None:
    """The size; None if Dynamo keeps it symbolic. Elsewhere, a symbolic size has a value in the call that is recorded."""
    return int(size) if has_static_value(size) or not torch.compiler.is_compiling() else None


def _called(text: str, operands: Sequence[Any], further: Sequence[Tensor]) -> Any:
    """Call the operator."""
    arrays: list[Tensor] = []
    for operand in operands:
        if isinstance(operand, SparseTensor):
            arrays.append(operand._values)
            arrays.extend(arrays_of(operand.pattern))
        else:
            arrays.append(operand)
    arrays.extend(further)
    return CALL(text, _in_program(arrays))


def _in_program(arrays: list[Tensor]) -> list[Tensor]:
    """The tensors that a mode records; Dynamo needs no others."""
    return arrays if torch.compiler.is_compiling() else lifted(arrays)


def outside(function: Callable[..., Any], reason: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a function outside of the compiled program.

    Raises:
        UnsupportedError: the program may not have graph breaks, or a mode records it, so that it would lack the call.
    """
    recorded = recorder() if not torch.compiler.is_compiling() else "a whole graph" if is_whole() else None
    if recorded is not None:
        name = getattr(function, "__name__", "a function")
        raise UnsupportedError(f"{name} within {recorded}: {reason}; call it outside, and pass its result")
    return aside(function, *args, **kwargs) if torch.compiler.is_compiling() else function(*args, **kwargs)


@constant
def _outcome(
    name: str,
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    is_sparse: tuple[bool, ...],
    sizes: tuple[tuple[int | None, ...], ...],
    dtypes: tuple[torch.dtype, ...],
    *objects: Any,
) -> tuple[str, str, int, Any, str]:
    """How the program computes the call.

    A kind, the text of the operator, the operand that has the result's pattern (-1 if none has), for views the operand with the values
    and for calls outside of the program a reason, and the attribute of the first pattern's successors that has the result's pattern.

    Kinds are dense and sparse (results of the operator), values (of torch's function), view, and aside.
    """
    with as_if_running():
        remaining = iter(objects)
        patterns: list[Pattern | None] = [next(remaining) if wanted else None for wanted in is_sparse]
        formats = list(remaining)
        args = _refilled(_refilled(args, formats, FORMAT), [0.5], NUMBER)
        kwargs = tuple([(key, _refilled(value, formats, FORMAT)) for key, value in kwargs])
        if len(is_sparse) > len(NAMES):
            return _aside(f"it has more than {len(NAMES)} tensors")
        reason = ""
        shapes = [*sizes, *(pattern.shape for pattern in patterns if pattern is not None)]
        stated = [size for shape in shapes for size in shape if size is not None]
        for unknown in dict.fromkeys([2, *stated]):  # in the place of symbolic sizes, which may have to equal others
            operands = [_example(*fact, unknown) for fact in zip(patterns, sizes, dtypes, strict=True)]
            try:
                result = TRACED[name].function(*_refilled(args, operands), **{key: _refilled(value, operands) for key, value in kwargs})
                break
            except Exception as error:
                reason = reason or f"{type(error).__name__}: {error}"
        else:
            return _aside(reason)
        if not isinstance(result, SparseTensor | Tensor) or (isinstance(result, Tensor) and result.layout is not torch.strided):
            return _aside(f"its result is a {type(result).__name__}")
        is_symbolic = any(None in shape for shape in sizes)
        described_operands = [f"{letter}: {'dense' if p is None else described(p)}" for letter, p in zip(NAMES, patterns, strict=False)]
        shown = [*map(printed, args), *(f"{key}={printed(value)}" for key, value in kwargs)]
        dtype = str(result.dtype).removeprefix("torch.")
        call = f" = {name}({', '.join(shown)})"
        try:
            read_call(call.removeprefix(" = "))
        except UnsupportedError as error:
            return _aside(str(error))
        head = "; ".join([*described_operands, dtype])
        if isinstance(result, Tensor):
            if is_symbolic and TRACED[name].shape is None:
                return _aside("sizes are symbolic")
            shape = "" if is_symbolic else f" {'x'.join(map(str, result.shape)) or 'scalar'}"
            return "dense", f"{head}{shape}{call}", -1, None, ""
        return _sparse_outcome(name, head, call, result, operands, is_symbolic)


def _aside(reason: str) -> tuple[str, str, int, Any, str]:
    return "aside", "", -1, reason, ""


def _example(pattern: Pattern | None, sizes: tuple[int | None, ...], dtype: torch.dtype, unknown: int) -> Any:
    """An operand of a trial: ones, or zeros if they may be indices; ``unknown`` takes the place of symbolic sizes."""
    shape = (pattern.nnz,) if pattern is not None else tuple([unknown if size is None else size for size in sizes])
    values = torch.ones(shape, dtype=dtype, device="cpu") if dtype.is_floating_point or dtype.is_complex or pattern is not None else None
    values = torch.zeros(shape, dtype=dtype, device="cpu") if values is None else values
    return values if pattern is None else SparseTensor.trusted(pattern, values)


def _sparse_outcome(
    name: str, head: str, call: str, result: SparseTensor, operands: Sequence[Any], is_symbolic: bool
) -> tuple[str, str, int, Any, str]:
    """The outcome of a call with a sparse result; its text consists of ``head``, the result's pattern and ``call``."""
    sparse = [at for at, operand in enumerate(operands) if isinstance(operand, SparseTensor)]
    if not all(isinstance(o, SparseTensor) or o.dtype.is_floating_point or o.dtype.is_complex for o in operands) or not sparse:
        return _aside("the entries of its result depend on indices or masks")
    first = operands[sparse[0]].pattern
    same = [at for at in sparse if operands[at].pattern is result.pattern]
    kept = same or [at for at in sparse if operands[at].pattern.stores_as(result.pattern)]
    place = kept[0] if kept else -1
    is_at_values = all(o.pattern is first if isinstance(o, SparseTensor) else not o.ndim for o in operands) and not has_gaps(first)
    if same and is_at_values and TRACED[name].at_values is not None:
        return "values", "", place, None, ""
    text = f"{head} {NAMES[place] if kept else f'{described(result.pattern)} with {result.pattern.nnz}'}{call}"
    others = [str(id(operands[at].pattern)) for at in sparse[1:]]
    successor = "" if kept else first.successors.add(f"{text} {' '.join(others)}", result.pattern)
    memory = result._values.data_ptr(), len(result._values)
    views = [at for at in sparse if memory[0] and (operands[at]._values.data_ptr(), len(operands[at]._values)) == memory]
    if views:
        return "view", text, place, views[0], successor
    return _aside("sizes are symbolic") if is_symbolic and not kept else ("sparse", text, place, None, successor)


# ---- einsum


@constant
def _is_traceable(expr: str, ranks: tuple[int, ...], sparse: tuple[bool, ...], format: Any) -> bool:
    """Whether no operand is a diagonal and the result is certainly dense.

    The result is dense if ``format`` is "dense", or if a factor is dense and no sparse one has exactly the result's indices.
    """
    subscripts = parse_einsum(expr, ranks)
    if any(len(set(names)) < len(names) for names in subscripts.operands):
        return False
    if format is not None:
        return isinstance(format, str) and format == "dense"
    named = zip(subscripts.operands, sparse, strict=True)
    keepers = [names for names, is_sparse in named if is_sparse and sorted(names) == sorted(subscripts.result)]
    return not all(sparse) and not keepers


@constant
def _computation_dtype(expr: str, dtypes: tuple[torch.dtype, ...], ranks: tuple[int, ...]) -> torch.dtype:
    return promotion_of(einsum_request(expr, ranks), tuple(zip(dtypes, ranks, strict=True))).computed


def einsum_as_operator(expr: str, operands: Sequence[Any], format: Any) -> Any:
    """Add an einsum to the traced program as an operator."""
    ready = [o if _is_ready(o) else attached(o) for o in operands]
    sparse = tuple([isinstance(o, SparseTensor) for o in ready])
    if True not in sparse and (format is None or format == "dense"):
        return torch.einsum(expr, *ready)
    ranks = tuple([len(o.pattern.shape) if isinstance(o, SparseTensor) else o.ndim for o in ready])
    dtypes = tuple([o._values.dtype if isinstance(o, SparseTensor) else o.dtype for o in ready])
    dtype = _computation_dtype(expr, dtypes, ranks)
    ready = [o if known == dtype else o.to(dtype) for o, known in zip(ready, dtypes, strict=True)]
    if not _is_traceable(expr, ranks, sparse, format):
        if not torch.compiler.is_compiling() and recorder() is None:
            return NotImplemented
        name = "einsum" if _has_diagonal(expr, ranks) else "contract"
        return as_operator(name, (expr, *ready), {} if format is None else {"format": format})
    if len(ready) > 2 and (parts := _parts_for(expr, ready)):
        for part, reads in parts[:-1]:
            ready.append(einsum_as_operator(part, [ready[at] for at in reads], None))
        expr, reads = parts[-1]
        return einsum_as_operator(expr, [ready[at] for at in reads], format)
    texts = [text_of(o.pattern) if isinstance(o, SparseTensor) else "dense" for o in ready]
    return _called(_contraction(expr, ranks, tuple(texts), dtype), ready, [])


def _is_ready(operand: Any) -> bool:
    if isinstance(operand, SparseTensor):
        return not operand.pattern.is_dense
    return isinstance(operand, Tensor) and operand.layout is torch.strided


@constant
def _contraction(expr: str, ranks: tuple[int, ...], texts: tuple[str, ...], dtype: torch.dtype) -> str:
    letters = NAMES[: len(texts)]
    if "->" not in expr or not set(" .").isdisjoint(expr):
        expr = einsum_text(einsum_request(expr, ranks))  # with all indices
    operands = [f"{letter}: {text}" for letter, text in zip(letters, texts, strict=True)]
    return f"{'; '.join([*operands, str(dtype).removeprefix('torch.')])} = contract({expr!r}, {', '.join(letters)}, format='dense')"


@constant
def _has_diagonal(expr: str, ranks: tuple[int, ...]) -> bool:
    return any(len(set(names)) < len(names) for names in parse_einsum(expr, ranks).operands)


def _parts_for(expr: str, operands: Sequence[Any]) -> tuple[Part, ...]:
    """The pairs in which to contract operands, each a differentiable operator; empty if sizes are symbolic."""
    if not all(has_static_value(size) for operand in operands for size in operand.shape):
        return ()
    counts = tuple([_nnz(operand.pattern) if isinstance(operand, SparseTensor) else None for operand in operands])
    return _parts(expr, tuple([tuple([int(size) for size in operand.shape]) for operand in operands]), counts)


@constant
def _nnz(pattern: Pattern) -> int:
    return rounded(pattern.nnz)


@constant
def _parts(expr: str, shapes: tuple[tuple[int, ...], ...], counts: tuple[int | None, ...]) -> tuple[Part, ...]:
    """The pairs; empty if there are none, or if an intermediate result may be sparse."""
    terms = zip(shapes, counts, strict=True)
    described = [Operand(dense(len(s)) if n is None else COO(len(s)), s, "float32", counts=() if n is None else (n,)) for s, n in terms]
    parts = paired(einsum_request(expr, tuple(map(len, shapes))), described)
    names = [*NAMES[: len(shapes)], *(part.name for part in parts)]
    sparse = dict(zip(NAMES, [count is not None for count in counts], strict=False))
    for part in parts[:-1]:
        are_sparse = tuple([sparse.pop(name, False) for name in part.operands])
        ranks = tuple(map(len, part.request.subscripts.operands))
        if any(are_sparse) and not _is_traceable(einsum_text(part.request), ranks, are_sparse, None):
            return ()
    return tuple([(einsum_text(part.request), tuple(map(names.index, part.operands))) for part in parts]) if len(parts) > 1 else ()


def text_of(pattern: Pattern) -> str:
    """A pattern's format and shape as text, which the compiled program contains.

    The program can be reused for other patterns of this format and shape, unless the shape is symbolic and is read from the pattern.
    """
    if all(has_static_value(size) for size in pattern.shape):
        return _text(pattern.format, pattern.shape)
    return _text_of(pattern)


@constant
def _text(format: Any, shape: tuple[int, ...]) -> str:
    """The format and shape as text; Dynamo keeps both as constants."""
    return text_of_shape(format, shape)


@constant
def _text_of(pattern: Pattern) -> str:
    """The format and shape as text; Dynamo keeps the pattern as a constant."""
    return described(pattern)


@constant
def dimensions_of(text: str, rank: int, given: tuple[str, ...]) -> tuple[tuple[Names, ...], tuple[Names, ...]]:
    """Parse the text argument of ``rearrange``."""
    return parse_rearrangement(text, rank, given)


def is_whole() -> bool:
    """Whether graph breaks are forbidden: with ``fullgraph=True``, and during export."""
    return _is_one_graph() if torch.compiler.is_dynamo_compiling() else True  # only Dynamo splits programs


@constant
def _is_one_graph() -> bool:
    from torch._dynamo.symbolic_convert import InstructionTranslator  # imported late: the import takes a second

    program = InstructionTranslator.current_tx()
    return bool(program.one_graph or program.error_on_graph_break)
