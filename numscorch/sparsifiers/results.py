"""Sparsified results: the entries of a program's result that a sparsifier keeps, stored by the kernel that computes them.

Kernels apply a sparsifier as a pruning rule: a condition on one value, or the choice of the n largest of every m values. The condition of
a streaming sparsifier is traced: the sparsifier runs once on a proxy, as ``fuse`` runs a function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from ..errors import UnsupportedError
from ..frontend.parser import parse_einsum
from ..frontend.requests import ANY_FORM, NAMES, Form, Request
from ..frontend.statements import ProgramPart, parse_program, tensor_names
from ..ir.format import NM, Format, as_format, dense
from ..ir.index import is_product
from ..programs import traced_calls as traced_calls  # registers the traceable functions
from ..programs.evaluation import computed, evaluate_parts
from ..programs.fusion import NotFused
from ..programs.gradients import attached
from ..programs.operands import EinsumCall, call_form, check_is_tensor, in_autocast
from ..programs.pairing import spelled_einsum
from ..programs.tracing import Stop, Traced, TracedNode, Tracer, at_work
from ..schedule.facts import AUTOMATIC
from ..tensors.modes import in_transform
from ..tensors.parameter import unwrapped
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .base import Kind, kept_by, kind_of, named
from .patterned import n_m, topk
from .registration import Registered
from .sparsify import sparsify, usual_format

LONGEST = 2000  # characters of a condition; a subexpression is repeated at each use
LARGEST = 64  # entries of a block; a kernel compares every pair of them
NUMBER = "sparsifier_number"  # name of the operands that hold a rule's numbers, so that a new number needs no new kernel
VALUE = "{}"  # placeholder of the value in a condition's text


def ruled(sparsifier: Any, order: int) -> tuple[PruningRule, dict[str, float]]:
    """Translate a sparsifier to a rule for tensors with ``order`` dimensions; return the rule, and its numbers by name.

    Raises:
        NotFused: the sparsifier needs more than one value or one block, or its operations cannot be traced.

    >>> from numscorch.sparsify import register_sparsifier, topk
    >>> large = register_sparsifier(lambda t: t * t > 4, kind="streaming", name="large")
    >>> rule, numbers = ruled(large, 2)
    >>> rule.value("C[i,j]"), numbers
    ('where((C[i,j] * C[i,j]) > sparsifier_number, C[i,j], 0)', {'sparsifier_number': 4.0})
    >>> ruled(topk(2), 2)
    Traceback (most recent call last):
    ...
    numscorch.programs.fusion.NotFused: it is blocking, and kernels support only the blocks of n_m
    """
    kind = kind_of(sparsifier)
    if isinstance(sparsifier, n_m) and type(sparsifier).__call__ is n_m.__call__ and sparsifier.rows == 1:
        if sparsifier.m > LARGEST:
            raise NotFused(f"its blocks have more than {LARGEST} entries, and a kernel would compare every pair")
        return PruningRule(largest=(sparsifier.n, sparsifier.m)), {}
    if kind is Kind.MATERIALIZING:
        raise NotFused("it is materializing: it needs all values, or the shape")
    if kind is Kind.BLOCKING:
        raise NotFused("it is blocking, and kernels support only the blocks of n_m")
    while isinstance(sparsifier, Registered):
        sparsifier = sparsifier.function
    answer = _trace(lambda value: kept_by(sparsifier, value), order)
    is_negation = answer.kind == "op" and answer.form == "==" and answer.args[0].is_test and answer.args[1].form == "0.0"
    top = answer.args[0] if is_negation else answer
    names: dict[float, str] = {}
    condition = _text(top, names)
    condition = condition[1:-1] if top.kind == "op" else condition
    return PruningRule(condition, is_negation), {name: number for number, name in names.items()}


def _trace(function: Callable[[Any], Any], order: int) -> TracedNode:
    """Trace a sparsifier's answer for a proxy.

    Raises:
        NotFused: the sparsifier cannot be traced, or it drops no value.
    """
    tracer = Tracer()
    try:
        with at_work(tracer):
            answer = function(tracer.operand(VALUE, (2,) * order, is_sparse=False))
        if tracer.stopped is not None:
            raise tracer.stopped
    except Stop as stop:
        raise NotFused(f"{stop}") from stop
    except Exception as error:  # any error: the sparsifier raises its own when it runs on the result
        raise NotFused(f"with a proxy instead of a tensor it raises {type(error).__name__}: {error}") from error
    if tracer.reads_sizes:
        raise NotFused("it reads the tensor's shape")
    if answer is True:
        raise NotFused("it keeps every value, so there is nothing to drop")
    if not isinstance(answer, Traced) or not answer._node.is_test or answer._node.shape != (2,) * order:
        raise NotFused("it does not return a comparison of the tensor's values")
    return answer._node


def _text(node: TracedNode, numbers: dict[float, str]) -> str:
    """Print a node as an expression of the value, in parentheses; numbers other than 0 and 1 become operands."""
    match node.kind:
        case "operand":
            return node.form
        case "number":
            return _number(float(node.form), numbers)
        case "op" | "call":
            texts = [_text(arg, numbers) for arg in node.args]
            text = f"({texts[0]} {node.form} {texts[1]})" if node.kind == "op" else f"{node.form}({', '.join(texts)})"
            if len(text) > LONGEST:
                raise NotFused("its condition would be too long")
            return text
        case _:
            raise NotFused(f"its decision on an entry reads other entries ({node.kind})")


def _number(value: float, numbers: dict[float, str]) -> str:
    """Return the number itself if it is 0 or 1, else the name of the operand that holds it."""
    if value in (0.0, 1.0):
        return f"{value:g}".replace("-", "")
    return numbers.setdefault(value, NUMBER if not numbers else f"{NUMBER}_{len(numbers) + 1}")


@dataclass(frozen=True, slots=True)
class PruningRule:
    """The rule by which a kernel keeps values.

    ``condition`` holds for the values that are kept, or, if ``negated``, for the values that are dropped. It is empty
    if the rule has no condition. If ``largest`` is (n, m), the rule keeps the n largest of every m values along the last
    dimension.
    """

    condition: str = ""
    negated: bool = False
    largest: tuple[int, int] | None = None

    def value(self, access: str) -> str:
        """Return the expression of the result: the value if it is kept, else 0.

        >>> PruningRule("abs({}) <= 2", negated=True).value("C[i,j]"), PruningRule().value("C[i,j]")
        ('where(abs(C[i,j]) <= 2, 0, C[i,j])', 'C[i,j]')
        """
        if not self.condition:
            return access
        kept = (f"0, {access}") if self.negated else f"{access}, 0"
        return f"where({self.condition.replace(VALUE, access)}, {kept})"


def evaluate_sparsified(text: str, given: Mapping[str, Any], sparsifier: Any, format: Format | str | None) -> SparseTensor:
    """Evaluate a program and sparsify its result.

    For streaming sparsifiers and ``n_m``, the kernel that computes the result stores only the kept entries, row by row,
    so the full result never exists. For other sparsifiers, and for results that torch computes, the full result is
    sparsified afterwards.
    """
    sparsifier = named(sparsifier)
    given = {name: attached(o) if isinstance(o, torch.Tensor) and o.layout is not torch.strided else o for name, o in given.items()}
    if isinstance(format, str) and format in ("dense", "infer", "auto"):
        stored = evaluate_sparsified(text, given, sparsifier, None)
        return stored.to(dense(stored.ndim)) if format == "dense" else stored
    pruned_ = pruned(text, given, sparsifier)
    if isinstance(pruned_, str):
        return sparsify(evaluate_parts(text, given, None), sparsifier, format)
    parts, numbers = pruned_
    result = computed(text, parts, {**given, **numbers}, None)
    if parts[-1].name not in result:
        return sparsify(result[parts[-2].name], sparsifier, format)
    kept: SparseTensor = result[parts[-1].name]
    if bool(kept.values.isnan().any()):
        return sparsify(evaluate_parts(text, given, None), sparsifier, format)  # most sparsifiers raise on NaN
    if format is None and parts[-1].request.form.row_limit:
        return kept
    wanted = usual_format(sparsifier, kept.ndim) if format is None else as_format(format)
    in_blocks = _in_blocks(kept, parts[-1].request.form.largest, wanted)
    return kept.to(wanted) if in_blocks is None else in_blocks


def _in_blocks(kept: SparseTensor, largest: tuple[int, int] | None, format: Format) -> SparseTensor | None:
    """Convert the n largest of every m entries to ``NM`` without reordering; None for another format or a partial last block."""
    if largest is None or kept.ndim != 2 or format != NM(*largest) or kept.shape[1] % largest[1]:
        return None
    crd, m = kept.pattern.level_arrays(1)[1], largest[1]
    places = crd & (m - 1) if m & (m - 1) == 0 else crd % m  # integer division takes ten times as long
    return SparseTensor(Pattern(format, tuple(kept.shape), ((), (), (torch.from_numpy(places),))), kept.values)


def pruned(text: str, given: Mapping[str, Any], sparsifier: Any) -> tuple[tuple[ProgramPart, ...], dict[str, torch.Tensor]] | str:
    """Append a pruning part to a program, or have its last part keep the largest entries of each row; else say why not.

    Returns:
        the program whose last part stores the kept entries, and the operands of its rule; or, as text, the reason why a
        kernel cannot apply the sparsifier.
    """
    try:
        dtype, order = _kernel_dtype(text, given)
        if isinstance(sparsifier, topk) and type(sparsifier).__call__ is topk.__call__:
            return _selecting(text, given, sparsifier), {}
        rule, numbers = ruled(sparsifier, order)
    except NotFused as why:
        return str(why)
    if clashing := set(numbers) & tensor_names(text):
        return f"the text has a tensor named {clashing.pop()}, and the kernel needs this name"
    return pruning(text, rule), {name: torch.tensor(number, dtype=dtype) for name, number in numbers.items()}


def sparsified_einsum(call: EinsumCall) -> SparseTensor:
    """Evaluate an einsum and sparsify its result.

    Raises:
        UnsupportedError: out=, reduce=, mask= or schedule= is given too.
    """
    if not call.takes_only("format", "sparsifier"):
        raise UnsupportedError(
            "sparsifier= together with out=, reduce=, mask= or schedule=: compute the result, and pass it to ns.sparsify.sparsify"
        )
    text, given = einsum_as_statement(call.expr, call.operands)
    if torch.is_autocast_enabled("cpu"):
        given = dict(zip(given, in_autocast(list(given.values())), strict=True))
    return evaluate_sparsified(text, given, call.sparsifier, call.format)


def einsum_as_statement(expr: Any, operands: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    """Return the statement of an einsum, and its operands by name."""
    expr, operands = call_form(expr, operands)
    for operand in operands:
        check_is_tensor(operand)
    return spelled_einsum(parse_einsum(expr, tuple(operand.ndim for operand in operands))), dict(zip(NAMES, operands, strict=False))


def _kernel_dtype(text: Any, given: Mapping[str, Any]) -> tuple[torch.dtype, int]:
    """Return the data type and the number of dimensions of a result that a kernel can prune.

    Raises:
        NotFused: gradients flow, a torch.func transform is active, the result is a vector, or the data types are not
            float32 or float64.
    """
    if in_transform():
        raise NotFused("a transform of torch.func is active")
    if not isinstance(text, str) or given.keys() != tensor_names(text):
        raise NotFused("its operands do not match the text")  # evaluate raises its own error
    values = [unwrapped(value) for value in given.values()]
    dtypes = {operand.dtype for operand in values if isinstance(operand, SparseTensor | torch.Tensor) and operand.ndim}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        names = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise NotFused(f"values are {names}: kernels compare float32 or float64 values, before any rounding")
    order = len(parse_program(text)[-1].request.subscripts.result)
    if order < 2:
        raise NotFused("the result has no rows")
    if torch.is_grad_enabled() and any(getattr(getattr(operand, "values", operand), "requires_grad", False) for operand in values):
        raise NotFused("gradients flow to its operands")
    return dtypes.pop(), order


def _selecting(text: str, given: Mapping[str, Any], sparsifier: topk) -> tuple[ProgramPart, ...]:
    """Return the product of sparse tensors of which a kernel keeps the largest entries of each row, when a row is complete.

    Raises:
        NotFused: it is no such product, or rows have fewer entries than are kept.
    """
    *before, part = parse_program(text)
    request, operands = part.request, [unwrapped(given[name]) for name in part.operands if name in given]
    order = len(request.subscripts.result)
    is_sum = request.op in ("=", "+=") and is_product(request.expr) and request.options == AUTOMATIC and request.form == ANY_FORM
    if before or not is_sum or not all(isinstance(o, SparseTensor) and o.format.is_plain and not o.format.is_dense for o in operands):
        raise NotFused("it is blocking, and kernels keep the largest entries of rows only in products of sparse tensors without blocks")
    sizes = request.subscripts.sizes([operand.shape for operand in operands])
    if order != 2 or sparsifier.dim not in (-1, 1):
        raise NotFused("kernels keep the largest entries only of rows of a matrix")
    length = sizes[request.subscripts.result[-1]]
    if not 0 < sparsifier.k <= length:
        raise NotFused(f"kernels keep at least one entry, and at most the {length} of a row")
    return (replace(part, request=_limited(request, sparsifier.k)),)


@lru_cache(maxsize=256)
def _limited(request: Request, limit: int) -> Request:
    """Return the request that keeps only the largest entries of each row, ``limit`` at most."""
    return replace(request, form=Form(row_limit=limit))


@lru_cache(maxsize=256)
def pruning(text: str, rule: PruningRule) -> tuple[ProgramPart, ...]:
    """Append to a program a part that keeps the entries of its result by a rule.

    >>> for part in pruning("y[i,k] = A[i,j] * x[j,k]", PruningRule("abs({}) <= 2", negated=True)):
    ...     print(part.name, part.operands, part.request)
    y ('A', 'x') A[i,j] * B[j,k] over ij,jk->ik
    kept ('y',) where(abs(A[i,k]) <= 2, 0, A[i,k]) over ik->ik
    """
    last = parse_program(text)[-1]
    access = f"{last.name}[{','.join(last.request.subscripts.result)}]"
    name = "kept"
    while name in {part.name for part in parse_program(text)} | tensor_names(text):
        name += "_"
    written = access.replace(last.name, name, 1)
    *parts, kept = parse_program(f"{text.strip().rstrip(';')}\n{written} = {rule.value(access)}")
    return (*parts, replace(kept, request=replace(kept.request, form=Form(prunes=True, largest=rule.largest))))
