"""evaluate_parts: a program's parts, computed one after the other, on operands given by their names."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..compute import gradients
from ..compute.chains import ChainRecorder
from ..compute.dispatch import compute, current_transform
from ..compute.operands import STRIDED, check_is_tensor, identify, refuse_tangents
from ..errors import ExpressionError, SizeError
from ..frontend.datatypes import WIDENED
from ..frontend.gradient_requests import CONSTANT
from ..frontend.promotion import number_as
from ..frontend.statements import ProgramPart, Request, parse_program, tensor_names, written_access
from ..ir.format import Format
from ..ir.functions import REDUCTIONS
from ..runtime.plans import known_plan, remember
from ..tensors.parameter import unwrapped
from ..tensors.sparse_tensor import SparseTensor
from .derived_operands import derives, is_index_size, with_derived
from .fused_gradients import fused_with_gradients
from .fused_operands import is_native, returned, widened_operand
from .fusion import Group, group_from
from .pairing import in_pairs
from .sizes import check_sizes

NUMBERS = {int, float, complex}
PLAIN = {SparseTensor, Tensor, torch.nn.Parameter} | NUMBERS
SCALAR = torch.Size([])


def evaluate_parts(text: str, given: Mapping[str, Any], format: Format | str | None) -> Any:
    """Every part of a program, one after the other; where it was evaluated before, as the chain that this came to.

    Raises:
        ExpressionError: operands are missing, unknown, or have another rank than their indices.
    """
    if torch.is_autocast_enabled("cpu"):  # einsum narrows its operands; programs compute in the data type that they are given
        with torch.autocast("cpu", enabled=False):
            return evaluate_parts(text, given, format)
    if forward_ad._current_level >= 0:
        refuse_tangents([value for value in given.values() if isinstance(value, SparseTensor | Tensor)])
    key = _key(text, given, format)
    if key is None:
        return _evaluated(text, given, format, None)
    ready, recorder_ = key
    chain = known_plan(text, format, recorder_)
    if chain is not None:
        return chain.run(*ready)
    recorder = ChainRecorder()
    result = _evaluated(text, dict(zip(given, ready, strict=True)), format, recorder)
    if isinstance(result, Tensor | SparseTensor) and (chain := recorder.chain()) is not None:
        remember((text, format, *recorder_), chain)
    return result


def _key(text: Any, given: Mapping[str, Any], format: Any) -> tuple[list[Any], tuple[Hashable, ...]] | None:
    """The operands as kernels take them, and what a chain is found by; None where gradients flow, or some operand is converted first."""
    values = list(given.values())
    kinds = set(map(type, values))
    if not kinds <= PLAIN or current_transform() is not None or not isinstance(text, str) or type(format) not in (NoneType, str, Format):
        return None
    if derives(text):
        return None
    if not NUMBERS.isdisjoint(kinds):
        leading = next((operand.dtype for operand in values if type(operand) not in NUMBERS and operand.ndim), None)
        if leading is None:
            return None
        values = [_number(operand, leading) if type(operand) in NUMBERS else operand for operand in values]
    ready, signatures = identify(values)
    if None in signatures or not WIDENED.keys().isdisjoint(signatures):
        return None
    if SCALAR in signatures and len({operand.dtype for operand in ready}) > 1:
        return None
    if any(type(operand) is SparseTensor and type(value) is not SparseTensor for operand, value in zip(ready, values, strict=True)):
        return None
    return ready, (*given, *signatures)


def _number(value: float, dtype: torch.dtype) -> Tensor:
    """The number as a tensor, which nothing writes to."""
    return _remembered_number(value, dtype) if value else as_tensor(value, dtype)  # 0.0 and -0.0 are equal


@lru_cache(maxsize=256, typed=True)
def _remembered_number(value: float, dtype: torch.dtype) -> Tensor:
    return as_tensor(value, dtype)


def _evaluated(text: str, given: Mapping[str, Any], format: Format | str | None, recorder: ChainRecorder | None) -> Any:
    """Every part of a program, as :func:`computed`."""
    if not isinstance(text, str):
        raise ExpressionError(f"evaluate takes a program's text, as 'y[i] = A[i,j] * x[j]', not {type(text).__name__}")
    if isinstance(format, SparseTensor | Tensor):
        raise ExpressionError(f"format= is the result's format, not an operand: rename that tensor\n  {text}")
    if given.keys() != tensor_names(text):
        _refuse_names(text, given)
    parts = parse_program(text)
    return computed(text, parts, given, format, recorder)[parts[-1].name]


def computed(
    text: str, parts: tuple[ProgramPart, ...], given: Mapping[str, Any], format: Format | str | None, recorder: ChainRecorder | None = None
) -> dict[str, Any]:
    """What is given, and what each part makes of it, one after the other; a last part that prunes is left out where it isn't fused."""
    values = dict(given)
    for name, value in given.items():
        if not _is_plain(value) and not is_index_size(text, name):
            values[name] = unwrapped(_operand(value, given))
            check_is_tensor(values[name])
    places = {name: at for at, name in enumerate(given)}
    at = 0
    while at < len(parts):
        with_derived(text, parts[at:], values)
        parts = in_pairs(parts, at, values) if current_transform() is None else parts
        group = group_from(parts, at, values, format) if current_transform() is None else None
        if group is not None and (result := _fused(text, parts, at, group, values)) is not None:
            wanted, names, at = None, group.operands, group.end
            ran: Request = group.request
        elif parts[at].request.form.prunes:
            break
        else:
            wanted = format if at == len(parts) - 1 and format is not None else format_of(parts[at], parts)
            result = _computed(text, parts, parts[at], values, wanted)
            ran, names, at = parts[at].request, parts[at].operands, at + 1
        if recorder is not None:
            recorder.is_fixed &= group is None or _is_as_made(group, values, result)
            recorder.note(ran, wanted, [places[name] for name in names], [values[name] for name in names], result)
            places[parts[at - 1].name] = len(given) + len(recorder.steps) - 1
        values[parts[at - 1].name] = result
    return values


