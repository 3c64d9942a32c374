"""Scripts that are written for dense tensors run unchanged but for two lines, and print the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("name", ["unchanged_gcn", "unchanged_mlp"])
def test_a_script_trains_as_its_dense_twin(name: str) -> None:
    def printed(*arguments: str) -> list[str]:
        command = [sys.executable, "-W", "error::UserWarning", str(EXAMPLES / f"{name}.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    sparse, dense = printed(), printed("--dense")
    assert sparse[0] != dense[0]  # the kind of tensor, or the number of parameters
    assert sparse[1:] == dense[1:]
