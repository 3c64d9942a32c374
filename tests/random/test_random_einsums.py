"""Thousands of random einsums compared with NumPy: as Python with bounds checks, and a sample compiled."""

from __future__ import annotations

import numpy as np
import pytest
from cases import EinsumCase, random_case, with_likes, with_twins
from choices import any_choices, any_tiles
from dense_values import as_dense
from scale import scaled

import numscorch as ns
import numscorch.schedule as scheduling
from numscorch.runtime import plans
from numscorch.schedule import tuning
from numscorch.tensors.validate import validate


def check(case: EinsumCase) -> None:
    """Check that the result equals NumPy's, is valid, and has the requested format."""
    result = ns.einsum(case.expr, *case.operands(), format=case.result)
    if isinstance(result, ns.SparseTensor):
        validate(result.pattern)
        assert case.result is None or result.format == case.result, str(case)
    dense = as_dense(result)
    np.testing.assert_array_equal(np.asarray(dense), case.expected(), err_msg=str(case))


@pytest.mark.parametrize("part", range(10))
def test_random_cases_unjitted(part: int, fresh_plans: pytest.MonkeyPatch) -> None:
    """Kernels run as Python with bounds checks, serial and in blocks, for three register widths."""
    count = scaled(2000)
    for seed in range(part * count, (part + 1) * count):
        any_choices(seed, fresh_plans)
        check(random_case(seed))


@pytest.mark.parametrize("part", range(2))
def test_random_cases_with_one_pattern_unjitted(part: int, fresh_plans: pytest.MonkeyPatch) -> None:
    """Operands share a pattern, so that values are read at positions of other operands."""
    count = scaled(500)
    for seed in range(part * count, (part + 1) * count):
        any_choices(seed, fresh_plans)
        check(with_twins(random_case(seed)))


def test_some_random_cases_with_one_pattern_read_values_of_shared_patterns(fresh_plans: pytest.MonkeyPatch) -> None:
    """At any scale, at least one of 500 cases reads values of a shared pattern."""
    for seed in range(500):
        any_choices(seed, fresh_plans)
        check(with_twins(random_case(seed)))
        if any("one value per entry of" in kernel.source.text for kernel in plans.PROCESS.kernels.values()):
            return
    pytest.fail("no case of 500 reads values at the positions of another operand")


@pytest.mark.parametrize("part", range(2))
def test_random_cases_with_one_format_unjitted(part: int, fresh_plans: pytest.MonkeyPatch) -> None:
    """Two operands have the same indices and format, often with blocks or diagonals."""
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
