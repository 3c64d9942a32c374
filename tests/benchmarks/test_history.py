"""The history of runs: what is stored, what is refused, and files that are skipped with their names."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.history import HistoryError, add, main, read_history
from benchmarks.records import RunError, read_run

COMMIT = "a1b2c3d4e5" * 4


def results(time: str = "2026-01-02T03:04:05.678+00:00", commit: str = COMMIT, fingerprint: str = "f00", **more: Any) -> dict[str, Any]:
    """A results file with one measurement."""
    record = {"kernel": "spmm", "matrix": "m", "threads": 1, "ratio": 1.23456789, "kernels": ["kernel_1"]}
    return {
        "datetime": time,
        "commit_info": {"id": commit, "dirty": False},
        "machine_info": {"cpu": {"brand_raw": "a processor", "flags": ["sse"] * 100}},
        "benchmarks": [{"name": "test_spmm", "stats": {"median": 0.1, "data": [0.1] * 400}, "extra_info": record}],
        "numscorch": {
            "suite": "quick",
            "machine": {"fingerprint": fingerprint},
            "kernels": {"kernel_1": {"request": "ij,jk->ik", "source": "def kernel(): ...", "explanation": "why"}},
        },
    } | more


@pytest.fixture
def write_results(tmp_path: Path) -> Any:
    """Function that writes results to a file."""

    def write(content: Any, name: str = "results.json") -> Path:
        file = tmp_path / name
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file

    return write


def test_files_of_runs_are_named_by_time_commit_machine_and_suite(write_results: Any, tmp_path: Path) -> None:
    file = add(write_results(results()), tmp_path / "history")
    assert file.relative_to(tmp_path) == Path("history/runs/20260102T030405Z-a1b2c3d4e5-f00-quick.json")
    stored = json.loads(file.read_text())
    assert "data" not in stored["benchmarks"][0]["stats"] and stored["machine_info"]["cpu"] == {"brand_raw": "a processor"}
    assert read_run(file).records[0]["ratio"] == 1.23457


def test_texts_of_a_kernel_are_stored_once_and_read_on_demand(write_results: Any, tmp_path: Path) -> None:
    for time in ("2026-01-02T03:04:05", "2026-01-02T04:04:05"):
        add(write_results(results(time)), tmp_path)
    assert [file.name for file in (tmp_path / "kernels").iterdir()] == ["kernel_1.json"]
    runs, _ = read_history(tmp_path)
    assert [dict(run.own["kernels"])["kernel_1"]["source"] for run in runs] == ["def kernel(): ..."] * 2
    (tmp_path / "kernels" / "kernel_1.json").unlink()
    assert dict(read_history(tmp_path)[0][0].own["kernels"]) == {}


def test_runs_are_ordered_by_time_across_time_zones(write_results: Any, tmp_path: Path) -> None:
    for time in ("2026-01-02T03:00:00+00:00", "2026-01-02T03:30:00+02:00", "2026-01-01T23:59:59"):
        add(write_results(results(time)), tmp_path)
    assert [run.time[:16] for run in read_history(tmp_path)[0]] == ["2026-01-01T23:59", "2026-01-02T03:30", "2026-01-02T03:00"]


def test_runs_are_filtered_by_machine(write_results: Any, tmp_path: Path) -> None:
    for fingerprint in ("f00", "ba4"):
        add(write_results(results(fingerprint=fingerprint)), tmp_path)
    assert [run.fingerprint for run in read_history(tmp_path, "ba4")[0]] == ["ba4"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "can't be read as JSON"),
        ("[]", "is no run of this suite"),
        ({"benchmarks": []}, "is no run of this suite"),
        (results(time="yesterday"), "can't be read as JSON|is no run of this suite"),
        (results(benchmarks=[{"name": "foreign", "extra_info": {}}]), "holds no measurements"),
        (results(benchmarks="many"), "is no run of this suite"),
        (results(commit_info={}), "doesn't say of which commit"),
        (results(commit_info={"id": COMMIT, "dirty": True}), "changes that aren't committed; commit them and run again, or say --dirty"),
    ],
)
def test_files_without_a_run_of_a_commit_are_refused(content: Any, why: str, write_results: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=why):
        add(write_results(content), tmp_path)
    assert not (tmp_path / "runs").exists()


def test_a_stored_run_is_refused(write_results: Any, tmp_path: Path) -> None:
    add(write_results(results()), tmp_path)
    with pytest.raises(HistoryError, match=r"is in the history already, as 20260102T030405Z-a1b2c3d4e5-f00-quick\.json"):
        add(write_results(results()), tmp_path)


def test_a_dirty_run_is_stored_on_request(write_results: Any, tmp_path: Path) -> None:
    file = write_results(results(commit_info={"id": COMMIT, "dirty": True}))
    assert read_run(add(file, tmp_path, dirty=True)).dirty


def test_files_that_are_no_runs_are_skipped_and_named(write_results: Any, tmp_path: Path) -> None:
    add(write_results(results()), tmp_path)
    for name, text in {"torn.json": '{"datetime": ', "foreign.json": '{"a": 1}', "notes.txt": "hello", "packed.json.gz": "no gzip"}.items():
        (tmp_path / "runs" / name).write_text(text)
    (tmp_path / "runs" / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "runs" / "folder").mkdir()
    runs, skipped = read_history(tmp_path)
    assert len(runs) == 1
    assert {file.name for file, _ in skipped} == {"torn.json", "foreign.json", "notes.txt", "packed.json.gz", "bytes.json", "folder"}
    assert all(file.name in why for file, why in skipped)


def with_record(**more: Any) -> dict[str, Any]:
    """Results whose only record has additional keys."""
    content = results()
    content["benchmarks"][0]["extra_info"] |= more
    return content


@pytest.mark.parametrize(
    "content",
    [
        with_record(kernel=None),
        with_record(threads="two"),
        with_record(variant=["k"]),
        with_record(nnz="many"),
        with_record(seconds=float("nan")),
        with_record(labels=["no peer"]),
        with_record(peers={"torch": {"ratio": "fast"}}),
        with_record(peers={"torch": {"seconds": 1.0}}),
        with_record(peers={"torch": 1.5}),
        with_record(matrix=3, peers={"torch": {"ratio": 1.5}}),
        results(benchmarks=[{"extra_info": ["kernel"]}]),
        results(commit_info={"id": 12}),
        results(commit_info={"id": "../../x"}),
        results(fingerprint="../../x"),
        results(numscorch=results()["numscorch"] | {"suite": "../../x"}),
        results(numscorch=results()["numscorch"] | {"roofs": {"1": {}}}),
        results(numscorch=results()["numscorch"] | {"versions": ["torch"]}),
    ],
    ids=str,
)
def test_results_with_invalid_values_are_refused(content: dict[str, Any], write_results: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"results\.json is no run of this suite: .+; make bench writes one"):
        read_run(write_results(content))


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(results()).encode())
    (tmp_path / "packed.json.gz").write_bytes(packed[:50] + b"\x00\xff\x00\xff" + packed[54:])
    with pytest.raises(RunError, match=r"packed\.json\.gz can't be read"):
        read_run(tmp_path / "packed.json.gz")


def test_a_run_that_cannot_be_written_leaves_no_partial_files(write_results: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    source = write_results(results())
    with monkeypatch.context() as patched:
        patched.setattr("numscorch.machine.atomic_files.os.replace", fail)
        with pytest.raises(OSError, match="No space left"):
            add(source, tmp_path / "history")
    assert not [path for path in (tmp_path / "history").rglob("*") if path.is_file()]


def test_a_kernel_that_cannot_be_read_is_named(write_results: Any, tmp_path: Path) -> None:
    run = read_run(add(write_results(results()), tmp_path))
    (tmp_path / "kernels" / "kernel_1.json").write_text("{")
    with pytest.raises(RunError, match=r"kernel_1\.json can't be read"):
        run.own["kernels"]["kernel_1"]


def test_commands_store_and_list(write_results: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--folder", str(tmp_path / "history")]
    assert main(folder) == 0 and "no runs yet" in capsys.readouterr().out
    assert main([*folder, "add", str(write_results(results()))]) == 0
    assert main(folder) == 0 and "2026-01-02 03:04  a1b2c3d4e5  f00  quick  1 cases" in capsys.readouterr().out
    assert main([*folder, "add", str(write_results(results()))]) == 2 and "is in the history already" in capsys.readouterr().err
    assert (
        main([*folder, "add", str(tmp_path / "nothing.json")]) == 2 and "make bench-quick .benchmarks/quick.json" in capsys.readouterr().err
    )
