"""torch.compile and torch.export: an einsum with a dense result as an operator of torch, over plain tensors.

Dynamo looks into everything that a call does, which planning and binding are not made for. So while it does, a call is one
operator, of the operands' values and index arrays and a text that says the rest; its gradient is a second one. Patterns
come back from their index arrays, and are remembered beside these.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from ..frontend.contraction import pairs_of
from ..frontend.parser import parse_einsum
from ..frontend.promotion import promotion_of
from ..frontend.rearrangement import Names, parse_rearrangement
from ..frontend.statements import einsum_request
from ..ir.format import Format, as_format
from ..schedule.facts import rounded
from ..tensors.aside import aside
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .dispatch import compute
from .gradients import DifferentiableCall, attached

MOST_PATTERNS = 1 << 10

F = TypeVar("F", bound=Callable[..., Any])
constant: Callable[[F], F] = torch.compiler.assume_constant_result
untraced: Callable[[F], F] = torch.compiler.disable


@constant
def _is_traceable(expr: str, ranks: tuple[int, ...], sparse: tuple[bool, ...], format: Any) -> bool:
    """Whether no operand is a diagonal, and the result dense for certain: that is asked for, or a factor is dense, and no sparse one
    has the result's indices.
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
def _computed(expr: str, dtypes: tuple[torch.dtype, ...], ranks: tuple[int, ...]) -> torch.dtype:
    """The data type in which operands are computed."""
    return promotion_of(einsum_request(expr, ranks), tuple(zip(dtypes, ranks, strict=True))).computed


def traced(expr: str, operands: Sequence[Any], format: Any) -> Any:
    """The call as an operator, while torch compiles or exports a program.

    It runs beside the program if its result is sparse.
    """
    ready = [attached(operand) for operand in operands]
    ranks, sparse = tuple([o.ndim for o in ready]), tuple([isinstance(o, SparseTensor) for o in ready])
    if not any(sparse):
        return torch.einsum(expr, *ready)
    dtype = _computed(expr, tuple([o.dtype for o in ready]), ranks)
    ready = [o if o.dtype == dtype else o.to(dtype) for o in ready]
    if not _is_traceable(expr, ranks, sparse, format):
        return aside(compute, expr, ready, format)
    if len(ready) > 2 and (pairs := _pairs_for(expr, ready)):
        for at, (left, right, joined) in enumerate(pairs):
            two = ready[left], ready.pop(right)
            ready[left] = traced(joined, two, format if at == len(pairs) - 1 else None)
        return ready[0]
    formats, values, arrays = [], [], []
    for operand in ready:
        if isinstance(operand, SparseTensor):
            formats.append(_described(operand.pattern))
            values.append(operand._values)
            arrays += [array for level in operand.pattern.arrays for array in level]
        else:
            formats.append("")
            values.append(operand)
    return torch.ops.numscorch.einsum("|".join([expr, *formats]), values, arrays)


def _pairs_for(expr: str, operands: Sequence[Any]) -> tuple[tuple[int, int, str], ...]:
    """In which pairs to contract, each of which is an operator, with a gradient of its own; none where that isn't known yet."""
    if not all(has_static_value(size) for operand in operands for size in operand.shape):
        return ()
    counts = tuple([_nnz(operand.pattern) if isinstance(operand, SparseTensor) else None for operand in operands])
    return _pairs(expr, tuple([tuple([int(size) for size in operand.shape]) for operand in operands]), counts)


@constant
def _nnz(pattern: Pattern) -> int:
    return rounded(pattern.nnz)


@constant
def _pairs(expr: str, shapes: tuple[tuple[int, ...], ...], counts: tuple[int | None, ...]) -> tuple[tuple[int, int, str], ...]:
    """The pairs of these operands, as numbers and text; none where what a pair makes may be sparse."""
    pairs = pairs_of(parse_einsum(expr, tuple(map(len, shapes))), shapes, counts)
    sparse = [count is not None for count in counts]
    for pair in pairs[:-1]:
        terms = pair.expr.partition("->")[0]
        two = sparse[pair.left], sparse.pop(pair.right)
        if any(two) and not _is_traceable(pair.expr, tuple(map(len, terms.split(","))), two, None):
            return ()
        sparse[pair.left] = False
    return tuple([(pair.left, pair.right, pair.expr) for pair in pairs])


def _described(pattern: Pattern) -> str:
    """A pattern's format and shape. Programs are the same for another pattern in its place, as dynamic training has it, but where
    shapes are unknown, which the pattern itself knows."""
    if all(has_static_value(size) for size in pattern.shape):
        return _text(pattern.format, pattern.shape)
    return _text_of(pattern)


@constant
def _text(format: Format, shape: tuple[int, ...]) -> str:
    """A format and shape, which Dynamo takes as they are."""
    return f"{format} of {'x'.join(map(str, shape))}"


@constant
def _text_of(pattern: Pattern) -> str:
    """The same, for which Dynamo remembers the pattern."""
    return f"{pattern.format} of {'x'.join(map(str, pattern.shape))}"


@constant
def dimensions_of(text: str, rank: int, given: tuple[str, ...]) -> tuple[tuple[Names, ...], tuple[Names, ...]]:
    """What rearrange reads of its text."""
    return parse_rearrangement(text, rank, given)


@lru_cache(maxsize=1024)
def _read(spec: str) -> tuple[str, tuple[tuple[Format, tuple[int, ...]] | None, ...]]:
    """The expression, and each sparse operand's format and shape."""
    expr, *formats = spec.split("|")
    read: list[tuple[Format, tuple[int, ...]] | None] = []
    for text in formats:
        name, _, shape = text.rpartition(" of ")
        read.append((as_format(name), tuple(int(size) for size in shape.split("x") if size)) if text else None)
    return expr, tuple(read)


