"""Load balance on two cores for matrices with skewed row lengths."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import cache

import pytest
import torch

import numscorch as ns
from numscorch.measuring.turns import Function, in_turns

from ..compat import copies
from ..conftest import Record
from ..data import Matrix, dense, matrix, names
from ..generated import full_row
from ..report import SHARES
from ..selection import few
from .bench_types import moved

FULL_ROW = "a full row"
UNEVEN = (*(name for name in ("ego-Twitter", "email-Enron", "power-law") if name in names()), FULL_ROW)
PRODUCTS: dict[str, tuple[str, tuple[int, ...]]] = {"SpMM, k = 64": ("ij,jk->ik", (64,)), "SpMV": ("ij,j->i", ())}
BAR = 0.85


@cache
def _uneven(name: str) -> Matrix:
    """A power-law matrix, or one whose middle row holds 70 % of the nonzeros."""
    return matrix(name) if name != FULL_ROW else Matrix(name, full_row(20_000, 200_000, 4))


@pytest.mark.parametrize("product", few(list(PRODUCTS), 1))
@pytest.mark.parametrize("name", few(UNEVEN, 1))
@pytest.mark.parametrize("threads", [2], indirect=True, ids=["2t"])
def test_busy(name: str, product: str, threads: int, record: Record) -> None:
    """Parallel efficiency on two threads, relative to the efficiency of two independent triads."""
    case, (expression, width) = _uneven(name), PRODUCTS[product]
    A, B = case.tensor, dense(case.shape[1], *width)

    def with_threads(count: int, function: Callable[[], object]) -> Function:
        def run() -> object:
            torch.set_num_threads(count)
            return function()

        return run

    half = moved(A, B) // 2
    peers = {
        "1 thread": with_threads(1, lambda: ns.einsum(expression, A, B)),
        "1 triad": with_threads(2, copies(half, 1)),
        "2 triads": with_threads(2, copies(half, 2)),
    }
    turns = in_turns(with_threads(2, lambda: ns.einsum(expression, A, B)), peers, patience=math.inf)
    alone, one, two = (statistics.median(turns.peers[peer]) for peer in peers)
    busy, reachable = alone / (2 * statistics.median(turns.ours)), one / two
    record(
        turns.ours,
        kernel=SHARES,
        variant=["what"],
        what=f"{product}: busy share of 2 cores, of what 2 triads reach",
        share=busy / reachable,
        busy=busy,
        reachable=reachable,
        bar={"at_least": BAR},
        matrix=name,
        threads=threads,
    )
