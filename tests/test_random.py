"""Thousands of random einsums against numpy: un-jitted with checked pointers, and compiled for a sample."""

from __future__ import annotations

import numpy as np
import pytest
from cases import Case, random_case, with_likes, with_twins
from choices import any_choices, any_tiles
from scale import scaled

import numscorch as ns
import numscorch.schedule as scheduling
from numscorch.runtime import plans as dispatch
from numscorch.schedule import tuning
from numscorch.tensors.validate import validate


def check(case: Case) -> None:
    """It fails unless the result is exactly numpy's, well formed, and in the format that was asked for."""
    result = ns.einsum(case.expr, *case.operands(), format=case.result)
    if isinstance(result, ns.SparseTensor):
        validate(result.pattern)
        assert case.result is None or result.format == case.result, str(case)
    dense = result.to_dense() if isinstance(result, ns.SparseTensor) else result
    np.testing.assert_array_equal(np.asarray(dense), case.expected(), err_msg=str(case))


@pytest.mark.parametrize("part", range(10))
def test_random_cases_unjitted(part: int, fresh_plans: pytest.MonkeyPatch) -> None:
    """Every kernel as Python with bounds checks, serial and in blocks, for three register widths."""
    count = scaled(2000)
    for seed in range(part * count, (part + 1) * count):
        any_choices(seed, fresh_plans)
        check(random_case(seed))


@pytest.mark.parametrize("part", range(2))
def test_random_cases_with_one_pattern_unjitted(part: int, fresh_plans: pytest.MonkeyPatch) -> None:
    """As above, where operands share a pattern, so that values are read beside the entries of others."""
    count = scaled(500)
    for seed in range(part * count, (part + 1) * count):
        any_choices(seed, fresh_plans)
        check(with_twins(random_case(seed)))


def test_random_cases_with_one_pattern_read_values_beside_entries(fresh_plans: pytest.MonkeyPatch) -> None:
    """Some of the first cases with one pattern do, at any scale."""
    for seed in range(500):
        any_choices(seed, fresh_plans)
        check(with_twins(random_case(seed)))
        if any("beside the entries of" in own.source.text for own in dispatch._kernels.values()):
            return
    pytest.fail("no case of 500 reads values beside the entries of another operand")


@pytest.mark.parametrize("part", range(2))
def test_random_cases_with_one_format_unjitted(part: int, fresh_plans: pytest.MonkeyPatch) -> None:
    """As above, where two operands have the same indices and are stored alike, many of them in blocks or along diagonals."""
    count = scaled(500)
    for seed in range(part * count, (part + 1) * count):
        any_choices(seed, fresh_plans)
        check(with_likes(random_case(seed)))


@pytest.mark.parametrize("part", range(4))
def test_random_cases_compiled(part: int, fresh_plans: pytest.MonkeyPatch) -> None:
    count = scaled(100)
    for seed in range(10**6 + part * count, 10**6 + (part + 1) * count):
        fresh_plans.setattr(tuning, "PARALLEL_STEPS", 0 if seed % 4 == 0 else 1 << 15)
        fresh_plans.setattr(scheduling, "tile", any_tiles(seed))
        check(random_case(seed))
