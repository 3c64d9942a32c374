"""The gate: unchanged code raises no alarm and a slower pass does, on recorded runs; and it measures two commits in turns."""

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
    """A run whose ratios are multiplied."""
    records = copy.deepcopy(run.records)
    for record in records:
        for peer in record["peers"].values():
            peer["ratio"] *= by(dict(record))
    return replace(run, records=records)


def made_up(runs: int, *, families: int, cases: int, noise: float, seed: int) -> list[Run]:
    """Runs with this noise of ratios of 2, whose tails are heavier than normal ones."""
    random = np.random.default_rng(seed)
    names = [(f"kernel{family}", f"case{case}") for family in range(families) for case in range(cases)]

    def record(kernel: str, case: str) -> dict[str, object]:
        ratio = 2 * np.exp(noise * float(random.standard_t(5)))
        return {"kernel": kernel, "matrix": case, "threads": 1, "peers": {"peer": {"ratio": ratio}}}

    return [replace(SAME[0], records=tuple(record(*name) for name in names)) for _ in range(runs)]


def kernels(losses: Sequence[object]) -> set[str]:
    """Kernels of families."""
    return {loss.kernel for loss in losses if loss.case is None}  # type: ignore[attr-defined]


def test_recordings_are_twenty_runs_of_one_commit_and_some_of_another() -> None:
    assert len(SAME) == 20 and len({run.commit for run in SAME}) == 1
    assert len(PLANTED) == 4 and {run.commit for run in PLANTED}.isdisjoint({SAME[0].commit})
    assert len({run.fingerprint for run in SAME + PLANTED}) == 1


def test_few_of_all_ways_to_share_out_one_commit_raise_an_alarm_and_none_does_twice() -> None:
    """Any four against any other four, and what still seems slower against the next eight."""
    random, alarms = np.random.default_rng(0), 0
    for _ in range(100):
        runs = [SAME[at] for at in random.permutation(len(SAME))]
        first, again = compare(runs[0:4], runs[4:8]), compare(runs[8:12], runs[12:16])
        alarms += bool(first.slower)
        assert confirmed(first, again).slower == ()
    assert alarms <= 2


@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_runs_of_one_commit_side_by_side_raise_no_alarm(rounds: int) -> None:
    """Every stretch of the twenty, the runs of base and head in turns."""
    for first in range(len(SAME) - 2 * rounds + 1):
        taken = SAME[first : first + 2 * rounds]
        assert compare(taken[0::2], taken[1::2]).slower == ()


def test_twenty_runs_of_one_commit_raise_no_alarm_against_the_history() -> None:
    for first in range(len(SAME) - 3):
        head = SAME[first : first + 4]
        found = against_history(head, [run for run in SAME if run not in head])
        assert found is not None and found.is_sure and found.slower == ()
    for run in SAME:
        found = against_history([run], [other for other in SAME if other is not run])
        assert found is not None and not found.is_sure and len(found.slower) <= 1, "one run is no verdict"


@pytest.mark.parametrize("before", [SAME[:4], SAME[4:8], SAME[8:12], SAME[3::5]], ids=["first", "then", "later", "in turns"])
@pytest.mark.parametrize("rounds", [3, 4])
def test_a_planted_loss_of_one_pass_is_caught(before: list[Run], rounds: int) -> None:
    found = compare(before[:rounds], PLANTED[:rounds])
    assert {"spmm", "sddmm", "formats"} <= kernels(found.slower)
    assert kernels(found.slower).isdisjoint({"rows", "sums", "tensors"}), "kernels that don't use it, or that it made no slower"


def test_the_planted_loss_is_about_15_percent() -> None:
    sizes = {(loss.kernel, loss.threads): loss.factor.ratio for loss in compare(SAME[3::5], PLANTED).families}
    assert sizes["spmm", 1] == pytest.approx(0.85, abs=0.03)
    assert sizes["sddmm", 1] == pytest.approx(0.85, abs=0.04)


def test_a_regression_is_told_with_its_kernel_case_size_interval_and_commits() -> None:
    lines = list(told(compare(SAME[3::5], PLANTED), "aaaaaaaaaa..bbbbbbbbbb"))
    assert any(line.startswith("SLOWER  spmm, 1 thread, 8 cases: 1") and "aaaaaaaaaa..bbbbbbbbbb" in line for line in lines)
    case = "SLOWER  formats: power-law, format=BCSR(4, 4), k=64, 1 thread, against torch BSR: 4"
    assert any(case in line and "% slower [" in line for line in lines)


def test_what_becomes_faster_is_told_and_is_no_alarm() -> None:
    found = compare(PLANTED, SAME[3::5])
    assert "spmm" in kernels(found.faster) and "spmm" not in kernels(found.slower)
    assert any(line.startswith("faster  spmm") for line in told(found, ""))


