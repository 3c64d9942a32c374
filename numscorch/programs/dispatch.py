"""compute: run one request, given as text or Request, through a plan, through pairs, or through torch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..frontend.datatypes import Promotion, computed_in, target_of, unread_in
from ..frontend.problem import check_loops, wanted_format
from ..frontend.requests import NAMES, Request, einsum_request
from ..frontend.statements import ProgramPart
from ..ir.format import Format, as_format
from ..runtime.confirming import watched_plan
from ..runtime.plans import known_plan, remember
from ..schedule.facts import AUTOMATIC
from ..tensors.distributed import handler_of
from ..tensors.ledgers import is_listed, note
from ..tensors.methods import METHODS
from ..tensors.modes import dispatch_modes, recorder, without_autocast
from ..tensors.sparse_tensor import SparseTensor
from . import gradients
from .dense_requests import dense_result
from .fitting import MISSED, quick_result, remember_call
from .operands import (
    STRIDED,
    EinsumCall,
    check_not_recorded,
    identify,
    is_all_native,
    is_plain_mode,
    is_transformed,
)
from .pairing import paired
from .results import receive, semiring_zero, stored_as, write
from .steps import Chain, ChainRecorder


def compute(expr: str | Request, operands: Sequence[Any], format: Format | str | None = None, out: Any = None) -> Any:
    """The result of an einsum or a request, by its shortcut if possible; operands and results are as in :func:`numscorch.einsum`."""
    format = as_format(format) if format is not None and not isinstance(format, str) else format
    key = expr if format is None else (expr, format)
    return dispatched(expr, operands, format, out, key) if (result := quick_result(key, operands, out)) is MISSED else result


def dispatched(expr: str | Request, operands: Sequence[Any], format: Format | str | None, out: Any, key: Hashable) -> Any:
    """The result of an einsum or a request for which there is no shortcut; ``key`` is the key of the shortcut for later calls."""
    if (handler := handler_of(operands)) is not None:
        return handler.einsum(EinsumCall(expr, tuple(operands), format, out))
    if not is_plain_mode():
        if isinstance(expr, str) and out is None and (dispatch_modes() or recorder() is not None):
            result = METHODS["einsum_as_operator"](expr, operands, format)
            if result is not NotImplemented:  # a mode that records nothing sees products with dense results only
                return result
        check_not_recorded(operands)
        if is_transformed(operands):
            return _compute_with_gradients(_request(expr, operands), operands, format, out)
    ready, signatures = identify(operands)
    request = _request(expr, operands)
    plan = known_plan(request, format, signatures)
    if type(plan) is Chain:
        remember_call(key, request, operands, ready, plan)
        return plan.run(*ready) if out is None else receive(out, plan, *ready)
    if plan is None:
        if torch.is_grad_enabled() and gradients.wanted(operands):
            return _compute_with_gradients(request, operands, format, out)
        if SparseTensor not in map(type, ready):
            return _compute_dense(request, ready, format, out)
        if (result := _rewritten(request, ready, format, out, (request, format, *signatures))) is not None:
            return result if result is out else _like_operands(result, operands, format)
        plan = watched_plan(request, format, ready, signatures)
    requested = plan.problem.requested
    is_final = requested is None and (plan.problem.result.is_dense or not is_all_native(operands))
    if is_final:
        remember_call(key, request, operands, ready, plan)
    if out is not None:
        return receive(out, plan, *ready)
    result = plan.run(*ready)
    if is_final:
        return result
    return stored_as(result, requested, is_all_native(operands), format is not None, semiring_zero(request, result.dtype))


def _request(expr: str | Request, operands: Sequence[Any]) -> Request:
    return einsum_request(expr, tuple([operand.ndim for operand in operands])) if isinstance(expr, str) else expr


def _compute_with_gradients(request: Request, operands: Sequence[Any], format: Format | str | None, out: Any) -> Any:
    """compute() for operands that require grad, have tangents, or take part in a transform of torch.func.

    Raises:
        UnsupportedError: ``out`` is given; gradients cannot flow into it.
    """
    attached = list(map(gradients.attached, operands))
    if SparseTensor not in map(type, attached):
        return _compute_dense(request, attached, format, out)
    if out is not None:
        raise UnsupportedError("out= takes no gradients, and an operand requires grad: leave it out, or compute under torch.no_grad()")
    result = _rewritten(request, attached, format, None)
    if result is None:
        result = gradients.differentiable(request, attached, format, compute)
    return _like_operands(result, operands, format)


def _like_operands(result: Any, operands: Sequence[Any], format: Any) -> Any:
    """The result, converted to a torch tensor if all operands are torch tensors."""
    return result if isinstance(result, Tensor) or not is_all_native(operands) else stored_as(result, None, True, format is not None)


def _rewritten(request: Request, operands: Sequence[Any], format: Any, out: Any, key: Hashable = None) -> Any:
    """The result of a request that must be rewritten; None if one kernel computes the request unchanged.

    Operands of different data types are converted to one data type first. Otherwise, products of several operands are split into
    pairs. If ``key`` is given, the steps are cached as a chain.
    """
    if (target := target_of(request, operands)) is not None:
        return _compute_promoted(request, operands, target, format, out)
    if len(parts := paired(request, operands)) > 1:
        return _compute_parts(parts, operands, format, out, key)
    return None


def _compute_promoted(request: Request, operands: Sequence[Any], target: Promotion, format: Any, out: Any) -> Any:
    """Convert the operands to one data type, compute, and convert the result.

    16-bit floats are computed and accumulated in 32 bits, and the result is rounded once; uint8 is computed in 16 bits, bool in
    8. Masks and operands inside ``stored(...)`` may have any data type, because their values are not read.
    """
    unread, dtype = unread_in(request, len(operands)), computed_in(target.computed)
    promoted = [converted(o, computed_in(o.dtype) if at in unread else dtype) for at, o in enumerate(operands)]
    with without_autocast():  # autocast narrows intermediates
        result = compute(target.of_kernels(request), promoted, format).to(target.result)
    return result if out is None else write(out, result)


def converted(operand: Any, dtype: torch.dtype) -> Any:
    """The operand in the data type of the computation; the ledger lists the copy of its values."""
    if operand.dtype == dtype:
        return operand
    if is_listed() and operand.ndim:
        values = operand._values if isinstance(operand, SparseTensor) else operand
        count = values.numel() if values.layout is STRIDED else values._nnz()
        note("copy", f"{operand.dtype} values of {tuple(operand.shape)} as {dtype}", count * dtype.itemsize)
    return operand.to(dtype)


def _compute_parts(parts: Sequence[ProgramPart], operands: Sequence[Any], format: Any, out: Any, key: Hashable = None) -> Any:
    """Compute part after part; the last one computes the result. If ``key`` is given, the steps are cached as a chain."""
    values, recorder = dict(zip(NAMES, operands, strict=False)), ChainRecorder()
    places = {name: at for at, name in enumerate((*values, *(part.name for part in parts)))}
    for part in parts:
        wanted, receiver = (format, out) if part is parts[-1] else (None, None)
        factors = [values.pop(name) for name in part.operands]  # each is read once, so its memory can be freed
        values[part.name] = result = compute(part.request, factors, wanted, receiver)
        if key is not None:
            recorder.note(part.request, wanted, [places[name] for name in part.operands], factors, result)
    if key is not None and isinstance(result, Tensor) and (chain := recorder.chain()) is not None:
        remember(key, chain)
    return result


def _compute_dense(request: Request, operands: Sequence[Any], format: Format | str | None, out: Any) -> Any:
    """Compute an all-dense request by torch, including gradients.

    Raises:
        ScheduleError: the schedule, which has no effect here, names an unknown index.
    """
    if request.options is not AUTOMATIC:
        check_loops(request.expr, request.options, request)
    result: Any = dense_result(request, *operands)
    wanted = wanted_format(format, result.ndim)
    if wanted is not None:
        result = stored_as(result, wanted, native=False, zero=semiring_zero(request, result.dtype))
    return result if out is None else write(out, result)
