"""The gate on recorded runs: unchanged code raises no alarm, and a slower pass does; two commits are measured in turns."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gate
from benchmarks.comparing import compare, growth
from benchmarks.gate import against_history, confirmed, default_base, grown, side_by_side, told
from benchmarks.records import Run, read_run, text_of
from benchmarks.worktrees import WorktreeError, commit_of

RECORDED = Path(__file__).parents[1] / "data" / "runs"


def recorded(kind: str) -> list[Run]:
    """The runs of a kind, in order."""
    return [read_run(file) for file in sorted(RECORDED.glob(f"{kind}-*.json.gz"))]


SAME, PLANTED = recorded("same"), recorded("planted")


def scaled(run: Run, by: Callable[[dict[str, object]], float]) -> Run:
    """A run whose ratios are multiplied by a factor."""
    records = copy.deepcopy(run.records)
    for record in records:
        for peer in record["peers"].values():
            peer["ratio"] *= by(dict(record))
    return replace(run, records=records)


def synthetic_runs(runs: int, *, families: int, cases: int, noise: float, seed: int) -> list[Run]:
    """Runs with ratios of 2 and noise with heavier tails than normal noise."""
    random = np.random.default_rng(seed)
    names = [(f"kernel{family}", f"case{case}") for family in range(families) for case in range(cases)]

    def record(kernel: str, case: str) -> dict[str, object]:
        ratio = 2 * np.exp(noise * float(random.standard_t(5)))
        return {"kernel": kernel, "matrix": case, "threads": 1, "peers": {"peer": {"ratio": ratio}}}

    return [replace(SAME[0], records=tuple(record(*name) for name in names)) for _ in range(runs)]


def kernels(losses: Sequence[object]) -> set[str]:
    """Kernels of whole families."""
    return {loss.kernel for loss in losses if loss.case is None}  # type: ignore[attr-defined]


def test_recordings_have_twenty_runs_of_one_commit_and_four_of_others() -> None:
    assert len(SAME) == 20 and len({run.commit for run in SAME}) == 1
    assert len(PLANTED) == 4 and {run.commit for run in PLANTED}.isdisjoint({SAME[0].commit})
    assert len({run.fingerprint for run in SAME + PLANTED}) == 1


def test_runs_of_one_commit_rarely_raise_an_alarm_and_never_twice() -> None:
    """Four random runs are compared with four others, and alarms are confirmed with the next eight runs."""
    random, alarms = np.random.default_rng(0), 0
    for _ in range(100):
        runs = [SAME[at] for at in random.permutation(len(SAME))]
        first, second = compare(runs[0:4], runs[4:8]), compare(runs[8:12], runs[12:16])
        alarms += bool(first.slower)
        assert confirmed(first, second).slower == ()
    assert alarms <= 2


@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_runs_of_one_commit_side_by_side_raise_no_alarm(rounds: int) -> None:
    """All windows of the twenty runs, with base and head in turns."""
    for first in range(len(SAME) - 2 * rounds + 1):
        runs = SAME[first : first + 2 * rounds]
        assert compare(runs[0::2], runs[1::2]).slower == ()


def test_twenty_runs_of_one_commit_raise_no_alarm_against_the_history() -> None:
    for first in range(len(SAME) - 3):
        head = SAME[first : first + 4]
        comparison = against_history(head, [run for run in SAME if run not in head])
        assert comparison is not None and comparison.is_sure and comparison.slower == ()
    for run in SAME:
        comparison = against_history([run], [other for other in SAME if other is not run])
        assert comparison is not None and not comparison.is_sure and len(comparison.slower) <= 1, "one run is no verdict"


@pytest.mark.parametrize("before", [SAME[:4], SAME[4:8], SAME[8:12], SAME[3::5]], ids=["first", "then", "later", "in turns"])
@pytest.mark.parametrize("rounds", [3, 4])
def test_a_planted_loss_of_one_pass_is_caught(before: list[Run], rounds: int) -> None:
    comparison = compare(before[:rounds], PLANTED[:rounds])
    assert {"spmm", "sddmm", "formats"} <= kernels(comparison.slower)
    assert kernels(comparison.slower).isdisjoint({"rows", "sums", "tensors"}), "kernels that don't use it, or that it made no slower"


def test_the_planted_loss_is_about_15_percent() -> None:
    sizes = {(loss.kernel, loss.threads): loss.factor.ratio for loss in compare(SAME[3::5], PLANTED).families}
    assert sizes["spmm", 1] == pytest.approx(0.85, abs=0.03)
    assert sizes["sddmm", 1] == pytest.approx(0.85, abs=0.04)


def test_alarms_name_kernel_case_size_interval_and_commits() -> None:
    lines = list(told(compare(SAME[3::5], PLANTED), "aaaaaaaaaa..bbbbbbbbbb"))
    assert any(line.startswith("SLOWER  spmm, 1 thread, 8 cases: 1") and "aaaaaaaaaa..bbbbbbbbbb" in line for line in lines)
    case = "SLOWER  formats: power-law, format=BCSR(4, 4), k=64, 1 thread, against torch BSR: 4"
    assert any(case in line and "% slower [" in line for line in lines)


def test_improvements_are_listed_without_an_alarm() -> None:
    comparison = compare(PLANTED, SAME[3::5])
    assert "spmm" in kernels(comparison.faster) and "spmm" not in kernels(comparison.slower)
    assert any(line.startswith("faster  spmm") for line in told(comparison, ""))


def test_single_case_that_becomes_much_slower_is_named() -> None:

    def slower(record: dict[str, object]) -> float:
        return 0.6 if (record["kernel"], record["matrix"], record["threads"]) == ("rows", "uniform-weight", 1) else 1

    slow = [scaled(run, slower) for run in SAME[1:8:2]]
    (loss,) = (slower_case for slower_case in compare(SAME[0:8:2], slow).slower if slower_case.case)
    assert (loss.kernel, loss.case) == ("rows", "uniform-weight, what=max, 1 thread")
    assert loss.factor.ratio == pytest.approx(0.6, abs=0.02) and loss.factor.high < 0.7


def test_changes_of_the_machine_count_side_by_side_only() -> None:
    """All ratios are 20 % lower: a change of the machine if runs are of another time, a loss if they are not."""
    lower = [scaled(run, lambda _: 0.8) for run in SAME[8:12]]
    result = against_history(lower, SAME[:8])
    assert result is not None and result.slower == () and result.level == pytest.approx(0.8, abs=0.05)
    assert any("All ratios moved by a factor of 0.8" in line or "All ratios moved by a factor of 0.7" in line for line in told(result, ""))
    assert compare(SAME[:4], lower).slower


def test_history_catches_a_family_with_one_run() -> None:
    slow = scaled(SAME[-1], lambda r: 0.7 if r["kernel"] == "spmm" else 1)
    comparison = against_history([slow], SAME[:-1])
    assert comparison is not None and kernels(comparison.slower) == {"spmm"} and not comparison.is_sure
    assert any(line.startswith("slower? spmm, 1 thread, 8 cases: 3") for line in told(comparison, ""))


def test_history_of_other_machines_and_suites_is_ignored() -> None:
    full = [replace(run, own={**run.own, "suite": "full"}) for run in SAME[:8]]
    other_machine = [replace(run, own={**run.own, "machine": {"fingerprint": "other"}}) for run in SAME[:8]]
    assert against_history(SAME[-1:], full + other_machine) is None


def test_history_with_other_versions_of_peers_is_ignored() -> None:
    def with_versions(runs: Sequence[Run], **versions: str) -> list[Run]:
        return [replace(run, own={**run.own, "versions": versions}) for run in runs]

    head = with_versions(SAME[-1:], torch="2.13", numscorch="0.2")
    assert against_history(head, with_versions(SAME[:8], torch="2.12", numscorch="0.2")) is None
    assert against_history(head, with_versions(SAME[:8], torch="2.13", numscorch="0.1")) is not None


def test_selected_cases_are_compared_with_history_of_the_suite() -> None:
    selected = replace(SAME[-1], own={**SAME[-1].own, "suite": "part"}, records=tuple(r for r in SAME[-1].records if r["kernel"] == "spmm"))
    comparison = against_history([scaled(selected, lambda _: 1.0)], SAME[:-1])
    assert comparison is not None and {loss.kernel for loss in comparison.families} == {"spmm"}
    assert against_history(SAME[-1:], [replace(run, own=selected.own) for run in SAME[:-1]]) is None


def test_a_run_is_not_compared_with_a_copy_of_itself(tmp_path: Path) -> None:
    measured = tmp_path / "measured.json.gz"
    measured.write_bytes(SAME[4].path.read_bytes())
    assert [run.time for run in gate.alike([read_run(measured)], SAME[:6])] == [run.time for run in SAME[:6] if run is not SAME[4]]


def test_without_common_cases_there_is_no_verdict() -> None:
    empty = [replace(run, records=()) for run in SAME[:3]]
    assert list(told(compare(empty, empty), "a..b")) == [
        "Nothing could be compared: no case that has peers is in every run, or too few, a..b."
    ]
    few = [replace(run, records=tuple(r for r in run.records if r["kernel"] == "rows")[:2]) for run in SAME]
    comparison = against_history(few[-1:], few[:-1])
    assert comparison is not None and next(told(comparison, "")).startswith("Nothing could be compared")
    assert gate._exit_code(comparison, False) == 2


def test_results_of_several_machines_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = json.loads(text_of(SAME[0].path))
    other["numscorch"]["machine"]["fingerprint"] = "other"
    (tmp_path / "other.json").write_text(json.dumps(other))
    assert gate.main(["--of", str(SAME[0].path), str(tmp_path / "other.json"), "--history", str(tmp_path)]) == 2
    assert "several kinds of machines" in capsys.readouterr().err


def test_hundreds_of_cases_in_twenty_comparisons_raise_no_alarm() -> None:
    for seed in range(20):
        runs = synthetic_runs(6, families=12, cases=40, noise=0.03, seed=seed)
        comparison = compare(runs[0::2], runs[1::2])
        assert comparison.slower == () and comparison.faster == ()


def test_15_percent_of_one_family_among_hundreds_of_cases_are_caught() -> None:
    for seed in range(20):
        runs = synthetic_runs(6, families=12, cases=40, noise=0.05, seed=seed)
        slow = [scaled(run, lambda r: 0.85 if r["kernel"] == "kernel7" else 1) for run in runs[1::2]]
        assert kernels(compare(runs[0::2], slow).slower) == {"kernel7"}


def test_alarms_are_confirmed_by_a_second_comparison() -> None:
    slow = compare(SAME[3::5], PLANTED)
    assert confirmed(slow, compare(SAME[:4], SAME[4:8])).slower == ()
    assert kernels(confirmed(slow, slow).slower) == kernels(slow.slower)
    assert confirmed(compare(SAME[:4], SAME[4:8]), slow).slower == ()


def test_cases_that_some_runs_lack_are_listed() -> None:
    fewer = [replace(run, records=tuple(r for r in run.records if r["kernel"] != "rows")) for run in SAME[3:6]]
    comparison = compare(SAME[:3], fewer)
    assert "rows" not in kernels(comparison.families) and any("Not compared" in line and "rows: " in line for line in told(comparison, ""))


def test_a_comparison_needs_two_runs_of_each_commit() -> None:
    with pytest.raises(ValueError, match="of base there are 1, of head 1"):
        compare(SAME[:1], SAME[1:2])


def test_growth_of_memory_and_compile_time_is_listed() -> None:

    def compiled_in(seconds: float) -> list[Run]:
        return [replace(run, records=tuple({**r, "compile_seconds": seconds} for r in run.records)) for run in SAME[:2]]

    old, new = compiled_in(1.0), compiled_in(1.5)
    assert growth(old, new, "compile_seconds")["spmm"] == pytest.approx(1.5)
    assert growth(old, new, "peak_bytes") == {}
    assert "grown   spmm: 1.50 times as much to compile" in list(grown(old, new))


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    for file in sorted(RECORDED.glob("same-*"))[:8]:
        (tmp_path / "runs" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "runs" / "torn.json").write_text("{")

    def code(*arguments: str) -> int:
        return gate.main([*arguments, "--history", str(tmp_path)])

    assert code("--of", *(str(RECORDED / f"same-{at}.json.gz") for at in (17, 18, 19, 20))) == 0
    assert "skipped in the history: torn.json" in capsys.readouterr().err
    assert code("--of", *(str(file) for file in sorted(RECORDED.glob("planted-*")))) == 1
    out = capsys.readouterr().out
    assert "SLOWER  formats, 1 thread, 7 cases: " in out and f"{SAME[0].commit[:10]}..{PLANTED[0].commit[:10]}" in out
    assert code("--of", str(tmp_path / "runs" / "torn.json")) == 2
    assert code("--base", "no-such-commit") == 2 and "there is no commit 'no-such-commit'" in capsys.readouterr().err


PACKAGE = "SPEED = {speed}\n"
CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true")

def pytest_benchmark_update_json(config, benchmarks, output_json):
    output_json["numscorch"] = {"suite": "quick", "machine": {"fingerprint": "here"}}
"""
BENCH = """
import random
import numscorch, pytest

@pytest.mark.parametrize("case", range(6))
def test_spmm(case, benchmark):
    benchmark.pedantic(lambda: None)
    peer = {"ratio": numscorch.SPEED * random.uniform(0.99, 1.01), "low": 1, "high": 1}
    benchmark.extra_info.update(kernel="spmm", matrix=f"m{case}", threads=1, peers={"peer": peer})
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A package with a suite and two commits, which are equally fast."""
    root = tmp_path / "repository"
    for name, text in {
        "numscorch/__init__.py": PACKAGE.format(speed=2.0),
        "benchmarks/__init__.py": "",
        "benchmarks/conftest.py": CONFTEST,
        "benchmarks/cases/bench_spmm.py": BENCH,
        "pyproject.toml": '[tool.pytest.ini_options]\npython_files = ["bench_*.py"]\n',
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    git(root, "commit", "-qm", "second", "--allow-empty")
    return root


def git(root: Path, *arguments: str) -> None:
    """Run Git with a fixed author."""
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments], cwd=root, check=True, capture_output=True)


