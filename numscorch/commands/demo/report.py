"""The demo's printed reports, of the training and of the product of a matrix from a file, and its picture."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path

import torch

import numscorch as ns

from ...errors import SizeError
from ...measuring.turns import in_turns
from ...nn.graphs import gcn_norm
from ...tensors.sparse_tensor import SparseTensor
from .training import HIDDEN, Runner, Task, difference

SPMM = "ij,jk->ik"
COLUMNS = 64  # of the dense matrix by which a file is multiplied
SECONDS = 4.0  # total time of the measurement of this product
NEXT = (
    ("python -m numscorch demo FILE.npz", "the demo on your own graph; docs/guide/graphs.md describes the file"),
    ('python -m numscorch explain "ij,jk->ik" CSR dense', "the compiler's stages for such a product"),
    ("python -m numscorch demo --matrix FILE.mtx", "one product of your own matrix"),
)


def report_graph(task: Task) -> None:
    nodes, width = task.features.shape
    layout = f"{task.features.density:.1%} stored, CSR" if isinstance(task.features, SparseTensor) else "dense"
    print(f"{task.name} ({task.origin})")
    print(f"  {nodes:,} nodes, {task.adj_t.nnz:,} edges, {width:,} features ({layout}), {task.classes} classes")
    print(f"  A two-layer GCN learns from {len(task.train):,} nodes and is tested on {len(task.test):,}.")
    print(f"  Same initial weights, same layouts, alternating epochs; threads: {torch.get_num_threads()}.\n")


def report_race(task: Task, runners: list[Runner], folder: Path) -> None:
    """Print speed, accuracy and agreement of all runners, and suggested next commands."""
    ours, *others = runners
    print(f"{f'{len(ours.losses)} epochs':<24}{'epochs/s':>12}{'first epoch':>14}{'test accuracy':>16}")
    for runner in runners:
        ratio = "" if runner is ours else f"   numscorch is {ours.rate / runner.rate:.2f} times as fast"
        print(f"{runner.name:<24}{runner.rate:>12.1f}{runner.seconds[0]:>12.2f} s{runner.tested:>16.1%}{ratio}")
    if len(runners) < 3:
        print("PyTorch Geometric is not installed: pip install torch_geometric adds it to the comparison")
    largest = max(difference(ours.losses, other.losses) for other in others)
    hidden = torch.empty(len(task.labels), HIDDEN)
    print(f"\nlargest difference   {largest:.1e} between the losses of an epoch (from {ours.losses[0]:.3f} to {ours.losses[-1]:.3f})")
    print(f"first epoch          {ours.seconds[0]:.2f} s: kernels are compiled, or read from the disk if an earlier run compiled them")
    print(f"kernel of A @ H      {ns.explain(SPMM, gcn_norm(task.adj_t), hidden).path}")
    print(f"picture              {draw(task, runners, folder) or 'none: matplotlib is not installed (pip install matplotlib)'}\n")
    print("Try next:")
    for command, what in NEXT:
        print(f"  {command:<50} {what}")


def draw(task: Task, runners: list[Runner], folder: Path) -> Path | None:
    """Draw the training curves and the adjacency matrix, with nodes ordered by class; None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    accuracy = left.twinx()
    for runner, mark in zip(runners, ("-", "o", "x"), strict=False):
        every = max(len(runner.losses) // 20, 1) if mark != "-" else 1
        left.plot(runner.losses, f"C0{mark}", markevery=every, fillstyle="none", label=runner.name)
        accuracy.plot(runner.validated, f"C1{mark}", markevery=every, fillstyle="none")
    left.set(xlabel="epoch", title=f"{task.name}: training loss and validation accuracy")
    left.set_ylabel("loss", color="C0")
    accuracy.set_ylabel("accuracy", color="C1")
    left.legend(loc="center right")
    by_class = task.labels.argsort(stable=True).argsort()
    ns.adj_t(by_class[task.adj_t.to_edge_index()[0]], size=len(task.labels)).spy(right)
    right.set(title="adjacency, nodes in the order of their classes", xlabel="source", ylabel="target")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task.name}.png"
    figure.savefig(path)
    return path


def multiply(path: Path) -> None:
    """Multiply a matrix from a file with a random dense matrix, with numscorch and torch.sparse, and print the times.

    Raises:
        SizeError: the file holds no sparse matrix.
    """
    loaded = ns.load(path)
    if not isinstance(loaded, SparseTensor) or loaded.ndim != 2:
        raise SizeError(f"{path} holds no sparse matrix: --matrix takes a Matrix Market file (.mtx, .mtx.gz)")
    matrix = loaded.to(ns.CSR).to(torch.float32)
    dense, converted = torch.randn(matrix.shape[1], COLUMNS), matrix.to_torch()
    print(f"{path.name}: {matrix}, times a dense {matrix.shape[1]:,} x {COLUMNS}, {torch.get_num_threads()} threads")
    expected = converted @ dense
    difference = (ns.einsum(SPMM, matrix, dense) - expected).abs().max().item() if expected.numel() else 0.0
    largest = expected.abs().max().item() if expected.numel() else 0.0
    turns = in_turns(partial(ns.einsum, SPMM, matrix, dense), {"torch.sparse": partial(torch.matmul, converted, dense)}, seconds=SECONDS)
    ours, other = statistics.median(turns.ours) * 1e3, statistics.median(turns.peers["torch.sparse"]) * 1e3
    print(f"largest difference    {difference:.2g} (largest value {largest:.3g})")
    print(f"product               numscorch {ours:.3f} ms, torch.sparse {other:.3f} ms: {turns.ratio:.2f} times as fast")
    print(f"generated kernel      {ns.explain(SPMM, matrix, dense).path}")
