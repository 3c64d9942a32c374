"""Element-wise operators: promotion, conditions, quotients, several operands, and warnings of dense results."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

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


@pytest.mark.parametrize("condition", [3, True, None, [1, 0], "a"])
@pytest.mark.parametrize("name", ["method", "function"])
def test_conditions_that_are_no_tensors_are_refused(name: str, condition: object) -> None:
    A = sparse()
    with pytest.raises(ns.OperandError, match=f"where takes a tensor as its condition, not {type(condition).__name__}"):
        A.where(condition, 0) if name == "method" else ns.where(condition, A, 0)


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


PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(torch, name) for name in ("atan2", "fmax", "fmin", "copysign", "logaddexp", "xlogy", "hypot")},
    "lerp": lambda a, b: torch.lerp(a, b, 0.25),
    "lerp by a tensor": lambda a, b: torch.lerp(a, b, torch.tensor([0.25, 0.5, 0.75, 1.0]).to(torch.float32)),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "addcmul of a row": lambda a, b: torch.addcmul(a, b, torch.arange(4.0), value=0.5),
}


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2)], ids=lambda f: f.name)
@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_several_tensors(name: str, fmt: ns.Format, interpreted: None) -> None:
    """The second operand is sparse, dense, or a broadcast row or column."""
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(3, 4, generator=generator) * (torch.rand(3, 4, generator=generator) < 0.6)
    for b in (a.flip(0), torch.rand(3, 4), torch.rand(4), torch.rand(3, 1)):
        expected = PAIRS[name](a, b)
        A = ns.from_torch(a, fmt)
        for right in (b, *([ns.from_torch(b, fmt)] if b.ndim > 1 else [])):
            torch.testing.assert_close(as_dense(PAIRS[name](A, right)), expected)
        torch.testing.assert_close(as_dense(PAIRS[name](b, A)), PAIRS[name](b, a)) if b.shape == a.shape else None


def test_functions_of_integers(interpreted: None) -> None:
    dense_integers = torch.tensor([[0, 2], [-3, 0]])
    A = ns.from_torch(dense_integers, ns.CSR)
    for name in ("atan2", "copysign", "xlogy", "fmax", "fmin"):
        function = getattr(torch, name)
        result, expected = function(A, torch.tensor([2, 3])), function(dense_integers, torch.tensor([2, 3]))
        assert result.dtype == expected.dtype
        torch.testing.assert_close(as_dense(result), expected)
    for value in (0.5, 2.5, -1.5):
        result, expected = torch.addcmul(A, A, A, value=value), torch.addcmul(dense_integers, dense_integers, dense_integers, value=value)
        assert result.dtype == expected.dtype
        assert torch.equal(as_dense(result), expected)
    for value in (torch.inf, -torch.inf, torch.nan):
        with pytest.raises(ns.UnsupportedError, match=r"addcmul of integers takes no value=(-?inf|nan): .*to\(torch.float64\)"):
            torch.addcmul(A, A, A, value=value)
    with pytest.raises(ns.SizeError):
        torch.atan2(A, torch.ones(3))
