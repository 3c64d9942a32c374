"""Sums and elementwise products of CSR matrices with different patterns."""

from __future__ import annotations

from collections.abc import Callable
from operator import add, mul
from typing import Any

import pytest

import numscorch as ns
from numscorch.measuring.peers import SCIPY
from numscorch.measuring.turns import Function

from ..conftest import Compare
from ..data import Matrix, matrix
from ..peers import of_graphblas, of_pydata, of_torch
from ..selection import cases

WHATS: dict[str, tuple[int, Callable[..., Any]]] = {
    "A + B": (2, add),
    "A * B": (2, mul),
    "A + B + C": (3, lambda A, B, C: A + B + C),
}


@pytest.mark.parametrize(("name", "what"), cases((), list(WHATS)))
def test_sums(name: str, what: str, threads: int, compare: Compare) -> None:
    """B and C are A with its rows rolled down by one and by two, so that the patterns overlap partly."""
    case = matrix(name)
    count, function = WHATS[what]
    matrices = [case, *(Matrix(name, case.rolled(by)) for by in (1, 2))][:count]
    operands, peers = [operand.tensor for operand in matrices], _peers(function, what, matrices, threads)
    compare(
        "sums",
        (lambda: function(*operands)) if count == 2 else (lambda: _sum_of_three(*operands)),
        peers,
        case=case,
        threads=threads,
        what=what,
    )


def _peers(function: Callable[..., Any], what: str, matrices: list[Matrix], threads: int) -> dict[str, Function]:
    in_scipy = [operand.tensor.to_scipy() for operand in matrices]
    peers = of_torch(function, *matrices) | {SCIPY: lambda: function(*in_scipy)}
    peers |= of_graphblas(threads, matrices, lambda library, *operands: lambda: _by_graphblas(library, what, *operands))
    return peers | of_pydata(matrices, lambda _, *operands: lambda: function(*operands))


def _by_graphblas(library: Any, what: str, first: Any, *rest: Any) -> Any:
    for other in rest:
        pair = first.ewise_mult(other, library.binary.times) if what == "A * B" else first.ewise_add(other, library.binary.plus)
        first = pair.new()
    return first


def _sum_of_three(A: ns.SparseTensor, B: ns.SparseTensor, C: ns.SparseTensor) -> Any:
    """Sum of three matrices in one kernel."""
    return ns.evaluate("D[i,j] = A[i,j] + B[i,j] + C[i,j]", A=A, B=B, C=C)