def test_single_case_that_becomes_much_slower_is_named() -> None:

    def slower(record: dict[str, object]) -> float:
        return 0.6 if (record["kernel"], record["matrix"], record["threads"]) == ("rows", "uniform-weight", 1) else 1

    slow = [scaled(run, slower) for run in SAME[1:8:2]]
    (found,) = (loss for loss in compare(SAME[0:8:2], slow).slower if loss.case)
    assert (found.kernel, found.case) == ("rows", "uniform-weight, what=max, 1 thread")
    assert found.factor.ratio == pytest.approx(0.6, abs=0.02) and found.factor.high < 0.7


def test_history_moves_with_the_machine_and_side_by_side_does_not() -> None:
    """All ratios 20 % lower: another mood of the machine if the runs are of another time, a loss if they aren't."""
    moved = [scaled(run, lambda _: 0.8) for run in SAME[8:12]]
    found = against_history(moved, SAME[:8])
    assert found is not None and found.slower == () and found.level == pytest.approx(0.8, abs=0.05)
    assert any("All ratios moved by a factor of 0.8" in line or "All ratios moved by a factor of 0.7" in line for line in told(found, ""))
    assert compare(SAME[:4], moved).slower


def test_history_catches_a_family_with_one_run() -> None:
    slow = scaled(SAME[-1], lambda r: 0.7 if r["kernel"] == "spmm" else 1)
    found = against_history([slow], SAME[:-1])
    assert found is not None and kernels(found.slower) == {"spmm"} and not found.is_sure
    assert any(line.startswith("slower? spmm, 1 thread, 8 cases: 3") for line in told(found, ""))


def test_history_of_other_machines_and_suites_is_left_alone() -> None:
    full = [replace(run, own={**run.own, "suite": "full"}) for run in SAME[:8]]
    other = [replace(run, own={**run.own, "machine": {"fingerprint": "other"}}) for run in SAME[:8]]
    assert against_history(SAME[-1:], full + other) is None


def test_history_with_other_versions_of_peers_is_left_alone_and_with_others_of_ours_is_not() -> None:
    def with_versions(runs: Sequence[Run], **versions: str) -> list[Run]:
        return [replace(run, own={**run.own, "versions": versions}) for run in runs]

    head = with_versions(SAME[-1:], torch="2.13", numscorch="0.2")
    assert against_history(head, with_versions(SAME[:8], torch="2.12", numscorch="0.2")) is None
    assert against_history(head, with_versions(SAME[:8], torch="2.13", numscorch="0.1")) is not None


def test_history_of_the_whole_suite_judges_chosen_cases_of_it() -> None:
    chosen = replace(SAME[-1], own={**SAME[-1].own, "suite": "part"}, records=tuple(r for r in SAME[-1].records if r["kernel"] == "spmm"))
    found = against_history([scaled(chosen, lambda _: 1.0)], SAME[:-1])
    assert found is not None and {loss.kernel for loss in found.families} == {"spmm"}
    assert against_history(SAME[-1:], [replace(run, own=chosen.own) for run in SAME[:-1]]) is None


def test_a_run_is_not_compared_with_itself_wherever_its_file_lies(tmp_path: Path) -> None:
    measured = tmp_path / "measured.json.gz"
    measured.write_bytes(SAME[4].path.read_bytes())
    assert [run.time for run in gate.alike([read_run(measured)], SAME[:6])] == [run.time for run in SAME[:6] if run is not SAME[4]]


def test_nothing_to_compare_is_no_verdict() -> None:
    bare = [replace(run, records=()) for run in SAME[:3]]
    assert list(told(compare(bare, bare), "a..b")) == [
        "Nothing could be compared: no case that has peers is in every run, or too few, a..b."
    ]
    few = [replace(run, records=tuple(r for r in run.records if r["kernel"] == "rows")[:2]) for run in SAME]
    found = against_history(few[-1:], few[:-1])
    assert found is not None and next(told(found, "")).startswith("Nothing could be compared")
    assert gate._exit_code(found, False) == 2


def test_results_of_several_machines_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = json.loads(text_of(SAME[0].path))
    other["numscorch"]["machine"]["fingerprint"] = "other"
    (tmp_path / "other.json").write_text(json.dumps(other))
    assert gate.main(["--of", str(SAME[0].path), str(tmp_path / "other.json"), "--history", str(tmp_path)]) == 2
    assert "several kinds of machines" in capsys.readouterr().err


