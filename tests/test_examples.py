"""Examples: they draw their plot, and their results are those of the program they are compared with."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import numscorch as ns

EXAMPLES = Path(__file__).parent.parent / "examples"
QUICK = {
    "triangles_and_cores": "--people 150 --repeat 1",
    "cp_decomposition": "--rank 2 --steps 3",
    "recommender": "--users 60 --ratings 2000 --epochs 3",
    "pruned_mlp": "--count 200 --epochs 1 --hidden 64",
    "sparse_autoencoder": "--count 300 --epochs 1",
    "sparse_attention": "--longest 100 --repeat 1",
}
Run = Callable[..., list[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run an example in this process; the lines that it prints."""

    def printed(name: str, *arguments: str | Path) -> list[str]:
        path = EXAMPLES / f"{name}.py"
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return printed


def check(lines: list[str], plot: Path) -> None:
    """That a plot was saved, and that every difference that is told is small, at least one."""
    assert plot.read_bytes().startswith(b"\x89PNG") and plot.stat().st_size > 5000
    told = [match for line in lines if (match := re.search(r"agree: largest difference (\S+), at most (\S+)", line))]
    assert told
    assert all(float(match[1]) <= float(match[2]) <= 0.05 for match in told)


@pytest.mark.parametrize("name", QUICK)
def test_an_example_agrees_with_its_twin_and_draws_a_plot(name: str, tmp_path: Path, run: Run) -> None:
    plot = tmp_path / "plot.png"
    lines = run(name, *QUICK[name].split(), "--out", plot)
    check(lines, plot)
    assert lines[-1] == f"plot in {plot}"


def idx(values: torch.Tensor) -> bytes:
    """Unsigned bytes as the idx files of MNIST hold them."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.numpy().astype(np.uint8).tobytes()


@pytest.mark.parametrize("name", ["recommender", "cp_decomposition", "triangles_and_cores", "sparse_attention", "sparse_autoencoder"])
def test_an_example_reads_a_file(name: str, tmp_path: Path, run: Run) -> None:
    torch.manual_seed(1)
    files = {"recommender": "ratings.csv", "cp_decomposition": "order_four.tns", "sparse_autoencoder": "."}
    path = tmp_path / files.get(name, "graph.mtx")
    if name == "recommender":
        lines = [f"{7 * user},{item + 100},{1 + (user * item) % 5},0" for user in range(30) for item in range(user % 3, 20, 3)]
        path.write_text("\n".join(["user,item,rating,time", *lines]))
    elif name == "sparse_autoencoder":
        (path / "some-images-idx3-ubyte").write_bytes(idx(torch.randint(0, 256, (100, 28, 28))))
        (path / "some-labels-idx1-ubyte").write_bytes(idx(torch.arange(100) % 10))
    else:
        shape = (9, 8, 7, 6) if name == "cp_decomposition" else (40, 40)
        ns.save(ns.from_torch(torch.rand(shape).where(torch.rand(shape) < 0.1, 0), format=ns.COO(len(shape))), path)
    few = {"cp_decomposition": ["--steps", "2"], "recommender": ["--epochs", "2"], "sparse_autoencoder": ["--epochs", "1"]}
    plot = tmp_path / "plot.png"
    check(run(name, "--data", path, "--out", plot, *few.get(name, [])), plot)


@pytest.mark.parametrize("name", ["unchanged_gcn", "unchanged_mlp"])
def test_a_script_trains_as_its_dense_twin(name: str) -> None:
    def printed(*arguments: str) -> list[str]:
        command = [sys.executable, "-W", "error::UserWarning", str(EXAMPLES / f"{name}.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    sparse, dense = printed(), printed("--dense")
    assert sparse[0] != dense[0]  # the kind of tensor, or the number of parameters
    assert sparse[1:] == dense[1:]
