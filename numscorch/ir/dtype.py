"""Data types: one row for each, with all facts that the compiler uses. Statements and kernels name a data type by its text.

A new data type of values is a row in ``DTYPES``. The frontend derives its tables for torch's data types from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DType:
    """Facts about a data type.

    Attributes:
        name: its name in statements; values have the same name in NumPy and torch.
        kind: the kind of its values; operands whose values are not read have the kind ``pattern``.
        itemsize: the size of a value in memory, in bytes; 0 if there are no values.
        lane: the size of a value in a vector register, in bytes.
        in_registers: whether vector intrinsics compute with its values.
        computed: the name of the data type to which values are widened before kernels compute with them.
        accumulator: the name of the data type of workspaces that add many terms one after the other.
        copied: the name of the data type, of equal size, in which kernels copy values.
    """

    name: str
    kind: Literal["floating", "integer", "complex", "boolean", "pattern"]
    itemsize: int
    lane: int
    in_registers: bool
    computed: str
    accumulator: str
    copied: str

    @property
    def is_rounded(self) -> bool:
        """Whether sums are rounded, and infinity is a value."""
        return self.kind in ("floating", "complex")


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("float32", "floating", 4, 4, True, "float32", "float64", "float32"),
        DType("float64", "floating", 8, 8, True, "float64", "float64", "float64"),
        DType("int8", "integer", 1, 4, False, "int8", "int8", "int8"),
        DType("int16", "integer", 2, 4, False, "int16", "int16", "int16"),
        DType("int32", "integer", 4, 4, False, "int32", "int32", "int32"),
        DType("int64", "integer", 8, 8, False, "int64", "int64", "int64"),
        DType("complex64", "complex", 8, 8, False, "complex64", "complex128", "complex64"),
        DType("complex128", "complex", 16, 8, False, "complex128", "complex128", "complex128"),
        DType("float16", "floating", 2, 4, False, "float32", "float64", "int16"),
        DType("bfloat16", "floating", 2, 4, False, "float32", "float64", "int16"),
        DType("bool", "boolean", 1, 4, False, "int8", "int8", "int8"),
        DType("uint8", "integer", 1, 4, False, "int16", "int16", "int8"),
        DType("pattern", "pattern", 0, 4, False, "pattern", "pattern", "pattern"),
        DType("relation", "pattern", 0, 4, False, "relation", "relation", "relation"),
    )
}