def test_hundreds_of_cases_in_twenty_comparisons_raise_no_alarm() -> None:
    for seed in range(20):
        runs = made_up(6, families=12, cases=40, noise=0.03, seed=seed)
        found = compare(runs[0::2], runs[1::2])
        assert found.slower == () and found.faster == ()


def test_15_percent_of_one_family_among_hundreds_of_cases_are_caught() -> None:
    for seed in range(20):
        runs = made_up(6, families=12, cases=40, noise=0.05, seed=seed)
        slow = [scaled(run, lambda r: 0.85 if r["kernel"] == "kernel7" else 1) for run in runs[1::2]]
        assert kernels(compare(runs[0::2], slow).slower) == {"kernel7"}


def test_alarm_is_what_two_comparisons_have_in_common() -> None:
    slow = compare(SAME[3::5], PLANTED)
    assert confirmed(slow, compare(SAME[:4], SAME[4:8])).slower == ()
    assert kernels(confirmed(slow, slow).slower) == kernels(slow.slower)
    assert confirmed(compare(SAME[:4], SAME[4:8]), slow).slower == ()


def test_cases_that_only_some_runs_have_are_told() -> None:
    fewer = [replace(run, records=tuple(r for r in run.records if r["kernel"] != "rows")) for run in SAME[3:6]]
    found = compare(SAME[:3], fewer)
    assert "rows" not in kernels(found.families) and any("Not compared" in line and "rows: " in line for line in told(found, ""))


def test_two_runs_can_not_be_compared() -> None:
    with pytest.raises(ValueError, match="of base there are 1, of head 1"):
        compare(SAME[:1], SAME[1:2])


def test_growth_of_memory_and_of_compiling_is_told() -> None:

    def compiled_in(seconds: float) -> list[Run]:
        return [replace(run, records=tuple({**r, "compile_seconds": seconds} for r in run.records)) for run in SAME[:2]]

    before, now = compiled_in(1.0), compiled_in(1.5)
    assert growth(before, now, "compile_seconds")["spmm"] == pytest.approx(1.5)
    assert growth(before, now, "peak_bytes") == {}
    assert "grown   spmm: 1.50 times as much to compile" in list(grown(before, now))


def test_exit_code_says_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    """A package of two commits with a suite; the second is as fast as the first."""
    root = tmp_path / "repository"
    for name, text in {
        "numscorch/__init__.py": PACKAGE.format(speed=2.0),
        "benchmarks/__init__.py": "",
        "benchmarks/conftest.py": CONFTEST,
        "benchmarks/bench_spmm.py": BENCH,
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
    """Git, as nobody in particular."""
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments], cwd=root, check=True, capture_output=True)


@pytest.mark.process
def test_two_commits_are_measured_in_turns_by_the_present_benchmarks(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first commit's package is measured although its own benchmarks don't run."""
    (repository / "numscorch/__init__.py").write_text(PACKAGE.format(speed=1.5))
    base = commit_of("HEAD", repository)
    found, before, now = side_by_side(base, rounds=2, arguments=["--quick"], root=repository)
    assert [str(loss.kernel) for loss in found.slower] == ["spmm"] and found.slower[0].factor.ratio == pytest.approx(0.75, abs=0.02)
    assert len(before) == len(now) == 2 and not any(run.path.exists() for run in before)
    assert [line.rpartition(" ")[2] for line in capsys.readouterr().err.splitlines()] == ["base", "head"] * 2 + ["more"] + [
        "base",
        "head",
    ] * 2, "suspects are measured twice"
    listed = subprocess.run(["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == 1, "the worktree is gone"


@pytest.mark.process
def test_base_that_the_benchmarks_do_not_run_on_is_told(repository: Path) -> None:
    git(repository, "rm", "-q", "numscorch/__init__.py")
    git(repository, "commit", "-qm", "no package")
    base = commit_of("HEAD", repository)
    with pytest.raises(WorktreeError, match=r"(?s)the benchmarks don't run in tree \(exit code \d\):.*SPEED"):
        side_by_side(base, rounds=2, root=repository)


def test_base_is_the_last_recorded_commit_or_the_one_before(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = commit_of("HEAD~1", repository), commit_of("HEAD", repository)
    monkeypatch.setattr(gate, "this_machine", lambda: type("Machine", (), {"fingerprint": SAME[0].fingerprint}))
    assert default_base([], repository) == first
    assert default_base([replace(SAME[0], commit=first), replace(SAME[0], commit=second)], repository) == first
    assert default_base([replace(SAME[0], commit="f" * 40)], repository) == first, "a commit that isn't here"
    (repository / "numscorch/__init__.py").write_text(PACKAGE.format(speed=1.5))
    assert default_base([replace(SAME[0], commit=second)], repository) == second
