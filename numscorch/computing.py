"""compute: one request, of text or of statements.Request, on operands: to a plan, or to torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from .construct import from_torch
from .contraction import Pair, split
from .convert import has_torch_layout
from .datatypes import WIDENED
from .dense import dense_value
from .errors import ExpressionError, SizeError, UnsupportedError
from .ir.format import COO, Format, as_format
from .operands import STRIDED, Deferred, identify, is_all_native, undeferred
from .parser import Subscripts, parse_einsum
from .problem import wanted_format
from .runtime.dispatch import Plan, find_plan, known_plan
from .sparse_tensor import SparseTensor
from .statements import Request, parse_statement, plain_request, reducing, scheduled

MOST_PATHS = 1024
_paths: dict[Any, tuple[Pair, ...]] = {}
REDUCTIONS = {"sum": "=", "mean": "=", "max": "max=", "min": "min=", "prod": "*=", "any": "max=", "all": "min="}
SEMIRINGS = {"min_plus": "min plus=", "max_plus": "max plus=", "or_and": "max="}
REDUCTIONS |= SEMIRINGS


def compute(expr: str | Request, operands: Sequence[Any], format: Format | str | None = None, out: Any = None) -> Any:
    """The result of an einsum's text or of a request; operands and results as in :func:`numscorch.einsum`."""
    if format is not None and not isinstance(format, str):
        format = as_format(format)
    ready, signatures = identify(operands)
    plan = known_plan(expr, format, signatures)
    if plan is None:
        kinds = set(map(type, ready))
        if SparseTensor not in kinds:
            return _dense(expr, ready, format, out)
        if not WIDENED.keys().isdisjoint(o.dtype for o in ready if not isinstance(o, Deferred)):
            return _widened(expr, operands, format, out)
        if Deferred in kinds:
            ready, signatures = identify(list(map(undeferred, ready)))
        if len(ready) > 2 and isinstance(expr, str) and (pairs := _pairs(expr, ready)):
            return _in_pairs(pairs, operands, format, out)
        plan = find_plan(expr, format, ready, signatures)
    if out is not None:
        return _run_into(plan, ready, out)
    result = plan.run(*ready)
    requested = plan.problem.requested
    if requested is None and (type(result) is Tensor or not is_all_native(operands)):
        return result
    return _stored(result, requested, is_all_native(operands), format is not None)


def _widened(expr: str | Request, operands: Sequence[Any], format: Any, out: Any) -> Any:
    """16-bit values are computed with, and added up, in 32 bits, and the result is rounded once."""
    narrow = {o.dtype for o in operands}
    if len(narrow) > 1:
        names = sorted(str(dtype).removeprefix("torch.") for dtype in narrow)
        raise UnsupportedError(f"operands have data types {' and '.join(names)}: convert one with .to(torch.{names[-1]})")
    wide = [o.to(WIDENED[o.dtype]) if o.dtype in WIDENED else o for o in operands]
    result = compute(expr, wide, format)
    result = result.to(narrow.pop())
    return result if out is None else _written(out, result)


def _written_dense(result: SparseTensor, out: Any) -> Any:
    """``out``, a strided tensor, holding a sparse result whose pattern is its own."""
    if isinstance(out, SparseTensor) or not isinstance(out, Tensor) or out.layout is not STRIDED:
        raise UnsupportedError(
            "out can't hold a sparse result, whose pattern is known only afterwards: leave it out, or pass a strided tensor"
        )
    _check_out(out, result.shape, Tensor, result.dtype)
    return out.copy_(result.to_dense())


def _written(out: Any, result: Any) -> Any:
    """``out``, holding the result."""
    _check_out(out, result.shape, type(result), result.dtype)
    return _copied(out, result)


def _pairs(expr: str, operands: Sequence[Any]) -> tuple[Pair, ...]:
    """In which pairs to contract the operands, if not all at once; decided anew where sizes or counts differ."""
    shapes = tuple(tuple(o.shape) for o in operands)
    stored = tuple(o.nnz if isinstance(o, SparseTensor) else None for o in operands)
    key = (expr, shapes, stored)
    if key not in _paths:
        while len(_paths) >= MOST_PATHS:
            _paths.pop(next(iter(_paths)), None)
        _paths[key] = split(parse_einsum(expr, tuple(map(len, shapes))), shapes, stored)
    return _paths[key]


