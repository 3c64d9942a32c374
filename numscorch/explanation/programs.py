"""Explanations of programs: the parts that fuse into one kernel, why other parts run alone, and how gradients are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..convert.values import to_dense
from ..errors import ExpressionError, SizeError, UnsupportedError
from ..frontend.datatypes import STORED
from ..frontend.fused_problem import FusedRequest, valued
from ..frontend.gradient_requests import CONSTANT
from ..frontend.requests import NAMES, Operand, Request, einsum_request, only_patterns, scheduled
from ..frontend.statements import ProgramPart, parse_program
from ..ir.format import Format, dense
from ..ir.index import Access, IndexVar, TensorVar, mapped
from ..machine import kernel_cache
from ..programs.adjoints import UPSTREAM, Adjoint, made_adjoint
from ..programs.derived_operands import with_derived
from ..programs.evaluation import check_sizes, prepare
from ..programs.fused_calls import widened_operand
from ..programs.fusion import NotFused, ProgramStep, kinds_of, why_alone
from ..programs.pairing import paired
from ..programs.steps import Steps
from ..runtime.plans import compile_source, compile_tuned, describe, describe_all
from ..sparsifiers.base import named
from ..sparsifiers.results import pruned
from ..sparsifiers.sparsify import named_in_errors
from ..tensors.parameter import unwrapped
from ..tensors.sparse_tensor import SparseTensor
from .explanation import Explanation, as_computed, assumed, described, explained, read_format, read_formats
from .sketches import sketch_of


def explain_program(text: str, given: Mapping[str, Any], format: Format | str | None, sparsifier: Any = None) -> Explanation:
    """Explain each kernel of a program, with the sparsifier of its result fused into the last kernel if possible.

    Returns the last kernel's explanation; ``before`` holds the earlier ones.

    Raises:
        ExpressionError: an operand is missing.
        UnsupportedError: torch computes every part.
    """
    if sparsifier is None:
        return _explain_parts(text, given, format, parse_program(text))
    sparsifier = named(sparsifier)
    fused = pruned(text, given, sparsifier)
    if isinstance(fused, str):
        story = explain_program(text, given, None)
        note = f"\n{named_in_errors(sparsifier)} sparsifies the complete result, not in its kernel: {fused}"
        return replace(story, after=(*story.after, note))
    parts, numbers = fused
    return _explain_parts(text, {**given, **numbers}, None, parts)  # the result is converted to another format afterwards


def _explain_parts(text: str, given: Mapping[str, Any], format: Format | str | None, parts: tuple[ProgramPart, ...]) -> Explanation:
    given = dict(given)
    with_derived(text, parts, given)
    missing = sorted({name for part in parts for name in part.operands} - {part.name for part in parts} - set(given))
    if missing:
        raise ExpressionError(f"operands: {', '.join(missing)} missing\n  {text}     give each tensor, or its format, by name, such as A=A")
    explainer = _ProgramExplainer(text, parts, format)
    explainer.read(given)
    explainer.explain(Steps(parts, explainer.known, format, explainer.fused))
    return explainer.result()


def explain_einsum(expr: str | Request, given: Sequence[Any], format: Format | str | None, schedule: str | None = None) -> Explanation:
    """Explain the kernels that einsum runs for a text or a request, including boolean requests and pairwise contractions.

    Args:
        expr: the text or the request.
        given: tensors; with a text ``expr``, also formats or their texts.
        format: the result's format; None infers it.
        schedule: the schedule of a text; None infers it.

    Raises:
        UnsupportedError: every operand is dense.
    """
    operands = read_formats(expr, given) if isinstance(expr, str) and any(isinstance(operand, str) for operand in given) else given
    operands = list(map(explained, operands))
    has_formats = any(isinstance(operand, Format) for operand in operands)
    known = [assumed(o) if isinstance(o, Format) else describe(o) for o in operands] if has_formats else describe_all(operands)
    request = einsum_request(expr, tuple(len(operand.shape) for operand in known)) if isinstance(expr, str) else expr
    request = request if schedule is None else scheduled(request, schedule)
    text = str(request if schedule is not None else expr)
    if all(operand.format.is_dense for operand in known):
        raise UnsupportedError(
            f"every operand of {text!r} is dense: einsum hands it to torch.einsum, and nothing is compiled; give one a sparse format"
        )
    parts = paired(request, known)
    if len(parts) > 1:
        explainer = _ProgramExplainer(text, parts, format)
        explainer.read(dict(zip(NAMES, operands, strict=False)))
        for part in parts:
            explainer.explain_part(part, format if part is parts[-1] else None, None)
        return explainer.result()
    dtypes = [torch.float32 if isinstance(operand, Format) else operand.dtype for operand in operands]
    request, computed, _ = as_computed(request, known, dtypes)
    compiled, problem, steps, source = compile_tuned(request, computed, format)
    by = "requested:" if compiled is request else "chosen by autotune:"
    steps = tuple([replace(step, why=step.why.replace("requested:", by)) for step in steps])
    path = kernel_cache.store(source.name, source.text)
    return Explanation(f"einsum {text}", computed, problem, steps, source, path, compiled, sketches=tuple(map(sketch_of, operands)))


@dataclass(slots=True)
class _ProgramExplainer:
    """Explains a program part by part, and tracks the descriptions of its tensors.

    Args:
        text: the program.
        parts: its parts.
        format: the format of its result.
        known: each tensor as the kernel of a single part reads it.
        fused: each tensor as a fused kernel reads it; operands that share a pattern are ``beside`` the same one.
        requires_grad: the names of tensors that require grad.
        dtypes: the data types of the tensors.
        sketches: sketches of the operands.
        stories: the results so far: an explanation per kernel, and a line per part that torch computes.
    """

    text: str
    parts: tuple[ProgramPart, ...]
    format: Format | str | None
    known: dict[str, Operand] = field(default_factory=dict)
    fused: dict[str, Operand] = field(default_factory=dict)
    requires_grad: set[str] = field(default_factory=set)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    sketches: dict[str, Any] = field(default_factory=dict)
    stories: list[Explanation | str] = field(default_factory=list)

    def read(self, given: Mapping[str, Any]) -> None:
        """Describe the operands, or the formats that stand for them."""
        orders = {n: len(term) for p in self.parts for n, term in zip(p.operands, p.request.subscripts.operands, strict=True)}
        for name, value in given.items():
            operand = unwrapped(read_format(value, orders.get(name, 2)))
            if isinstance(operand, Format):
                self.known[name] = self.fused[name] = assumed(operand)
                self.dtypes[name] = torch.float32
                continue
            self.known[name] = self.fused[name] = describe(explained(operand))
            self.dtypes[name] = explained(operand).dtype
            self.sketches[name] = sketch_of(explained(operand))
            if isinstance(operand, SparseTensor | torch.Tensor) and operand.ndim:
                fused = widened_operand(operand.detach() if isinstance(operand, torch.Tensor) else operand)
                self.fused[name] = describe(to_dense(fused) if isinstance(fused, SparseTensor) and fused.pattern.is_dense else fused)
                if torch.is_grad_enabled() and (operand.values if isinstance(operand, SparseTensor) else operand).requires_grad:
                    self.requires_grad.add(name)
        prepare(self.text, self.parts, self.known)
        patterns = [value.pattern if isinstance(value, SparseTensor) else None for value in map(unwrapped, given.values())]
        for name, pattern in zip(given, patterns, strict=True):
            if pattern is not None:
                self.fused[name] = replace(self.fused[name], beside=[p is pattern for p in patterns].index(True))

    def explain(self, steps: Steps) -> None:
        """Explain the kernels of all steps."""
        note: tuple[str, str] | None = None
        for step in steps:
            self.parts = steps.parts
            if not isinstance(step.request, FusedRequest):
                self._explain_alone(step, steps, note)
                note = None
            else:
                note = self._explain_group(step, step.request, steps.at)
                if note is not None:
                    steps.refuse()

    def _explain_alone(self, step: ProgramStep, steps: Steps, note: tuple[str, str] | None) -> None:
        """Explain a part that has a kernel of its own; ``note`` says why its group was refused."""
        (part,), at = step.parts, steps.at - 1
        if part.request.form.prunes:
            self.stories.append(f"{part.name} = {part.request}: a conversion kernel prunes the complete result")
            return
        why_not = why_alone(self.parts, at, self.fused) if note is None else None
        if note is None and why_not is None and at < len(self.parts) - 1:
            why_not = f"format={str(self.format)!r} is requested"
        self.explain_part(part, step.format, note or (("alone", f"not fused with the next part: {why_not}") if why_not else None))

    def _explain_group(self, step: ProgramStep, request: FusedRequest, end: int) -> tuple[str, str] | None:
        """Explain the kernel of several parts, of which ``end`` is the last; if gradients need separate kernels, only return the reason."""
        wanted = tuple(NAMES[n] for n, name in enumerate(step.operands) if name in self.requires_grad)
        try:
            sharing = kinds_of({letter: self.fused[name] for letter, name in zip(NAMES, step.operands, strict=False)})
            kinds = tuple([kind for kind in sharing.values() if kind is not None])
            self._explain_fused(step, made_adjoint(request, kinds, wanted) if wanted else None)
        except SizeError:
            for part in step.parts:
                self.explain_part(part, None, None)  # raises an error that names the failing part
            raise
        except NotFused as why:
            return "gradient", f"parts {end - len(step.parts) + 1} to {end} run separately: {why}"
        return None

    def result(self) -> Explanation:
        """The last kernel's explanation. It holds the earlier ones and the lines of the parts that torch computes."""
        compiled = [(at, story) for at, story in enumerate(self.stories) if isinstance(story, Explanation)]
        if not compiled:
            raise UnsupportedError(f"{self.stories[-1]}\n  {self.text}     this program compiles no kernel")
        at, last = compiled[-1]
        return replace(last, before=tuple(self.stories[:at]), after=tuple(f"\n{story}" for story in self.stories[at + 1 :]))

    def explain_part(self, part: ProgramPart, format: Format | str | None, note: tuple[str, str] | None) -> None:
        """Explain the kernel of one part, whose result has this format; None if it is inferred."""
        check_sizes(self.text, self.parts, part, self.known)
        known = tuple(self.known[name] for name in part.operands)
        request, operands, dtype = as_computed(part.request, known, [self.dtypes[name] for name in part.operands])
        needs_grad = part.request.op != CONSTANT and any(
            name in self.requires_grad for n, name in enumerate(part.operands) if n not in only_patterns(part.request)
        )
        if all(operand.format.is_dense for operand in operands):
            self.stories.append(f"{part.name} = {part.request}: every operand is dense, so torch computes it")
            sizes, result = part.request.subscripts.sizes([operand.shape for operand in operands]), part.request.subscripts.result
            self._add_result(part, dense(len(result)), tuple(sizes[name] for name in result), dtype, needs_grad)
            return
        story = self._story(str(part.request), request, operands, part.operands, (note,) if note else (), format)
        self.stories.append(story)
        self._add_result(part, story.problem.format, story.problem.shape, dtype, needs_grad)

    def _explain_fused(self, step: ProgramStep, adjoint: Adjoint | None) -> None:
        operands = tuple(self.fused[name] for name in step.operands)
        text = "in one kernel:\n" + "\n".join(f"  {spelled(part)}" for part in step.parts)
        request = step.request if adjoint is None else adjoint.forward
        story = self._story(text, request, operands, step.operands, (), None)
        if adjoint is not None:
            story = replace(story, notes=(("gradient", _gradient(adjoint, step, operands, story.problem.shape)),))
        self.stories.append(story)
        result = story.problem.result
        self._add_result(step.parts[-1], story.problem.format, story.problem.shape, getattr(torch, result.dtype), adjoint is not None)

    def _story(
        self,
        text: str,
        request: Request,
        operands: tuple[Operand, ...],
        names: Sequence[str],
        notes: tuple[tuple[str, str], ...],
        format: Format | str | None,
    ) -> Explanation:
        """The explanation of one kernel, with the names and the sketches of its operands."""
        problem, steps, source = compile_source(request, operands, format)
        path = kernel_cache.store(source.name, source.text)
        labels, sketches = tuple(map(_label, names)), tuple(map(self.sketches.get, names))
        return Explanation(f"evaluate {text}", operands, problem, steps, source, path, request, labels, notes=notes, sketches=sketches)

    def _add_result(self, part: ProgramPart, format: Format, shape: tuple[int, ...], dtype: torch.dtype, needs_grad: bool) -> None:
        self.known[part.name] = self.fused[part.name] = described(format, shape, STORED[dtype].computed)
        self.dtypes[part.name] = dtype
        if needs_grad:
            self.requires_grad.add(part.name)


