"""Evaluate programs: compute the parts in order, fused where possible, with operands given by name."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from ..errors import ExpressionError, SizeError
from ..frontend.datatypes import WIDENED, number_as, result_type
from ..frontend.fused_problem import FusedRequest
from ..frontend.gradient_requests import CONSTANT
from ..frontend.parser import Subscripts
from ..frontend.problem import clash_error, size_clash
from ..frontend.requests import NAMES, Operand
from ..frontend.statements import ProgramPart, index_names, parse_program, tensor_names, written_access
from ..ir.format import Format
from ..ir.index import Access, IndexVar, mapped
from ..runtime.plans import describe, known_plan, remember
from ..schedule.facts import rounded
from ..tensors.parameter import unwrapped
from ..tensors.sparse_tensor import SparseTensor
from . import gradients
from .derived_operands import derives, is_index_size, with_derived
from .dispatch import compute
from .fused_calls import fused_with_gradients, is_native, returned, widened_operand
from .fusion import ProgramStep
from .operands import STRIDED, check_is_tensor, check_not_recorded, identify, is_transformed
from .steps import ChainRecorder, Steps, run_steps

NUMBERS = {int, float, complex}
PLAIN = {SparseTensor, Tensor, torch.nn.Parameter} | NUMBERS
SCALAR = torch.Size([])


def evaluate_parts(text: str, operands: Mapping[str, Any], format: Format | str | None) -> Any:
    """Evaluate a program; repeated calls with operands of the same kinds replay a recorded chain of kernels.

    Raises:
        ExpressionError: operands are missing or unknown, or their rank differs from the number of indices.
    """
    if torch.is_autocast_enabled("cpu"):  # einsum narrows operands under autocast, but programs keep their data types
        with torch.autocast("cpu", enabled=False):
            return evaluate_parts(text, operands, format)
    check_not_recorded(operands.values())
    chainable = _chain_key(text, operands, format)
    if chainable is None:
        return _evaluated(text, operands, format, None)
    ready, key = chainable
    chain = known_plan(text, format, key)
    if chain is not None:
        return chain.run(*ready)
    shared = key[-1:] if key and type(key[-1]) is tuple else ()  # which operands share a pattern
    kinds = (*operands, *map(_kind, ready), shared)
    executable = known_plan(text, format, kinds)
    if executable is not None:
        with suppress(SizeError):  # sizes that do not fit: raised again below, in the words of the program
            result, chain = run_steps(executable, ready, compute)
            if chain is not None:
                remember((text, format, *key), chain)
            return result
    recorder = ChainRecorder()
    result = _evaluated(text, dict(zip(operands, ready, strict=True)), format, recorder)
    if isinstance(result, Tensor | SparseTensor) and (chain := recorder.chain()) is not None:
        remember((text, format, *key), chain)
        remember((text, format, *kinds), tuple(recorder.steps))
    return result


def _kind(operand: SparseTensor | Tensor) -> Hashable:
    """The properties of an operand on which the choice of a program's steps depends; sizes and counts are rounded."""
    sizes = tuple(map(rounded, operand.shape))
    if isinstance(operand, SparseTensor):
        return operand.pattern.format, operand._values.dtype, operand.pattern.index_dtype, sizes, rounded(operand.pattern.nnz)
    return operand.dtype, operand.is_contiguous(), sizes


def _chain_key(text: Any, operands: Mapping[str, Any], format: Any) -> tuple[list[Any], tuple[Hashable, ...]] | None:
    """Return the operands as kernels take them, and the cache key of a chain; None if gradients flow or an operand needs conversion."""
    values = list(operands.values())
    kinds = set(map(type, values))
    is_plain = kinds <= PLAIN and isinstance(text, str) and type(format) in (NoneType, str, Format)
    if not is_plain or is_transformed(values) or derives(text):
        return None
    if not NUMBERS.isdisjoint(kinds):
        leading = next((operand.dtype for operand in values if type(operand) not in NUMBERS and operand.ndim), None)
        if leading is None:
            return None
        values = [_number(operand, leading) if type(operand) in NUMBERS else operand for operand in values]
    ready, signatures = identify(values)
    if None in signatures or not WIDENED.keys().isdisjoint(signatures) or (SCALAR in signatures and len({o.dtype for o in ready}) > 1):
        return None
    if any(type(operand) is SparseTensor and type(value) is not SparseTensor for operand, value in zip(ready, values, strict=True)):
        return None
    return ready, (*operands, *signatures)