def _in_pairs(pairs: Sequence[Pair], operands: Sequence[Any], format: Any, out: Any) -> Any:
    """Contract pair after pair; the last one makes the result."""
    left = list(operands)
    for at, pair in enumerate(pairs):
        two = left[pair.left], left[pair.right]
        rest = [operand for n, operand in enumerate(left) if n not in (pair.left, pair.right)]
        last = at == len(pairs) - 1
        left = [*rest, compute(pair.expr, two, format if last else None, out if last else None)]
    return left[0]


def reduced(expr: str, operands: Sequence[Any], format: Any, out: Any, reduce: str, mask: Any, schedule: str | None = None) -> Any:
    """An einsum whose terms are joined by another operator than the sum, or whose result has a mask.

    Raises:
        ExpressionError: there is no such reduction.
        UnsupportedError: the mask is not sparse.
    """
    if reduce not in REDUCTIONS:
        raise ExpressionError(f"unknown reduction {reduce!r}: known are {', '.join(REDUCTIONS)}")
    subscripts = parse_einsum(expr, tuple(o.ndim for o in operands))
    at = None
    if REDUCTIONS[reduce] not in ("=", "+=") and any(len(set(names)) < len(names) for names in subscripts.operands):
        subscripts, operands = _diagonals(subscripts, operands)
    if mask is not None:
        if isinstance(mask, Tensor) and mask.layout is STRIDED:
            raise UnsupportedError("mask must be sparse, since its pattern selects the result: multiply by a dense one instead")
        sizes = _sizes(subscripts, operands)
        if tuple(mask.shape) != (wanted := tuple(sizes[name] for name in subscripts.result)):
            raise SizeError(f"mask has shape {tuple(mask.shape)}, but the result has {wanted}\n  {expr}")
        at, operands = len(operands), (*operands, mask)
        subscripts = Subscripts((*subscripts.operands, subscripts.result), subscripts.result)
    plain = reduce == "sum" and mask is None
    request = plain_request(subscripts) if plain else reducing(subscripts, REDUCTIONS[reduce], reduce in ("any", "all", "or_and"), at)
    request = request if schedule is None else scheduled(request, schedule)
    result = compute(request, operands, format, out)
    if reduce == "mean":
        if not (result.dtype.is_floating_point or result.dtype.is_complex):
            raise UnsupportedError(f"the mean of {result.dtype} values is not one of them: convert with .to(torch.float32)")
        terms = prod(size for name, size in _sizes(subscripts, operands).items() if name not in subscripts.result)
        values = result.values if isinstance(result, SparseTensor) else result
        values.mul_(1 / terms if terms else float("nan"))  # the result, or out
    return result


def _sizes(subscripts: Subscripts, operands: Sequence[Any]) -> dict[str, int]:
    """The extent of each index; size 1 gives way to any other."""
    sizes: dict[str, int] = {}
    for names, operand in zip(subscripts.operands, operands, strict=True):
        for name, size in zip(names, operand.shape, strict=True):
            sizes[name] = size if sizes.get(name, 1) == 1 else sizes[name]
    return sizes


def _diagonals(subscripts: Subscripts, operands: Sequence[Any]) -> tuple[Subscripts, tuple[Any, ...]]:
    """The operands' diagonals where indices repeat: entries off them are no terms of a reduction."""
    terms, taken = [], []
    for names, operand in zip(subscripts.operands, operands, strict=True):
        once = tuple(dict.fromkeys(names))
        terms.append(once)
        taken.append(operand if once == names else compute(plain_request(Subscripts((names,), once)), (operand,)))
    return Subscripts(tuple(terms), subscripts.result), tuple(taken)


def evaluate_parts(text: str, given: dict[str, Any], format: Format | str | None) -> Any:
    """Every part of a statement, one after the other; its temporaries live as long as they are needed.

    Raises:
        ExpressionError: operands are missing, unknown, or have another rank than their indices.
    """
    if not isinstance(text, str):
        raise ExpressionError(f"evaluate takes a statement's text, as 'y[i] = A[i,j] * x[j]', not {type(text).__name__}")
    parts = parse_statement(text)
    wanted = {name for part in parts for name in part.operands if not name.isdigit()}
    if wanted != set(given):
        missing, unknown = sorted(wanted - set(given)), sorted(set(given) - wanted)
        what = f"{', '.join(missing)} missing" if missing else f"{', '.join(unknown)} not in the statement"
        raise ExpressionError(f"operands: {what}\n  {text}     give each tensor by its name, as A=A")
    values = {name: _operand(value, given) for name, value in given.items()}
    for at, part in enumerate(parts):
        operands = [values[name] for name in part.operands]
        for name, names, operand in zip(part.operands, part.request.subscripts.operands, operands, strict=True):
            if operand.ndim != len(names):
                raise ExpressionError(
                    f"{name}[{','.join(names)}] has {len(names)} indices, but {name} has {operand.ndim} dimensions\n  {text}"
                )
        values[part.name] = compute(part.request, operands, format if at == len(parts) - 1 else None)
    return values[parts[-1].name]