def _is_as_made(group: Group, values: Mapping[str, Any], result: Any) -> bool:
    """Whether a group's result is the kernel's own: a sparse one may have been stored as torch's operands are."""
    return isinstance(result, Tensor) or not is_native(group.request, [values[name] for name in group.operands])


def _fused(text: str, parts: tuple[ProgramPart, ...], at: int, group: Group, values: Mapping[str, Any]) -> Any:
    """What one kernel computes of the parts from here on; None where gradients flow, and kernels of the parts alone do better."""
    for part in parts[at : group.end]:
        _check_ranks(text, part, values)
    given = [values[name] for name in group.operands]
    operands = list(map(widened_operand, given))

    def again(tensors: Sequence[Any]) -> Any:
        known = dict(zip(group.operands, tensors, strict=True))
        for part in parts[at : group.end]:
            known[part.name] = _computed(text, parts, part, known, format_of(part, parts))
        return known[parts[group.end - 1].name]

    try:
        if not (torch.is_grad_enabled() and gradients.wanted(operands)):
            return returned(group.request, given, compute(group.request, operands))
        result = fused_with_gradients(group, operands, again)
    except SizeError:
        again(operands)  # whose error speaks of the part that doesn't fit
        raise
    return None if result is None else returned(group.request, given, result)


def _computed(text: str, parts: Sequence[ProgramPart], part: ProgramPart, values: Mapping[str, Any], format: Format | str | None) -> Any:
    """One part alone."""
    _check_ranks(text, part, values)
    check_sizes(text, parts, part, values)
    operands = [values[name] for name in part.operands]
    if part.request.op == CONSTANT:
        operands = [operand.detach() for operand in operands]
    return compute(part.request, operands, format)


def format_of(part: ProgramPart, parts: Sequence[ProgramPart]) -> str | None:
    """The format of a part's result where none is asked for, None if it is inferred.

    What has no stored term is -inf, which a sparse result can't say; and sums that other parts read are, as those of
    ``numscorch.sum``, dense if they have fewer than two dimensions.
    """
    is_read = part is not parts[-1] and part.request.op in REDUCTIONS and len(part.request.subscripts.result) < 2
    return "dense" if part.request.op == CONSTANT or is_read else None


def _refuse_names(text: str, given: Mapping[str, Any]) -> None:
    """Refuse other tensors than the program's operands."""
    wanted = tensor_names(text)
    missing, unknown = sorted(wanted - set(given)), sorted(set(given) - wanted)
    assigned = sorted({part.name for part in parse_program(text)} & set(unknown))
    if assigned and not missing:
        raise ExpressionError(f"operands: {', '.join(assigned)} assigned in the text\n  {text}     leave it out, or rename one of the two")
    if sizes := [name for name in missing if is_index_size(text, name)]:
        raise ExpressionError(f"index {sizes[0]} is on the left side only, so its extent is unknown: give it, as {sizes[0]}=5\n  {text}")
    what = f"{', '.join(missing)} missing" if missing else f"{', '.join(unknown)} not in the statement"
    raise ExpressionError(f"operands: {what}\n  {text}     give each tensor by its name, as A=A")


def _check_ranks(text: str, part: ProgramPart, values: Mapping[str, Any]) -> None:
    """Check that each operand has a dimension for each index."""
    for name, indices in zip(part.operands, part.request.subscripts.operands, strict=True):
        if name in values and (order := values[name].ndim) != len(indices):
            access = written_access(name, indices, text)
            raise ExpressionError(f"{access} has {len(indices)} indices, but {name} has {order} dimensions\n  {text}")


def _is_plain(value: Any) -> bool:
    """Whether it is a tensor with dimensions, which is taken as it is."""
    return (type(value) is SparseTensor or type(value) is Tensor) and value.ndim > 0


def _operand(value: Any, given: Mapping[str, Any]) -> Any:
    """A number, or a tensor without dimensions, takes the data type of those that have some, unless torch would promote these."""
    tensors = [other for other in given.values() if isinstance(other, SparseTensor | Tensor)]
    leading = [tensor.dtype for tensor in tensors if tensor.ndim > 0]
    if isinstance(value, int | float | complex):
        return as_tensor(value, [*leading, *(tensor.dtype for tensor in tensors), torch.get_default_dtype()][0])
    if not leading or not _is_scalar(value) or value.dtype == leading[0] or _promoted(leading[0], value) != leading[0]:
        return value
    as_tensor(value.item(), leading[0])
    return value.to(leading[0])


def _promoted(dtype: torch.dtype, scalar: Any) -> torch.dtype:
    """torch's data type for a tensor of this one times a scalar.

    >>> _promoted(torch.int32, 2.5), _promoted(torch.float32, torch.tensor(2.5, dtype=torch.float64))
    (torch.float32, torch.float32)
    """
    return torch.result_type(torch.empty(1, dtype=dtype), scalar)


def _is_scalar(value: Any) -> bool:
    """Whether it is a tensor without dimensions whose value can be looked at."""
    return isinstance(value, Tensor) and value.ndim == 0 and value.layout is STRIDED and value.is_cpu


def as_tensor(number: complex, dtype: torch.dtype) -> Tensor:
    """The number in a data type, or in that to which torch promotes this one beside it.

    >>> as_tensor(2, torch.float32), as_tensor(0.5, torch.int64), as_tensor(2, torch.bool)
    (tensor(2.), tensor(0.5000), tensor(2))
    """
    return number_as(number, _promoted(dtype, number))
