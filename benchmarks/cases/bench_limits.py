"""Kernel throughput as a share of the hardware limits, which are measured in the same turns (``roofs.py``)."""

from __future__ import annotations

import math
import statistics
from functools import cache

import pytest

import numscorch as ns
from numscorch.measuring.turns import in_turns

from ..bars import LARGE
from ..compat import LAST_CACHE, SECOND_CACHE, TIMES_THE_CACHE, multiply_add, triad
from ..conftest import Compare, Record
from ..data import Matrix, dense, matrix, names
from ..generated import banded
from ..peers import of_torch
from ..report import SHARES
from ..selection import few
from .bench_types import moved

WIDTH = 64
HALF_WIDTHS = few((2, 5, 20), 1)


@cache
def _banded(half_width: int) -> Matrix:
    """A banded matrix of four times the size of the last-level cache."""
    in_row = 2 * half_width + 1
    return Matrix(f"banded, {in_row} in a row", banded(TIMES_THE_CACHE * LAST_CACHE // (8 * in_row + 4), half_width))


@pytest.mark.parametrize("half_width", HALF_WIDTHS)
def test_banded_against_torch(half_width: int, threads: int, compare: Compare) -> None:
    """y[i] = A[i,j] * x[j], limited by memory bandwidth."""
    case = _banded(half_width)
    A, x = case.tensor, dense(case.shape[1])
    compare("banded", lambda: ns.einsum("ij,j->i", A, x), of_torch(lambda A: A @ x, case), case=case, threads=threads)


@pytest.mark.parametrize("half_width", HALF_WIDTHS)
def test_banded_against_triad(half_width: int, threads: int, record: Record) -> None:
    """SpMV bandwidth as a share of the bandwidth of a triad that moves the same number of bytes."""
    case = _banded(half_width)
    A, x = case.tensor, dense(case.shape[1])
    size = moved(A, x)
    roof = triad(size, threads)
    turns = in_turns(lambda: ns.einsum("ij,j->i", A, x), {"triad": roof.run}, patience=math.inf)
    least = size / roof.amount * statistics.median(turns.peers["triad"])
    _record(record, turns.ours, least, what="SpMV, banded: share of the triad's bandwidth", case=case, threads=threads)


def _is_near(case: Matrix) -> bool:
    """Whether B fits in the L2 cache and the matrix is large enough that call overhead is negligible."""
    return case.nnz >= LARGE and 4 * WIDTH * case.shape[1] <= SECOND_CACHE


@pytest.mark.parametrize("name", few([name for name in names() if _is_near(matrix(name))], 1))
def test_spmm_against_roofs(name: str, threads: int, record: Record) -> None:
    """C[i,k] = A[i,j] * B[j,k] with B in the L2 cache: throughput as a share of the lower roof."""
    case = matrix(name)
    A, B = case.tensor, dense(case.shape[1], WIDTH)
    size, operations = moved(A, B), 2 * case.nnz * WIDTH
    memory, registers = triad(size, threads), multiply_add(threads)
    turns = in_turns(lambda: ns.einsum("ij,jk->ik", A, B), {"triad": memory.run, "fma": registers.run}, patience=math.inf)
    times = {peer: statistics.median(times) for peer, times in turns.peers.items()}
    least = max(size / memory.amount * times["triad"], operations / registers.amount * times["fma"])
    _record(record, turns.ours, least, what="SpMM, k = 64, B in L2: share of the lower roof", case=case, threads=threads)


def _record(record: Record, times: tuple[float, ...], least: float, *, what: str, case: Matrix, threads: int) -> None:
    share = least / statistics.median(times)
    facts = {"what": what, "variant": ["what"], "share": share, "bar": {}}
    record(times, kernel=SHARES, **facts, matrix=case.name, shape=list(case.shape), nnz=case.nnz, threads=threads)
