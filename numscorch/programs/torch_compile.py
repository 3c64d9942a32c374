"""torch.compile and torch.export: einsums with dense results as a torch operator on plain tensors.

Dynamo traces into every call, and cannot trace planning and binding. During tracing, an einsum is therefore one operator. It takes
the operands' values, their index arrays, and a text with formats and shapes; its gradient is a second operator. Patterns are rebuilt
from their index arrays and cached with them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from ..frontend.datatypes import promotion_of
from ..frontend.parser import Names, parse_einsum, parse_rearrangement
from ..frontend.requests import NAMES, Operand, einsum_request
from ..ir.format import COO, Format, as_format, dense
from ..runtime.confirming import steady
from ..runtime.plans import keep
from ..schedule.facts import rounded
from ..tensors.aside import aside
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .dense_requests import einsum_text
from .dispatch import compute
from .gradients import DifferentiableCall, attached
from .pairing import paired

MOST_PATTERNS = 1 << 10  # cached patterns

Part = tuple[str, tuple[int, ...]]  # an einsum, and the numbers of its operands; results are numbered after operands
F = TypeVar("F", bound=Callable[..., Any])
constant: Callable[[F], F] = torch.compiler.assume_constant_result


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


def einsum_in_compiled_graph(expr: str, operands: Sequence[Any], format: Any) -> Any:
    """Add the einsum to the traced program as an operator.

    An einsum whose result may be sparse runs outside of the compiled program instead.
    """
    ready = [attached(operand) for operand in operands]
    ranks, sparse = tuple([o.ndim for o in ready]), tuple([isinstance(o, SparseTensor) for o in ready])
    if not any(sparse):
        return torch.einsum(expr, *ready)
    dtype = _computation_dtype(expr, tuple([o.dtype for o in ready]), ranks)
    ready = [o if o.dtype == dtype else o.to(dtype) for o in ready]
    if not _is_traceable(expr, ranks, sparse, format):
        return aside(compute, expr, ready, format)
    if len(ready) > 2 and (parts := _parts_for(expr, ready)):
        for part, reads in parts[:-1]:
            ready.append(einsum_in_compiled_graph(part, [ready[at] for at in reads], None))
        expr, reads = parts[-1]
        return einsum_in_compiled_graph(expr, [ready[at] for at in reads], format)
    texts = [text_of(o.pattern) if isinstance(o, SparseTensor) else "" for o in ready]
    values = [o._values if isinstance(o, SparseTensor) else o for o in ready]
    arrays = [array for o in ready if isinstance(o, SparseTensor) for array in arrays_of(o.pattern)]
    return torch.ops.numscorch.einsum("|".join([expr, *texts]), values, arrays)


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
def _text(format: Format, shape: tuple[int, ...]) -> str:
    """The format and shape as text; Dynamo keeps both as constants."""
    return f"{format} of {'x'.join(map(str, shape))}"


@constant
def _text_of(pattern: Pattern) -> str:
    """The format and shape as text; Dynamo keeps the pattern as a constant."""
    return f"{pattern.format} of {'x'.join(map(str, pattern.shape))}"


@constant
def dimensions_of(text: str, rank: int, given: tuple[str, ...]) -> tuple[tuple[Names, ...], tuple[Names, ...]]:
    """Parse the text argument of ``rearrange``."""
    return parse_rearrangement(text, rank, given)


@lru_cache(maxsize=1024)
def _parse_spec(spec: str) -> tuple[str, tuple[tuple[Format, tuple[int, ...]] | None, ...]]:
    """Parse a specification: the expression, and each sparse operand's format and shape."""
    expr, *texts = spec.split("|")
    return expr, tuple((as_format(text.rpartition(" of ")[0]), shape_of(text)) if text else None for text in texts)


_patterns: dict[tuple[Any, ...], tuple[list[weakref.ref[Tensor]], Pattern]] = {}


def _pattern(format: Format, shape: tuple[int, ...], remaining: Iterator[Tensor]) -> Pattern:
    """The pattern of the next index tensors, cached as long as they live."""
    arrays = [next(remaining) for level in format.levels for _ in level.arrays]
    key = (format, shape, *map(id, arrays))
    entry = _patterns.get(key)
    if entry is not None and all(ref() is array for ref, array in zip(entry[0], arrays, strict=True)):
        return entry[1]
    aliases = iter([array.detach() for array in arrays])  # don't keep the tensors alive
    pattern = Pattern(format, shape, tuple(tuple(next(aliases) for _ in level.arrays) for level in format.levels))
    references = [weakref.ref(array, lambda _: _patterns.pop(key, None)) for array in arrays]
    return keep(_patterns, key, (references, pattern), MOST_PATTERNS)[1]


def _operands(spec: str, values: Sequence[Tensor], arrays: Sequence[Tensor]) -> tuple[str, list[Any]]:
    """Rebuild the expression and its operands."""
    expr, formats = _parse_spec(spec)
    remaining = iter(arrays)
    pairs = zip(formats, values, strict=True)
    return expr, [tensor if known is None else SparseTensor(_pattern(*known, remaining), tensor) for known, tensor in pairs]


def arrays_of(pattern: Pattern) -> list[Tensor]:
    """All index arrays of a pattern, level by level."""
    return [array for level in pattern.arrays for array in level]


def is_whole() -> bool:
    """Whether graph breaks are forbidden: with ``fullgraph=True``, and during export."""
    return _is_one_graph() if torch.compiler.is_dynamo_compiling() else True  # only Dynamo splits programs


@constant
def _is_one_graph() -> bool:
    from torch._dynamo.symbolic_convert import InstructionTranslator  # imported late: the import takes a second

    program = InstructionTranslator.current_tx()
    return bool(program.one_graph or program.error_on_graph_break)


def operand_of(text: str, values: Tensor, arrays: Sequence[Tensor]) -> SparseTensor:
    """Rebuild a SparseTensor from :func:`text_of`, values and :func:`arrays_of`."""
    _, (operand,) = _operands(f"|{text}", [values], arrays)
    return operand


def shape_of(text: str) -> tuple[int, ...]:
    """The shape in a text of :func:`text_of`.

    >>> shape_of("CSR of 3x4")
    (3, 4)
    """
    return tuple(int(size) for size in text.rpartition(" of ")[2].split("x") if size)


@torch.library.custom_op("numscorch::einsum", mutates_args=())
def _einsum(spec: str, values: Sequence[Tensor], arrays: Sequence[Tensor]) -> Tensor:
    expr, operands = _operands(spec, values, arrays)
    with steady():
        return compute(expr, operands, "dense")


@_einsum.register_fake
def _(spec: str, values: Sequence[Tensor], arrays: Sequence[Tensor]) -> Tensor:
    expr, formats = _parse_spec(spec)
    shapes = [tuple(v.shape) if known is None else known[1] for known, v in zip(formats, values, strict=True)]
    subscripts = parse_einsum(expr, tuple(map(len, shapes)))
    sizes = subscripts.sizes(shapes)
    return values[0].new_empty([sizes[name] for name in subscripts.result])


@torch.library.custom_op("numscorch::einsum_gradient", mutates_args=())
def _gradient(spec: str, at: int, upstream: Tensor, values: Sequence[Tensor], arrays: Sequence[Tensor]) -> Tensor:
    expr, operands = _operands(spec, values, arrays)
    call = DifferentiableCall(einsum_request(expr, tuple([o.ndim for o in operands])), "dense", operands, compute)
    with steady():
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
