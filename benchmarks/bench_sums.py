"""Sums and element-wise products of CSR matrices with different patterns."""

from __future__ import annotations

from collections.abc import Callable
from operator import add, mul
from typing import Any

import pytest

import numscorch as ns

from .conftest import Compare
from .data import matrix
from .selection import cases

WHATS: dict[str, tuple[int, Callable[..., Any]]] = {
    "A + B": (2, add),
    "A * B": (2, mul),
    "A + B + C": (3, lambda A, B, C: A + B + C),
}


@pytest.mark.parametrize(("name", "what"), cases((), list(WHATS)))
def test_sums(name: str, what: str, threads: int, compare: Compare) -> None:
    """B and C are A with its rows moved down by one and by two: patterns of its kind, which overlap here and there."""
    case = matrix(name)
    count, function = WHATS[what]
    operands = (case.tensor, case.rolled(1), case.rolled(2))[:count]
    in_torch, in_scipy = [t.to_torch() for t in operands], [t.to_scipy() for t in operands]
    compare(
        "sums",
        (lambda: function(*operands)) if count == 2 else (lambda: _sum_of_three(*operands)),
        {"torch CSR": lambda: function(*in_torch), "SciPy CSR": lambda: function(*in_scipy)},
        case=case,
        threads=threads,
        what=what,
    )


def _sum_of_three(A: ns.SparseTensor, B: ns.SparseTensor, C: ns.SparseTensor) -> Any:
    """One kernel."""
    return ns.evaluate("D[i,j] = A[i,j] + B[i,j] + C[i,j]", A=A, B=B, C=C)
