"""report: what layouts cost, in magnitude that is lost and in bytes, before anything is trained."""

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
from ..tensors.sparse_tensor import SparseTensor
from .entrywise import threshold
from .magnitude import block_magnitude, least, magnitude, magnitudes
from .names import named
from .patterned import n_m
from .sparsify import Sparsifier, named_in_errors, sparsify
from .structures import structured

LARGEST_BLOCK = 16  # of the plain n:m that a layout is compared with
SMALLEST_BLOCK = 4
CLOSE = 0.005  # by how much its density may differ
USUAL = (magnitude(0.5), magnitude(0.9), n_m(2, 4), block_magnitude(4, 4, 0.9))


@dataclass(frozen=True)
class LayoutRow:
    """What a layout keeps of a tensor.

    ``kept`` is the share of the sum of all absolute values. ``of_unstructured`` is that as a part of what the same number of
    largest entries keeps, and ``of_n_m`` as a part of what plain n:m of the same density keeps; None where there is none.
    """

    layout: str
    format: str
    density: float
    kept: float
    of_unstructured: float
    of_n_m: float | None
    bytes: int

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        beside = "-" if self.of_n_m is None else f"{self.of_n_m:.3f}"
        shares = (f"{self.density:.4g}", f"{self.kept:.3f}", f"{self.of_unstructured:.3f}", beside)
        return (self.layout, self.format, *shares, shown_bytes(self.bytes))


@dataclass(frozen=True)
class LayoutReport:
    """Rows of :func:`report`; printed, a table."""

    shape: tuple[int, ...]
    bytes: int
    rows: tuple[LayoutRow, ...]

    def __str__(self) -> str:
        head = ("layout", "format", "density", "kept", "of unstructured", "of n:m", "bytes")
        table = [head, *(row.cells() for row in self.rows)]
        widths = [max(len(row[at]) for row in table) for at in range(len(head))]
        lines = ["  ".join(_aligned(cell, widths[at], at) for at, cell in enumerate(row)).rstrip() for row in table]
        return "\n".join([f"{self.shape}, {shown_bytes(self.bytes)} dense", *lines])


def report(tensor: torch.Tensor, *layouts: Any) -> LayoutReport:
    """What each layout keeps of a tensor: a stand-in for the accuracy that it costs, with the bytes that it takes.

    Args:
        tensor: a dense tensor, as a layer's weight.
        layouts: sparsifiers, or names of registered ones; or pairs of one and the format it is stored in. A format alone stands
            for what it is made for: NM for ``n_m``, NMG for ``n_m_g``, any other for storing what isn't 0. By default
            ``magnitude(0.5)`` and ``magnitude(0.9)``, and of a matrix ``n_m(2, 4)`` and ``block_magnitude(4, 4, 0.9)``.

    Raises:
        OperandError: something is not a sparsifier; the tensor isn't dense, or holds NaN, infinite or no floating-point numbers.

    >>> from numscorch.sparsify import magnitude, n_m
    >>> print(report(torch.tensor([[4.0, 3.0, 1.0, 0.0]]), magnitude(0.5), n_m(1, 2)))
    (1, 4), 16 bytes dense
    layout          format    density   kept  of unstructured  of n:m     bytes
    magnitude(0.5)  CSR           0.5  0.875            1.000   1.000  24 bytes
    n_m(1, 2)       NM(1, 2)      0.5  0.625            0.714   1.000  16 bytes
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        is_module = isinstance(tensor, torch.nn.Module) and not isinstance(tensor, SparseParameter)
        way_out = 'of a model, give a weight, as model.get_parameter("0.weight")' if is_module else "of a sparse one, give A.to_dense()"
        raise OperandError(f"report takes a dense tensor, not {type(tensor).__name__}: {way_out}")
    scores = magnitudes("report", tensor)
    total = _sum(scores)
    if not isfinite(total):
        raise OperandError(
            "report of a tensor whose sum is infinite: no share of it says anything; replace such entries, as with nan_to_num()"
        )
    layouts = layouts or (USUAL if tensor.ndim == 2 else USUAL[:2])
    rows = tuple(_row(tensor, scores, total, *_pair(layout)) for layout in layouts)
    return LayoutReport(tuple(tensor.shape), tensor.nbytes, rows)


def _aligned(cell: str, width: int, at: int) -> str:
    """Names to the left, numbers to the right."""
    return cell.ljust(width) if at < 2 else cell.rjust(width)


def _pair(layout: Any) -> tuple[Any, Format | None]:
    """A sparsifier, and the format that goes with it."""
    if isinstance(layout, Format):
        return _made_for(layout), layout
    sparsifier, format = layout if isinstance(layout, tuple) and len(layout) == 2 else (layout, None)
    sparsifier = named(sparsifier)
    if not callable(sparsifier):
        raise OperandError(
            f"report takes sparsifiers, or pairs of one and a format, not {layout!r}: as magnitude(0.9), or (magnitude(0.9), 'CSC')"
        )
    return sparsifier, None if format is None else as_format(format)


def _made_for(format: Format) -> Sparsifier:
    """The sparsifier that goes with a format; with one that any entries fit, what stores those that aren't 0."""
    return structured(format) or threshold(0)


def _row(tensor: torch.Tensor, scores: torch.Tensor, total: float, sparsifier: Any, format: Format | None) -> LayoutRow:
    stored = sparsify(tensor.detach(), sparsifier, format)
    count, kept = entry_count(stored.pattern), _sum(stored.values.abs())
    density = count / max(tensor.numel(), 1)
    best = _sum(scores, ~least(scores.reshape(-1), tensor.numel() - count).reshape(scores.shape))
    plain = _plain(sparsifier, density) if tensor.ndim else None
    beside = None if plain is None else _share(kept, _sum(scores, plain(tensor)))
    name = named_in_errors(sparsifier)
    return LayoutRow(name, stored.format.name, density, _share(kept, total), _share(kept, best), beside, _bytes(stored))


def _sum(scores: torch.Tensor, mask: torch.Tensor | None = None) -> float:
    """The sum of what a mask keeps."""
    return float((scores if mask is None else scores[mask]).sum(dtype=torch.float64))


def _plain(sparsifier: Sparsifier, density: float) -> n_m | None:
    """The n:m to compare with: of the same n and m, if the sparsifier has them, else of the same density.

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
    """A part of a whole; all of nothing."""
    return part / whole if whole else 1.0


def _bytes(A: SparseTensor) -> int:
    return A.values.nbytes + sum(array.nbytes for level in A.pattern.arrays for array in level)
