"""Calls of einsum: their forms, their arguments as one value, and the conversion of their operands for plans."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from ..convert.construct import memory_of
from ..convert.values import to_dense
from ..errors import ExpressionError, OperandError
from ..frontend.parser import from_sublists
from ..ir.format import Format
from ..runtime.plans import signatures_of
from ..tensors.arrays import converter
from ..tensors.distributed import HANDLERS
from ..tensors.modes import check_not_traced, in_transform, may_be_traced, plain_tensor
from ..tensors.parameter import SparseParameter, unwrapped
from ..tensors.sparse_tensor import SparseTensor
from .torch_sparse import wrap

STRIDED = torch.strided
is_grad_enabled, any_autocast = torch.is_grad_enabled, torch._C._is_any_autocast_enabled


def is_strided(operand: Any) -> bool:
    """Whether the operand is a strided torch tensor."""
    return isinstance(operand, Tensor) and operand.layout is STRIDED


class EinsumCall(NamedTuple):  # made at each call of einsum: a frozen dataclass takes four times as long
    """A call of einsum: expression, operands and options. The fields are the arguments of :func:`numscorch.einsum`."""

    expr: Any
    operands: tuple[Any, ...] = ()
    format: Any = None
    out: Any = None
    reduce: Any = "sum"
    mask: Any = None
    schedule: Any = None
    sparsifier: Any = None

    def options(self) -> dict[str, Any]:
        """The options that are given.

        >>> EinsumCall("ij->i", reduce="max", format="dense").options()
        {'format': 'dense', 'reduce': 'max'}
        """
        given = zip(self._fields[2:], self[2:], strict=True)
        return {name: value for name, value in given if value is not None and not (name == "reduce" and value == "sum")}

    def takes_only(self, *names: str) -> bool:
        """Whether no options besides ``names`` are given."""
        return self.options().keys() <= set(names)


def call_form(expr: Any, operands: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The text and operands of any of numpy's and torch's call forms.

    Raises:
        ExpressionError: there are no operands, or a sublist is not a list of integers.
    """
    if isinstance(expr, str):
        if len(operands) == 1 and isinstance(operands[0], list | tuple):
            operands = tuple(operands[0])
        if operands:
            return str(expr), operands
    if not operands:
        raise ExpressionError("einsum needs an expression and operands, as einsum('ij,jk->ik', A, B)")
    text, tensors = from_sublists((expr, *operands))
    return text, tuple(tensors)


def admit(operand: Any) -> SparseTensor | Tensor | None:
    """Convert an operand to a SparseTensor, or to a strided tensor if all its levels are dense; None if gradients flow to it.

    Raises:
        UnsupportedError: the operand is not a tensor.
    """
    if type(operand) is not SparseTensor and type(operand) is not Tensor:
        operand = readable(operand)
    is_sparse = isinstance(operand, SparseTensor)
    if (operand._values if is_sparse else operand).requires_grad and is_grad_enabled():
        return None
    if is_sparse:
        return to_dense(operand) if operand.pattern.is_dense else operand
    return resolved(operand.detach()) if operand.layout is STRIDED else wrap(operand)


def readable(operand: Any) -> Any:
    """The operand as a SparseTensor or a plain tensor; gradients flow to it.

    Raises:
        OperandError: the operand is not a tensor.
        UnsupportedError: it is a tensor of a subclass that kernels cannot read.
    """
    operand = unwrapped(operand)
    check_is_tensor(operand)
    return plain_tensor(operand) if isinstance(operand, Tensor) else operand


def check_is_tensor(operand: Any) -> None:
    """Refuse operands that are not tensors, such as numbers and arrays of other libraries.

    Raises:
        OperandError: the message has the conversion to use.
    """
    if not isinstance(operand, SparseTensor | SparseParameter | Tensor):
        takes = f"operands are SparseTensors or torch tensors, not {type(operand).__name__}"
        if operand is None or isinstance(operand, str | Format):
            raise OperandError(f"{takes}: only explain takes formats instead of tensors, for a plain einsum or a statement")
        if (handler := HANDLERS.get(type(operand))) is not None:
            raise OperandError(f"{takes}: {handler.local}")
        raise OperandError(f"{takes}: wrap it with {converter(operand) or 'torch.as_tensor'}")


def resolved(tensor: Tensor) -> Tensor:
    """Materialize a lazily negated tensor, or a zero tensor without storage (autograd returns such tensors as gradients).

    >>> resolved(torch._efficientzerotensor(2))
    tensor([0., 0.])
    """
    return tensor.clone() if tensor._is_zerotensor() else tensor.resolve_neg()


def identify(operands: Sequence[Any]) -> tuple[list[Any], list[Hashable]]:
    """The operands as :func:`admit` returns them, and their signatures (see :func:`signatures_of`), by which plans are cached.

    >>> identify([torch.ones(2, 3)])[1]
    [torch.float32, torch.Size([2, 3])]
    """
    ready: list[Any] = []
    for operand in operands:
        kind = type(operand)
        if kind is Parameter and operand.layout is STRIDED and not is_grad_enabled():
            operand = operand.detach()  # a Parameter is never lazily negated
        elif kind is not Tensor or operand.requires_grad:
            operand = admit(operand)
        elif operand.layout is not STRIDED:
            operand = wrap(operand)
        elif operand.is_neg() or operand._is_zerotensor():
            operand = resolved(operand)
        ready.append(operand)
    return ready, signatures_of(ready)


def is_transformed(operands: Sequence[Any]) -> bool:
    """Whether torch must see the computation: within transforms of torch.func, or if an operand has a forward-mode tangent."""
    return in_transform() or (forward_ad._current_level >= 0 and has_tangents(operands))


def has_tangents(operands: Sequence[Any]) -> bool:
    """Whether the values of an operand have a forward-mode tangent."""
    tensors = [o._values if isinstance(o, SparseTensor) else o for o in map(unwrapped, operands)]
    arrays = chain.from_iterable(memory_of(tensor) for tensor in tensors if isinstance(tensor, Tensor))
    return any(forward_ad.unpack_dual(array).tangent is not None for array in arrays)


def check_not_recorded(operands: Iterable[Any]) -> None:
    """Refuse modes that record torch's operators, such as ``make_fx``, unless all operands are dense, since torch computes dense requests.

    Raises:
        UnsupportedError: such a mode is active.
    """
    if (may_be_traced() or in_transform()) and not all(is_strided(o) for o in operands if not isinstance(o, int | float | complex)):
        check_not_traced()


def is_plain_mode() -> bool:
    """Whether no transform, no forward-mode AD and no mode is active that may record operators."""
    return not (may_be_traced() or in_transform() or forward_ad._current_level >= 0)


def in_autocast(operands: Sequence[Any]) -> tuple[Any, ...]:
    """Cast float32 operands of products to autocast's data type; sums still accumulate in 32 bits."""
    dtype = torch.get_autocast_dtype("cpu")
    return tuple([o.to(dtype) if getattr(o, "dtype", None) is torch.float32 else o for o in map(unwrapped, operands)])


def is_all_native(operands: Sequence[Any]) -> bool:
    """Whether every operand is a torch tensor."""
    return SparseTensor not in map(type, operands)
