"""Reductions with dense results are no densifications in the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import numscorch as ns

pytestmark = pytest.mark.usefixtures("interpreted")


def cube() -> ns.SparseTensor:
    return ns.from_coo([[0, 0, 1], [1, 2, 0], [3, 0, 2]], [1.0, -2.0, 3.0], (2, 3, 4))


@pytest.mark.parametrize(
    "call",
    [
        lambda A: torch.norm(A, dim=2),
        lambda A: torch.norm(A, 3, dim=2, keepdim=True),
        lambda A: torch.var(A, 2),
        lambda A: torch.std_mean(A, 0)[1],
        lambda A: torch.logsumexp(A, 2),
        lambda A: torch.max(A, 2).values,
        lambda A: F.cosine_similarity(A, A * 2, 2),
        lambda A: torch.cdist(A[0], A[1]),
    ],
)
def test_dense_results_of_reductions_are_no_densification(call: Callable[[Any], Any]) -> None:
    A = cube()
    with ns.strict(), ns.ledger() as led:
        result = call(A)
    assert not led.of("densification")
    torch.testing.assert_close(result, call(A.to_dense()))
