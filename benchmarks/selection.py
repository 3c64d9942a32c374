"""Selection of matrices per kernel, which keeps a run within half an hour.

A kernel has main variants (SpMM with 16 and 64 columns) and other variants (with 2, 7, 33, ... columns). Main
variants are measured on every matrix. Other variants are measured on every fifth matrix, each from a different
start, so that all matrices are used. Cases with very many products are skipped (ego-Twitter with more than 100
columns). ``--quick`` measures a few variants of each kernel on a few matrices, enough to detect a regression.
``NUMSCORCH_BENCH_ALL=1`` measures all variants on every matrix. ``NUMSCORCH_BENCH_SECONDS`` sets the time for
which the compared functions take turns (``numscorch.measuring.turns``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from . import data

IS_QUICK = os.environ.get(data.QUICK, "") not in ("", "0")
EVERYTHING = os.environ.get("NUMSCORCH_BENCH_ALL", "") not in ("", "0") and not IS_QUICK
FEW = 2  # variants of each kind, and matrices for the main variants, in a quick run
MODERATE = range(20_000, 250_000)  # preferred numbers of nonzeros in a quick run
STRIDE = 5  # other variants use every fifth matrix
MOST_PRODUCTS = 50_000_000  # in a product of sparse matrices
MOST_DENSE_PRODUCTS = 300_000_000  # in a product of a sparse and a dense matrix
WORTH_DENSE = 0.05  # density from which the dense product is shown too
MOST_DENSE = 1 << 25  # elements of a dense matrix for conversions and comparisons


def cases(
    main: Sequence[Any],
    others: Sequence[Any] = (),
    *,
    names: Sequence[str] | None = None,
    takes: Callable[[data.Matrix], bool] | None = None,
) -> list[tuple[str, Any]]:
    """Pairs of a matrix name and a variant.

    Args:
        main: variants for every matrix.
        others: variants for every fifth matrix.
        names: names of the matrices, by default all.
        takes: predicate that selects matrices on which the kernel can be measured.

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
    """All values; in a quick run ``count`` evenly spaced values, including the first and the last.

    >>> few([1, 2, 3]) in ([1, 2, 3], [1, 3])
    True
    """
    if not IS_QUICK or len(values) <= count:
        return list(values)
    return [values[round(at * (len(values) - 1) / max(count - 1, 1))] for at in range(count)]


full_only = pytest.mark.skipif(IS_QUICK, reason="takes long: make bench measures it")


def worth_dense(matrix: data.Matrix) -> bool:
    """Whether a dense product is a reasonable alternative for the matrix."""
    return fits_dense(matrix) and matrix.density >= WORTH_DENSE


def fits_dense(matrix: data.Case) -> bool:
    """Whether a dense matrix of this shape can be measured."""
    return matrix.shape[0] * matrix.shape[1] <= MOST_DENSE


def skip_long(matrix: data.Case, columns: int) -> None:
    """Skip a benchmark with slow calls, of numscorch or of a peer."""
    if matrix.nnz * columns > MOST_DENSE_PRODUCTS and not EVERYTHING:
        pytest.skip(f"more than {MOST_DENSE_PRODUCTS:,} products: NUMSCORCH_BENCH_ALL=1 measures them")
