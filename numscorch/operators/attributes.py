"""Attributes and methods that code for dense tensors expects: data type, memory, and autograd state."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from ..errors import MissingError, SizeError, UnsupportedError
from ..tensors.sparse_tensor import PROPERTIES, SparseTensor
from ..tensors.suggestions import type_name
from .naming import with_name
from .rearranging import transpose


def _transposition(name: str, is_conjugate: bool, matrices: bool) -> Callable[[SparseTensor], SparseTensor]:
    def attribute(input: SparseTensor) -> SparseTensor:
        if input.ndim < 2 or (matrices and input.ndim != 2):
            raise SizeError(
                f"{name} of a {input.ndim}-dimensional tensor: it takes {'' if matrices else 'batches of '}matrices, permute any shape"
            )
        view = transpose(input, -2, -1)
        return view.with_values(view.values.conj()) if is_conjugate and input.dtype.is_complex else view

    return with_name(attribute, name, f"torch's {name}: swap the last two dimensions. Only conjugation copies values.")


mT, mH, H = _transposition("mT", False, False), _transposition("mH", True, False), _transposition("H", True, True)


def register_hook(input: SparseTensor, hook: Callable[[SparseTensor], SparseTensor | None]) -> Any:
    """Call a function with the tensor's gradient as soon as it is computed; the gradient is a SparseTensor of the same pattern.

    Args:
        input: a tensor whose values require grad.
        hook: called with the gradient; returns a replacement of the same pattern, or None to leave it unchanged.

    Returns:
        A handle; its ``remove()`` unregisters the hook.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> A.values.requires_grad_()
    tensor([1., 1.], requires_grad=True)
    >>> handle = A.register_hook(lambda gradient: 2 * gradient)
    >>> A.sum().backward()
    >>> A.grad.values
    tensor([2., 2.])
    """
    pattern = input.pattern

    def call_hook(gradient: torch.Tensor) -> torch.Tensor | None:
        replacement = hook(SparseTensor(pattern, gradient))
        if replacement is not None and not (isinstance(replacement, SparseTensor) and pattern.stores_as(replacement.pattern)):
            raise UnsupportedError("the hook must return None or a gradient with the tensor's pattern: use gradient.with_values(...)")
        return None if replacement is None else replacement.values

    return input.values.register_hook(call_hook)


def _stride(input: SparseTensor, dim: int | None = None) -> Any:
    raise UnsupportedError(f"a SparseTensor has no strides: its format is {input.format}; use A.to_dense().stride()")


def _type_as(input: Any, other: Any) -> Any:
    return input.to(other.dtype)


def _type(input: SparseTensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """The values' type name in torch, or the tensor converted to ``dtype`` (a data type or such a name)."""
    return input.values.type() if dtype is None else input.with_values(input.values.type(dtype))


def _imag(input: SparseTensor) -> SparseTensor:
    if not input.dtype.is_complex:
        raise MissingError(f"imag of {input.dtype} values: only complex tensors have it")  # an AttributeError, so that hasattr works
    return input.with_values(input.values.imag)


def _new_tensor(name: str) -> Callable[..., torch.Tensor]:
    def new(input: SparseTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return getattr(input.values, name)(*args, **kwargs)

    return with_name(new, name, f"torch's {name}: a dense tensor with the values' data type.")


PROPERTIES.update(
    {
        "__qualname__": type_name,
        "H": H,
        "data": lambda input: SparseTensor(input.pattern, input.values.data),
        "grad_fn": lambda input: input.values.grad_fn,
        "imag": _imag,
        "is_cpu": lambda input: True,
        "is_cuda": lambda input: False,
        "is_leaf": lambda input: input.values.is_leaf,
        "is_meta": lambda input: False,
        "is_quantized": lambda input: False,
        "itemsize": lambda input: input.values.itemsize,
        "mH": mH,
        "mT": mT,
        "nbytes": lambda input: input.values.nbytes + sum(array.nbytes for level in input.pattern.arrays for array in level),
        "real": lambda input: input.with_values(input.values.real),
        "retains_grad": lambda input: input.values.retains_grad,
    }
)
ATTRIBUTES: dict[str, Callable[..., Any]] = {
    **{name: _new_tensor(name) for name in ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")},
    "adjoint": mH,
    "cpu": lambda input: input,
    "cuda": lambda input, *args, **kwargs: input.to("cuda"),
    "element_size": lambda input: input.values.element_size(),
    "get_device": lambda input: -1,
    "is_complex": lambda input: input.dtype.is_complex,
    "is_contiguous": lambda input, memory_format=None: True,
    "is_floating_point": lambda input: input.dtype.is_floating_point,
    "is_signed": lambda input: input.dtype.is_signed,
    "ndimension": lambda input: input.ndim,
    "nelement": lambda input: prod(input.shape),
    "register_hook": register_hook,
    "retain_grad": lambda input: input.values.retain_grad(),
    "stride": _stride,
    "type": _type,
    "type_as": _type_as,
}
