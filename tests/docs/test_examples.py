"""Examples draw plots, and compute the results of their reference programs."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from real_data import FOLDER

import numscorch as ns
from numscorch.tensors.pattern import Pattern
from numscorch.tensors.validate import validate

pytestmark = pytest.mark.usefixtures("known_levels")
EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = {
    "triangles_and_cores": "--people 150 --repeat 1",
    "cp_decomposition": "--rank 2 --steps 3",
    "recommender": "--users 60 --ratings 2000 --epochs 3",
    "pruned_mlp": "--count 200 --epochs 1 --hidden 64",
    "sparse_training": "--count 200 --hidden 64 --texts 100 --length 16 --width 16 --epochs 2 --longer 2 --seeds 1",
    "sparse_autoencoder": "--count 300 --epochs 1",
    "sparse_attention": "--longest 100 --repeat 1",
    "gcn": "--nodes 300 --epochs 3 --seeds 2",
    "bigbird_classifier": "--count 40 --length 32 --epochs 1 --batch 16 --longest 32",
    "mixture_of_experts": "--tokens 200 --width 16 --experts 4 --batch 32 --steps 5",
    "two_four": "--count 200 --epochs 1 --hidden 64",
    "spqr": "--count 200 --epochs 1 --hidden 64",
    "double_sparse": "--count 200 --epochs 1 --hidden 64 --steps 20",
    "rosa": "--count 200 --epochs 1 --hidden 64",
    "distributed_gcn": "--nodes 200 --epochs 2",
    "own_level": "--count 200 --epochs 1 --hidden 64",
}
LAYOUTS = ["two_four", "spqr", "double_sparse", "rosa", "own_level"]
Run = Callable[..., list[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Function that runs an example in this process and returns its output lines."""

    def run_example(name: str, *arguments: str | Path) -> list[str]:
        path = EXAMPLES / f"{name}.py"
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run_example


def check(lines: list[str], plot: Path) -> None:
    """Check that a plot was saved, and that the printed differences, at least one, are small."""
    assert plot.read_bytes().startswith(b"\x89PNG") and plot.stat().st_size > 5000
    differences = [match for line in lines if (match := re.search(r"agree: largest difference (\S+), at most (\S+)", line))]
    assert differences
    assert all(float(match[1]) <= float(match[2]) <= 0.05 for match in differences)


@pytest.mark.parametrize("name", QUICK)
def test_examples_agree_with_their_reference_and_draw_a_plot(name: str, tmp_path: Path, run: Run) -> None:
    plot = tmp_path / "plot.png"
    lines = run(name, *QUICK[name].split(), "--out", plot)
    check(lines, plot)
    assert lines[-1] == f"plot in {plot}"


