"""Reset of the caches of plans, kernels, fittings and conversions."""

from __future__ import annotations

import pytest

from numscorch.convert import conversions
from numscorch.programs import fitting
from numscorch.runtime import plans
from numscorch.schedule.facts import forget_answers


def forget_plans(patch: pytest.MonkeyPatch) -> None:
    """Use empty caches for the duration of the patch; fittings are rebuilt on demand."""
    patch.setattr(plans, "PROCESS", plans.Tables(plans.build))
    patch.setattr(fitting, "_last", {})
    patch.setattr(conversions, "_converted_before", {})
    plans.SHORTCUTS.clear()
    forget_answers()
