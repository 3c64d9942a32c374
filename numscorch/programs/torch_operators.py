"""Calls of numscorch as operators of torch, for programs that torch compiles, exports or records.

``numscorch::run`` computes a call, ``numscorch::gradients`` its gradients, and ``numscorch::call`` is both for autograd. Their arguments
are a text (``program_texts.py``), and a flat list of tensors: for each operand its values, and the index arrays of its pattern. So new
functions, levels and data types need no further operator.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from functools import lru_cache, reduce
from math import prod
from operator import add, mul
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import unwrap_if_dead
from torch.autograd.function import _SingleLevelFunction
from torch.utils.flop_counter import register_flop_formula

from ..convert.values import as_stored
from ..errors import UnsupportedError
from ..frontend.gradient_requests import Gradient
from ..frontend.parser import parse_einsum
from ..frontend.requests import NAMES, Request, einsum_request
from ..ir.format import Format
from ..runtime.plans import keep
from ..tensors.graph_breaks import TRACED, Shape, TracedFunction
from ..tensors.modes import (
    in_transform,
    innermost,
    is_forward,
    is_nested,
    outside_dispatch_modes,
    outside_forward_mode,
    recorder,
    recording,
    within_transform,
)
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .autograd import gradients_by_autograd
from .dispatch import compute
from .fitting import MISSED, quick_result
from .gradients import DifferentiableCall, Shapes, gradient_request
from .program_texts import array_count, described_as, filled, read_call, shape_of

MOST_PATTERNS = 1 << 10  # cached patterns
LINEAR = ("contract", "getitem", "mean", "mul", "permuted", "sum", "t", "to_dense")  # functions that are linear in each operand


def arrays_of(pattern: Pattern) -> list[Tensor]:
    """All index arrays of a pattern, level by level."""
    return [array for level in pattern.arrays for array in level]


def apart(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Contiguous results that share no memory with inputs or each other: torch may use the memory of inputs again."""
    memories = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    separate = []
    for result in results:
        kept = result.contiguous()
        if kept.numel() and kept.untyped_storage().data_ptr() in memories:
            kept = kept.clone()
        memories.add(kept.untyped_storage().data_ptr())
        separate.append(kept)
    return separate


@lru_cache(maxsize=4096)
def _derivative(
    request: Request, at: int, fullness: tuple[bool | None, ...], shapes: Shapes, shared: tuple[int, ...], is_result_dense: bool
) -> tuple[Gradient, tuple[int, ...], bool] | None:
    """The request for an operand's gradient, the operands that it reads, and whether one is sparse; None if one request does not suffice.

    The arguments are those of :func:`~numscorch.programs.gradients.gradient_request`.
    """
    part = gradient_request(request, at, fullness, shapes, shared, is_result_dense)
    if part is None or part.repeated or len(part.kept) < len(shapes[at]) or fullness[at]:
        return None
    reads = (*part.reads, *[at] * part.masked)
    return part, reads, any(fullness[k] is not None for k in reads)


