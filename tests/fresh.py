"""Forgetting what earlier calls left: plans, kernels, shortcuts, conversions."""

from __future__ import annotations

import pytest

from numscorch.compute import shortcuts
from numscorch.convert import conversions
from numscorch.runtime import plans


def forget_plans(patch: pytest.MonkeyPatch) -> None:
    """Forget them for as long as the patch lasts; shortcuts are made anew when they are needed."""
    patch.setattr(plans, "_plans", {})
    patch.setattr(plans, "_kernels", {})
    patch.setattr(shortcuts, "_last", {})
    patch.setattr(conversions, "_converted_before", {})
    plans.SHORTCUTS.clear()
    plans.schedule.cache_clear()
