"""Base classes of sparse tensors: properties that follow from values and shape, and Python's operators.

Each operator calls the entry of the same name in the table of operators.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from .arrays import as_operand
from .module_attributes import Attribute

NATIVE = frozenset((torch.Tensor, int, float, complex, bool))  # types of operands that need no conversion
OPERATORS: dict[str, Callable[..., Any]] = {}  # operators by name; filled by the package operators, which imports this one
METHODS: dict[str, Callable[..., Any]] = {}  # implementations of methods; filled by numscorch/__init__.py


def _binary(name: str, flipped: bool = False) -> Callable[[Any, Any], Any]:
    """The method of a binary operator; ``flipped`` swaps the operands.

    Raises:
        OperandError: the second operand is an array of NumPy, SciPy or pydata/sparse.
    """

    def operator(self: PythonOperators, other: Any) -> Any:
        if type(other) is not type(self) and type(other) not in NATIVE:
            other = as_operand(other, name)
            if not isinstance(other, (PythonOperators, torch.Tensor, int, float, complex)):
                return NotImplemented
        return OPERATORS[name](other, self) if flipped else OPERATORS[name](self, other)

    return operator


def _method(name: str) -> Callable[..., Any]:
    return lambda self, *args: OPERATORS[name](self, *args)


def _number(kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The method that converts a tensor with one element to a Python number."""
    return lambda self: kind(OPERATORS["item"](self))


class StoredValues(Attribute):
    """Properties of a tensor that has ``values``, ``shape`` and ``nnz``."""

    __slots__ = ()

    @property
    def dtype(self: Any) -> torch.dtype:
        """Data type of the values."""
        return self.values.dtype

    @property
    def device(self: Any) -> torch.device:
        """Device of the values: the CPU."""
        return self.values.device

    @property
    def density(self: Any) -> float:
        """Number of stored entries divided by the number of elements; 0 if there are no elements."""
        return self.nnz / max(prod(self.shape), 1)

    @property
    def requires_grad(self: Any) -> bool:
        """Whether the values require grad."""
        return self.values.requires_grad

    def dim(self: Any) -> int:
        """Number of dimensions."""
        return self.ndim

    def size(self: Any, dim: int | None = None) -> torch.Size | int:
        """The shape, or the size of one dimension.

        Args:
            dim: the dimension, counted from the end if negative; by default all dimensions.

        Returns:
            A ``torch.Size``, or an integer if ``dim`` is given.

        Raises:
            IndexError: ``dim`` is out of range.
        """
        return self.shape if dim is None else self.shape[dim]


class PythonOperators:
    """Python's operators, subscripts and conversions for SparseTensor.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    >>> (2 * A - A).to_dense()
    tensor([[0., 2.],
            [3., 0.]])
    """

    __slots__ = ()
    __array_ufunc__ = None  # makes NumPy defer to these operators

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    __add__, __radd__ = _binary("add"), _binary("add", flipped=True)
    __sub__, __rsub__ = _binary("sub"), _binary("sub", flipped=True)
    __mul__, __rmul__ = _binary("mul"), _binary("mul", flipped=True)
    __truediv__, __rtruediv__ = _binary("div"), _binary("div", flipped=True)
    __mod__, __rmod__ = _binary("remainder"), _binary("remainder", flipped=True)
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _binary("floor_divide", flipped=True)
    __matmul__, __rmatmul__ = _binary("matmul"), _binary("matmul", flipped=True)
    __pow__, __rpow__ = _binary("pow"), _binary("pow", flipped=True)
    __gt__, __ge__, __lt__, __le__, __eq__, __ne__ = map(_binary, ("gt", "ge", "lt", "le", "eq", "ne"))
    __iadd__, __isub__, __imul__, __itruediv__ = map(_binary, ("add_", "sub_", "mul_", "div_"))
    __lshift__, __rlshift__ = _binary("bitwise_left_shift"), _binary("bitwise_left_shift", flipped=True)
    __rshift__, __rrshift__ = _binary("bitwise_right_shift"), _binary("bitwise_right_shift", flipped=True)
    __and__, __or__, __xor__ = map(_binary, ("and", "or", "xor"))
    __rand__, __ror__, __rxor__ = (_binary(name, flipped=True) for name in ("and", "or", "xor"))
    __float__, __int__, __complex__, __bool__ = map(_number, (float, int, complex, bool))
    __invert__, __pos__, __neg__, __abs__ = map(_method, ("invert", "positive", "neg", "abs"))
    __getitem__, __setitem__, __iter__, __contains__ = map(_method, ("getitem", "setitem", "iter", "contains"))
    __hash__ = object.__hash__  # by identity, as for torch's tensors: == is elementwise