@pytest.mark.process
def test_two_commits_are_measured_in_turns_with_the_current_benchmarks(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The package of the first commit is measured with the benchmarks of the working tree."""
    (repository / "numscorch/__init__.py").write_text(PACKAGE.format(speed=1.5))
    base = commit_of("HEAD", repository)
    result, base_runs, head_runs = side_by_side(base, rounds=2, arguments=["--quick"], root=repository)
    assert [str(loss.kernel) for loss in result.slower] == ["spmm"] and result.slower[0].factor.ratio == pytest.approx(0.75, abs=0.02)
    assert len(base_runs) == len(head_runs) == 2 and not any(run.path.exists() for run in base_runs)
    assert [line.rpartition(" ")[2] for line in capsys.readouterr().err.splitlines()] == ["base", "head"] * 2 + ["more"] + [
        "base",
        "head",
    ] * 2, "suspects are measured twice"
    worktrees = subprocess.run(["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True)
    assert len(worktrees.stdout.splitlines()) == 1, "the worktree is gone"


@pytest.mark.process
def test_a_base_on_which_benchmarks_fail_is_reported(repository: Path) -> None:
    git(repository, "rm", "-q", "numscorch/__init__.py")
    git(repository, "commit", "-qm", "no package")
    base = commit_of("HEAD", repository)
    with pytest.raises(WorktreeError, match=r"(?s)the benchmarks don't run in tree \(exit code \d\):.*SPEED"):
        side_by_side(base, rounds=2, root=repository)


def test_the_base_is_the_last_recorded_commit_or_the_parent(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = commit_of("HEAD~1", repository), commit_of("HEAD", repository)
    monkeypatch.setattr(gate, "this_machine", lambda: type("Machine", (), {"fingerprint": SAME[0].fingerprint}))
    assert default_base([], repository) == first
    assert default_base([replace(SAME[0], commit=first), replace(SAME[0], commit=second)], repository) == first
    assert default_base([replace(SAME[0], commit="f" * 40)], repository) == first, "a commit that isn't here"
    (repository / "numscorch/__init__.py").write_text(PACKAGE.format(speed=1.5))
    assert default_base([replace(SAME[0], commit=second)], repository) == second
