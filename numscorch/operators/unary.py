"""Functions of one tensor, under torch's names: of the stored values where they are 0 at 0, else of the dense tensor."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ..convert.dense import densified
from ..errors import UnsupportedError
from ..tensors.packing import at_entries
from ..tensors.sparse_tensor import SparseTensor

KEEPING_ZERO = """
    abs absolute angle arcsin arcsinh arctan arctanh asin asinh atan atanh ceil celu conj deg2rad elu erf erfinv expm1 fix floor frac gelu
    hardshrink hardswish imag isinf isnan isneginf isposinf leaky_relu log1p mish nan_to_num neg negative positive rad2deg real
    relu relu6 round selu sgn sign signbit silu sin sinh softshrink softsign sqrt square tan tanh tanhshrink trunc
"""
OTHERS = """
    acos arccos acosh arccosh cos cosh digamma erfc exp exp2 i0 isfinite lgamma log log10 log2 logical_not logit logsigmoid reciprocal
    rsqrt sigmoid sinc softplus
"""
NOT_ZERO = "of the dense tensor, since it is not 0 at 0; of stored entries alone, use A.with_values(...)"


FROM_ZERO = "it is not 0 at 0, and A.to_dense() asks for a dense result"


def torchs(name: str) -> Callable[..., Any]:
    """torch's function of this name, or that of torch.nn.functional."""
    function: Callable[..., Any] = getattr(torch, name, None) or getattr(functional, name)
    return function


def _of_values(name: str) -> Callable[..., Any]:
    theirs = torchs(name)
    at = _place_of_inplace(name)

    def function(input: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
        inplace = kwargs.pop("inplace", False)
        if at is not None and len(args) > at:
            args, inplace = (*args[:at], *args[at + 1 :]), args[at]
        at_stored = at_entries(input.pattern, lambda values: theirs(values, *args, **kwargs), input._values)
        return written(input, at_stored) if inplace else SparseTensor(input.pattern, at_stored)

    return _named(function, name, "of the stored values; 0 at entries that aren't stored")


def _place_of_inplace(name: str) -> int | None:
    """Which argument after the tensor is ``inplace``, in torch.nn.functional; None if there is none such.

    >>> _place_of_inplace("leaky_relu"), _place_of_inplace("sin")
    (1, None)
    """
    theirs = getattr(functional, name, None)
    names = list(inspect.signature(theirs).parameters) if inspect.isfunction(theirs) else []
    return names.index("inplace") - 1 if "inplace" in names else None


def of_dense(name: str, what: str = NOT_ZERO) -> Callable[..., Any]:
    """torch's function of the dense tensor; ``what`` ends its docstring."""
    theirs = torchs(name)
    alone = f"A.with_values({'torch' if hasattr(torch, name) else 'F'}.{name}(A.values)) is of the stored entries alone, "
    instead = f"{alone if what == NOT_ZERO else ''}A.to_dense() asks for a dense one"

    def function(input: SparseTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        result: torch.Tensor = theirs(densified(input, name, instead), *args, **kwargs)
        return result

    return _named(function, name, what)


def _named(function: Callable[..., Any], name: str, what: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"torch's {name}, {what}."
    return function


def dropout(input: SparseTensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> SparseTensor:
    """Stored entries set to 0 with this probability while training, the others scaled; they stay stored.

    >>> import numscorch as ns
    >>> dropout(ns.from_torch(torch.eye(2)), training=False).values
    tensor([1., 1.])
    """
    values = functional.dropout(input._values, p, training)
    return written(input, values) if inplace else SparseTensor(input.pattern, values)


def pow(input: Any, exponent: Any) -> Any:
    """Each entry to the power of a number; dense unless that is positive.

    >>> import numscorch as ns
    >>> pow(ns.from_torch(torch.tensor([[0.0, 3.0]])), 2).values
    tensor([9.])
    """
    if isinstance(input, SparseTensor) and isinstance(exponent, int | float) and exponent > 0:
        return SparseTensor(input.pattern, at_entries(input.pattern, lambda values: torch.pow(values, exponent), input._values))
    base, power = (densified(o, "pow", FROM_ZERO) if isinstance(o, SparseTensor) else o for o in (input, exponent))
    return torch.pow(base, power)


def written(input: SparseTensor, values: torch.Tensor) -> SparseTensor:
    """The tensor, holding these values: written over its own, unless a gradient may need those.

    Raises:
        UnsupportedError: its data type can't hold theirs, as integers can't hold fractions; or its values are a leaf that
            requires grad, whose gradient and optimizer new values would lose.
    """
    if torch.is_grad_enabled() and input._values.requires_grad and input._values.is_leaf:
        raise UnsupportedError(
            f"{input} would be written in place, but its values are a leaf that requires grad: write within torch.no_grad(), "
            "or give it other ones by A.values = ..."
        )
    if not torch.can_cast(values.dtype, input.dtype):
        raise UnsupportedError(f"a result of {values.dtype} can't be written into {input}: use the operator without the underscore")
    values = values.to(input.dtype)
    if torch.is_grad_enabled() and (values.requires_grad or input._values.requires_grad):
        input.values = values
    else:
        input._values.copy_(values)
    return input


UNARY: dict[str, Callable[..., Any]] = {
    **{name: _of_values(name) for name in KEEPING_ZERO.split()},
    **{name: of_dense(name) for name in OTHERS.split()},
    "dropout": dropout,
    "pow": pow,
}