class Program:
    """One call, from its text: the function, its arguments, the formats and shapes of its sparse operands, and its result.

    The text describes the operands, then the result: its data type, and an operand (the result has its pattern), a format and a shape
    (the last tensors are the index arrays), or a shape. Without these, the shape follows from the operands. The call comes last.
    """

    def __init__(self, text: str):
        head, _, call = text.partition(" = ")
        *described, result = head.split("; ")
        name, self.args, self.kwargs = read_call(call)
        self.text, self.name, self.traced, self.is_contraction = text, name, TRACED[name], name == "contract"
        self.formats = tuple([described_as(text.partition(": ")[2]) for text in described])
        self.fullness = tuple([None if known is None else known[0].is_full for known in self.formats])
        counts = [0 if known is None else array_count(known[0]) for known in self.formats]
        self.starts = tuple([at + sum(counts[:at]) for at in range(len(counts))])
        ends = [start + 1 + count for start, count in zip(self.starts, counts, strict=True)]
        self.slots = tuple(zip(self.starts, ends, self.formats, strict=True))
        dtype, _, target = result.partition(" ")
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.kept = NAMES.index(target) if target and target in NAMES else None
        self.made, self.count = None, 0
        self.shape: tuple[int, ...] | None = None
        if " of " in target:
            target, _, count = target.rpartition(" with ")
            self.made, self.count = described_as(target), int(count)
        elif target and self.kept is None:
            self.shape = shape_of(target)
        self.key = (self.args[0], "dense") if self.is_contraction and self.kwargs == {"format": "dense"} else None

    def values(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        """The values of sparse operands, and dense operands."""
        return [arrays[at] for at in self.starts]

    def pattern(self, arrays: Sequence[Tensor], operands: Sequence[Any]) -> Pattern | None:
        """The pattern of a sparse result."""
        if self.made is not None:
            return pattern_of(self.made, arrays[len(arrays) - array_count(self.made[0]) :])
        return None if self.kept is None else operands[self.kept].pattern

    def operands(self, arrays: Sequence[Tensor]) -> list[Any]:
        """The operands of the call."""
        return [
            arrays[start] if known is None else SparseTensor.trusted(pattern_of(known, arrays[start + 1 : end]), arrays[start].contiguous())
            for start, end, known in self.slots
        ]

    def run(self, arrays: Sequence[Tensor]) -> Tensor:
        """The result, or its values if it is sparse.

        Raises:
            UnsupportedError: the result has another pattern than when the program was compiled.
        """
        if self.key is not None and (quick := quick_result(self.key, self.operands(arrays))) is not MISSED:
            return quick.contiguous()
        result = self.result(arrays)
        return apart([result], arrays)[0]

    def result(self, arrays: Sequence[Tensor]) -> Tensor:
        """The result of the function, which autograd may record."""
        operands = self.operands(arrays)
        result = self.traced.function(*filled(self.args, operands), **{key: filled(value, operands) for key, value in self.kwargs.items()})
        if not isinstance(result, SparseTensor):
            return result
        expected = self.pattern(arrays, operands)
        if expected is None:
            return result.to_dense()
        if not (result.pattern is expected or result.pattern.stores_as(expected)):
            raise UnsupportedError(
                f"{self.text}: the result stores other entries than when the program was compiled: the operands' patterns must not change; "
                "where they do, call the function outside of the compiled program"
            )
        return result._values

    def gradients(self, wanted: Sequence[int], upstream: Tensor, arrays: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of operands: of dense ones, or of the values of sparse ones."""
        if self.is_contraction and (computed := self._gradients_by_requests(wanted, upstream, arrays)) is not None:
            return computed
        zeros = zip(wanted, self._once(wanted, upstream, arrays), strict=True)
        return apart([torch.zeros_like(arrays[self.starts[at]]) if g is None else g for at, g in zeros], [upstream, *arrays])

    def _gradients_by_requests(self, wanted: Sequence[int], upstream: Tensor, arrays: Sequence[Tensor]) -> list[Tensor] | None:
        """The gradients of a contraction, each by one request; None if one request does not suffice for one, or they are complex."""
        operands = self.operands(arrays)
        result = self.pattern(arrays, operands)
        shared = () if result is None else tuple([at for at, o in enumerate(operands) if getattr(o, "pattern", None) is result])
        shapes = tuple([tuple(o.shape) if known is None else known[1] for o, known in zip(operands, self.formats, strict=True)])
        request = einsum_request(self.args[0], tuple(map(len, shapes)))
        derived = [_derivative(request, at, self.fullness, shapes, shared, result is None) for at in wanted]
        if self.dtype.is_complex or None in derived:
            return None
        gradients: list[Tensor] = []
        are_new = result is None  # whether kernels computed all of them
        for at, (part, reads, is_new) in zip(wanted, filter(None, derived), strict=True):
            are_new &= is_new
            values = reduce(mul, [operands[k]._values for k in part.folded], upstream) if part.folded else upstream
            inputs = [values if result is None else SparseTensor(result, values), *[operands[k] for k in reads]]
            gradient = compute(part.request, inputs, "dense" if self.fullness[at] is None else None)
            gradients.append(gradient.contiguous() if self.fullness[at] is None else as_stored(gradient, operands[at].pattern))
        return gradients if are_new else apart(gradients, [upstream, *arrays])

    def recorded(self, wanted: Sequence[int], upstream: Tensor, arrays: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """The gradients of any call: it is computed again, and autograd records it."""
        places = [self.starts[at] for at in wanted]

        def function(values: Sequence[Tensor]) -> Tensor:
            given = dict(zip(places, values, strict=True))
            return self.result([given.get(at, array) for at, array in enumerate(arrays)])

        return gradients_by_autograd(function, [arrays[at] for at in places], upstream, [True] * len(places))

    def _once(self, wanted: Sequence[int], upstream: Tensor, arrays: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """The gradients of any call, where torch's dispatcher has passed autograd."""
        with recording():
            leaves = [array.detach().requires_grad_(at in [self.starts[k] for k in wanted]) for at, array in enumerate(arrays)]
            with torch.no_grad():
                return self.recorded(wanted, upstream, leaves)

    def gradient_text(self, at: int) -> str:
        """The text of a call that computes the gradient of a contraction; its last operand is the upstream gradient."""
        head, upstream = self.text.partition(" = ")[0].rpartition("; ")[0], NAMES[len(self.formats)]
        kept = f" {NAMES[at]}" if self.formats[at] is not None else ""
        operands = ", ".join(NAMES[: len(self.formats)])
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{head}; {upstream}: dense; {dtype}{kept} = gradient({self.args[0]!r}, {at}, {upstream}, {operands})"

    def with_batch(self, batched: Collection[int]) -> str:
        """The text of a contraction whose dense operands ``batched`` have one more dimension, the first; so has its result."""
        terms, _, result = self.args[0].partition("->")
        letter = next(letter for letter in ascii_letters if letter not in self.args[0])
        names = [letter * (at in batched) + term for at, term in enumerate(terms.split(","))]
        return self.text.replace(repr(self.args[0]), repr(f"{','.join(names)}->{letter}{result}"), 1)

    def operations(self, shapes: Sequence[Sequence[int]]) -> int:
        """The floating-point operations of a contraction: 2 for each entry of the largest sparse operand and each index that it lacks."""
        if not self.is_contraction:
            return 0
        full = [shapes[start] if known is None else known[1] for start, _, known in self.slots]
        subscripts = parse_einsum(self.args[0], tuple(map(len, full)))
        terms = zip(subscripts.operands, self.slots, strict=True)
        stored, names = max((shapes[start][0], names) for names, (start, _, known) in terms if known is not None)
        return 2 * stored * prod(size for name, size in subscripts.sizes(full).items() if name not in names)

    def like(self, arrays: Sequence[Tensor]) -> Tensor:
        """A tensor like the result; sizes may be symbolic."""
        values = self.values(arrays)
        if self.kept is not None:
            shape: Sequence[Any] = values[self.kept].shape
        elif self.made is not None:
            shape = (self.count,)
        elif self.shape is not None:
            shape = self.shape
        elif self.traced.shape is not None:
            shapes = [Shape(value.shape if known is None else known[1]) for value, known in zip(values, self.formats, strict=True)]
            shape = self.traced.shape(*filled(self.args, shapes), **{key: filled(value, shapes) for key, value in self.kwargs.items()})
        else:
            raise UnsupportedError(f"{self.text} in a program with symbolic sizes: compile it with dynamic=False")
        return values[0].new_empty(shape, dtype=self.dtype)


def contraction_shape(expr: str, *shapes: Sequence[Any]) -> list[Any]:
    """The shape of an einsum's result.

    >>> contraction_shape("ij,jk->ik", (2, 3), (3, 4))
    [2, 4]
    """
    subscripts = parse_einsum(expr, tuple(map(len, shapes)))
    sizes = subscripts.sizes(shapes)
    return [sizes[name] for name in subscripts.result]


def _contract(expr: str, *operands: Any, format: str | None = None) -> Any:
    return compute(expr, operands, format)


def _gradient(expr: str, at: int, upstream: Tensor, *operands: Any) -> Any:
    """The gradient of one operand of a contraction, with its pattern if it is sparse; it can be differentiated again."""
    call = DifferentiableCall(einsum_request(expr, tuple([o.ndim for o in operands])), "dense", operands, compute)
    values = [o._values if isinstance(o, SparseTensor) else o for o in operands]
    gradient = call.gradient(at, upstream, values, None)
    gradient = torch.zeros_like(values[at]) if gradient is None else gradient
    return SparseTensor(operands[at].pattern, gradient) if isinstance(operands[at], SparseTensor) else gradient


TRACED["gradient"] = TracedFunction(_gradient, lambda expr, at, upstream, *shapes: shapes[at])
TRACED["contract"] = TracedFunction(_contract, lambda expr, *shapes, format=None: contraction_shape(expr, *shapes))


_patterns: dict[tuple[int, ...], tuple[list[weakref.ref[Tensor]], Pattern, Any]] = {}


_by_memory: weakref.WeakValueDictionary[Any, Pattern] = weakref.WeakValueDictionary()


def pattern_of(known: tuple[Format, tuple[int, ...]], arrays: Sequence[Tensor]) -> Pattern:
    """The pattern with these index arrays, cached as long as they live; ``known`` is a result of :func:`described_as`."""
    key = (id(known), *map(id, arrays))
    if (entry := _patterns.get(key)) is not None and entry[2] is known:
        for reference, array in zip(entry[0], arrays, strict=False):  # faster than all()
            if reference() is not array:
                break
        else:
            return entry[1]
    # torch saves a view for the backward pass as another object; while a pattern lives, no other array can have its memory
    arrays = list(map(innermost, arrays))
    place = (id(known), *[(array.data_ptr(), array.shape[0], array.dtype) for array in arrays])
    if (alive := _by_memory.get(place)) is not None and (alive.format, alive.shape) == known:
        return alive
    format, shape = known
    aliases = iter([array.detach() for array in arrays])  # don't keep the tensors alive
    pattern = Pattern(format, shape, tuple(tuple(next(aliases) for _ in level.arrays) for level in format.levels))
    _by_memory[place] = pattern
    references = [weakref.ref(array, lambda _: _patterns.pop(key, None)) for array in arrays]
    return keep(_patterns, key, (references, pattern, known), MOST_PATTERNS)[1]


program_of = lru_cache(maxsize=4096)(Program)

LIBRARY = torch.library.Library("numscorch", "DEF")
LIBRARY.define("call(str program, Tensor[] arrays) -> Tensor")  # differentiable, by the other two
LIBRARY.define("run(str program, Tensor[] arrays) -> Tensor")
LIBRARY.define("gradients(str program, int[] wanted, Tensor upstream, Tensor[] arrays) -> Tensor[]")


CALL = torch.ops.numscorch.call.default


class _Differentiable(_SingleLevelFunction):
    """A call and its gradients; torch's dispatcher has handled all but the innermost transform of torch.func."""

    @staticmethod
    def forward(ctx: Any, program: str, *arrays: Tensor) -> Tensor:
        ctx.program = program
        ctx.save_for_backward(*arrays)
        ctx.save_for_forward(*arrays)
        result: Tensor = torch.ops.numscorch.run(program, arrays)
        return result

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """The tangent of a function that is linear in each operand: the sum of the results with one operand's tangent in its place.

        Raises:
            UnsupportedError: the function is not linear.
        """
        if program_of(ctx.program).name not in LINEAR:
            raise UnsupportedError(
                f"a tangent of {ctx.program}: a recorded program takes tangents of {', '.join(LINEAR)} only: use torch.func.jvp outside "
                "of torch.compile, make_fx and linearize"
            )
        arrays = ctx.saved_tensors
        places = [at for at in program_of(ctx.program).starts if tangents[1 + at] is not None]
        parts = [torch.ops.numscorch.run(ctx.program, [*arrays[:at], tangents[1 + at], *arrays[at + 1 :]]) for at in places]
        total: Tensor = reduce(add, parts)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        program = program_of(ctx.program)
        arrays = [unwrap_if_dead(tensor) for tensor in ctx.saved_tensors]  # a pullback may run after its transform
        wanted = [at for at, start in enumerate(program.starts) if ctx.needs_input_grad[1 + start]]
        if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (upstream, *arrays))):
            computed = torch.ops.numscorch.gradients(ctx.program, wanted, upstream, arrays)
        elif recorder() is None:  # the gradients may be differentiated again
            with outside_dispatch_modes():
                computed = program.recorded(wanted, upstream, arrays)
        elif program.is_contraction and program.kept is None and program.made is None:
            computed = [CALL(program.gradient_text(at), [*arrays, upstream]) for at in wanted]
        else:
            with within_transform():
                computed = _Once.apply(ctx.program, wanted, upstream, *arrays)  # type: ignore[attr-defined]
        gradients: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        for at, gradient in zip(wanted, computed, strict=True):
            gradients[1 + program.starts[at]] = gradient
        return tuple(gradients)


