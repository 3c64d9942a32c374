"""Dense values of results that may be sparse."""

from __future__ import annotations

from typing import Any

import numscorch as ns


def as_dense(value: Any) -> Any:
    """The dense form of a SparseTensor; other values unchanged."""
    return value.to_dense() if isinstance(value, ns.SparseTensor) else value
