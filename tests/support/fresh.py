"""Reset of the caches of plans, kernels, fittings and conversions."""

from __future__ import annotations

import pytest

from numscorch.convert import conversions
from numscorch.runtime import plans
from numscorch.schedule.facts import forget_answers


def use_plans(patch: pytest.MonkeyPatch, tables: plans.Tables) -> None:
    """Use these plans and kernels for the duration of the patch, and empty caches of calls and conversions."""
    patch.setattr(plans, "PROCESS", tables)
    patch.setattr(conversions, "_converted_before", {})
    plans.SHORTCUTS.clear()


def forget_plans(patch: pytest.MonkeyPatch) -> None:
    """Use empty caches for the duration of the patch; fittings are rebuilt on demand."""
    use_plans(patch, plans.Tables(plans.build))
    forget_answers()
