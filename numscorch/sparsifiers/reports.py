"""report: compare layouts of a tensor by kept magnitude and by bytes, before any training."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Any

import torch

from ..errors import OperandError
from ..ir.format import Format, as_format
from ..tensors.ledgers import shown_bytes
from ..tensors.packing import entry_count
from ..tensors.parameter import SparseParameter
from .base import named
from .entrywise import threshold
from .magnitude import block_magnitude, least, magnitude, magnitudes
from .patterned import n_m, structured
from .sparsify import Sparsifier, named_in_errors, sparsify

LARGEST_BLOCK = 16  # largest m of the n:m pattern to which a layout is compared
SMALLEST_BLOCK = 4  # smallest m of this pattern
CLOSE = 0.005  # largest difference between the densities of this pattern and the layout
USUAL = (magnitude(0.5), magnitude(0.9), n_m(2, 4), block_magnitude(4, 4, 0.9))


@dataclass(frozen=True)
class LayoutRow:
    """The magnitude that one layout keeps of a tensor, and its size: a row of :class:`LayoutReport`.

    The magnitude is the sum of absolute values.

    Attributes:
        layout: the name of the sparsifier.
        format: the name of the format.
        density: the number of stored entries, divided by the number of all entries.
        kept: the magnitude of the stored entries, divided by that of all entries.
        of_unstructured: the magnitude of the stored entries, divided by that of equally many of the largest entries.
        of_n_m: the magnitude of the stored entries, divided by that of an n:m pattern of the same density; None if there is no such
            pattern.
        bytes: the size of values and index arrays.

    >>> from numscorch.sparsify import magnitude
    >>> row = report(torch.tensor([[4.0, 3.0, 1.0, 0.0]]), magnitude(0.5)).rows[0]
    >>> row.layout, row.format, row.kept, row.bytes
    ('magnitude(0.5)', 'CSR', 0.875, 24)
    """

    layout: str
    format: str
    density: float
    kept: float
    of_unstructured: float
    of_n_m: float | None
    bytes: int

    def cells(self) -> tuple[str, ...]:
        """Return the texts of the row's cells."""
        beside = "-" if self.of_n_m is None else f"{self.of_n_m:.3f}"
        shares = (f"{self.density:.4g}", f"{self.kept:.3f}", f"{self.of_unstructured:.3f}", beside)
        return (self.layout, self.format, *shares, shown_bytes(self.bytes))


@dataclass(frozen=True)
class LayoutReport:
    """A comparison of layouts of a tensor, as :func:`report` returns it; prints as a table.

    Attributes:
        shape: the shape of the tensor.
        bytes: the size of the dense tensor.
        rows: one row for each layout.

    >>> from numscorch.sparsify import magnitude
    >>> compared = report(torch.eye(4), magnitude(0.75))
    >>> compared.shape, compared.bytes, len(compared.rows)
    ((4, 4), 64, 1)
    """

    shape: tuple[int, ...]
    bytes: int
    rows: tuple[LayoutRow, ...]

    def __str__(self) -> str:
        table = [("layout", "format", "density", "kept", "of unstructured", "of n:m", "bytes"), *(row.cells() for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, row[:2], widths)) + "  " + "  ".join(map(str.rjust, row[2:], widths[2:])) for row in table]
        return "\n".join([f"{self.shape}, {shown_bytes(self.bytes)} dense", *lines])


