"""Element-wise operators: promotion, conditions, quotients, and warnings of dense results."""

from __future__ import annotations

import warnings

import pytest
import torch
from dense_values import as_dense

import numscorch as ns
from numscorch.tensors import ledgers

D = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, -4.0]])


@pytest.fixture(autouse=True)
def unjitted(plain: pytest.MonkeyPatch) -> None:
    """Run kernels as Python and forget earlier warnings."""
    plain.setattr(ledgers, "_warned", set())


def sparse(full: torch.Tensor = D) -> ns.SparseTensor:
    return ns.from_torch(full, ns.CSR)


def test_numbers_and_tensors_promote() -> None:
    A, integers = sparse(), sparse(D.to(torch.int64))
    full = D.to(torch.int64)
    for result, expected in [
        (integers + 1.5, full + 1.5),
        (integers * 1.5, full * 1.5),
        (torch.tensor(1.5) == integers, full == torch.tensor(1.5)),
        (sparse(D != 0) + 1, (D != 0) + 1),
        (torch.where(integers > 0, integers, 1.5), torch.where(full > 0, full, 1.5)),
        (torch.where(A > 0, A, D.double()), torch.where(D > 0, D, D.double())),
        (torch.where(sparse(D != 0), sparse(D != 0), 0), torch.where(D != 0, D != 0, 0)),
        (torch.add(integers, A, alpha=2), torch.add(full, D, alpha=2)),
    ]:
        torch.testing.assert_close(as_dense(result), expected)


def test_conditions_of_any_type() -> None:
    condition = sparse(torch.tensor([[0, 256, 0], [1, 0, 0]]))
    result = torch.where(condition, torch.ones(2, 3, dtype=torch.int8), torch.zeros(2, 3, dtype=torch.int8))
    assert result.tolist() == [[0, 1, 0], [1, 0, 0]]


def test_where_is_sparse_with_0_and_listed_as_dense_with_other_numbers() -> None:
    A = sparse()
    with ns.strict():
        assert isinstance(torch.where(A > 0, A, 0), ns.SparseTensor)
        with pytest.raises(ns.UnsupportedError, match="dense"):
            torch.where(A > 0, A, 1.0)


def test_positions_without_entries_stay_0() -> None:
    bitmap = ns.from_torch(D, "(i, j) -> (i: dense, j: bitmap)")
    for result in (bitmap * float("inf"), bitmap / 0):
        assert not result.values.isnan().any()


@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
def test_quotients_are_rounded(mode: str | None) -> None:
    for full in (D, D.to(torch.int64)):
        torch.testing.assert_close(as_dense(torch.div(sparse(full), 3, rounding_mode=mode)), torch.div(full, 3, rounding_mode=mode))


def test_warnings_name_the_callers_file_and_are_repeated_if_raised_as_errors() -> None:
    with pytest.warns(ns.DenseFallbackWarning) as caught:
        torch.exp(sparse())
    assert caught[0].filename == __file__
    with pytest.warns(ns.DenseFallbackWarning) as caught:
        sparse() + 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(ns.DenseFallbackWarning):
                torch.sigmoid(sparse())