_patterns: dict[tuple[Any, ...], tuple[list[weakref.ref[Tensor]], Pattern]] = {}


def _pattern(format: Format, shape: tuple[int, ...], arrays: Sequence[Tensor]) -> Pattern:
    """The pattern of these index tensors; remembered as long as they live."""
    key = (format, shape, *map(id, arrays))
    known = _patterns.get(key)
    if known is not None and all(ref() is array for ref, array in zip(known[0], arrays, strict=True)):
        return known[1]
    remaining = iter([array.detach() for array in arrays])  # other tensors of the same memory, which don't keep these alive
    pattern = Pattern(format, shape, tuple(tuple(next(remaining) for _ in level.arrays) for level in format.levels))
    if len(_patterns) >= MOST_PATTERNS:
        _patterns.clear()
    _patterns[key] = [weakref.ref(array, lambda _: _patterns.pop(key, None)) for array in arrays], pattern
    return pattern


def _operands(spec: str, values: Sequence[Tensor], arrays: Sequence[Tensor]) -> tuple[str, list[Any]]:
    """The expression and its operands again."""
    expr, formats = _read(spec)
    tensors: list[Any] = []
    at = 0
    for format_and_shape, tensor in zip(formats, values, strict=True):
        if format_and_shape is None:
            tensors.append(tensor)
            continue
        format, shape = format_and_shape
        count = sum(len(level.arrays) for level in format.levels)
        tensors.append(SparseTensor(_pattern(format, shape, arrays[at : at + count]), tensor))
        at += count
    return expr, tensors


def text_of(pattern: Pattern) -> str:
    """A pattern's format and shape, as programs hold them."""
    return _described(pattern)


def arrays_of(pattern: Pattern) -> list[Tensor]:
    """A pattern's index arrays, one after the other."""
    return [array for level in pattern.arrays for array in level]


def is_whole() -> bool:
    """Whether the program that is compiled may not be in parts: with ``fullgraph=True``, and where it is exported."""
    return _is_one_graph() if torch.compiler.is_dynamo_compiling() else True  # nothing else splits programs


@constant
def _is_one_graph() -> bool:
    from torch._dynamo.symbolic_convert import InstructionTranslator  # late: it takes a second to import

    program = InstructionTranslator.current_tx()
    return bool(program.one_graph or program.error_on_graph_break)


def operand_of(text: str, values: Tensor, arrays: Sequence[Tensor]) -> SparseTensor:
    """The SparseTensor of which :func:`text_of` and :func:`arrays_of` told a program."""
    _, (operand,) = _operands(f"|{text}", [values], arrays)
    return operand  # type: ignore[no-any-return]


def shape_of(text: str) -> tuple[int, ...]:
    """The shape that :func:`text_of` wrote.

    >>> shape_of("CSR of 3x4")
    (3, 4)
    """
    return tuple(int(size) for size in text.rpartition(" of ")[2].split("x") if size)


@torch.library.custom_op("numscorch::einsum", mutates_args=())
def _einsum(spec: str, values: Sequence[Tensor], arrays: Sequence[Tensor]) -> Tensor:
    expr, operands = _operands(spec, values, arrays)
    result: Tensor = compute(expr, operands, "dense")
    return result


@_einsum.register_fake
def _(spec: str, values: Sequence[Tensor], arrays: Sequence[Tensor]) -> Tensor:
    expr, formats = _read(spec)
    shapes = [tuple(v.shape) if known is None else known[1] for known, v in zip(formats, values, strict=True)]
    subscripts = parse_einsum(expr, tuple(map(len, shapes)))
    sizes: dict[str, Any] = {}
    for names, shape in zip(subscripts.operands, shapes, strict=True):
        sizes |= {name: size for name, size in zip(names, shape, strict=True) if name not in sizes or sizes[name] == 1}
    return values[0].new_empty([sizes[name] for name in subscripts.result])


@torch.library.custom_op("numscorch::einsum_gradient", mutates_args=())
def _gradient(spec: str, at: int, upstream: Tensor, values: Sequence[Tensor], arrays: Sequence[Tensor]) -> Tensor:
    expr, operands = _operands(spec, values, arrays)
    call = DifferentiableCall(einsum_request(expr, tuple([o.ndim for o in operands])), "dense", operands, compute)
    gradient = call.gradient(at, upstream, values, None)
    if gradient is None:
        return torch.zeros_like(values[at])
    return gradient.contiguous() if gradient is not upstream else gradient.clone()


@_gradient.register_fake
def _(spec: str, at: int, upstream: Tensor, values: Sequence[Tensor], arrays: Sequence[Tensor]) -> Tensor:
    return values[at].new_empty(values[at].shape)


def _setup(ctx: Any, inputs: tuple[str, list[Tensor], list[Tensor]], output: Tensor) -> None:
    ctx.spec, values, arrays = inputs
    ctx.count = len(values)
    ctx.save_for_backward(*values, *arrays)


def _backward(ctx: Any, upstream: Tensor) -> tuple[None, list[Tensor | None], list[None]]:
    values, arrays = list(ctx.saved_tensors[: ctx.count]), list(ctx.saved_tensors[ctx.count :])
    gradients = [
        torch.ops.numscorch.einsum_gradient(ctx.spec, at, upstream, values, arrays) if value.requires_grad else None
        for at, value in enumerate(values)
    ]
    return None, gradients, [None] * len(arrays)


_einsum.register_autograd(_backward, setup_context=_setup)
