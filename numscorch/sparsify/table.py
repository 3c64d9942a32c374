"""The report of ``sparsify_model``, as a table."""

from __future__ import annotations

from dataclasses import dataclass

from ..tensors.ledgers import shown_bytes

HEAD = ("weight", "module", "density", "format", "before", "after", "speed-up", "")


@dataclass(frozen=True)
class ModelRow:
    """The outcome for one weight.

    ``density`` is the fraction of its entries that is stored. ``speedup`` is the ratio of the dense layer's median time
    to that of the sparse layer; None if it was not measured. ``is_certain`` is False if the timings scatter. ``note``
    says why the weight stayed dense, and gives other remarks.
    """

    name: str
    module: str
    density: float
    format: str
    bytes_before: int
    bytes_after: int
    speedup: float | None = None
    is_certain: bool = True
    note: str = ""

    @property
    def is_sparse(self) -> bool:
        """Whether the weight became sparse."""
        return self.format != "dense"

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        speed = "not measured" if self.speedup is None else f"{self.speedup:.2g}x{' uncertain' * (not self.is_certain)}"
        sizes = shown_bytes(self.bytes_before), shown_bytes(self.bytes_after)
        kept = f"{self.density:.3g}"
        return self.name, self.module, kept, self.format, *sizes, speed if self.is_sparse or self.speedup else "", self.note


@dataclass(frozen=True)
class ModelReport:
    """The outcome for each weight that a plan names; prints as a table.

    >>> sparse = ModelRow("0.weight", "Linear", 0.1, "CSR", 4096, 900, 3.2)
    >>> print(ModelReport((sparse, ModelRow("1.weight", "Linear", 1, "dense", 64, 64, 0.5, note="slower"))))
    weight    module  density  format  before    after      speed-up
    0.weight  Linear  0.1      CSR     4 KiB     900 bytes  3.2x
    1.weight  Linear  1        dense   64 bytes  64 bytes   0.5x      slower
    1 of 2 weights sparse, 4.06 KiB -> 964 bytes
    """

    rows: tuple[ModelRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def bytes_before(self) -> int:
        """The bytes of all listed weights before."""
        return sum(row.bytes_before for row in self.rows)

    @property
    def bytes_after(self) -> int:
        """The bytes of all listed weights after."""
        return sum(row.bytes_after for row in self.rows)

    def __getitem__(self, name: str) -> ModelRow:
        return {row.name: row for row in self.rows}[name]

    def __str__(self) -> str:
        table = [HEAD, *(row.cells() for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in table]
        count = sum(row.is_sparse for row in self.rows)
        sizes = f"{shown_bytes(self.bytes_before)} -> {shown_bytes(self.bytes_after)}"
        return "\n".join([*lines, f"{count} of {len(self.rows)} weights sparse, {sizes}", *self.notes])
