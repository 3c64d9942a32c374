"""Unary functions under torch's names: applied to the stored values if they map 0 to 0, else to the dense tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ..convert.values import densified
from ..errors import UnsupportedError
from ..frontend.operator_forms import OF_ONE_TENSOR, keeps_zero
from ..tensors.packing import at_entries
from ..tensors.sparse_tensor import SparseTensor
from .naming import torchs, with_name

WITHOUT_FORM = "angle conj erfinv hardshrink imag isneginf isposinf nan_to_num positive real sgn signbit softshrink"  # they map 0 to 0
NOT_ZERO = "of the dense tensor, since the function is nonzero at 0; for stored entries only, use A.with_values(...)"


FROM_ZERO = "the function is nonzero at 0, and A.to_dense() requests a dense result"


def _of_values(name: str) -> Callable[..., Any]:
    torch_function = torchs(name)
    at = _place_of_inplace(name)

    def function(input: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
        inplace = kwargs.pop("inplace", False)
        if at is not None and len(args) > at:
            args, inplace = (*args[:at], *args[at + 1 :]), args[at]
        at_stored = at_entries(input.pattern, lambda values: torch_function(values, *args, **kwargs), input._values)
        return written(input, at_stored) if inplace else SparseTensor(input.pattern, at_stored)

    return with_name(function, name, f"torch's {name}, of the stored values; 0 at unstored entries.")


def _place_of_inplace(name: str) -> int | None:
    """The index of ``inplace`` among the arguments after the tensor, in torch.nn.functional's function; None if it has no such argument.

    >>> _place_of_inplace("leaky_relu"), _place_of_inplace("sin")
    (1, None)
    """
    code = getattr(getattr(functional, name, None), "__code__", None)  # inspect.signature would take 1 ms for all functions
    return code.co_varnames.index("inplace") - 1 if code is not None and "inplace" in code.co_varnames else None


def of_dense(name: str, what: str = NOT_ZERO) -> Callable[..., Any]:
    """A function that makes the tensor dense and calls torch's function; ``what`` ends its docstring."""
    torch_function = torchs(name)
    hint = f"A.with_values({'torch' if hasattr(torch, name) else 'F'}.{name}(A.values)) applies it to the stored entries only, "
    suggestion = f"{hint if what == NOT_ZERO else ''}A.to_dense() requests a dense tensor"

    def function(input: SparseTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch_function(densified(input, name, suggestion), *args, **kwargs)

    return with_name(function, name, f"torch's {name}, {what}.")


def dropout(
    input: SparseTensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, train: bool | None = None
) -> SparseTensor:
    """Set stored entries to 0 with probability ``p`` while training, and scale the others; the pattern does not change.

    torch.dropout passes ``train`` instead of ``training``.

    >>> import numscorch as ns
    >>> dropout(ns.from_torch(torch.eye(2)), training=False).values
    tensor([1., 1.])
    """
    values = functional.dropout(input._values, p, training if train is None else train)
    return written(input, values) if inplace else SparseTensor(input.pattern, values)


def written(input: SparseTensor, values: torch.Tensor) -> SparseTensor:
    """Replace the tensor's values: overwrite them, or store a new tensor of values if autograd may need the old one.

    Raises:
        UnsupportedError: the values cannot be cast to the tensor's data type; or the tensor's values are a leaf that requires
            grad, because its gradient and optimizer would lose new values.
    """
    if torch.is_grad_enabled() and input._values.requires_grad and input._values.is_leaf:
        raise UnsupportedError(
            f"{input} would be written in place, but its values are a leaf that requires grad: write within torch.no_grad(), "
            "or assign new ones to A.values"
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
    **{name: (_of_values if keeps_zero(form) else of_dense)(name) for name, form in OF_ONE_TENSOR.items()},
    **{name: _of_values(name) for name in WITHOUT_FORM.split()},
    **{name: of_dense(name) for name in ("digamma", "i0", "lgamma")},
    "dropout": dropout,
}