def idx(values: torch.Tensor) -> bytes:
    """Unsigned bytes in the idx format of MNIST."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.numpy().astype(np.uint8).tobytes()


def write_tensor(path: Path, *shape: int) -> None:
    ns.save(ns.from_torch(torch.rand(shape).where(torch.rand(shape) < 0.1, 0), format=ns.COO(len(shape))), path)


def write_ratings(path: Path) -> None:
    lines = [f"{7 * user},{item + 100},{1 + (user * item) % 5},0" for user in range(30) for item in range(user % 3, 20, 3)]
    path.write_text("\n".join(["user,item,rating,time", *lines]))


def write_images(path: Path) -> None:
    (path / "some-images-idx3-ubyte").write_bytes(idx(torch.randint(0, 256, (100, 28, 28))))
    (path / "some-labels-idx1-ubyte").write_bytes(idx(torch.arange(100) % 10))


def write_graph(path: Path) -> None:
    """A ring of nodes without features; one node has a loop, and one has no edges."""
    nodes, split = np.arange(40), {"train_idx": slice(0, 10), "val_idx": slice(10, 20), "test_idx": slice(20, 40)}
    ring = np.stack([nodes[:-1], (nodes[:-1] + 1) % 39])
    edges = np.concatenate([ring, ring[::-1], [[3], [3]]], 1)
    np.savez(path, edge_index=edges, labels=nodes % 3, **{name: nodes[part] for name, part in split.items()})


def write_texts(path: Path) -> None:
    lines = [f'"{1 + number % 2}","Title {number}","it says ""{"yes " * (number % 5)}"", at last"' for number in range(40)]
    path.write_text("\n".join(lines))


def write_pairs(path: Path) -> None:
    np.savez(path, x=np.random.default_rng(1).normal(size=(100, 6)), y=np.random.default_rng(2).normal(size=(100, 3)))


FILES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "recommender": ("ratings.csv", write_ratings, "--epochs 2"),
    "cp_decomposition": ("order_four.tns", lambda path: write_tensor(path, 9, 8, 7, 6), "--steps 2"),
    "triangles_and_cores": ("graph.mtx", lambda path: write_tensor(path, 40, 40), ""),
    "sparse_attention": ("graph.mtx", lambda path: write_tensor(path, 40, 40), ""),
    "sparse_autoencoder": (".", write_images, "--epochs 1"),
    "gcn": ("graph.npz", write_graph, "--epochs 2"),
    "bigbird_classifier": ("texts.csv", write_texts, "--length 32 --epochs 1 --batch 16 --longest 32"),
    "mixture_of_experts": ("pairs.npz", write_pairs, "--experts 4 --batch 32 --steps 5"),
    "two_four": (".", write_images, "--epochs 1 --hidden 64"),
}


@pytest.mark.parametrize("name", FILES)
def test_examples_read_files(name: str, tmp_path: Path, run: Run) -> None:
    torch.manual_seed(1)
    file, write, options = FILES[name]
    write(path := tmp_path / file)
    plot = tmp_path / "plot.png"
    check(run(name, "--data", path, "--out", plot, *options.split()), plot)


def test_the_custom_level_is_supported_as_operand(monkeypatch: pytest.MonkeyPatch, plain: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    ns.register_level(runpy.run_path(str(EXAMPLES / "own_level.py"))["Window"](3), most=50)
    full = torch.zeros(4, 7)
    for row, first in enumerate((2, 0, 4, 3)):
        full[row, first : first + 3] = torch.randn(3, generator=torch.Generator().manual_seed(row))
    A, x = ns.from_torch(full, "(i, j) -> (i: dense, j: window(3))"), torch.rand(2, 7)
    assert [array.tolist() for array in A.pattern.arrays[1]] == [[2, 0, 4, 3]]
    torch.testing.assert_close(ns.einsum("oi,bi->bo", A, x), x @ full.t())
    assert torch.equal(A.to(ns.CSC).to(A.format).to_dense(), full)
    layer = ns.nn.SparseLinear(7, 4, pattern=A, format=A.format)
    layer(x).sum().backward()
    assert layer.weight.grad.format == A.format
    torch.testing.assert_close(layer.weight.grad.to_dense(), (full != 0) * x.sum(0))
    with pytest.raises(ns.FormatError, match=r"some 4 apart"):
        ns.from_torch(torch.tensor([[1.0, 0, 0, 0, 1]]), A.format)
    with pytest.raises(ns.FormatError, match="first has 3 entries"):
        validate(Pattern(A.format, (4, 7), ((), (A.pattern.arrays[1][0][:3],))))


@pytest.mark.parametrize("name", LAYOUTS)
def test_custom_layouts_take_less_than_60_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.full
def test_the_gcn_reaches_the_accuracy_of_kipf_and_welling_on_cora(tmp_path: Path, run: Run) -> None:
    if FOLDER not in os.environ:
        pytest.skip(f"{FOLDER} names no folder with graphs/cora.npz")
    lines = run("gcn", "--data", Path(os.environ[FOLDER]) / "graphs" / "cora.npz", "--seeds", "10", "--out", tmp_path / "plot.png")
    accuracies = [match for line in lines if (match := re.search(r"mean of 10 seeds: (\S+)%", line))]
    assert float(accuracies[0][1]) >= 81.0


@pytest.mark.parametrize("name", ["unchanged_gcn", "unchanged_mlp"])
def test_unchanged_scripts_train_as_with_dense_tensors(name: str) -> None:
    def output_lines(*arguments: str) -> list[str]:
        command = [sys.executable, "-W", "error::UserWarning", str(EXAMPLES / f"{name}.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    sparse, dense = output_lines(), output_lines("--dense")
    assert sparse[0] != dense[0]  # the kind of tensor or the number of parameters differs
    assert sparse[1:] == dense[1:]
