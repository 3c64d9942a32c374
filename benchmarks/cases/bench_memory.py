"""Peak memory of a call beyond its operands and result, in a fresh process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from numscorch.measuring.peak_memory import RESET

from ..conftest import Record
from ..fresh import ROOT
from ..peak import SIZES
from ..report import SHARES
from ..selection import full_only

BAR = 0.1


@full_only
@pytest.mark.skipif(not RESET.exists(), reason="only Linux tells how much memory a call took")
@pytest.mark.parametrize("product", list(SIZES))
def test_peak(product: str, threads: int, record: Record) -> None:
    """Peak memory of a call minus the size of its result, relative to the result."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.peak", product, str(threads)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    peak, result = map(int, process.stdout.split())
    record(
        [0.0],
        kernel=SHARES,
        variant=["what"],
        what=f"{product}: memory beyond operands and result, of the result",
        share=max(peak / result - 1, 0.0),
        bar={"at_most": BAR},
        matrix="uniform",
        threads=threads,
    )
