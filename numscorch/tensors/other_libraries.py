"""Operands of other libraries: NumPy's numbers become Python's, arrays are refused with the function that converts them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import OperandError


def converter(value: object) -> str | None:
    """The function that converts an array of another library to a tensor; None for other objects.

    >>> converter(np.ones(2)), converter([1.0])
    ('torch.from_numpy', None)
    """
    if isinstance(value, np.ndarray):
        return "torch.from_numpy"
    kind = type(value)  # not the object: other tensors compute attributes
    if hasattr(kind, "to_scipy_sparse") or hasattr(kind, "to_coo"):
        return "ns.from_pydata"
    return "ns.from_scipy" if hasattr(kind, "tocsr") else None


def as_operand(value: Any, name: str) -> Any:
    """A NumPy number as Python's; other values unchanged.

    Raises:
        OperandError: an array of NumPy, SciPy or pydata/sparse; the text has the function that converts it.

    >>> as_operand(np.float32(2), "mul"), as_operand(np.array(3), "mul")
    (2.0, 3)
    """
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    if (function := converter(value)) is not None:
        raise OperandError(f"{name} takes tensors and numbers, not {type(value).__name__}: wrap it with {function}(x)")
    return value
