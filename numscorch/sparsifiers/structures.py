"""Structured formats, such as NM, and the sparsifiers whose masks they store."""

from __future__ import annotations

from ..ir.format import NM, NMG, Format
from ..ir.nmg import Grouped
from ..ir.padded import Fixed
from .nmg import n_m_g
from .patterned import n_m


def structured(format: Format) -> n_m | n_m_g | None:
    """Return the sparsifier whose masks a structured format stores; None for a format that stores any entries.

    >>> from ..ir.format import CSR
    >>> structured(NM(2, 4)), structured(NM(1, 8, 16)), structured(NMG(2, 4, 8)), structured(CSR)
    (n_m(2, 4), n_m(1, 8, rows=16), n_m_g(2, 4, 8), None)
    """
    grouped = next((level for level in format.levels if isinstance(level, Grouped)), None)
    if grouped is not None:
        return n_m_g(grouped.n, grouped.m, grouped.g) if format == NMG(grouped.n, grouped.m, grouped.g) else None
    kept = next((level.width for level in format.levels if isinstance(level, Fixed) and level.width), None)
    rows, m = (next((part.modulus for part in format.parts if part.dimension == d and part.modulus), 1) for d in (0, 1))
    fits = kept is not None and kept <= m and format.order == 2 and format == NM(kept, m, rows)
    return n_m(kept, m, rows) if fits and kept is not None else None
