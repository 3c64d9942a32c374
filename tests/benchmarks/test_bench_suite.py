"""The benchmark suite: a few cases write a run that can be read, and files that are no matrices are listed."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import conftest, peers, records
from benchmarks.records import case_of, read_run
from numscorch.measuring.comparison import check
from numscorch.measuring.peers import GRAPHBLAS, SCIPY, TORCH, TORCH_64
from numscorch.measuring.turns import Function, Turns

ROOT = Path(__file__).parents[2]
CASES = (
    "test_spmv and 1t and (full-row or banded) or test_triangles and 1t or test_pruned_mlp and 1t or test_overhead and SpMV or test_file"
)
FILES = ("spmv", "masked", "models", "overhead", "files")

pytestmark = pytest.mark.process
pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")


def run_suite(*arguments: str, cases: str = CASES, **environment: str) -> str:
    """The output of a run of some cases."""
    command = [sys.executable, "-m", "pytest", *(f"benchmarks/cases/bench_{name}.py" for name in FILES), "--quick", "-k", cases, *arguments]
    options = ["-p", "no:xdist", "-p", "no:cacheprovider", "-q", "-rs", "--benchmark-quiet"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NUMSCORCH_", "PYTEST_"))}
    settings = inherited | {"NUMSCORCH_BENCH_SECONDS": "0.01"} | environment
    finished = subprocess.run(command + options, cwd=ROOT, env=settings, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The file of a quick run, and its output."""
    path = tmp_path_factory.mktemp("run") / "quick.json"
    return path, run_suite(f"--benchmark-json={path}")


def documented_keys() -> set[str]:
    """The keys of a record that the documentation of the format lists."""
    assert records.__doc__ is not None
    listed = records.__doc__.partition("is a record:")[2].partition("What couldn't be measured")[0]
    names = "".join(line[4:44] + "\n" for line in listed.splitlines() if line.startswith("    "))
    return set(re.findall(r"[a-z_]+", names)) - {"and", "a", "key", "for", "each", "of", "it"}


def test_records_have_all_documented_keys(quick_run: tuple[Path, str]) -> None:
    run = read_run(quick_run[0])
    assert run.suite == "part", "of cases that someone chose, a quick run or not"
    assert len(run.fingerprint) == 10
    spmv = next(record for record in run.records if record["kernel"] == "spmv")
    expected = documented_keys() - {"bar", "share", "uniform"} - ({"peak_bytes"} if sys.platform != "linux" else set())
    assert expected - set(spmv) == set() and {"ratio", "bytes", "flops", "kernels", "labels", "low"} < expected
    assert all(name in record for record in run.records for name in record["variant"])
    assert {"seconds", "ratio", "low", "high", "ratio_of_minima", "turns"} == set(spmv["peers"][spmv["peer"]])
    assert spmv["low"] <= spmv["ratio"] <= spmv["high"]
    assert spmv["flops"] == 2 * spmv["nnz"] and spmv["bytes"] > 8 * spmv["nnz"]
    assert spmv["compile_seconds"] > spmv["load_seconds"] > 0 and 0 < spmv["overhead_seconds"] < 1


def test_runs_have_machine_roofs_and_kernels(quick_run: tuple[Path, str]) -> None:
    run = read_run(quick_run[0])
    assert set(run.own) == {"suite", "machine", "versions", "roofs", "kernels", "missing"}
    assert run.own["roofs"]["1"]["flops_per_second"] > run.own["roofs"]["1"]["bytes_per_second"] > 0
    assert {"torch", "python", "numba"} <= set(run.own["versions"])
    names = {name for record in run.records for name in record["kernels"]}
    assert names and names == set(run.own["kernels"])
    assert all(set(kernel) == {"request", "explanation", "source"} for kernel in run.own["kernels"].values())
    assert str(Path.home()) not in json.dumps(run.own)


def test_names_of_cases_are_distinct(quick_run: tuple[Path, str]) -> None:
    names = [(record["kernel"], case_of(record)) for record in read_run(quick_run[0]).records]
    assert len(set(names)) == len(names) > 3
    assert ("spmv", "full-row, format=CSR, 1 thread") in names


