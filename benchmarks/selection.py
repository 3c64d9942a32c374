"""Which matrices a kernel is measured on: the rule that keeps a run within half an hour, in one place.

A kernel has main variants (SpMM with 16 and 64 columns) and others (with 2, 7, 33, ...). The main ones are
measured on every matrix, the others on every fifth one, each starting with another, so that all matrices
come by. What takes very many products is left out (ego-Twitter with more than 100 columns).
``--quick`` measures a few variants of each kernel, on a few matrices: enough to see a kernel that got slower.
``NUMSCORCH_BENCH_ALL=1`` measures everything on every matrix. ``NUMSCORCH_BENCH_SECONDS`` says how long the
functions that are compared take turns (``numscorch.measuring.turns``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from . import data

IS_QUICK = os.environ.get(data.QUICK, "") not in ("", "0")
EVERYTHING = os.environ.get("NUMSCORCH_BENCH_ALL", "") not in ("", "0") and not IS_QUICK
FEW = 2  # variants of each kind, and matrices for the main ones
MODERATE = range(20_000, 250_000)  # nonzeros of the matrices of a quick run, where there are such
STRIDE = 5  # one of so many matrices for the variants that aren't the main ones
MOST_PRODUCTS = 50_000_000  # of sparse matrices
MOST_DENSE_PRODUCTS = 300_000_000  # of a sparse and a dense matrix
WORTH_DENSE = 0.05  # a density from which the dense product is told beside
MOST_DENSE = 1 << 25  # values of a dense matrix that a sparse one is converted to or compared with


def cases(
    main: Sequence[Any],
    others: Sequence[Any] = (),
    *,
    names: Sequence[str] | None = None,
    takes: Callable[[data.Matrix], bool] | None = None,
) -> list[tuple[str, Any]]:
    """Pairs of a matrix's name and a variant.

    Args:
        main: the variants for every matrix.
        others: those for every fifth one.
        names: the matrices; by default all.
        takes: whether the kernel can be measured on a matrix at all; reads them.

    >>> cases([16], [2, 7], names="abcd")
    [('a', 16), ('b', 16), ('c', 16), ('d', 16), ('a', 2), ('b', 7)]
    """
    chosen = [name for name in (data.names() if names is None else names) if takes is None or takes(data.matrix(name))]
    if IS_QUICK:
        return _few(main, others, chosen)
    pairs = [(name, variant) for variant in main for name in chosen]
    for first, variant in enumerate(others):
        pairs += [(name, variant) for name in (chosen if EVERYTHING else chosen[first % STRIDE :: STRIDE])]
    return pairs


def _few(main: Sequence[Any], others: Sequence[Any], names: Sequence[str]) -> list[tuple[str, Any]]:
    sizes = {name: data.matrix(name).nnz for name in names}
    names = [name for name in sorted(names, key=lambda name: sizes[name]) if sizes[name] in MODERATE] or list(names)
    pairs = [(name, variant) for variant in few(main) for name in few(names)]
    return pairs + [(names[at % len(names)], variant) for at, variant in enumerate(few(others)) if names]


def few(values: Sequence[Any], count: int = FEW) -> list[Any]:
    """All of them; in a quick run so many, the first, the last, and others evenly between.

    >>> few([1, 2, 3]) in ([1, 2, 3], [1, 3])
    True
    """
    if not IS_QUICK or len(values) <= count:
        return list(values)
    return [values[round(at * (len(values) - 1) / max(count - 1, 1))] for at in range(count)]


full_only = pytest.mark.skipif(IS_QUICK, reason="takes long: make bench measures it")


def worth_dense(matrix: data.Matrix) -> bool:
    """Whether someone would consider to keep the zeros."""
    return fits_dense(matrix) and matrix.density >= WORTH_DENSE


def fits_dense(matrix: data.Case) -> bool:
    """Whether a dense matrix of this shape can be measured."""
    return matrix.shape[0] * matrix.shape[1] <= MOST_DENSE


def skip_long(matrix: data.Case, columns: int) -> None:
    """Skip a test whose every call takes long, for a peer at least."""
    if matrix.nnz * columns > MOST_DENSE_PRODUCTS and not EVERYTHING:
        pytest.skip(f"more than {MOST_DENSE_PRODUCTS:,} products: NUMSCORCH_BENCH_ALL=1 measures them")
