"""torch's samples of all operators of ``op_db`` with sparse operands: results equal torch's, or an error suggests a replacement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from numscorch.tensors.sparse_tensor import OPERATORS, TORCH_FUNCTIONS

pytest.importorskip("expecttest", reason="torch.testing._internal needs it")
op_sweep = pytest.importorskip("op_sweep")
PARTS = 24  # parts of the table, which xdist workers share


@pytest.mark.parametrize("part", range(PARTS))
def test_torchs_samples(part: int, scale: Callable[[int], int]) -> None:
    names = sorted(op_sweep.operators())[part::PARTS]
    outcomes = list(op_sweep.sweep(names, scale(30)))
    faults = [f"{outcome.kind}: {case}: {outcome.message}" for case, outcome in outcomes if outcome.kind not in op_sweep.GOOD]
    assert outcomes
    assert not faults, "\n".join(faults)


def kinds(operator: str) -> set[str]:
    return {outcome.kind for _, outcome in op_sweep.sweep([operator], 20)}


def test_the_sweep_reports_wrong_results_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds("sin") == {"same"}
    monkeypatch.setitem(TORCH_FUNCTIONS, torch.sin, torch.tan)
    assert "wrong" in kinds("sin")
    monkeypatch.setitem(TORCH_FUNCTIONS, torch.sin, lambda A: OPERATORS["sin"](A.detach()))
    assert {"wrong", "same"} == kinds("sin")  # complex and integer samples are not differentiated


@pytest.mark.parametrize("error", [KeyError("x"), RecursionError(), RuntimeError("of torch's"), op_sweep.NumscorchError("what is wrong?")])
def test_the_sweep_reports_errors(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(A: Any) -> Any:
        raise error

    monkeypatch.setitem(TORCH_FUNCTIONS, torch.sin, failing)
    assert ("other refusal" if isinstance(error, op_sweep.NumscorchError) else "raw error") in kinds("sin")
