"""``python -m numscorch``: output of each command, and errors on bad input."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from numscorch import __main__ as cli
from numscorch.commands import demo, doctor
from numscorch.errors import FormatError
from numscorch.explanation import roofline
from numscorch.explanation.explanation import read_formats
from numscorch.ir.format import COO, CSC, CSF, CSR, Format
from numscorch.machine import kernel_cache
from numscorch.runtime import tuned

pytest.importorskip("sklearn")


@pytest.fixture(autouse=True)
def quick_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce training and timing, and write pictures to an empty folder."""
    monkeypatch.setattr(demo, "EPOCHS", 50)
    monkeypatch.setattr(demo, "SECONDS", 600)
    monkeypatch.setattr(demo, "PRODUCT_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)


def test_demo_on_the_digits(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "digits (no file was given" in out
    assert "1,797 nodes" in out
    assert line(out, "50 epochs").split() == ["epochs/s", "first", "epoch", "test", "accuracy"]
    accuracy_of_numscorch, accuracy_of_torch = accuracy(out, demo.OURS), accuracy(out, demo.TORCH)
    assert accuracy_of_numscorch > 85
    assert abs(accuracy_of_numscorch - accuracy_of_torch) < 2
    assert "times as fast" in line(out, demo.TORCH)
    assert float(line(out, "largest difference").split()[0]) < 1e-3
    assert re.match(r"\d+\.\d\d s: kernels are compiled, or read from the disk", line(out, "first epoch"))
    assert '"""' in Path(line(out, "kernel of A @ H")).read_text()
    assert Path(line(out, "picture")).read_bytes().startswith(b"\x89PNG")
    assert len(out.splitlines()) <= 24


def test_demo_names_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "EPOCHS", 2)
    for name in ("matplotlib.figure", "torch_geometric", "torch_geometric.nn"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(["demo", str(graph_file(tmp_path / "rings.npz", True)), "--out", str(tmp_path / "drawn")]) == 0
    out = capsys.readouterr().out
    assert "PyTorch Geometric is not installed: pip install torch_geometric" in out
    assert line(out, "picture") == "none: matplotlib is not installed (pip install matplotlib)"
    assert not (tmp_path / "drawn").exists()


def test_demo_refuses_to_time_different_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo.TorchConv, "forward", lambda self, x, normalised: self.lin(x))
    assert cli.main(["demo", str(graph_file(tmp_path / "rings.npz", True))]) == 2
    assert re.match(r"numscorch: the first loss is [\d.]+ by numscorch, but [\d.]+ by torch.sparse", capsys.readouterr().err)


def accuracy(out: str, name: str) -> float:
    """The percentage in the row of a library."""
    match = re.search(r"([\d.]+)%", line(out, name))
    assert match is not None
    return float(match[1])


def line(out: str, start: str) -> str:
    """The text after a label in the report."""
    return next(row for row in out.splitlines() if row.startswith(start)).removeprefix(start).strip()


def graph_file(path: Path, features: bool) -> Path:
    """Two rings of twenty nodes, one per class, each node joined to the ten nearest, in the layout of graph files."""
    nodes, steps = np.arange(20), np.array([-5, -4, -3, -2, -1, 1, 2, 3, 4, 5])
    source, target = np.repeat(nodes, 10), ((nodes[:, None] + steps) % 20).ravel()
    edges = np.concatenate([np.stack([source, target]), np.stack([source, target]) + 20], axis=1)
    arrays = {"edge_index": edges[:, np.lexsort(edges[::-1])], "labels": np.repeat([0, 1], 20)}
    arrays |= {"train_idx": np.array([0, 20]), "val_idx": np.array([1, 21]), "test_idx": np.array([5, 12, 25, 32])}
    if features:
        arrays |= {"feat_indptr": np.arange(41), "feat_indices": np.repeat([0, 1], 20).astype(np.int32)}
        arrays |= {"feat_data": np.full(40, 3.0, np.float32), "feat_shape": np.array([40, 2])}
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("features", [True, False])
def test_demo_on_a_graph_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], features: bool) -> None:
    path = str(graph_file(tmp_path / "rings.npz", features))
    assert cli.main(["demo", *(["--graph", path] if features else [path])]) == 0
    out = capsys.readouterr().out
    assert f"rings ({path}" in out
    assert "40 nodes, 400 edges" in out
    assert ("it has no features" in out) is not features
    assert accuracy(out, demo.OURS) == 100


@pytest.mark.parametrize("zipped", [False, True])
def test_demo_on_a_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str], zipped: bool) -> None:
    text = "%%MatrixMarket matrix coordinate real general\n3 4 3\n1 1 2.5\n3 2 -1\n3 4 7\n"
    path = tmp_path / ("m.mtx.gz" if zipped else "m.mtx")
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    threads = torch.get_num_threads()
    try:
        assert cli.main(["demo", *(["--matrix"] if zipped else []), str(path), "--threads", "1"]) == 0
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
    out = capsys.readouterr().out
    assert "times a dense 4 x 64, 1 threads" in out
    assert float(line(out, "largest difference").split()[0]) < 1e-5


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "ij,jk->ik", "CSR", "dense"]) == 0
    assert "def kernel(" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise")
