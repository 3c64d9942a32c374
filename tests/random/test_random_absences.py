"""Random sums of products whose operands mostly have no entries, compared with NumPy: as Python with checks, and a sample compiled."""

from __future__ import annotations

import numpy as np
import pytest
from choices import any_choices
from dense_values import as_dense
from scale import scaled
from statements import random_absences

import numscorch as ns
from numscorch.schedule import tuning


def check(seed: int) -> None:
    """Check that the result equals NumPy's."""
    case = random_absences(seed)
    result = as_dense(ns.evaluate(case.text, **case.operands))
    np.testing.assert_array_equal(np.asarray(result), case.expected, err_msg=str(case))


@pytest.mark.parametrize("part", range(4))
def test_random_absences_unjitted(part: int, fresh_plans: pytest.MonkeyPatch) -> None:
    count = scaled(1500)
    for seed in range(part * count, (part + 1) * count):
        any_choices(seed, fresh_plans)
        fresh_plans.setattr(tuning, "NEAREST_CACHE", 0 if seed // 8 % 2 else 1 << 15)
        check(seed)


@pytest.mark.parametrize("part", range(2))
def test_random_absences_compiled(part: int) -> None:
    """Operands without entries have no memory, so that reading them ends the process."""
    count = scaled(50)
    for seed in range(10**6 + part * count, 10**6 + (part + 1) * count):
        check(seed)


@pytest.mark.parametrize("seed", [211, 282, 583, 1247, 2516, 2582])
def test_regressions(seed: int, fresh_plans: pytest.MonkeyPatch) -> None:
    any_choices(seed, fresh_plans)
    check(seed)
