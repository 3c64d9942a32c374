"""Sparsified results: of a program's result only what a sparsifier keeps, which a kernel of ours stores as it makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..computing import current_transform
from ..errors import UnsupportedError
from ..ir.format import COO, CSR, Format, as_format, dense
from ..operands import call_form, check_is_tensor, in_autocast
from ..parser import parse_einsum
from ..sparse_parameter import unwrapped
from ..sparse_tensor import SparseTensor
from ..statements import NAMES, Part, parse_program, tensor_names
from .evaluation import computed, evaluate_parts
from .pairing import spelled_einsum

BOUND = "bound_of_what_is_kept"  # the operand that absolute values are compared with


def evaluate_sparsified(text: str, given: Mapping[str, Any], sparsifier: Any, format: Format | str | None) -> SparseTensor:
    """A program's result, sparsified.

    What a threshold keeps is stored by the kernel that makes it, row by row, and the result never exists as a whole. What torch
    makes, and what other sparsifiers choose from, is gone over once it is there.
    """
    from ..sparsify import sparsify, threshold  # late: it is built on einsum
    from ..sparsify.names import named

    sparsifier = named(sparsifier)
    if isinstance(format, str) and format in ("dense", "infer", "auto"):
        whole = evaluate_sparsified(text, given, sparsifier, None)
        return whole.to(dense(whole.ndim)) if format == "dense" else whole
    dtype = _computed_in(text, given) if isinstance(sparsifier, threshold) else None
    if dtype is None:
        return sparsify(evaluate_parts(text, given, None), sparsifier, format)
    parts = pruning(text)
    bound = torch.tensor(sparsifier.bound(dtype), dtype=dtype)
    made = computed(text, parts, {**given, BOUND: bound}, None)
    if parts[-1].name not in made:
        return sparsify(made[parts[-2].name], sparsifier, format)
    kept: SparseTensor = made[parts[-1].name]
    if bool(kept.values.isnan().any()):
        sparsifier(kept.values)  # which refuses them
    return kept.to((CSR if kept.ndim == 2 else COO(kept.ndim)) if format is None else as_format(format))


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


def _computed_in(text: Any, given: Mapping[str, Any]) -> torch.dtype | None:
    """The floats in which a kernel of ours computes a matrix, or a tensor of more dimensions; None where gradients flow, or others do."""
    if current_transform() is not None or not isinstance(text, str) or given.keys() != tensor_names(text):
        return None
    values = [unwrapped(value) for value in given.values()]
    dtypes = {own.dtype for own in values if isinstance(own, SparseTensor | Tensor) and own.ndim}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64} or len(parse_program(text)[-1].request.subscripts.result) < 2:
        return None
    if torch.is_grad_enabled() and any(getattr(getattr(own, "values", own), "requires_grad", False) for own in values):
        return None
    return dtypes.pop()


@lru_cache(maxsize=256)
def pruning(text: str) -> tuple[Part, ...]:
    """The program, and a part more whose result is 0 where the program's is at most a bound, and stored where it isn't 0.

    >>> for part in pruning("y[i,k] = A[i,j] * x[j,k]"):
    ...     print(part.name, part.operands, part.request)
    y ('A', 'x') A[i,j] * B[j,k] over ij,jk->ik
    kept ('y', 'bound_of_what_is_kept') where(abs(A[i,k]) <= B, 0, A[i,k]) over ik,->ik
    """
    last = parse_program(text)[-1]
    access = f"{last.name}[{','.join(last.request.subscripts.result)}]"
    name = "kept"
    while name in {part.name for part in parse_program(text)} | tensor_names(text):
        name += "_"
    written = access.replace(last.name, name, 1)
    *parts, kept = parse_program(f"{text.strip().rstrip(';')}\n{written} = where(abs({access}) <= {BOUND}, 0, {access})")
    return (*parts, replace(kept, request=replace(kept.request, prunes=True)))
