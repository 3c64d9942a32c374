"""Kernels for processors other than this one: their schedules use its registers, their results are right, and LLVM accepts them."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SUPPORT = Path(__file__).parent.parent / "support" / "other_machine.py"
X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
AVX2 = "+avx2,+avx,+fma,+bmi,+bmi2,+popcnt,+sse4.2"
AVX512 = "+avx512f,+avx512vl,+avx512dq,+avx512bw,+avx512cd," + AVX2
MACHINES = [
    pytest.param("znver3", AVX2, X86, (8, 16), r"vfmadd\w+ps.*%ymm", r"zmm", id="AVX2"),
    pytest.param("skylake-avx512", AVX512, X86, (16, 32), r"vfmadd\w+ps.*%zmm", None, id="AVX-512"),
    pytest.param("generic", "", X86, (4, 16), r"mulps.*%xmm", r"ymm", id="SSE2"),
    pytest.param("generic", "+neon", ARM, (4, 32), r"fmla\s+v\d+\.4s", None, id="NEON"),
]


def kernels_for(name: str, features: str, triple: str) -> Any:
    variables = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "NUMBA_DISABLE_JIT": "0"}
    command = [sys.executable, str(SUPPORT), triple]
    finished = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=600)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="Numba emits IR for the processor's own family")
@pytest.mark.parametrize(("name", "features", "triple", "size", "used", "unused"), MACHINES)
def test_kernels_for_another_processor(name: str, features: str, triple: str, size: tuple[int, int], used: str, unused: str | None) -> None:
    """The program compares the results, and LLVM verifies each module; here, products use registers of the processor's width."""
    report = kernels_for(name, features, triple)
    assert (report["lanes"], report["registers"]) == size
    products = [code for text, code in report["codes"].items() if text.startswith('"""C[i,k] += A[i,j] * B[j,k]') and "float64" not in text]
    assert len(products) == 2
    assert all(re.search(used, code) for code in products)
    assert unused is None or not any(re.search(unused, code) for code in report["codes"].values())
