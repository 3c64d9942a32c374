"""Compiled operators of ``test_more_operators`` that have new statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dense_values import as_dense

import numscorch as ns

COMPILED: dict[str, Callable[[Any], Any]] = {
    "std": lambda t: torch.std(t, 1),
    "logsumexp": lambda t: torch.logsumexp(t, 0),
    "normalize": F.normalize,
    "masked_fill": lambda t: t.masked_fill(t > 0.5, 2.0),
    "multi_dot": lambda t: torch.linalg.multi_dot([t, t, torch.ones(6, 2)]),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    full = torch.rand(6, 6, generator=generator) * (torch.rand(6, 6, generator=generator) > 0.5)
    result = COMPILED[name](ns.from_torch(full, ns.CSR))
    torch.testing.assert_close(as_dense(result), COMPILED[name](full))