def _gradient(adjoint: Adjoint, step: ProgramStep, operands: Sequence[Operand], shape: tuple[int, ...]) -> str:
    """A note that lists the kernels of the gradients, in execution order, and the values that the forward kernel saves for them."""
    request, dtype = adjoint.forward, operands[valued(adjoint.forward)[0]].dtype
    terms = zip(request.subscripts.operands, operands, strict=True)
    sizes = {name: size for names, operand in terms for name, size in zip(names, operand.shape, strict=True)}

    def numbers(indices: Sequence[IndexVar | str]) -> Operand:
        return described(dense(len(indices)), tuple(sizes[str(index)] for index in indices), dtype)

    known = dict(zip(NAMES, operands, strict=False))
    known[UPSTREAM] = known[request.owner.tensor.name] if request.keeps and request.owner else described(dense(len(shape)), shape, dtype)
    known |= {member.name: numbers(member.indices) for member in request.members if member.name in request.returned}
    wanted = {gradients: step.operands[NAMES.index(letter)] for letter, gradients in adjoint.gradients.items()}
    lines = []
    for run in adjoint.runs:
        given = tuple(known[name] if run.format is None else _transposed(known[name], run.format) for name in run.operands)
        source = compile_source(run.request, given, None)[2]
        kernel_cache.store(source.name, source.text)
        name, *returned = run.names
        lines.append(f"{source.name} for {_label(wanted[name]) if name in wanted else name}{'' if run.format is None else ', by columns'}")
        gradients = {member.name: member.indices for member in run.request.members}
        known[name] = numbers(run.request.subscripts.result)
        known |= {operand: numbers(gradients[member]) for operand, member in zip(returned, run.request.returned, strict=True)}
    saved = f"; this kernel saves {', '.join(request.returned)} for them" if request.returned else ""
    return f"fused: {'; '.join(lines)}{saved}"


def _transposed(operand: Operand, format: Format) -> Operand:
    """The description of a sparse matrix converted to ``format``, with transposed storage order; dense operands are returned unchanged."""
    if operand.format.is_dense:
        return operand
    return replace(operand, format=format, counts=(operand.shape[format.mode_order[0]], operand.counts[-1]))


def spelled(part: ProgramPart) -> str:
    """A part as a statement that uses the tensors' names.

    >>> [spelled(part) for part in parse_program("y[i] = relu(A[i,j] * x[j]) + b[i]")]
    ['result_1[i] = A[i,j] * x[j]', 'y[i] = relu(result_1[i]) + b[i]']
    """
    names = [_label(name, "_") for name in part.operands]
    lhs = Access(
        TensorVar(_label(part.name, "_"), dense(len(part.request.subscripts.result))), tuple(map(IndexVar, part.request.subscripts.result))
    )
    value = part.request.value
    if value is None:
        raise TypeError(f"{part} has no value")
    named = mapped(value, lambda a: a.with_changes(name=names[NAMES.index(a.tensor.name)]))
    return f"{lhs} {part.request.op} {named}"


def _label(name: str, joint: str = " ") -> str:
    return f"result{joint}{name}" if name.isdigit() else name
