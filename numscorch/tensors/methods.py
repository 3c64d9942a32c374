"""Python's operators for SparseTensor; each calls the entry of the same name in the table of operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .other_libraries import as_operand

NATIVE = frozenset((torch.Tensor, int, float, complex, bool))  # types of operands that need no conversion
OPERATORS: dict[str, Callable[..., Any]] = {}  # operators by name; filled by the package operators, which imports this one
METHODS: dict[str, Callable[..., Any]] = {}  # implementations of methods; filled by convert, interop, explanation and operators


def _binary(name: str, flipped: bool = False) -> Callable[[Any, Any], Any]:
    """The method of a binary operator; ``flipped`` swaps the operands.

    Raises:
        OperandError: the second operand is an array of NumPy, SciPy or pydata/sparse.
    """

    def operator(self: PythonOperators, other: Any) -> Any:
        if type(other) is not type(self) and type(other) not in NATIVE:
            other = as_operand(other, name)
            if not isinstance(other, OPERAND_TYPES):
                return NotImplemented
        return OPERATORS[name](other, self) if flipped else OPERATORS[name](self, other)

    return operator


def _unary(name: str) -> Callable[[Any], Any]:
    return lambda self: OPERATORS[name](self)


def _number(kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The method that converts a tensor with one element to a Python number."""
    return lambda self: kind(OPERATORS["item"](self))


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

    def __getitem__(self, key: Any) -> Any:
        return OPERATORS["getitem"](self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        OPERATORS["setitem"](self, key, value)

    def __iter__(self) -> Iterator[Any]:
        return OPERATORS["iter"](self)

    def __bool__(self) -> bool:
        return bool(OPERATORS["item"](self))

    def __contains__(self, element: Any) -> bool:
        return OPERATORS["contains"](self, element)

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
    __float__, __int__, __complex__ = _number(float), _number(int), _number(complex)
    __invert__, __neg__, __abs__ = _unary("invert"), _unary("neg"), _unary("abs")
    __hash__ = object.__hash__  # by identity, as for torch's tensors: == is elementwise


OPERAND_TYPES = (PythonOperators, torch.Tensor, int, float, complex)  # accepted second operands of a binary operator
