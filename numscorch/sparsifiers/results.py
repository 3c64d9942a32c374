"""Sparsified results: the entries of a program's result that a sparsifier keeps, stored by the kernel that computes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..frontend.parser import parse_einsum
from ..frontend.requests import NAMES, Form
from ..frontend.statements import ProgramPart, parse_program, tensor_names
from ..ir.format import NM, Format, as_format, dense
from ..programs.call import EinsumCall
from ..programs.evaluation import computed, evaluate_parts
from ..programs.fusion import NotFused
from ..programs.operands import call_form, check_is_tensor, in_autocast
from ..programs.pairing import spelled_einsum
from ..tensors.modes import in_transform
from ..tensors.parameter import unwrapped
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .names import named
from .rules import PruningRule, ruled
from .sparsify import sparsify, usual_format


def evaluate_sparsified(text: str, given: Mapping[str, Any], sparsifier: Any, format: Format | str | None) -> SparseTensor:
    """Evaluate a program and sparsify its result.

    For streaming sparsifiers and ``n_m``, the kernel that computes the result stores only the kept entries, row by row,
    so the full result never exists. For other sparsifiers, and for results that torch computes, the full result is
    sparsified afterwards.
    """
    sparsifier = named(sparsifier)
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
    wanted = usual_format(sparsifier, kept.ndim) if format is None else as_format(format)
    in_blocks = _in_blocks(kept, parts[-1].request.form.largest, wanted)
    return kept.to(wanted) if in_blocks is None else in_blocks


def _in_blocks(kept: SparseTensor, largest: tuple[int, int] | None, format: Format) -> SparseTensor | None:
    """Convert the n largest of every m to ``NM`` without reordering; None for another format or for a partial last block."""
    if largest is None or kept.ndim != 2 or format != NM(*largest) or kept.shape[1] % largest[1]:
        return None
    crd, m = kept.pattern.level_arrays(1)[1], largest[1]
    places = crd & (m - 1) if m & (m - 1) == 0 else crd % m  # integer division takes ten times as long
    return SparseTensor(Pattern(format, tuple(kept.shape), ((), (), (torch.from_numpy(places),))), kept.values)


def pruned(text: str, given: Mapping[str, Any], sparsifier: Any) -> tuple[tuple[ProgramPart, ...], dict[str, Tensor]] | str:
    """Append a pruning part to a program, or say why there is none.

    Returns:
        the program whose last part stores the kept entries, and the operands of its rule; or, as text, the reason why a
        kernel cannot apply the sparsifier.
    """
    try:
        dtype, order = _kernel_dtype(text, given)
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
    dtypes = {operand.dtype for operand in values if isinstance(operand, SparseTensor | Tensor) and operand.ndim}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        names = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise NotFused(f"values are {names}: kernels compare float32 or float64 values, before any rounding")
    order = len(parse_program(text)[-1].request.subscripts.result)
    if order < 2:
        raise NotFused("the result has no rows")
    if torch.is_grad_enabled() and any(getattr(getattr(operand, "values", operand), "requires_grad", False) for operand in values):
        raise NotFused("gradients flow to its operands")
    return dtypes.pop(), order


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
