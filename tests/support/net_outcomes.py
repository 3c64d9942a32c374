"""Outcomes of the net: results compared with torch's, and errors that may be raised.

The kinds are those of ``op_sweep``, and "no way out": an error of numscorch that does not say what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from op_sweep import Outcome, dense_of, leaves, same
from op_sweep_rules import OF_STORED, QUOTIENTS, RANDOM, TIES

from numscorch.errors import NumscorchError

ZERO_QUOTIENTS = rf"{QUOTIENTS}|divide|true_divide|evaluate|normalize|[Sx] (//|/|%) [Sx]"
NON_FINITE = ("infinite and NaN", "infinity", "nan")  # kinds that give NaN in torch where 0 is unstored
OF_PARSER = r"\(\):? (argument '|received an invalid combination)"  # torch's function refuses an argument before numscorch sees it
COMPILED = ("einsum", "evaluate", "plan", "fuse")  # numscorch's own functions, whose errors are never torch's
LACKING = re.compile(  # data types, sizes and numbers that torch lacks, while numscorch has a result
    r"not implemented for|Promotion for Float8|only supports|not yet implemented|Batching rule|data-dependent|does not support"
    r"|expected scalar type|same dtype|expected dtype|common dtype|Expected a floating point or complex|must have the same dtype"
    r"|must be (int|tuple of ints), not (bool|list)|cannot be multiplied \(1x\d+ and 1x"
    r"|of type bool at pos|broadcast shape|to have non-zero size|allocate memory|Storage size calculation"
    r"|Subtraction, the `-` operator|In-place abs|out of DATA bounds"
    r"|Boolean inputs not supported|takes 1 positional argument but 2|NoneType"
)
WAY_OUT = re.compile(
    r"\b(use|pass|give|call|convert|write|make|takes?|wrap|choose|name|needs?|sort|train|mask|set|shorten|split|select|reduce|differentiate|store"
    r"|see|are a|is an? (integer|number)|start|did you mean|has to|have to|must)\b"
)
INNER = (KeyError, UnboundLocalError, AssertionError, SystemError)  # errors that a user never causes
Attempt = tuple[Any, Exception | None]


def attempt(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Attempt:
    """The result of a call, or its error."""
    torch.manual_seed(1)
    try:
        return call(*args, **kwargs), None
    except Exception as error:
        return None, error


def outcome(name: str, kind: str, ours: Attempt, theirs: Attempt) -> Outcome:
    """The outcome of an attempt of numscorch, and one of torch."""
    (result, error), (expected, their_error) = ours, theirs
    if error is not None:
        return _of_error(name, error, their_error)
    if their_error is not None:
        text = f"{str(result)[:80]}   torch: {type(their_error).__name__}: {str(their_error)[:150]}"
        return Outcome("same" if LACKING.search(str(their_error)) else "accepted", text)
    try:
        _compare(name, kind, list(leaves(result)), list(leaves(expected)))
    except AssertionError as failed:
        return Outcome("wrong", " ".join(str(failed).split())[:300])
    except Exception as failed:
        return Outcome("raw", f"reading the result: {type(failed).__name__}: {failed}")
    return Outcome("same")


def _of_error(name: str, error: Exception, their_error: Exception | None) -> Outcome:
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if isinstance(error, NumscorchError):
        if their_error is not None:
            return Outcome("both raise", text)
        return Outcome("refused" if WAY_OUT.search(str(error)) else "no way out", text)
    if isinstance(error, TypeError) and "unsupported operand type(s)" in text:
        return Outcome("both raise", text)  # Python's own words for objects that define no such operator, as lists
    both_raise = their_error is not None and isinstance(error, type(their_error)) and name not in COMPILED
    if re.match(rf"(\w+\.)?{re.escape(name)}_?{OF_PARSER}", str(error)) or (both_raise and not isinstance(error, INNER)):
        return Outcome("both raise", text)
    return Outcome("raw", f"{text}   torch: {'succeeds' if their_error is None else type(their_error).__name__}")


def _compare(name: str, kind: str, ours: list[Any], theirs: list[Any]) -> None:
    shallow = bool(re.fullmatch(RANDOM, name) or re.fullmatch(OF_STORED, name))
    is_quotient = kind in NON_FINITE or re.fullmatch(ZERO_QUOTIENTS, name) is not None
    assert len(ours) == len(theirs), f"{len(ours)} results, torch {len(theirs)}"
    for at, (result, expected) in enumerate(zip(map(dense_of, ours), map(dense_of, theirs), strict=True)):
        if is_quotient and isinstance(expected, torch.Tensor) and expected.is_floating_point() and result.shape == expected.shape:
            expected = torch.where(expected.isnan() & (result == 0), result.to(expected.dtype), expected)
        if is_quotient and getattr(expected, "is_complex", bool)() and result.shape == expected.shape:
            # the components of a complex quotient by 0 depend on torch's road: that of numbers, or of tensors
            result, expected = (torch.where(t.isfinite(), t, torch.nan) for t in (result, expected))
        if getattr(result, "dtype", None) in (torch.float16, torch.bfloat16) and (result.dtype, result.shape) == (
            expected.dtype,
            expected.shape,
        ):
            result, expected = result.float(), expected.float()
            torch.testing.assert_close(result, expected, rtol=5e-2, atol=5e-2, equal_nan=True)
        else:
            same(result, expected, shallow or (at > 0 and name in (*TIES, "max", "min")), is_quotient)
