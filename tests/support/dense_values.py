"""Dense values of results that may be sparse."""

from __future__ import annotations

from typing import Any

import numscorch as ns


def as_dense(value: Any) -> Any:
    """The dense tensor of a SparseTensor; anything else as it is."""
    return value.to_dense() if isinstance(value, ns.SparseTensor) else value
