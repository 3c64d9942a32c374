"""Explanations of programs: which parts one kernel computes, why others run alone, and how gradients are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..compute.dispatch import pairs_for
from ..compute.operands import strided
from ..errors import ExpressionError, SizeError, UnsupportedError
from ..frontend.datatypes import COMPILED, WIDENED
from ..frontend.fused_problem import valued
from ..frontend.gradient_requests import CONSTANT
from ..frontend.operand import Operand
from ..frontend.statements import NAMES, ProgramPart, Request, einsum_request, only_patterns, parse_program, scheduled
from ..ir.format import Format, dense
from ..ir.index import Access, IndexVar, TensorVar, mapped
from ..machine import kernel_cache
from ..programs.adjoints import UPSTREAM, Adjoint, made_adjoint
from ..programs.derived_operands import with_derived
from ..programs.evaluation import format_of
from ..programs.fused_operands import widened_operand
from ..programs.fusion import Group, NotFused, OperandKind, group_from, why_alone
from ..programs.pairing import in_pairs, parts_of
from ..programs.sizes import check_sizes
from ..runtime.plans import compile_source, describe
from ..sparsifiers.results import pruned
from ..tensors.parameter import unwrapped
from ..tensors.sparse_tensor import SparseTensor
from .explanation import Explanation, as_computed, assumed, described, explain_problem, explained, read_format, read_formats


def explain_program(
    text: str, given: Mapping[str, Any], format: Format | str | None, parts: tuple[ProgramPart, ...] | None = None
) -> Explanation:
    """The story of each kernel of a program, the last one's with those before it; what kernels make is described as they leave it.

    Raises:
        ExpressionError: an operand is missing.
        UnsupportedError: every part is torch's.
    """
    parts = parse_program(text) if parts is None else parts
    given = dict(given)
    with_derived(text, parts, given)
    missing = sorted({name for part in parts for name in part.operands} - {part.name for part in parts} - set(given))
    if missing:
        raise ExpressionError(f"operands: {', '.join(missing)} missing\n  {text}     give each tensor, or its format, by its name, as A=A")
    telling = _Telling(text, parts, format)
    telling.read(given)
    at = 0
    while at < len(telling.parts):
        at = telling.tell(at)
    return telling.finished()


def explain_sparsified(text: str, given: Mapping[str, Any], sparsifier: Any, format: Format | str | None) -> Explanation:
    """The story of a program whose result is sparsified: with its last part, where the kernel that makes it stores what is kept."""
    from ..sparsifiers.names import named
    from ..sparsifiers.sparsify import named_in_errors  # late: it is built on einsum

    kept = named(sparsifier)
    pruned_stories = pruned(text, given, kept)
    if isinstance(pruned_stories, str):
        story = explain_program(text, given, None)
        return replace(story, after=(*story.after, f"\n{named_in_errors(kept)}: of the result, once it is there: {pruned_stories}"))
    parts, numbers, _ = pruned_stories
    return explain_program(text, {**given, **numbers}, None, parts)  # another format is made of what this one holds


def explain_einsum(expr: str | Request, given: Sequence[Any], format: Format | str | None, schedule: str | None = None) -> Explanation:
    """The story of the kernels that einsum runs for a text or a request: of truth values, and in pairs, where it does so.

    Args:
        expr: the text or the request.
        given: tensors; for a text, also formats or their texts.
        format: of the result.
        schedule: for a text.

    Raises:
        UnsupportedError: every operand is dense.
    """
    operands = read_formats(expr, given) if isinstance(expr, str) and any(isinstance(operand, str) for operand in given) else given
    operands = list(map(explained, operands))
    known = [assumed(operand) if isinstance(operand, Format) else describe(operand) for operand in operands]
    orders = tuple(len(operand.shape) for operand in known)
    request = einsum_request(expr, orders) if isinstance(expr, str) else expr
    request = request if schedule is None else scheduled(request, schedule)
    pairs = () if all(operand.format.is_dense for operand in known) else pairs_for(request, known)
    text = str(request if schedule is not None else expr)
    if not pairs:
        return explain_problem(request, operands, format, text)
    telling = _Telling(text, parts_of(request.subscripts, pairs), format)
    telling.read(dict(zip(NAMES, operands, strict=False)))
    for at, pair in enumerate(pairs):
        telling.alone(at, None, einsum_request(pair.expr, tuple(map(len, pair.expr.partition("->")[0].split(",")))))
    return telling.finished()


@dataclass(slots=True)
class _Telling:
    """What is known of tensors while a program is explained.

    Args:
        text, parts, format: the program, its parts, and the format of its result.
        known: each tensor, as the kernel of one part reads it.
        fused: the same, as fused kernels read it.
        dtypes: the data types of tensors.
        moving: the tensors that require grad.
        drawn: sketches of the operands.
        stories: the explanations so far, one for each kernel; of what torch computes, a line.
    """

    text: str
    parts: tuple[ProgramPart, ...]
    format: Format | str | None
    known: dict[str, Operand] = field(default_factory=dict)
    fused: dict[str, Operand] = field(default_factory=dict)
    moving: set[str] = field(default_factory=set)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    drawn: dict[str, Any] = field(default_factory=dict)
    stories: list[Explanation | str] = field(default_factory=list)

    def read(self, given: Mapping[str, Any]) -> None:
        """Take the operands, or the formats that stand for them."""
        from .sketches import sketch_of  # late: nothing of pages is imported before it is asked for

        orders = {n: len(term) for p in self.parts for n, term in zip(p.operands, p.request.subscripts.operands, strict=True)}
        for name, value in given.items():
            operand = read_format(value, orders.get(name, 2))
            if isinstance(operand, Format):
                self.known[name] = self.fused[name] = assumed(operand)
                self.dtypes[name] = torch.float32
                continue
            self.known[name] = describe(explained(operand))
            self.dtypes[name] = explained(operand).dtype
            self.drawn[name] = sketch_of(explained(operand))
            operand = unwrapped(operand)
            if isinstance(operand, SparseTensor | torch.Tensor) and operand.ndim:
                self.fused[name] = _as_fused(operand)
                if torch.is_grad_enabled() and (operand.values if isinstance(operand, SparseTensor) else operand).requires_grad:
                    self.moving.add(name)
            else:
                self.fused[name] = self.known[name]

    def tell(self, at: int) -> int:
        """Tell the kernel that computes the part at this place; the place after what it computes."""
        self.parts = in_pairs(self.parts, at, self.known)
        group = group_from(self.parts, at, self.fused, self.format)
        if group is not None:
            wanted = tuple(NAMES[n] for n, name in enumerate(group.operands) if name in self.moving)
            try:
                self._fused(at, group, self._adjoint(group, wanted) if wanted else None)
                return group.end
            except SizeError:
                for one in range(at, group.end):
                    self.alone(one, None)  # the error speaks of the part that does not fit
                raise
            except NotFused as why:
                self.alone(at, ("gradient", f"part by part: parts {at + 1} to {group.end} would be one kernel, but {why}"))
                return at + 1
        if self._after_all(at):
            return at + 1
        why_not = why_alone(self.parts, at, self.fused)
        if why_not is None and at < len(self.parts) - 1:
            why_not = f"format={str(self.format)!r} is asked for"
        self.alone(at, ("alone", f"not fused with the next part: {why_not}") if why_not else None)
        return at + 1

    def finished(self) -> Explanation:
        """The last kernel's story, with those before it, and parts of torch's after it."""
        compiled = [at for at, story in enumerate(self.stories) if isinstance(story, Explanation)]
        if not compiled:
            raise UnsupportedError(f"{self.stories[-1]}\n  {self.text}     nothing is compiled for it")
        last = self.stories[compiled[-1]]
        after = tuple(f"\n{story}" for story in self.stories[compiled[-1] + 1 :])
        if not isinstance(last, Explanation):
            raise TypeError("a story of torch's has no kernel")
        return replace(last, before=tuple(self.stories[: compiled[-1]]), after=after)

    def _after_all(self, at: int) -> bool:
        """Whether a part is what sparsifies the result once it is there."""
        if not self.parts[at].request.form.prunes:
            return False
        self.stories.append(f"{self.parts[at].name} = {self.parts[at].request}: of the result, once it is there, by a conversion's kernel")
        return True

    def alone(self, at: int, note: tuple[str, str] | None, request: Request | None = None) -> None:
        """Tell the kernel of one part, which is computed as another request where there is one."""
        part = self.parts[at]
        check_sizes(self.text, self.parts, part, self.known)
        known = tuple(self.known[name] for name in part.operands)
        request, operands, dtype = as_computed(request or part.request, known, [self.dtypes[name] for name in part.operands])
        is_moved = part.request.op != CONSTANT and any(
            name in self.moving for n, name in enumerate(part.operands) if n not in only_patterns(part.request)
        )
        if all(operand.format.is_dense for operand in operands):
            self.stories.append(f"{part.name} = {part.request}: every operand is dense, so this is torch's")
            self._add_result(part, dense(len(part.request.subscripts.result)), shape_of(part.request, operands), dtype, is_moved)
            return
        asked = self.format if at == len(self.parts) - 1 and self.format is not None else format_of(part, self.parts)
        story = _story(str(part.request), request, operands, tuple(map(_called, part.operands)), (note,) if note else (), asked)
        self.stories.append(self._drawn(story, part.operands))
        self._add_result(part, story.problem.format, story.problem.shape, dtype, is_moved)

    def _fused(self, at: int, group: Group, adjoint: Adjoint | None) -> None:
        parts = self.parts[at : group.end]
        operands = tuple(self.fused[name] for name in group.operands)
        text = "in one kernel:\n" + "\n".join(f"  {spelled(part)}" for part in parts)
        request = group.request if adjoint is None else adjoint.forward
        story = _story(text, request, operands, tuple(map(_called, group.operands)), (), None)
        if adjoint is not None:
            story = replace(story, notes=(("gradient", _gradient(adjoint, group, operands, story.problem.shape)),))
        self.stories.append(self._drawn(story, group.operands))
        dtype = getattr(torch, story.problem.result.dtype)
        self._add_result(parts[-1], story.problem.format, story.problem.shape, dtype, adjoint is not None)

    def _drawn(self, story: Explanation, names: Sequence[str]) -> Explanation:
        """A kernel's story, with what is drawn of those operands that were given."""
        return replace(story, sketches=tuple(map(self.drawn.get, names)))

    def _adjoint(self, group: Group, wanted: tuple[str, ...]) -> Adjoint:
        kinds = tuple(kind for name in group.operands if (kind := OperandKind.of(self.fused[name])) is not None)
        return made_adjoint(group.request, kinds, wanted)

    def _add_result(self, part: ProgramPart, format: Format, shape: tuple[int, ...], dtype: torch.dtype, is_moved: bool) -> None:
        self.known[part.name] = self.fused[part.name] = described(format, shape, COMPILED[WIDENED.get(dtype, dtype)])
        self.dtypes[part.name] = dtype
        if is_moved:
            self.moving.add(part.name)