def _operand(value: Any, given: dict[str, Any]) -> Any:
    """A number becomes a tensor of the others' data type."""
    if not isinstance(value, int | float):
        return value
    dtypes = [other.dtype for other in given.values() if hasattr(other, "dtype")]
    dtype = dtypes[0] if dtypes else torch.get_default_dtype()
    if isinstance(value, float) and not (dtype.is_floating_point or dtype.is_complex):
        raise UnsupportedError(
            f"the number {value} beside {dtype} values: convert them with .to(torch.float32), as nothing is cut off here"
        )
    try:
        return torch.tensor(value, dtype=dtype)
    except (RuntimeError, ValueError, OverflowError) as error:
        raise UnsupportedError(f"the number {value} does not fit {dtype}: convert the tensors with .to(torch.float64)") from error


def _stored(result: Any, requested: Format | None, native: bool, asked: bool = True) -> Any:
    """The result in the format asked for; torch's, where every operand is torch's and it has the layout."""
    if isinstance(result, SparseTensor):
        result = result if requested is None else result.to(requested)
        if not native or (asked and not has_torch_layout(result.format)):
            return result
        return (result if has_torch_layout(result.format) else result.to(COO(result.ndim))).to_torch()
    order = list(requested.mode_order) if requested is not None else list(range(result.ndim))
    return result.permute(order).contiguous().permute([order.index(d) for d in range(result.ndim)])


def _run_into(plan: Plan, ready: Sequence[Any], out: Any) -> Any:
    """Write the result into ``out``, which is checked first."""
    shares = plan.problem.result.shares
    if plan.problem.result.is_assembled:
        return _written_dense(plan.run(*ready), out)
    if plan.problem.requested is not None:
        raise UnsupportedError(
            f"out and format={plan.problem.requested.name} together: the result is converted after the kernel, so leave one out"
        )
    _check_out(out, plan.problem.shape, SparseTensor if shares is not None else Tensor, getattr(torch, plan.problem.result.dtype))
    result = plan.run(*ready)
    return _copied(out, result)


def _copied(out: Any, result: Any) -> Any:
    """``out``, of the result's kind, holding its values."""
    if not isinstance(out, SparseTensor):
        return out.copy_(result)
    if out.pattern is not result.pattern:
        raise SizeError("out must share the pattern that the result keeps: make it with A.with_values(...)")
    out.values.copy_(result.values)
    return out


def _check_out(out: Any, shape: Sequence[int], kind: type, dtype: torch.dtype | None = None) -> None:
    wanted = "a SparseTensor" if kind is SparseTensor else "a dense tensor"
    if not isinstance(out, kind) or (isinstance(out, Tensor) and out.layout is not STRIDED):
        raise UnsupportedError(f"out must be {wanted} for this expression, not {type(out).__name__}")
    found: Any = out
    if tuple(found.shape) != tuple(shape):
        raise SizeError(f"out has shape {tuple(found.shape)}, but the result has {tuple(shape)}")
    if dtype is not None and not torch.can_cast(dtype, found.dtype):
        raise UnsupportedError(f"out has dtype {found.dtype}, but the result is {dtype}: it would be cut off")


def _dense(expr: str | Request, operands: Sequence[Any], format: Format | str | None, out: Any) -> Any:
    """All-dense expressions are torch's, gradient included."""
    tensors = [o.tensor if isinstance(o, Deferred) else o for o in operands]
    result: Any = torch.einsum(expr, *tensors) if isinstance(expr, str) else dense_value(expr, tensors)
    wanted = wanted_format(format, result.ndim)
    if wanted is not None:
        result = _stored(result, wanted, native=True) if wanted.is_dense else from_torch(result, wanted)
    if out is None:
        return result
    _check_out(out, result.shape, Tensor, result.dtype)
    return out.copy_(result)