def report(tensor: torch.Tensor, *layouts: Any) -> LayoutReport:
    """Report how much of a tensor's magnitude each layout keeps, and how many bytes it takes.

    The magnitude is the sum of absolute values. The kept magnitude is a proxy for the accuracy of a pruned model.

    Args:
        tensor: a dense floating-point tensor, such as a layer's weight.
        layouts: sparsifiers, names of registered sparsifiers, or pairs of a sparsifier and a format. A format alone stands for a
            sparsifier: NM for ``n_m``, NMG for ``n_m_g``, and other formats for a sparsifier that keeps the nonzeros. By default,
            ``magnitude(0.5)`` and ``magnitude(0.9)``, and for a matrix also ``n_m(2, 4)`` and ``block_magnitude(4, 4, 0.9)``.

    Returns:
        The report, with one row for each layout.

    Raises:
        OperandError: a layout is not a sparsifier; or the tensor is not dense, not floating-point, or holds NaN or
            infinity.

    >>> from numscorch.sparsify import magnitude, n_m
    >>> print(report(torch.tensor([[4.0, 3.0, 1.0, 0.0]]), magnitude(0.5), n_m(1, 2)))
    (1, 4), 16 bytes dense
    layout          format    density   kept  of unstructured  of n:m     bytes
    magnitude(0.5)  CSR           0.5  0.875            1.000   1.000  24 bytes
    n_m(1, 2)       NM(1, 2)      0.5  0.625            0.714   1.000  16 bytes
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        is_module = isinstance(tensor, torch.nn.Module) and not isinstance(tensor, SparseParameter)
        weight = 'for a model, give a weight: model.get_parameter("0.weight")'
        suggestion = weight if is_module else "for a sparse tensor, give A.to_dense()"
        raise OperandError(f"report takes a dense tensor, not {type(tensor).__name__}: {suggestion}")
    scores = magnitudes("report", tensor)
    total = _sum(scores)
    if not isfinite(total):
        raise OperandError(
            "report of a tensor whose sum is infinite, so that shares of it are undefined: replace infinite entries with nan_to_num()"
        )
    layouts = layouts or (USUAL if tensor.ndim == 2 else USUAL[:2])
    return LayoutReport(tuple(tensor.shape), tensor.nbytes, tuple(_row(tensor, scores, total, *_pair(layout)) for layout in layouts))


def _pair(layout: Any) -> tuple[Any, Format | None]:
    if isinstance(layout, Format):
        return structured(layout) or threshold(0), layout  # threshold(0) keeps the nonzeros
    sparsifier, format = layout if isinstance(layout, tuple) and len(layout) == 2 else (layout, None)
    return named(sparsifier), None if format is None else as_format(format)


def _row(tensor: torch.Tensor, scores: torch.Tensor, total: float, sparsifier: Any, format: Format | None) -> LayoutRow:
    stored = sparsify(tensor.detach(), sparsifier, format)
    count, kept = entry_count(stored.pattern), _sum(stored.values.abs())
    density = count / max(tensor.numel(), 1)
    best = _sum(scores, ~least(scores.reshape(-1), tensor.numel() - count).reshape(scores.shape))
    plain = _plain(sparsifier, density) if tensor.ndim else None
    beside = None if plain is None else _share(kept, _sum(scores, plain(tensor)))
    name = named_in_errors(sparsifier)
    return LayoutRow(name, stored.format.name, density, _share(kept, total), _share(kept, best), beside, stored.nbytes)


def _sum(scores: torch.Tensor, mask: torch.Tensor | None = None) -> float:
    return float((scores if mask is None else scores[mask]).sum(dtype=torch.float64))


def _plain(sparsifier: Sparsifier, density: float) -> n_m | None:
    """Return the n:m pattern to compare with: the sparsifier's own n and m, or else a pattern of the same density.

    >>> _plain(abs, 0.5), _plain(abs, 0.1), _plain(abs, 0.01)
    (n_m(2, 4), n_m(1, 10), None)
    """
    n, m = getattr(sparsifier, "n", None), getattr(sparsifier, "m", None)
    if isinstance(n, int) and isinstance(m, int):
        return n_m(n, m)
    near = Fraction(density).limit_denominator(LARGEST_BLOCK)
    if not near or abs(near - density) > CLOSE:
        return None
    times = -(-SMALLEST_BLOCK // near.denominator) if near.denominator < SMALLEST_BLOCK else 1
    return n_m(near.numerator * times, near.denominator * times)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 1.0