def _as_fused(operand: SparseTensor | torch.Tensor) -> Operand:
    fused = widened_operand(operand.detach() if isinstance(operand, torch.Tensor) else operand)
    return describe(strided(fused) if isinstance(fused, SparseTensor) and fused.pattern.is_dense else fused)


def _story(
    text: str,
    request: Request,
    operands: tuple[Operand, ...],
    names: tuple[str, ...],
    notes: tuple[tuple[str, str], ...],
    format: Format | str | None,
) -> Explanation:
    """The explanation of one kernel of a program."""
    problem, steps, source = compile_source(request, operands, format)
    path = kernel_cache.store(source.name, source.text)
    return Explanation(f"evaluate {text}", operands, problem, steps, source, path, request, names, notes=notes)


def _gradient(adjoint: Adjoint, group: Group, operands: Sequence[Operand], shape: tuple[int, ...]) -> str:
    """Which kernels compute the gradients, in this order, and what the forward kernel keeps for them."""
    request, dtype = adjoint.forward, operands[valued(adjoint.forward)[0]].dtype
    terms = zip(request.subscripts.operands, operands, strict=True)
    sizes = {name: size for names, operand in terms for name, size in zip(names, operand.shape, strict=True)}

    def numbers(indices: Sequence[IndexVar | str]) -> Operand:
        return described(dense(len(indices)), tuple(sizes[str(index)] for index in indices), dtype)

    known = dict(zip(NAMES, operands, strict=False)) | {UPSTREAM: described(dense(len(shape)), shape, dtype)}
    known |= {member.name: numbers(member.indices) for member in request.members if member.name in request.returned}
    wanted = {gradients: group.operands[NAMES.index(letter)] for letter, gradients in adjoint.gradients.items()}
    lines = []
    for run in adjoint.runs:
        given = tuple(known[name] if run.format is None else _transposed(known[name], run.format) for name in run.operands)
        source = compile_source(run.request, given, None)[2]
        kernel_cache.store(source.name, source.text)
        name, *returned = run.names
        lines.append(f"{source.name} for {_called(wanted[name]) if name in wanted else name}{'' if run.format is None else ', by columns'}")
        gradients = {member.name: member.indices for member in run.request.members}
        known[name] = numbers(run.request.subscripts.result)
        known |= {operand: numbers(gradients[member]) for operand, member in zip(returned, run.request.returned, strict=True)}
    kept = f"; this kernel returns {', '.join(request.returned)} for them" if request.returned else ""
    return f"fused: {'; '.join(lines)}{kept}"


