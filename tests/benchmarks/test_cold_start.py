"""The scripts that time first steps in fresh processes and count kernels, at the smallest sizes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import numscorch as ns
from benchmarks import cold_start, first_steps, kernel_counts
from benchmarks.cold_start import Start, Table
from benchmarks.worktrees import WorktreeError
from numscorch.codegen.kernel import build
from numscorch.runtime import plans

ROOT = Path(__file__).parents[2]
SMALL = 16


@pytest.mark.parametrize("step", first_steps.STEPS)
def test_steps_have_a_bar_and_run_at_the_smallest_size(step: str) -> None:
    assert step in cold_start.BARS
    torch.manual_seed(0)
    first_steps.STEPS[step](SMALL)()


@pytest.mark.process
def test_a_step_compiles_in_one_process_and_loads_in_the_next() -> None:
    start = cold_start.start_of("SpMM", ROOT, SMALL)
    assert start.kernels == 1
    assert start.compiling > 0 and start.cached > 0


STEPS_IN_TURN = f"""
import logging, sys
import torch
from benchmarks import first_steps
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
before = "sympy" in sys.modules
for name, step in first_steps.STEPS.items():
    print("step:", name)
    torch.manual_seed(0)  # another graph may need another kernel
    step({SMALL})()
    assert before or "sympy" not in sys.modules, f"{{name}} imports sympy"
"""  # torch imports sympy, which takes long, for many small functions such as torch.broadcast_shapes


@pytest.mark.process
def test_a_second_process_compiles_nothing_and_neither_imports_sympy(tmp_path: Path) -> None:
    """Each step compiles kernels, except for those that an earlier step of the process compiled."""

    def compiled() -> list[str]:
        settings = {**os.environ, "NUMSCORCH_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", STEPS_IN_TURN]
        printed = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=True).stdout
        return [block.splitlines()[0] for block in printed.split("step: ")[1:] if "compiled" in block]

    assert set(compiled()) >= {"SparseAttention", "A @ A", "A + A.t()"}
    assert compiled() == []


@pytest.mark.parametrize("collecting", [True, False])
def test_a_kernel_is_compiled_without_collecting_garbage(collecting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of the garbage collector is restored afterwards."""
    states, was_enabled, kind_of = [], gc.isenabled(), plans._kind_of

    def watched(*args: Any) -> Any:
        states.append(gc.isenabled())
        return kind_of(*args)

    monkeypatch.setattr(plans, "_kind_of", watched)
    (gc.enable if collecting else gc.disable)()
    try:
        with plans.apart(plans.Tables(build)):
            ns.einsum("ij,j->i", ns.from_torch(torch.eye(3)), torch.ones(3))
        assert set(states) == {False}
        assert gc.isenabled() == collecting
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_the_table_shows_seconds_above_the_floor_and_ratios() -> None:
    base, head = Start(2.5, 0.75, 5), Start(1.0, 0.53, 2)
    alone, both = Table(0.5, {"head": {"GCN": head}}), Table(0.5, {"base": {"GCN": base}, "head": {"GCN": head}})
    assert [line.split() for line in alone.lines()][1:] == [
        ["head", "new", "head", "cached", "head", "kernels"],
        ["GCN", "0.50", "0.03", "2"],
    ]
    assert [line.split() for line in both.lines()][2] == ["GCN", "2.00", "0.25", "5", "0.50", "0.03", "2", "0.25", "0.30"]
    assert Table(0.5, {"base": {"GCN": Start(0.4, 0.4, 0)}, "head": {"GCN": head}}).ratio("GCN") is None


def test_rounds_alternate_and_keep_the_minimum(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[tuple[str, bool]] = []
    seconds = iter((3.0, 2.0, 4.0, 1.0))

    def start_of(step: str, tree: Path, size: int) -> Start:
        calls.append((step, tree == ROOT))
        return Start(next(seconds), 0.5, 1)

    monkeypatch.setattr(cold_start, "start_of", start_of)
    monkeypatch.setattr(cold_start, "floor_of", lambda tree, size: 0.5)
    monkeypatch.setattr(cold_start, "run_module", lambda *arguments: "")
    table = cold_start.measure(["GCN"], base="HEAD", rounds=2, root=ROOT)
    assert calls == [("GCN", False), ("GCN", True)] * 2
    assert (table.sides["base"]["GCN"].compiling, table.sides["head"]["GCN"].compiling) == (3.0, 1.0)
    assert capsys.readouterr().err.splitlines()[-1] == "round 2 of 2: GCN, head"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "GCN,CNN"], "'CNN' is none of GCN, SAGE"),
        (["--rounds", "0"], "'0' is no positive number"),
    ],
)
def test_bad_arguments_are_refused(arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cold_start.main(arguments)
    assert message in capsys.readouterr().err


def test_a_missing_commit_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert cold_start.main(["--base", "no-such-commit"]) == 2
    assert "no-such-commit" in capsys.readouterr().err


@pytest.mark.process
def test_errors_of_a_step_show_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(WorktreeError, match="KeyError: 'CNN'"):
        cold_start.seconds_of("CNN", ROOT, tmp_path)


@pytest.mark.parametrize("family", kernel_counts.FAMILIES)
def test_each_family_runs(family: str) -> None:
    assert kernel_counts.main(["--run", family, "1"]) == 0


@pytest.mark.process
def test_kernels_of_a_family_are_counted() -> None:
    assert kernel_counts.kernels_of("widths", ROOT, 1) > 0


def test_the_script_prints_its_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cold_start, "start_of", lambda step, tree, size: Start(2.0, 1.0, size))
    monkeypatch.setattr(cold_start, "floor_of", lambda tree, size: 0.5)
    monkeypatch.setattr(cold_start, "run_module", lambda *arguments: "")
    assert cold_start.main(["--steps", "SpMM", "--size", str(SMALL)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["SpMM", "1.50", "0.50", str(SMALL)]