class _Once(_SingleLevelFunction):
    """Gradients in a recorded program, which cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, program: str, wanted: Sequence[int], upstream: Tensor, *arrays: Tensor) -> tuple[Tensor, ...]:
        ctx.program = program
        return tuple(torch.ops.numscorch.gradients(program, wanted, upstream, arrays))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> None:
        raise UnsupportedError(f"second derivatives of {ctx.program} in a recorded or compiled program: compute them outside of it")


def _call(program: str, arrays: Sequence[Tensor]) -> Tensor:
    if (torch.is_grad_enabled() and any(array.requires_grad for array in arrays)) or is_forward(arrays):
        if in_transform() and is_nested(arrays):
            raise UnsupportedError(
                f"nested derivatives of {program} in a recorded or compiled program: compute the inner one outside of it, for example by "
                "calling torch.func.grad without torch.compile and make_fx"
            )
        with within_transform():
            result: Tensor = _Differentiable.apply(program, *arrays)  # type: ignore[attr-defined]
    else:
        result = torch.ops.numscorch.run(program, arrays)
    return result


def _rows(in_dims: Sequence[int | None], size: int, arrays: Sequence[Tensor]) -> list[list[Tensor]]:
    """The tensors of each row of a batch."""
    pairs = list(zip(arrays, in_dims, strict=True))
    return [[array if dim is None else array.select(dim, at) for array, dim in pairs] for at in range(size)]


def _run_batch(info: Any, in_dims: Any, program: str, arrays: Sequence[Tensor]) -> tuple[Tensor, int]:
    """The results for a batch: of a contraction with dense operands by one call, of others row by row."""
    dims, known = in_dims[1], program_of(program)
    batched = {at for at, start in enumerate(known.starts) if dims[start] is not None}
    if known.key is not None and all(known.formats[at] is None for at in batched):
        text = known.with_batch(batched)
        moved = [array if dim is None else array.movedim(dim, 0) for array, dim in zip(arrays, dims, strict=True)]
        return torch.ops.numscorch.call(text, moved), 0
    if not info.batch_size:
        return known.like(_empty_row(dims, arrays))[None][:0], 0
    return torch.stack([torch.ops.numscorch.call(program, row) for row in _rows(dims, info.batch_size, arrays)]), 0


def _empty_row(in_dims: Sequence[int | None], arrays: Sequence[Tensor]) -> list[Tensor]:
    """Zeros like a row of a batch without rows."""
    pairs = zip(arrays, in_dims, strict=True)
    return [a if dim is None else a.new_zeros([size for at, size in enumerate(a.shape) if at != dim]) for a, dim in pairs]


def _gradients_of_batch(
    info: Any, in_dims: Any, program: str, wanted: Any, upstream: Tensor, arrays: Any
) -> tuple[list[Tensor], list[int]]:
    """The gradients for a batch, row by row."""
    if not info.batch_size:
        like = _gradients_like(program, wanted, upstream, _empty_row(in_dims[3], arrays))
        return [gradient[None][:0] for gradient in like], [0] * len(wanted)
    rows = _rows([in_dims[2], *in_dims[3]], info.batch_size, [upstream, *arrays])
    computed = [torch.ops.numscorch.gradients(program, wanted, first, others) for first, *others in rows]
    return [torch.stack(column) for column in zip(*computed, strict=True)], [0] * len(wanted)


def _run(program: str, arrays: Sequence[Tensor]) -> Tensor:
    with outside_forward_mode():
        return program_of(program).run(arrays)


def _like(program: str, arrays: Sequence[Tensor]) -> Tensor:
    return program_of(program).like(arrays)


def _gradients(program: str, wanted: Sequence[int], upstream: Tensor, arrays: Sequence[Tensor]) -> list[Tensor]:
    with outside_forward_mode():
        return program_of(program).gradients(wanted, upstream, arrays)


def _gradients_like(program: str, wanted: Sequence[int], upstream: Tensor, arrays: Sequence[Tensor]) -> list[Tensor]:
    starts = program_of(program).starts
    return [arrays[starts[at]].new_empty(arrays[starts[at]].shape) for at in wanted]


@register_flop_formula(torch.ops.numscorch.run)
def _operations(program: str, arrays: Sequence[Sequence[int]], *args: Any, **kwargs: Any) -> int:
    return program_of(program).operations(arrays)


@register_flop_formula(torch.ops.numscorch.gradients)
def _operations_of_gradients(program: str, wanted: Sequence[int], upstream: Any, arrays: Sequence[Sequence[int]], **kwargs: Any) -> int:
    return program_of(program).operations(arrays) * len(wanted)


LIBRARY.impl("call", _call, "CompositeImplicitAutograd")
LIBRARY.impl("run", _run, "CPU")
LIBRARY.impl("gradients", _gradients, "CPU")
torch.library.register_vmap("numscorch::call", _run_batch, lib=LIBRARY)
torch.library.register_vmap("numscorch::run", _run_batch, lib=LIBRARY)
torch.library.register_vmap("numscorch::gradients", _gradients_of_batch, lib=LIBRARY)
torch.library.register_fake("numscorch::run", _like, lib=LIBRARY)
torch.library.register_fake("numscorch::gradients", _gradients_like, lib=LIBRARY)
