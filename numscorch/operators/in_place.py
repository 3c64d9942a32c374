"""Operators that write in place, also ``A[key] = value``, and torch.nn.init; the pattern never changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import prod, sqrt
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch.nn import init

from ..convert.construct import from_torch
from ..convert.conversions import to_format
from ..convert.values import densified, others_at, strided, values_of
from ..errors import OperandError, RangeError, SizeError, UnsupportedError
from ..frontend.broadcasting import broadcast_shape
from ..tensors.parameter import unwrapped
from ..tensors.sparse_tensor import SparseTensor
from .elementwise import mul
from .indexing import MASKS, getitem, nonzero
from .naming import with_name
from .unary import written

PATTERNS = "entries are neither added nor dropped in place: use the operator without the underscore"


def copy_(input: SparseTensor, src: Any, non_blocking: bool = False) -> SparseTensor:
    """Copy the values of a tensor with the same pattern, or of a strided tensor at the stored entries.

    Raises:
        OperandError: the source is not a tensor.
        SizeError: the shapes or patterns differ; entries are neither added nor dropped.
    """
    src = unwrapped(src)
    if not isinstance(src, SparseTensor | torch.Tensor):
        raise OperandError(f"copy_ takes a tensor, not {type(src).__name__}: A.values.fill_(number) writes a number at all entries")
    if tuple(src.shape) != tuple(input.shape):
        raise SizeError(f"copy_ of a tensor of shape {tuple(src.shape)} into one of shape {tuple(input.shape)}: use expand first")
    return written(input, _at_entries(input, src, "copy_").to(input.dtype))


def _at_entries(input: SparseTensor, other: Any, what: str) -> torch.Tensor:
    """Another tensor's values at this tensor's entries, in storage order."""
    alike = _in_format_of(input, other)
    if isinstance(alike, SparseTensor) and not input.pattern.stores_as(alike.pattern):
        raise SizeError(f"{what} of {other}\n  into {input}: their patterns differ, and {PATTERNS}")
    if isinstance(alike, SparseTensor):
        return alike._values
    # products of bool get a new pattern, products of numbers keep that of the input
    dtype = torch.uint8 if input.dtype is torch.bool else input.dtype
    ones = input.with_values(torch.ones_like(input._values.detach(), dtype=dtype))
    product = mul(ones, other.to(input.dtype).to(dtype))
    values = product.values if isinstance(product, SparseTensor) else from_torch(product, input.format, copy=False).values
    return values.to(input.dtype)


def zero_(input: SparseTensor) -> SparseTensor:
    """Set all stored values to 0; the pattern does not change.

    Args:
        input: a SparseTensor.

    Returns:
        ``input``.

    Raises:
        RuntimeError: ``input.values`` is a leaf that requires grad.

    >>> import numscorch as ns
    >>> ns.zero_(ns.from_torch(torch.eye(2))).values
    tensor([0., 0.])
    """
    input._values.zero_()
    return input


def _sum_in_place(name: str) -> Callable[..., SparseTensor]:
    torch_function = getattr(torch, name)

    def function(input: SparseTensor, other: Any, *, alpha: float = 1) -> SparseTensor:
        if not isinstance(other, SparseTensor):
            raise UnsupportedError(f"{name}_ of a dense tensor or a number would store every entry: use {name}, whose result is dense")
        return written(input, torch_function(input._values, _at_entries(input, other, f"{name}_"), alpha=alpha))

    return with_name(function, f"{name}_", f"torch's {name}_ with a tensor of the same pattern.")


# ---- assignment, and masks as indices of dense tensors


def setitem(input: SparseTensor, key: Any, value: Any) -> None:
    """``A[key] = value`` in place, for stored entries only; unstored entries must stay 0.

    Raises:
        OperandError: the value is None, or a number of another class than Python's and NumPy's.
        RuntimeError: the data type cannot hold the number, as in torch.
        SizeError: the value does not broadcast to the indexed shape.
        UnsupportedError: the assignment would store new entries, or the values are a leaf that requires grad.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> A[0, 0] = 5
    >>> A[1] = torch.tensor([0.0, 7.0])
    >>> A.values
    tensor([5., 7.])
    """
    positions = torch.arange(1, input.pattern.nnz + 1)  # 0 marks unstored entries
    chosen = getitem(SparseTensor(input.pattern, positions), key)
    if value is None or (isinstance(value, Number) and not isinstance(value, bool | int | float | complex | np.number)):
        raise OperandError(f"{value!r} as the value of entries of {input}: assign numbers or a tensor")
    if isinstance(value, Number):
        number: Any = value.item() if isinstance(value, np.number) else value
        value = torch.empty((), dtype=input.dtype).fill_(number)  # refuses numbers that the data type can't hold
    value = (value if isinstance(value, torch.Tensor | SparseTensor) else torch.as_tensor(value)).to(input.dtype)
    if broadcast_shape("an assignment", value.shape, chosen.shape) != tuple(chosen.shape):
        raise SizeError(f"a value of shape {tuple(value.shape)} for entries of shape {tuple(chosen.shape)}")
    nonzeros = int((value != 0).to(torch.int64).sum()) * (prod(chosen.shape) // max(prod(value.shape), 1))
    if isinstance(chosen, SparseTensor):
        at, new = values_of(chosen), others_at(chosen, value)
    else:
        at, new = chosen[chosen > 0], densified(value, "an assignment").expand(chosen.shape)[chosen > 0]
    new = new.expand(at.shape)
    if (missing := nonzeros - int((new != 0).sum())) > 0:
        raise UnsupportedError(
            f"the assignment would store {missing} new entries, but the pattern of a tensor never changes: "
            "add new entries with A + ns.from_coo(indices, values, A.shape), or assign to A.values"
        )
    written(input, input.values.index_put((at - 1,), new))


def fill_diagonal_(input: SparseTensor, fill_value: Any, wrap: bool = False) -> SparseTensor:
    """torch.Tensor.fill_diagonal_: write a number to the main diagonal in place; the diagonal must be stored, unless the number is 0.

    Raises:
        SizeError: the tensor is a vector, or has more than two dimensions of different sizes.
        UnsupportedError: a diagonal entry is not stored, or ``wrap=True`` is given for a matrix with more rows than columns.

    >>> import numscorch as ns
    >>> ns.eye(2, format=ns.CSR).fill_diagonal_(3).to_dense()
    tensor([[3., 0.],
            [0., 3.]])
    """
    shape = tuple(input.shape)
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
        raise SizeError(f"fill_diagonal_ of shape {shape}: it takes matrices, and tensors whose dimensions have one size")
    if wrap and shape[0] > shape[1] + 1:
        raise UnsupportedError("fill_diagonal_ with wrap=True of a SparseTensor: leave it out, or assign to A[rows, columns]")
    setitem(input, (torch.arange(min(shape)),) * len(shape), fill_value)
    return input


def masked_getitem(input: torch.Tensor, key: Any) -> torch.Tensor:
    """``D[A > 0]`` for a dense tensor and a sparse mask: the entries where the mask is True, in row-major order.

    Raises:
        OperandError: the sparse index holds floating-point or complex values.
        RangeError: the mask's shape differs from the dimensions that it indexes.
    """
    return input[_dense_key(input, key)]


def masked_setitem(input: torch.Tensor, key: Any, value: Any) -> None:
    """``D[A > 0] = value`` for a dense tensor and a sparse mask."""
    input[_dense_key(input, key)] = strided(value)


def _dense_key(input: torch.Tensor, key: Any) -> tuple[Any, ...]:
    keys: list[Any] = []
    for part in key if isinstance(key, tuple) else (key,):
        if not isinstance(part, SparseTensor):
            keys.append(part)
        elif part.dtype.is_floating_point or part.dtype.is_complex:
            raise OperandError(f"an index of sparse {part.dtype} values: index by a sparse mask, as A != 0, or by integers")
        elif part.dtype not in MASKS:
            keys.append(densified(part, "an index", "unstored entries are indices 0"))
        elif not keys and part.shape != input.shape[: part.ndim]:
            raise RangeError(f"a mask of shape {tuple(part.shape)} for the first dimensions of a tensor of shape {tuple(input.shape)}")
        else:
            keys += nonzero(part, as_tuple=True)
    return tuple(keys)


# ---- operators in place, and torch.nn.init


def in_place(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The in-place variant of an operator: it writes the operator's result over the values of the first argument.

    An operator that is annotated to return a dense tensor is not evaluated.

    Raises:
        SizeError: the result is dense, or has another pattern.
        UnsupportedError: the result cannot be cast to the tensor's data type, or its values are a leaf that requires grad.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> in_place("sin", torch.sin)(A).values, A.values
    (tensor([0.8415, 0.8415]), tensor([0.8415, 0.8415]))
    """

    is_dense = getattr(function, "__annotations__", {}).get("return") == "torch.Tensor"

    @wraps(function)  # so that the arguments are those of the operator
    def write(input: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
        result = None if is_dense else _in_format_of(input, function(input, *args, **kwargs))
        is_alike = isinstance(result, SparseTensor) and input.pattern.stores_as(result.pattern)
        if not is_alike and any(isinstance(arg, SparseTensor) for arg in args):
            dense = [densified(arg, f"{name}_", "its argument has another pattern") for arg in args]  # as in A.mul_(row)
            result = function(input, *dense, **kwargs)
        if not isinstance(result, SparseTensor):
            raise SizeError(f"{name}_ of {input}: the result is dense, and {PATTERNS}")
        if not input.pattern.stores_as(result.pattern):
            raise SizeError(f"{name}_ of {input}\n  gives {result}: their patterns differ, and {PATTERNS}")
        return written(input, result.values)

    return with_name(write, f"{name}_", _documentation(name, function, is_dense))


def _documentation(name: str, function: Callable[..., Any], is_dense: bool) -> str:
    """The docstring of an in-place variant, with the arguments of the operator, and with its example if torch has this variant."""
    if is_dense:
        text = f"""Write the result of {name} over a dense tensor; sparse tensors raise SizeError, because the result is dense.

    To change the stored entries only, call the method of ``A.values``.

    Args:
        input: a dense tensor.
        *args, **kwargs: further arguments of torch's {name}_.

    Returns:
        ``input``.

    Raises:
        SizeError: ``input`` is sparse.

    >>> A = ns.from_torch(torch.tensor([0.0, 0.5]))
    >>> ns.{name}_(A)
    Traceback (most recent call last):
        ...
    numscorch.SizeError: {name}_ of SparseTensor(...): the result is dense, and entries are neither added nor dropped in place: ...
    """
    else:
        description, _, example = (function.__doc__ or "").partition(">>>")
        text = f"""Write the result of {name} over the values of ``input``, whose pattern does not change.

    Args:
        {description.partition("Args:")[2].partition("Returns:")[0].strip()}

    Returns:
        ``input``.

    Raises:
        SizeError: the result is dense or has another pattern; entries are neither added nor dropped in place.
        UnsupportedError: the result cannot be cast to the data type of ``input``, or ``input.values`` is a leaf that requires grad.

    >>>{example.replace(f"ns.{function.__name__}(", f"ns.{name}_(")}"""
    return text if f"{name}_" in vars(torch) else text.partition(">>>")[0]  # other variants are methods only


def _in_format_of(input: SparseTensor, result: Any) -> Any:
    """The result in the format of ``input``, if it stores as many values."""
    is_alike = isinstance(result, SparseTensor) and result.shape == input.shape and result.nnz == input.nnz
    return to_format(result, input.format) if is_alike else result


def in_place_of(table: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The in-place variants that torch's tensors have and the table lacks."""
    names = [name for name in table if callable(getattr(torch.Tensor, f"{name}_", None)) and f"{name}_" not in table]
    return {f"{name}_": in_place(name, table[name]) for name in names if name != "detach"}  # detach_ is not detach in place


def of_values(function: Callable[..., torch.Tensor]) -> Callable[..., SparseTensor]:
    """Let a function of torch.nn.init write the stored values; the function must not depend on the shape.

    >>> import numscorch as ns
    >>> of_values(init.constant_)(ns.from_torch(torch.eye(2)), val=3.0).to_dense()
    tensor([[3., 0.],
            [0., 3.]])
    """

    def initialise(tensor: SparseTensor, **options: Any) -> SparseTensor:
        function(tensor.values, **options)
        return tensor

    return initialise


def kaiming_uniform_(
    tensor: SparseTensor, a: float = 0, mode: Any = "fan_in", nonlinearity: Any = "leaky_relu", generator: torch.Generator | None = None
) -> SparseTensor:
    """torch.nn.init.kaiming_uniform_ for the stored values; the fan is that of the full tensor."""
    bound = init.calculate_gain(nonlinearity, a) * sqrt(3 / init._calculate_correct_fan(tensor, mode))  # type: ignore[arg-type]
    init.uniform_(tensor.values, -bound, bound, generator)
    return tensor


INITIAL: dict[Callable[..., Any], Callable[..., Any]] = {
    **{function: of_values(function) for function in (init.constant_, init.normal_, init.uniform_)},
    init.kaiming_uniform_: kaiming_uniform_,
}


IN_PLACE: dict[str, Callable[..., Any]] = {
    "add_": _sum_in_place("add"),
    "copy_": copy_,
    "fill_diagonal_": fill_diagonal_,
    "sub_": _sum_in_place("sub"),
    "zero_": zero_,
}
