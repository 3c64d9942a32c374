"""Sparsified results: of a program's result only what a sparsifier keeps, which a kernel of ours stores as it makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..compute.dispatch import current_transform
from ..compute.operands import call_form, check_is_tensor, in_autocast
from ..errors import UnsupportedError
from ..frontend.parser import parse_einsum
from ..frontend.statements import NAMES, Form, ProgramPart, parse_program, tensor_names
from ..ir.format import NM, Format, as_format, dense
from ..programs.evaluation import computed, evaluate_parts
from ..programs.fusion import NotFused
from ..programs.pairing import spelled_einsum
from ..tensors.parameter import unwrapped
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .names import named
from .rules import NotOne, PruningRule, ruled, usual_format
from .sparsify import sparsify


def evaluate_sparsified(text: str, given: Mapping[str, Any], sparsifier: Any, format: Format | str | None) -> SparseTensor:
    """A program's result, sparsified.

    What a streaming sparsifier keeps, and ``n_m``, is stored by the kernel that makes it, row by row, and the result never exists as
    a whole. What torch makes, and what other sparsifiers choose from, is gone over once it is there.
    """
    sparsifier = named(sparsifier)
    if isinstance(format, str) and format in ("dense", "infer", "auto"):
        whole = evaluate_sparsified(text, given, sparsifier, None)
        return whole.to(dense(whole.ndim)) if format == "dense" else whole
    pruned_ = pruned(text, given, sparsifier)
    if isinstance(pruned_, str):
        return sparsify(evaluate_parts(text, given, None), sparsifier, format)
    parts, numbers, is_checked = pruned_
    result = computed(text, parts, {**given, **numbers}, None)
    if parts[-1].name not in result:
        return sparsify(result[parts[-2].name], sparsifier, format)
    kept: SparseTensor = result[parts[-1].name]
    if is_checked and bool(kept.values.isnan().any()):
        return sparsify(evaluate_parts(text, given, None), sparsifier, format)  # which most often refuses NaN
    wanted = usual_format(sparsifier, kept.ndim) if format is None else as_format(format)
    in_blocks = _in_blocks(kept, parts[-1].request.form.largest, wanted)
    return kept.to(wanted) if in_blocks is None else in_blocks


def _in_blocks(kept: SparseTensor, largest: tuple[int, int] | None, format: Format) -> SparseTensor | None:
    """The largest of every m as ``NM`` stores them, in the same order where all blocks are whole; None for another format."""
    if largest is None or kept.ndim != 2 or format != NM(*largest) or kept.shape[1] % largest[1]:
        return None
    crd, m = kept.pattern.level_arrays(1)[1], largest[1]
    places = crd & (m - 1) if m & (m - 1) == 0 else crd % m  # whole division takes ten times as long
    pattern = Pattern(format, tuple(kept.shape), ((), (), (torch.from_numpy(places),)))
    return SparseTensor(pattern, kept.values)


def pruned(text: str, given: Mapping[str, Any], sparsifier: Any) -> tuple[tuple[ProgramPart, ...], dict[str, Tensor], bool] | str:
    """The program with a part more, which stores what is kept, its operands, and whether NaN may be refused; or why there is none."""
    try:
        dtype, order = _computed_in(text, given)
        ruled_ = ruled(sparsifier, order)
    except (NotFused, NotOne) as why:
        return str(why)
    if clashing := set(ruled_.rule.names) & tensor_names(text):
        return f"the text has a tensor of a name that its kernel would need, {clashing.pop()}"
    numbers = zip(ruled_.rule.names, ruled_.numbers, strict=True)
    return pruning(text, ruled_.rule), {name: torch.tensor(number, dtype=dtype) for name, number in numbers}, ruled_.is_checked


def sparsified_einsum(
    expr: Any, operands: tuple[Any, ...], sparsifier: Any, format: Format | str | None, out: Any, reduce: str, mask: Any, schedule: Any
) -> SparseTensor:
    """An einsum's result, sparsified.

    Raises:
        UnsupportedError: it is reduced otherwise, masked, scheduled, or written to a tensor.
    """
    if out is not None or reduce != "sum" or mask is not None or schedule is not None:
        raise UnsupportedError(
            "sparsifier= beside out=, reduce=, mask= or schedule=: compute the result, and pass it to ns.sparsify.sparsify"
        )
    text, given = einsum_as_statement(expr, operands)
    if torch.is_autocast_enabled("cpu"):
        given = dict(zip(given, in_autocast(list(given.values())), strict=True))
    return evaluate_sparsified(text, given, sparsifier, format)


def einsum_as_statement(expr: Any, operands: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    """The statement of an einsum, and its operands by name."""
    expr, operands = call_form(expr, operands)
    for operand in operands:
        check_is_tensor(operand)
    return spelled_einsum(parse_einsum(expr, tuple(operand.ndim for operand in operands))), dict(zip(NAMES, operands, strict=False))


def _computed_in(text: Any, given: Mapping[str, Any]) -> tuple[torch.dtype, int]:
    """The floats in which a kernel of ours computes a program's result, and how many dimensions that has.

    Raises:
        NotFused: gradients flow, or the result is a vector, or of other data types.
    """
    if current_transform() is not None:
        raise NotFused("a transform of torch.func is at work")
    if not isinstance(text, str) or given.keys() != tensor_names(text):
        raise NotFused("its operands aren't those of the text")  # which evaluate refuses
    values = [unwrapped(value) for value in given.values()]
    dtypes = {operand.dtype for operand in values if isinstance(operand, SparseTensor | Tensor) and operand.ndim}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        names = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise NotFused(f"values are {names}: what kernels compare is float32 or float64, and not rounded afterwards")
    order = len(parse_program(text)[-1].request.subscripts.result)
    if order < 2:
        raise NotFused("the result has no rows")
    if torch.is_grad_enabled() and any(getattr(getattr(operand, "values", operand), "requires_grad", False) for operand in values):
        raise NotFused("gradients flow to its operands")
    return dtypes.pop(), order


@lru_cache(maxsize=256)
def pruning(text: str, rule: PruningRule) -> tuple[ProgramPart, ...]:
    """The program, and a part more whose result is that of the program where a rule keeps it.

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