def _number(value: float, dtype: torch.dtype) -> Tensor:
    """Return a number as a cached tensor, which must not be modified."""
    return _remembered_number(value, dtype) if value else number_as(value, dtype)  # no cache: 0.0 and -0.0 are equal as keys


def _evaluated(text: str, operands: Mapping[str, Any], format: Format | str | None, recorder: ChainRecorder | None) -> Any:
    """Check the names of the operands, compute every part, and return the result of the last one."""
    if not isinstance(text, str):
        raise ExpressionError(f"evaluate takes a program's text, such as 'y[i] = A[i,j] * x[j]', not {type(text).__name__}")
    if isinstance(format, SparseTensor | Tensor):
        raise ExpressionError(f"format= is the result's format, not an operand: rename that tensor\n  {text}")
    if operands.keys() != tensor_names(text):
        _refuse_names(text, operands)
    parts = parse_program(text)
    return computed(text, parts, operands, format, recorder)[parts[-1].name]


def computed(
    text: str,
    parts: tuple[ProgramPart, ...],
    operands: Mapping[str, Any],
    format: Format | str | None,
    recorder: ChainRecorder | None = None,
) -> dict[str, Any]:
    """Compute the parts in order, and return the values of operands and results by name.

    If the last part prunes its result and is not fused, it is not computed.
    """
    values = dict(operands)
    for name, value in operands.items():
        is_tensor = type(value) in (SparseTensor, Tensor) and value.ndim > 0  # it needs no conversion
        if not is_tensor and not is_index_size(text, name):
            values[name] = unwrapped(_operand(value, operands))
            check_is_tensor(values[name])
    prepare(text, parts, values)
    places = {name: at for at, name in enumerate(operands)}
    steps = Steps(parts, values, format, values, not is_transformed(tuple(values.values())))
    for step in steps:
        if isinstance(step.request, FusedRequest):
            result = _fused(text, steps, step, step.request, values)
            if result is None:
                steps.refuse()
                continue
        elif step.request.form.prunes:
            break
        else:
            result = _computed(text, steps.parts, step.parts[0], values, step.format)
        if recorder is not None:
            given = [values[name] for name in step.operands]
            if isinstance(step.request, FusedRequest) and isinstance(result, SparseTensor):
                recorder.is_fixed &= not is_native(step.request, given)  # the next result may be converted to torch's layout
            recorder.note(step.request, step.format, [places[name] for name in step.operands], given, result)
            places[step.name] = len(operands) + len(recorder.steps) - 1
        values[step.name] = result
        prepare(text, steps.parts[steps.at :], values)
    return values


def prepare(text: str, parts: Sequence[ProgramPart], values: dict[str, Any]) -> None:
    """Add derived operands of the parts, and check that each operand has as many dimensions as indices.

    Raises:
        ExpressionError: an operand has another number of dimensions.
    """
    with_derived(text, parts, values)
    for part in parts:
        for name, indices in zip(part.operands, part.request.subscripts.operands, strict=True):
            if name in values and (order := len(values[name].shape)) != len(indices):
                access = written_access(name, indices, text)
                raise ExpressionError(f"{access} has {len(indices)} indices, but {name} has {order} dimensions\n  {text}")


def _fused(text: str, steps: Steps, step: ProgramStep, request: FusedRequest, values: Mapping[str, Any]) -> Any:
    """Compute the parts of a step with one kernel; return None if gradients flow and separate kernels for the parts are better."""
    inputs = [values[name] for name in step.operands]
    operands = list(map(widened_operand, inputs))
    read = {name: values[name] for part in step.parts for name in part.operands if name in values}

    def by_parts(tensors: Sequence[Any]) -> Any:
        results = read | dict(zip(step.operands, tensors, strict=True))  # a pattern that another operand has is no operand of the kernel
        for part in step.parts:
            results[part.name] = _computed(text, steps.parts, part, results, steps.format_of(part))
        return results[step.name]

    try:
        if not (torch.is_grad_enabled() and gradients.wanted(operands)):
            return returned(request, inputs, compute(request, operands))
        result = fused_with_gradients(request, operands, by_parts)
    except SizeError:
        by_parts(operands)  # raises an error that names the part with the mismatch
        raise
    return None if result is None else returned(request, inputs, result)