def test_a_closed_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "numscorch", "explain", "ij,j->i", "CSR", "dense"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(cli.__file__).parents[1]) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read().decode()
    assert (process.returncode, "Broken pipe" in err) == (0, False)


def test_explain_a_statement(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "y[i] = A[i,j] * x[j]", "A=CSR", "x=dense"]) == 0
    assert "def kernel(" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("expression", "texts", "formats"),
    [
        ("ij,jk->ik", ["CSR", "dense"], [CSR, Format("dd")]),
        (" ij , j ", ["csc", "d"], [CSC, Format("d")]),
        ("ijk,kl->ijl", ["COO", "dd"], [COO(3), Format("dd")]),
        ("ijk", ["CSF(3)"], [CSF(3)]),
        ("ij", ["(i, j) -> (j: dense, i: compressed)"], [CSC]),
    ],
)
def test_formats_by_name(expression: str, texts: list[str], formats: list[Format]) -> None:
    assert read_formats(expression, texts) == formats


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["CSR"], "has 2 operands, but 1 were given: give a tensor, or a format, for each"),
        (["CSR", "xyz"], "or a name, for this operand of order 2: coo, coo(2), csc"),
    ],
)
def test_invalid_formats_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(FormatError) as raised:
        read_formats("ij,jk->ik", texts)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "ij,jk->ik", "CSR"], "has 2 operands"),
        (["explain", "ij,jk->iz", "CSR", "dense"], "z"),
        (["explain", "y[i] = A[i,j] * x[j]", "CSR", "dense"], "'CSR' needs an operand's name: write A=CSR"),
        (["explain", "y[i] = A[i,j] * x[j]", "A=CSR", "x=dense", "--timed"], "numscorch bench times statements"),
        (["demo", "--graph", "missing.npz"], "missing.npz"),
        (["demo", "--matrix", "missing.mtx"], "missing.mtx"),
    ],
)
def test_bad_input_gives_one_message_without_traceback(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("numscorch: ")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [["dance"], ["cache", "burn"], ["explain"], ["demo", "--threads", "0"], ["demo", "--graph", "a", "--matrix", "b"]]
)
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(arguments)
    assert raised.value.code == 2
    assert "usage: numscorch" in capsys.readouterr().err


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("usage: numscorch")
    assert "explain" in captured.out
    assert not captured.err


@pytest.mark.parametrize("formats", [["CSR", "dense"], ["NM(2, 4)", "dense"], ["BCSR(4, 4)", "dense"]])
def test_explain_times_random_operands(formats: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(roofline, "SECONDS", 0.01)
    monkeypatch.setattr(roofline, "ROOF_SECONDS", 0.01)
    assert cli.main(["explain", "ij,j->i", *formats, "--timed"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("timed ")
    assert "its roof (" in last


def test_explain_refuses_to_time_operands_larger_than_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "ijkl,j->i", "dense", "s", "--timed"]) == 2
    assert "a dense operand of shape (1024, 1024, 1024, 1024) takes 4.4e+12 bytes" in capsys.readouterr().err


def test_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NUMSCORCH_CACHE_DIR", str(tmp_path / "cache"))
    path = kernel_cache.store("kernel_0123456789abcdef", '"""y[i] = A[i,j] * x[j]"""\n')
    assert cli.main(["cache"]) == 0
    out = capsys.readouterr().out
    assert "kernel_0123456789abcdef.py  y[i] = A[i,j] * x[j]" in out
    assert re.search(rf"1 kernel, [1-9][\d.]* (KiB|bytes) in {re.escape(str(tmp_path / 'cache'))}", out), out
    tuned.remember("a request", "parallelize()")
    assert cli.main(["cache", "clear"]) == 0
    assert "1 kernel and 1 schedule deleted" in capsys.readouterr().out
    assert not path.exists()
    assert not (path.parent / tuned.FILE).exists()
    assert cli.main(["cache", "clear"]) == 0
    assert "0 kernels deleted" in capsys.readouterr().out


def test_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = {check.name for check in doctor.report()}
    versions = {"python", "torch", "numba", "llvmlite", "numpy", "tbb"}
    assert versions | {"processor", "threading layer", "threads", "kernel cache", "settings"} == names
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMSCORCH_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "!!  kernel cache" in out
    assert f"NUMSCORCH_CACHE_DIR={tmp_path / 'file' / 'cache'}" in out
    assert "can't be made" in out
    assert "Set NUMSCORCH_CACHE_DIR" in " ".join(out.split())  # the table may break lines between any words


@pytest.mark.parametrize(("version", "ok"), [("2.13.0+cpu", True), ("2.13.1", True), ("2.12.9", False), ("2.14.0", False)])
def test_doctor_checks_the_tested_versions(version: str, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: version)
    check = doctor._version("torch", doctor.TESTED["torch"])
    assert check.ok is ok
    assert ("tested with 2.13 and later, before 2.14" in check.advice) is not ok


def test_doctor_names_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise doctor.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", missing)
    assert doctor._version("numba", doctor.TESTED["numba"]) == doctor.Diagnosis("numba", "not installed", False, "pip install numba")