def _transposed(operand: Operand, format: Format) -> Operand:
    """A sparse matrix in the other order; a dense tensor as it is."""
    if operand.format.is_dense:
        return operand
    return replace(operand, format=format, counts=(operand.shape[format.mode_order[0]], operand.counts[-1]))


def spelled(part: ProgramPart) -> str:
    """A part as a statement, of tensors' names.

    >>> [spelled(part) for part in parse_program("y[i] = relu(A[i,j] * x[j]) + b[i]")]
    ['result_1[i] = A[i,j] * x[j]', 'y[i] = relu(result_1[i]) + b[i]']
    """
    names = [_result(name) for name in part.operands]
    lhs = Access(
        TensorVar(_result(part.name), dense(len(part.request.subscripts.result))), tuple(map(IndexVar, part.request.subscripts.result))
    )
    value = part.request.value
    if value is None:
        raise TypeError(f"{part} has no value")
    named = mapped(value, lambda a: Access(replace(a.tensor, name=names[NAMES.index(a.tensor.name)]), a.indices))
    return f"{lhs} {part.request.op} {named}"


def _result(name: str) -> str:
    return f"result_{name}" if name.isdigit() else name


def _called(name: str) -> str:
    return f"result {name}" if name.isdigit() else name


def shape_of(request: Request, operands: Sequence[Operand]) -> tuple[int, ...]:
    """The shape of a request's result."""
    sizes: dict[str, int] = {}
    for names, operand in zip(request.subscripts.operands, operands, strict=True):
        sizes |= {name: size for name, size in zip(names, operand.shape, strict=True) if sizes.get(name, 1) == 1}
    return tuple(sizes[name] for name in request.subscripts.result)