def _computed(text: str, parts: Sequence[ProgramPart], part: ProgramPart, values: Mapping[str, Any], format: Format | str | None) -> Any:
    """Compute one part with its own kernel."""
    check_sizes(text, parts, part, values)
    operands = [values[name] for name in part.operands]
    if part.request.op == CONSTANT:
        operands = [operand.detach() for operand in operands]
    return compute(part.request, operands, format)


def check_sizes(text: str, parts: Sequence[ProgramPart], part: ProgramPart, values: Mapping[str, Any]) -> None:
    """Check that the operands of a part agree on the size of each index; size 1 broadcasts, except on a diagonal.

    Raises:
        SizeError: an index has two sizes.

    >>> import torch
    >>> from ..frontend.statements import parse_program
    >>> text = "y[row] = A[row,col] * x[col]"
    >>> parts = parse_program(text)
    >>> check_sizes(text, parts, parts[0], {"A": torch.ones(2, 3), "x": torch.ones(4)})
    Traceback (most recent call last):
        ...
    numscorch.SizeError: index col has size 3 in A but 4 in x
      y[row] = A[row,col] * x[col]     A: 2x3 (dense)     x: 4 (dense)
    """
    subscripts = part.request.subscripts
    clash = size_clash(subscripts, [values[name].shape for name in part.operands])
    if clash is not None:
        index, first, second = clash
        written = index_names(text)
        operands = [values[name] if isinstance(values[name], Operand) else describe(values[name]) for name in part.operands]
        names = [_named(name, parts, written) for name in part.operands]
        terms = tuple(tuple(written.get(index, index) for index in term) for term in (*subscripts.operands, subscripts.result))
        raise clash_error((written.get(index, index), first, second), Subscripts(terms[:-1], terms[-1]), operands, names, text)


def _named(name: str, parts: Sequence[ProgramPart], written: Mapping[str, str]) -> str:
    """Return an operand's name in the program's text; for a temporary, its expression."""
    part = next((other for other in parts if other.name == name and other.is_temporary), None)
    if part is None:
        return name
    operands = [_named(other, parts, written) for other in part.operands]

    def renamed(access: Access) -> Access:
        indices = tuple(IndexVar(written.get(var.name, var.name)) for var in access.indices)
        return Access(replace(access.tensor, name=operands[NAMES.index(access.tensor.name)]), indices)

    return str(mapped(part.request.expr, renamed))


def _refuse_names(text: str, operands: Mapping[str, Any]) -> None:
    """Raise the error for operands whose names differ from the program's."""
    wanted = tensor_names(text)
    missing, unknown = sorted(wanted - set(operands)), sorted(set(operands) - wanted)
    assigned = sorted({part.name for part in parse_program(text)} & set(unknown))
    if assigned and not missing:
        raise ExpressionError(f"operands: the text assigns {', '.join(assigned)}\n  {text}     leave it out, or rename one of the two")
    if sizes := [name for name in missing if is_index_size(text, name)]:
        raise ExpressionError(
            f"index {sizes[0]} is on the left side only, so its extent is unknown: pass it as an argument, such as {sizes[0]}=5\n  {text}"
        )
    clash = f"{', '.join(missing)} missing" if missing else f"{', '.join(unknown)} not in the statement"
    raise ExpressionError(f"operands: {clash}\n  {text}     give each tensor by its name, such as A=A")


def _operand(value: Any, operands: Mapping[str, Any]) -> Any:
    """Convert a number or 0-dimensional tensor to the data type of the tensors with dimensions, unless torch would promote the latter."""
    tensors = [other for other in operands.values() if isinstance(other, SparseTensor | Tensor)]
    leading = [tensor.dtype for tensor in tensors if tensor.ndim > 0]
    if isinstance(value, int | float | complex):
        return number_as(value, [*leading, *(tensor.dtype for tensor in tensors), torch.get_default_dtype()][0])
    is_readable = isinstance(value, Tensor) and value.ndim == 0 and value.layout is STRIDED and value.is_cpu
    if not leading or not is_readable or value.dtype == leading[0] or result_type([(leading[0], 1), (value.dtype, 0)]) != leading[0]:
        return value
    number_as(value.item(), leading[0])
    return value.to(leading[0])


_remembered_number = lru_cache(maxsize=256, typed=True)(number_as)
