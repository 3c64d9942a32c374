"""The notebook view of a SparseTensor: a small card."""

from __future__ import annotations

from html import escape
from math import prod

from ..machine.memory import size_in_words
from ..tensors.sparse_tensor import SparseTensor
from .page import drawing, style
from .sketches import Sketch, sketch


def card(A: SparseTensor) -> str:
    """The HTML for ``_repr_html_``: shape, data type, format, entries, bytes, and a collapsible view of levels and pattern.

    >>> import numscorch as ns, torch
    >>> "2 x 2, float32, CSR" in card(ns.from_torch(torch.eye(2), ns.CSR))
    True
    """
    drawn = sketch(A)
    shape = " x ".join(map(str, drawn.shape)) or "scalar"
    grad = ", requires grad" if A.requires_grad else ""
    head = f"{shape}, {drawn.dtype}, {drawn.format.name}{grad}"
    return (
        f'<style>{style()}</style><div class="numscorch small"><b>SparseTensor</b> {escape(head)}<br>'
        f"<span>{escape(_stored(drawn))}; {A.pattern.index_dtype} indices</span>"
        f"<details open><summary>levels and pattern</summary>{drawing(drawn, '')}</details></div>"
    )


def _stored(drawn: Sketch) -> str:
    """The number of entries, their density and their size in memory."""
    if drawn.entries is None:
        stored = f"{drawn.values.length:,} positions, some of them possibly padding"
    else:
        density = drawn.entries / max(prod(drawn.shape), 1)
        stored = f"{drawn.entries:,} entr{'y' if drawn.entries == 1 else 'ies'}, density {density:.3g}"
    return f"{stored}, {size_in_words(drawn.bytes)}"
