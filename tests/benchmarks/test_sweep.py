"""In the sweep and the table of everyday operators, peers compute what we compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns
from benchmarks import everyday, sweep

ROWS, COLUMNS = 6, 8


def matrix() -> ns.SparseTensor:
    generator = torch.Generator().manual_seed(0)
    return ns.from_torch(torch.randn(ROWS, COLUMNS, generator=generator) * (torch.rand(ROWS, COLUMNS, generator=generator) < 0.4))


def numbers(result: Any) -> list[np.ndarray]:
    """The arrays of a result without dimensions of size 1."""
    if isinstance(result, tuple | list):
        return [array for part in result for array in numbers(part)]
    dense = result.to_dense() if hasattr(result, "to_dense") else result.toarray() if hasattr(result, "toarray") else result
    return [np.squeeze(np.asarray(dense)).astype(np.float64)]


def assert_alike(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.sort(mine.ravel()), np.sort(other.ravel()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(sweep.SCIPY))
def test_scipy_computes_the_row(name: str) -> None:
    A = matrix()
    A = A.with_values(A.values.abs()) if name == "sqrt" else A
    ours = numbers(sweep.ROWS[name](sweep.SweepOperands(A, A.shape)))
    theirs = numbers(sweep.SCIPY[name](A.to_scipy(), sweep.SweepOperands(A.to_scipy(), A.shape)))
    assert_alike(ours, theirs)


def test_a_case_has_a_peer() -> None:
    case = sweep.measured("sum(0)", "CSR", "uniform", 100)
    assert case is not None and case.name and case.ours > 0


@pytest.mark.parametrize("group", [everyday.selections, everyday.joints])
def test_peers_of_everyday_rows_agree(group: Callable[[ns.SparseTensor], Iterable[everyday.Row]]) -> None:
    for row in group(matrix()):
        assert row.peer is not None
        assert_alike(numbers(row.ours()()), numbers(row.peer()()))
