"""evaluate_parts: a statement's parts, computed one after the other, on operands given by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .computing import compute
from .errors import ExpressionError, UnsupportedError
from .ir.format import Format
from .statements import Part, parse_statement


def evaluate_parts(text: str, given: Mapping[str, Any], format: Format | str | None) -> Any:
    """Every part of a statement, one after the other; its temporaries live as long as they are needed.

    Raises:
        ExpressionError: operands are missing, unknown, or have another rank than their indices.
    """
    if not isinstance(text, str):
        raise ExpressionError(f"evaluate takes a statement's text, as 'y[i] = A[i,j] * x[j]', not {type(text).__name__}")
    parts = parse_statement(text)
    _check_names(text, parts, given)
    values = {name: _operand(value, given) for name, value in given.items()}
    for part in parts:
        _check_ranks(text, part, values)
        operands = [values[name] for name in part.operands]
        values[part.name] = compute(part.request, operands, format if part is parts[-1] else None)
    return values[parts[-1].name]


def _check_names(text: str, parts: tuple[Part, ...], given: Mapping[str, Any]) -> None:
    """That just the statement's tensors are given."""
    wanted = {name for part in parts for name in part.operands if not name.isdigit()}
    if wanted == set(given):
        return
    missing, unknown = sorted(wanted - set(given)), sorted(set(given) - wanted)
    what = f"{', '.join(missing)} missing" if missing else f"{', '.join(unknown)} not in the statement"
    raise ExpressionError(f"operands: {what}\n  {text}     give each tensor by its name, as A=A")


def _check_ranks(text: str, part: Part, values: Mapping[str, Any]) -> None:
    """That each operand has a dimension for each index."""
    for name, indices in zip(part.operands, part.request.subscripts.operands, strict=True):
        order = values[name].ndim
        if order != len(indices):
            raise ExpressionError(f"{name}[{','.join(indices)}] has {len(indices)} indices, but {name} has {order} dimensions\n  {text}")


def _operand(value: Any, given: Mapping[str, Any]) -> Any:
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
