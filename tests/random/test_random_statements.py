"""Random element-wise statements mean the same as in Python; chained comparisons are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from dense_values import as_dense
from random_statements import ArithmeticStatement, is_chained, random_integer_statement, random_statement
from scale import scaled

import numscorch as ns

PARTS = 3


def check(case: ArithmeticStatement) -> None:
    """Check that the result equals Python's at each coordinate, or that chained comparisons are refused."""
    if is_chained(case.text):
        with pytest.raises(ns.ExpressionError, match="chain"):
            case.evaluated()
        return
    result = case.evaluated()
    dense = as_dense(result)
    np.testing.assert_allclose(dense.numpy(), case.expected(), rtol=1e-12, err_msg=str(case))


@pytest.mark.parametrize("part", range(PARTS))
def test_statements_equal_python_expressions(part: int, plain: pytest.MonkeyPatch) -> None:
    count = scaled(3000 // PARTS)
    for seed in range(part * count, (part + 1) * count):
        check(random_statement(seed))


@pytest.mark.parametrize("part", range(PARTS))
def test_statements_of_integers_equal_python_expressions(part: int, plain: pytest.MonkeyPatch) -> None:
    """Some operands are int64; quotients and functions convert them to the default data type, which is float64 here."""
    count = scaled(1500 // PARTS)
    torch.set_default_dtype(torch.float64)
    try:
        for seed in range(10**7 + part * count, 10**7 + (part + 1) * count):
            check(replace(random_statement(seed), integers=("ABC", "A", "BC")[seed % 3]))
    finally:
        torch.set_default_dtype(torch.float32)


def test_statements_of_integers_at_the_edges_equal_numpy(plain: pytest.MonkeyPatch) -> None:
    """Where NumPy divides by 0, numscorch does, or the numerator is not stored."""
    for seed in range(scaled(2000)):
        case = random_integer_statement(seed)
        result, expected = case.evaluated(), case.expected()
        if expected is not None:
            assert result is not None, case
            np.testing.assert_array_equal(result, expected, err_msg=str(case))


def test_some_statements_are_chained() -> None:
    chained = sum(is_chained(random_statement(seed).text) for seed in range(300))
    assert 60 < chained < 240
