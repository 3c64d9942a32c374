"""Number of random cases: NUMSCORCH_TEST_SCALE is the fraction of the full count."""

from __future__ import annotations

import os


def scaled(count: int) -> int:
    """The full count times the scale, at least 1."""
    return max(round(count * float(os.environ.get("NUMSCORCH_TEST_SCALE", "0.04"))), 1)