def test_both_index_types_of_torch_are_peers(quick_run: tuple[Path, str]) -> None:
    spmv = [record for record in read_run(quick_run[0]).records if record["kernel"] == "spmv" and record["format"] == "CSR"]
    assert spmv and all({TORCH, TORCH_64} <= set(record["peers"]) for record in spmv)


def test_the_best_peer_has_the_lowest_ratio_within_its_group() -> None:
    """Groups are timed one after the other, so times of one group are not compared with ours of another group."""
    groups = [Turns((1.0,) * 5, {"torch": (3.0,) * 5}, {}), Turns((2.0,) * 5, {"graphblas": (4.0,) * 5}, {})]
    ratios = conftest._ratios(groups)
    assert (ratios["peer"], ratios["ratio"], ratios["peer_seconds"]) == ("graphblas", 2.0, 4.0)


@pytest.mark.parametrize(
    ("module", "name", "arguments", "expected"),
    [
        ("spgemm", "test_times_transposed", ("unordered",), {TORCH, SCIPY, f"{GRAPHBLAS}, transposed before"}),
        ("linear", "test_dense_times_csr", (32,), {"torch (CSR of A.t() @ x.t()).t().contiguous() int32"}),
        ("formats", "test_formats", ("CSC",), {TORCH}),
    ],
)
def test_peers_are_converted_before_they_are_timed(module: str, name: str, arguments: tuple[Any, ...], expected: set[str]) -> None:
    """numscorch caches converted operands; peers would otherwise be timed with their conversions."""
    timed: list[str] = []

    def compare(kernel: str, function_of_numscorch: Function, peer_functions: dict[str, Function], **facts: Any) -> None:
        for peer, function in peer_functions.items():
            check(function_of_numscorch(), function(), peer)
            calls = conversions_of(function)
            timed.extend([peer] if peer in expected and not calls else [])

    getattr(importlib.import_module(f"benchmarks.cases.bench_{module}"), name)("banded", *arguments, 1, compare)
    assert set(timed) == {peer for peer in expected if not peer.startswith(peers.missing())}


def conversions_of(function: Function) -> list[str]:
    """torch's conversions between layouts that a call runs."""
    with torch.profiler.profile() as profiled:
        function()
    return [event.key for event in profiled.key_averages() if re.search(r"to_sparse|to_dense|to_csr|to_csc", event.key)]


def test_peers_listed_beside_have_a_label(quick_run: tuple[Path, str]) -> None:
    run = read_run(quick_run[0])
    beside = {name: record["labels"][name] for record in run.records for name in record["beside"]}
    assert beside[peers.WHOLE_PRODUCT] == peers.LABELS[peers.WHOLE_PRODUCT]


def test_missing_libraries_are_named_and_have_no_column(quick_run: tuple[Path, str]) -> None:
    path, output = quick_run
    missing = read_run(path).own["missing"]
    assert missing == list(peers.missing())
    assert ("libraries that aren't installed" in output) == bool(missing)
    names = {name for record in read_run(path).records for name in record["peers"]}
    assert not any(name.startswith(library) for name in names for library in missing)


def test_files_that_are_no_matrix_are_skipped_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "broken.mtx").write_text("this is no matrix\n")
    (tmp_path / "vector.tns").write_text("1 2 1.0\n")
    folder = tmp_path / "suitesparse"
    folder.mkdir()
    (folder / "small.mtx").write_text("%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 1.0\n3 2 2.0\n")
    output = run_suite("--data", str(tmp_path), cases="test_file or test_spmv and 1t and small")
    summary = output.partition("files that hold no matrix")[2]
    assert "broken.mtx: " in summary and "vector.tns: it holds a tensor of order 2" in summary
    assert output.count("SKIPPED [1] ") >= 2 and "small" not in summary
    assert re.search(r"[1-9] passed", output)


def test_a_folder_without_matrices_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"holds no file to read: --data takes a folder of .mtx"):
        run_suite("--data", str(tmp_path))


@pytest.mark.parametrize("name", ["records", "bars", "report", "selection", "first_steps", "cold_start", "kernel_counts"])
def test_doctests_of_the_suite(name: str) -> None:
    assert not doctest.testmod(importlib.import_module(f"benchmarks.{name}"), optionflags=doctest.NORMALIZE_WHITESPACE).failed
