"""Draw one picture per example into docs/gallery: ``python docs/gallery.py [NAME ...]``.

Every picture shows data that the example's functions compute at a small size. Seeds and the ids in the files are fixed, so that a rerun
gives the same picture. Pictures have no background and are readable on white and on dark pages.
"""

from __future__ import annotations

import io
import re
import runpy
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, to_rgba
from matplotlib.figure import Figure

import numscorch as ns
from numscorch.nn import SparseLinear, patterns
from numscorch.sharding.constructors import permuted, read_permutation
from numscorch.sharding.partition import Partition
from numscorch.sparsify import magnitude, n_m

ROOT = Path(__file__).parent.parent
EXAMPLES, FOLDER = ROOT / "examples", Path(__file__).parent / "gallery"
HELPERS = ("common", "datasets", "training")  # modules that the examples share
LARGEST = 60_000  # bytes of a picture

ORANGE, GREY, TEXT = "#f26b1d", "#8a8a8a", "#808080"
SLATE = "#4f729c"  # lighter than the site's, which is invisible on dark pages
CLEAR, PALE, FAINT = "#8a8a8a00", "#8a8a8a80", "#8a8a8a40"


def colours(*names: str) -> LinearSegmentedColormap:
    """A colour map through colours."""
    return LinearSegmentedColormap.from_list("gallery", [to_rgba(name) for name in names])


RAMP = colours(SLATE, "#a9a9a9", ORANGE)
SIGNED = colours(SLATE, f"{SLATE}00", f"{ORANGE}00", ORANGE)
COLD, WARM = colours(f"{SLATE}00", SLATE), colours(f"{ORANGE}00", ORANGE)
STYLE: dict[str, Any] = {
    "figure.figsize": (3.6, 2.5),
    "figure.constrained_layout.use": True,
    "savefig.transparent": True,
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": f"cycler('color', ['{ORANGE}', '{SLATE}', '{GREY}'])",
    "image.composite_image": False,
    "svg.hashsalt": "numscorch",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor"), TEXT),
}


def load(name: str) -> Any:
    """The module of an example."""
    return import_module(name)


def dense_network(count: int = 3000, hidden: int = 128, epochs: int = 5) -> tuple[Any, Any, Any]:
    """Digits, a dense network trained on them, and its accuracies, as most examples on pruning start."""
    words = ["gallery", "--count", str(count), "--hidden", str(hidden), "--epochs", str(epochs)]
    with patch.object(sys, "argv", words):
        _, data, dense, before = load("training").dense_first("digits")
    return data, dense, before


def row_of_axes(*widths: float) -> tuple[Any, Any]:
    """A figure with axes of relative widths, side by side."""
    figure = Figure()
    return figure, figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]


def stacked(rows: Sequence[int], heights: Sequence[float]) -> tuple[Any, ...]:
    """A figure, and an array of axes for each of its rows, which has a number of columns and a relative height."""
    figure: Any = Figure()
    grid = figure.add_gridspec(len(rows), 1, height_ratios=heights)
    return figure, *(part.subgridspec(1, columns).subplots(squeeze=False)[0] for part, columns in zip(grid, rows, strict=True))


def beside(rows: int, widths: Sequence[float]) -> tuple[Any, ...]:
    """A figure, an array of axes below each other, and axes beside them."""
    figure: Any = Figure()
    left, right = figure.add_gridspec(1, 2, width_ratios=widths)
    return figure, left.subgridspec(rows, 1).subplots(), figure.add_subplot(right)


def image(axes: Any, values: Any, title: str, cmap: Any, **options: Any) -> None:
    """Draw a matrix without ticks, in a frame."""
    axes.imshow(np.asarray(values), cmap=cmap, interpolation="nearest", **options)
    axes.set(xticks=[], yticks=[], title=title)
    for spine in axes.spines.values():
        spine.set(visible=True, color=GREY, linewidth=0.6)


def cells(axes: Any, values: Any, title: str, at: tuple[float, float] = (0, 0), numbers: Any = None) -> None:
    """Draw a matrix as a grid of cells with its upper left corner at a place; NaN leaves a cell empty."""
    values, (x, y) = np.asarray(values, dtype=float), at
    rows, columns = values.shape
    axes.imshow(values, cmap=RAMP, interpolation="nearest", extent=(x, x + columns, y + rows, y))
    axes.hlines(y + np.arange(rows + 1), x, x + columns, color=GREY, linewidth=0.5)
    axes.vlines(x + np.arange(columns + 1), y, y + rows, color=GREY, linewidth=0.5)
    axes.text(x + columns / 2, y - 0.4, title, ha="center")
    for (row, column), number in np.ndenumerate(np.asarray([] if numbers is None else numbers)):
        axes.text(x + column + 0.5, y + row + 0.5, f"{number:.0f}", ha="center", va="center_baseline", fontsize=7)


def over_epochs(axes: Any, title: str, **settings: Any) -> None:
    """Label a plot of something after each epoch."""
    axes.set(xlabel="epoch", title=title, **settings)
    axes.legend()


def in_percent(axis: Any) -> None:
    """Show an axis in percent."""
    axis.set_major_formatter(lambda value, _: f"{value:.0%}")


def bigbird_classifier() -> Figure:
    """The blocks of the attention pattern by kind, and the accuracy after each epoch beside the dense twin."""
    example, length = load("bigbird_classifier"), 256
    block, token = torch.arange(length) // 16, torch.arange(length)
    is_window = (block[:, None] - block).abs() <= 1
    kind = torch.where(is_window, 1, 2).masked_fill((token < 2) | (token[:, None] < 2), 3)
    figure, (left, right) = row_of_axes(1.35, 1)
    stored = patterns.bigbird(length)
    image(left, kind * stored.to_dense(), f"{stored.density:.0%} of the scores", ListedColormap([CLEAR, SLATE, GREY, ORANGE]))
    for at, (name, colour) in enumerate((("window", SLATE), ("random", GREY), ("global", ORANGE))):
        left.text((1 + 2 * at) / 6, -0.03, name, color=colour, ha="center", va="top", transform=left.transAxes)
    texts, names = example.drawn(400, 64)
    rows, labels = example.tokens(texts, 64), torch.tensor(names)
    ours, twin = map(example.Training, example.networks(64, example.TOPICS))
    example.train((ours, twin), rows, labels, 6, 32)
    epochs = range(1, 7)
    right.plot(epochs, ours.accuracy, label="BigBird")
    right.plot(epochs, twin.accuracy, "o", color=GREY, fillstyle="none", label="dense twin")
    over_epochs(right, "accuracy", ylim=(0, 1.03))
    in_percent(right.yaxis)
    return figure


def cp_decomposition() -> Figure:
    """The nonzeros of a sparse tensor, and the fit after each step for several ranks."""
    example = load("cp_decomposition")
    torch.manual_seed(3)
    T = example.low_rank_tensor(4, (60, 50, 40))
    figure: Any = Figure()
    grid = figure.add_gridspec(1, 2, width_ratios=(1.5, 1))
    left, right = figure.add_subplot(grid[0], projection="3d"), figure.add_subplot(grid[1])
    left.scatter(*T.indices().numpy(), c=T.values.numpy(), cmap=RAMP, s=6, linewidths=0, depthshade=False)
    left.set_box_aspect(T.shape, zoom=1.15)
    left.set(xticklabels=[], yticklabels=[], zticklabels=[], title=f"{T.nnz} nonzeros")
    for axis in (left.xaxis, left.yaxis, left.zaxis):
        axis.set_pane_color(CLEAR)
        axis._axinfo["grid"]["color"] = FAINT
    for rank in (1, 2, 3, 4):
        start = [torch.rand(size, rank, dtype=torch.float64) for size in T.shape]
        steps = example.decompose(T, start, example.with_numscorch(T), [])
        fits = [next(steps) for _ in range(20)]
        right.plot(range(1, 21), fits, color=RAMP((rank - 1) / 3))
        right.text(20, fits[-1] + 0.02, f"rank {rank}", color=RAMP((rank - 1) / 3), ha="right", fontsize=7)
    right.set(xlabel="step", title="fit", ylim=(0, 1))
    return figure


def distributed_gcn() -> Figure:
    """The entries of the adjacency matrix by the location of their column, and the rows that each process holds and receives."""
    graph, ranks = load("distributed_gcn").drawn(120)[0], 3
    places = read_permutation(graph, "nnz", ranks)
    assert places is not None
    A = permuted(graph, places)
    rows, columns = A.indices()
    partition = Partition.even(A.shape[0], ranks)
    owner = partition.owners(rows)
    is_own = owner == partition.owners(columns)
    kind = torch.zeros(A.shape, dtype=torch.int64)
    kind[rows, columns] = torch.where(is_own, 1, 2)
    names = [f"P{rank}" for rank in range(ranks)]
    halo = [len(columns[(owner == rank) & ~is_own].unique()) for rank in range(ranks)]
    figure, (left, right) = row_of_axes(1.5, 1)
    image(left, kind, "adjacency matrix", ListedColormap([CLEAR, SLATE, ORANGE]))
    left.hlines([start - 0.5 for start in partition.starts[1:-1]], -0.5, A.shape[1] - 0.5, color=GREY, linewidth=1)
    left.set(yticks=[start + partition.sizes[0] / 2 for start in partition.starts[:-1]], yticklabels=names)
    left.tick_params(length=0)
    right.bar(names, partition.sizes, color=SLATE, label="own", width=0.6)
    right.bar(names, halo, bottom=partition.sizes, color=ORANGE, label="halo", width=0.6)
    right.set(title="feature rows", ylim=(0, 1.4 * max(np.add(partition.sizes, halo))))
    right.legend(ncols=2, columnspacing=0.8)
    return figure


def double_sparse() -> Figure:
    """The sparse factors of a weight, and the error beside a single sparse matrix with as many weights."""
    example, (_, dense, _) = load("double_sparse"), dense_network(hidden=64)
    W = dense[0].weight.detach()
    points, part = [], slice(352, 416)
    for percent in (95, 90, 85, 80, 70, 60):
        A, B = example.factors(W, percent / 100, 200)
        share = int(A.count_nonzero() + B.count_nonzero()) / W.numel()
        points.append((share, *(((W - near).norm() / W.norm()).item() for near in (A @ B, W * magnitude(1 - share)(W)))))
        if percent == 80:
            shown = W[:, part], A, B[:, part]
    figure, upper, (axes,) = stacked((3, 1), (1.1, 1))
    for panel, matrix, title in zip(upper, shown, ("weight  ≈", "A  @", "B"), strict=True):
        limit = float(matrix[matrix != 0].abs().quantile(0.9))
        image(panel, matrix, title, SIGNED, vmin=-limit, vmax=limit)
    share, product, single = zip(*points, strict=True)
    axes.plot(share, product, "o-", label="A @ B")
    axes.plot(share, single, "o-", color=GREY, label="one sparse matrix")
    axes.set(xlabel="stored weights", ylabel="error", ylim=(0, 1), yticks=(0, 0.5, 1))
    in_percent(axes.xaxis)
    in_percent(axes.yaxis)
    axes.legend(ncols=2, loc="upper right", borderaxespad=0)
    return figure


def gcn() -> Figure:
    """The accuracy after each epoch, and the classes that the network predicts for the nodes of each class."""
    example = load("gcn")
    graph = example.drawn(1500)
    features = example.row_normalised(graph.features)
    run = example.Training(example.GCN(features.shape[1], example.CLASSES), graph, features)
    example.train([run], 150, 0)
    pairs = graph.labels * example.CLASSES + run.scores().argmax(1)
    counts = pairs[graph.test_idx].bincount(minlength=example.CLASSES**2).view(example.CLASSES, -1)
    figure, (left, right) = row_of_axes(1, 1.2)
    left.plot([row[1] for row in run.curve], color=GREY, label="validation")
    left.plot([row[2] for row in run.curve], label="test")
    over_epochs(left, "accuracy", ylim=(0, 1))
    in_percent(left.yaxis)
    image(right, counts / counts.sum(1, keepdim=True), "test nodes", WARM, vmin=0, vmax=1)
    right.set(xlabel="predicted class", ylabel="class")
    return figure


def mixture_of_experts() -> Figure:
    """The expert of each token before and after training."""
    example, experts = load("mixture_of_experts"), 12
    x, y = example.drawn(3000, 32, experts)
    run = example.Training(example.Mixture(experts, 32, 32))
    figure, panels = row_of_axes(1, 1)
    before = run.net.gate(x).argmax(1)
    example.train([run], x, y, 300, 256)
    after = run.net.gate(x).argmax(1)
    for axes, chosen, title, cmap in zip(panels, (before, after), ("before training", "after training"), (COLD, WARM), strict=True):
        sent = torch.nn.functional.one_hot(chosen, experts).float()
        mean_place = (sent * torch.arange(len(x))[:, None]).sum(0) / sent.sum(0).clamp(min=1)
        image(axes, sent[:, mean_place.argsort()].view(100, -1, experts).mean(1), title, cmap, aspect="auto", vmin=0, vmax=1)
        axes.set_xlabel("experts")
    panels[0].set_ylabel("tokens, sorted by cluster")
    return figure


def own_level() -> Figure:
    """A matrix of windows, and the arrays in which the custom level stores it."""
    example, width, starts = load("own_level"), 3, (0, 0, 1, 2, 4, 4, 5, 6, 7)
    ns.register_level(example.Window(width), most=20)
    full = torch.zeros(len(starts), 10)
    for row, start in enumerate(starts):
        full[row, start : start + width] = row + 1
    A = ns.from_torch(full, f"(i, j) -> (i: dense, j: window({width}))")
    (first,) = A.pattern.arrays[1]
    figure, (axes,) = row_of_axes(1)
    cells(axes, full.masked_fill(full == 0, torch.nan), "matrix")
    cells(axes, torch.full((len(starts), 1), torch.nan), "first", (11.5, 0), numbers=first[:, None])
    cells(axes, A.values.view(-1, width), "values", (14, 0))
    axes.set(xlim=(-0.2, 17.2), ylim=(len(starts) + 0.2, -1.4))
    axes.axis("off")
    return figure


def pruned_mlp() -> Figure:
    """The weights of a layer before and after pruning, and the accuracy after each epoch."""
    example, (data, dense, before) = load("pruned_mlp"), dense_network()
    ours, twin = map(example.Training, example.pruned(dense, 0.9))
    kept = ours.net[2].weight.values.detach().clone()
    for run in (ours, twin):
        run.test(data)
    example.train([ours, twin], data, 5, "pruned")
    figure, (left, right) = row_of_axes(1, 1)
    for values, colour, name in ((dense[2].weight.detach().flatten(), PALE, "dense"), (kept, ORANGE, "kept")):
        left.hist(values.numpy(), np.linspace(-0.2, 0.2, 61), color=colour, label=name, histtype="stepfilled")
    left.set(xlabel="weight", title="weights of a layer", yticks=[], ylim=(0, 1.3 * left.get_ylim()[1]))
    left.spines["left"].set_visible(False)
    left.legend(ncols=2, loc="upper center")
    start = len(before.accuracy) - 1
    right.plot(range(start + 1), before.accuracy, ".-", color=GREY, label="dense")
    right.plot(range(start, start + 6), ours.accuracy, ".-", label="10% of the weights")
    right.plot(range(start, start + 6), twin.accuracy, "o", color=SLATE, fillstyle="none", markersize=6, label="masked twin")
    over_epochs(right, "accuracy", ylim=(0, 1.03), xticks=(0, 5, 10))
    in_percent(right.yaxis)
    return figure


def recommender() -> Figure:
    """A part of the matrix of ratings, and the error after each epoch."""
    example = load("recommender")
    places, ratings = example.drawn(1500, 1000, 80000, 0)
    shape, held_out = tuple(places.max(1) + 1), np.random.default_rng(0).random(len(ratings)) < 0.1
    R, test = (
        ns.from_coo(places[:, part], torch.from_numpy(ratings[part]).float(), shape, format=ns.CSR) for part in (~held_out, held_out)
    )
    run = example.Training(example.Factors(*shape, 10, R.values.mean().item()), example.sparse_errors, R)
    curves = [(run.step(R.nnz), run.test(test)) for _ in range(120)]
    stars = R.to_dense()
    part = stars[:40, (stars > 0).sum(0).argsort(descending=True, stable=True)[:40]]
    figure, (left, right) = row_of_axes(1.25, 1)
    image(left, part.masked_fill(part == 0, torch.nan), "ratings", RAMP, vmin=1, vmax=5)
    left.set(xlabel="items", ylabel="users")
    for at, (name, colour) in enumerate((("training", GREY), ("held out", ORANGE))):
        right.plot([row[at] for row in curves], color=colour, label=name)
    over_epochs(right, "error in stars", ylim=(0, None))
    return figure


def rosa() -> Figure:
    """The adapters of the first layer after training, and their sum; and the accuracy on both tasks."""
    example, training, (data, dense, before) = load("rosa"), load("training"), dense_network()
    data = data._replace(train=data.train.flip(1), test=data.test.flip(1))
    dense.zero_grad()
    torch.nn.functional.cross_entropy(dense(data.train[:512]), data.train_labels[:512]).backward()
    net: Any = torch.nn.Sequential(*dense)
    for at in (0, 2, 4):
        net[at] = example.Adapted(dense[at], 4, 0.98, True)
    after = training.train({"adapters": net}, data, 5, "adapters")["adapters"]
    low, added = (net[0].U @ net[0].V).detach(), net[0].added.to_dense().detach()
    figure, left, axes = beside(3, (1.4, 1))
    limit = float(low.abs().quantile(0.98))
    units = added.count_nonzero(1).argsort(descending=True, stable=True)[:24]
    titles = "low-rank adapter", "sparse adapter", "change of the weight"
    for panel, matrix, title in zip(left, (low, added, low + added), titles, strict=True):
        image(panel, matrix[units, 340:440], title, SIGNED, vmin=-limit, vmax=limit, aspect="auto")
    start = len(before.accuracy) - 1
    axes.plot(range(start + 1), before.accuracy, ".-", color=GREY, label="upright")
    axes.plot(range(start, start + len(after.accuracy)), after.accuracy, ".-", label="upside down")
    over_epochs(axes, "accuracy", ylim=(0, 1.25), yticks=(0, 0.5, 1), xticks=(0, 5, 10))
    in_percent(axes.yaxis)
    return figure


def sparse_attention() -> Figure:
    """The pattern of a sliding window, the attention weights of one head, and those of one query beside full attention."""
    example, length, query = load("sparse_attention"), 96, 48
    pattern, walk = patterns.sliding_window(length, 12), torch.randn(length, 8)
    q, k = walk + 0.7 * torch.randn(length, 8), walk
    weights = example.scaled_dot_product_attention(q, k, torch.eye(length), pattern)
    full = example.dense_attention(q, k, torch.eye(length), torch.ones(length, length, dtype=torch.bool))
    figure, (left, right), (axes,) = stacked((2, 1), (1.7, 1))
    image(left, pattern.to_dense(), f"pattern: {pattern.density:.0%} of all", ListedColormap([CLEAR, SLATE]))
    image(right, weights, "attention weights", WARM, vmin=0, vmax=0.25)
    axes.stairs(weights[query], fill=True, color=ORANGE, label="window")
    axes.stairs(full[query], fill=True, color=GREY, label="full")
    axes.set(xlabel=f"weights of query {query}, by key", yticks=[], xlim=(0, length), ylim=(0, 1.6 * float(weights[query].max())))
    axes.spines["left"].set_visible(False)
    axes.legend(ncols=2, loc="upper right", borderaxespad=0)
    return figure


def sparse_autoencoder() -> Figure:
    """Images with their reconstructions, and the loss by step."""
    example, data = load("sparse_autoencoder"), load("datasets").digits(None, 2500, 0)
    nets = example.networks(data.train.shape[1], 0.1)
    del nets["masked"]
    losses, _ = example.train(nets, data.train, 8)
    figure, (panel,), (axes,) = stacked((1, 1), (1.5, 1))
    shown = data.test[:9]
    with torch.no_grad():
        rows = {"input": shown, **{name: net(shown) for name, net in nets.items()}}
    for at, (row, cmap) in enumerate(zip(rows.values(), (COLD, WARM, COLD), strict=True)):
        digits, place = row.view(-1, 28, 28).permute(1, 0, 2).reshape(28, -1), (0, 28 * len(row), 28 * at + 28, 28 * at)
        image(panel, digits, "", cmap, vmin=0, vmax=1, extent=place)
    panel.set(ylim=(84, 0), yticks=(14, 42, 70), yticklabels=rows)
    panel.tick_params(length=0)
    for name, colour in (("sparse", ORANGE), ("dense", GREY)):
        axes.plot(torch.tensor(losses[name]).unfold(0, 10, 1).mean(1), color=colour, label=f"{name} encoder")
    axes.set(xlabel="step", ylabel="error", yscale="log")
    axes.legend()
    return figure


def sparse_training() -> Figure:
    """The connections of each pixel before and after training with RigL, and the accuracy by epoch beside a dense network."""
    example = load("sparse_training")
    chosen = Namespace(data=None, count=2500, hidden=256, texts=10, length=8, width=16, epochs=5)
    task = example.tasks(chosen, 0)[0]
    dense, _, sparse = example.trainings(task, 0.9, 4, 0)
    before = connections(sparse.net[0])
    for run, name in ((dense, "dense"), (sparse, "RigL")):
        run.run(task, name)
    figure, left, axes = beside(2, (1, 1.7))
    after = connections(sparse.net[0])
    for panel, counts, title in zip(left, (before, after), ("weights per pixel", "after RigL"), strict=True):
        image(panel, counts, title, WARM, vmin=0, vmax=float(after.max()))
    for run, name, colour in ((dense, "dense", GREY), (sparse, "RigL, 10% of the weights", ORANGE)):
        axes.plot(range(1, 1 + run.epochs), run.accuracy, ".-", color=colour, label=name)
    over_epochs(axes, "validation accuracy")
    in_percent(axes.yaxis)
    return figure


def connections(layer: Any) -> torch.Tensor:
    """Number of stored weights of each pixel."""
    return torch.bincount(layer.weight.tensor.indices()[1], minlength=784).view(28, 28)


def spqr() -> Figure:
    """The weights of a hidden unit, in two bits, and their outliers; and the error by size."""
    example, (_, dense, _) = load("spqr"), dense_network()
    W, rows = dense[0].weight.detach(), []
    for share in (0, 0.003, 0.01, 0.03, 0.1):
        layer = example.SpQR(dense[0], share)
        stored = (layer.packed, layer.low, layer.step, *layer.outliers.state_dict().values())
        lost = W - layer.unpacked() - layer.outliers.to_dense()
        rows.append((8 * sum(tensor.nbytes for tensor in stored) / W.numel(), float((lost.norm() / W.norm()).detach())))
        if share == 0.03:
            matrices = W, layer.unpacked(), layer.outliers.to_dense().detach()
    figure, upper, (axes,) = stacked((3, 1), (1.25, 1))
    unit = int(W.norm(dim=1).argmax())
    for panel, matrix, title in zip(upper, matrices, ("weights  ≈", "two bits  +", "outliers"), strict=True):
        limit = float(matrix[unit][matrix[unit] != 0].abs().quantile(0.9))
        image(panel, matrix[unit].view(28, 28), title, SIGNED, vmin=-limit, vmax=limit)
    axes.plot(*zip(*rows, strict=True), "o-")
    axes.set(xlabel="bits per weight", ylabel="error", ylim=(0, 0.33), yticks=(0, 0.1, 0.2, 0.3))
    in_percent(axes.yaxis)
    return figure


def triangles_and_cores() -> Figure:
    """A graph whose nodes are coloured by core number; the larger it is, the closer to the centre they are."""
    example, people = load("triangles_and_cores"), 240
    A = example.random_graph(people, 1)
    core = example.core_numbers(A)
    radius = 1 - 0.9 * torch.tensor([float((core < own).float().mean()) for own in core])
    angle = 2 * np.pi * torch.arange(people) / people
    x, y = radius * torch.cos(angle), radius * torch.sin(angle)
    rows, columns = A.indices()
    ends = torch.stack([rows, columns, rows])[:, rows < columns]
    figure, (axes,) = row_of_axes(1)
    gaps = torch.tensor([[0.0], [0.0], [torch.nan]])
    axes.plot((x[ends] + gaps).T.flatten(), (y[ends] + gaps).T.flatten(), color=GREY, alpha=0.35, linewidth=0.4)
    points = axes.scatter(x, y, s=14, c=core, cmap=RAMP, zorder=2, linewidths=0)
    axes.set(aspect="equal")
    axes.axis("off")
    bar = figure.colorbar(points, label="core number", shrink=0.7)
    bar.outline.set_visible(False)
    return figure


def two_four() -> Figure:
    """A part of a weight with 2 of every 4 entries kept, and the arrays in which NM(2, 4) stores them."""
    _, dense, _ = dense_network()
    weight: Any = SparseLinear.from_dense(dense[2], n_m(2, 4)).weight
    part = weight.to_dense().detach()[:6, :24]
    (positions,) = weight.tensor.pattern.arrays[2]
    values, positions = (array.view(len(weight.tensor), -1)[:6, :12] for array in (weight.values.detach(), positions))
    figure, (axes,) = row_of_axes(1)
    cells(axes, part.masked_fill(part == 0, torch.nan), "weight: 2 of 4 kept")
    axes.vlines(range(0, 25, 4), 0, 6, color=GREY, linewidth=1.6)
    cells(axes, values, "values", (-0.25, 8))
    cells(axes, torch.full((6, 12), torch.nan), "positions", (12.25, 8), numbers=positions)
    axes.set(xlim=(-0.5, 24.5), ylim=(14.2, -1.4))
    axes.axis("off")
    return figure


def unchanged_gcn() -> Figure:
    """The program with its changed lines, and the adjacency matrix that the second one makes sparse."""
    sparse, _ = scripts("unchanged_gcn")
    rows, columns = sparse["adjacency"].indices()
    order, nodes = torch.argsort(sparse["labels"], stable=True).argsort(), sparse["NODES"]
    counts = torch.zeros(100, 100)
    counts.index_put_((order[rows] * 100 // nodes, order[columns] * 100 // nodes), torch.ones(len(rows)), accumulate=True)
    figure, (left, right) = row_of_axes(1, 1.35)
    program(left, right, "unchanged_gcn")
    image(right, counts, "adjacency matrix, now CSR", COLD, vmin=0, vmax=float(counts.quantile(0.99)))
    return figure


def unchanged_mlp() -> Figure:
    """The program with its changed lines, and the number of parameters without and with them."""
    sparse, dense = scripts("unchanged_mlp")
    counts = [sum(parameter.numel() for parameter in names["model"].parameters()) for names in (dense, sparse)]
    figure, (left, right) = row_of_axes(1, 1.35)
    program(left, right, "unchanged_mlp")
    bars = right.bar(("torch", "numscorch"), counts, color=(GREY, ORANGE), width=0.55)
    right.bar_label(bars, [f"{count:,}" for count in counts], fontsize=7, color=TEXT)
    right.set(title="parameters", yticks=[])
    right.spines["left"].set_visible(False)
    return figure


def scripts(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The variables of a program after it ran with numscorch and with torch."""
    results = []
    for arguments in ([], ["--dense"]):
        with patch.object(sys, "argv", [name, *arguments]), redirect_stdout(io.StringIO()):
            results.append(runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__"))
    return results[0], results[1]


def program(axes: Any, code: Any, name: str) -> None:
    """Draw the lines of a program as strokes, with the changed lines in orange, and write the changes below a plot."""
    lines = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").partition('"""\n\n')[2].splitlines()
    changes = [at for at, line in enumerate(lines) if "import numscorch" in line or "from_torch" in line]
    for chosen, width, colour in (([at for at, line in enumerate(lines) if line], 1.3, PALE), (changes, 2.8, ORANGE)):
        x = [end for at in chosen for end in (len(lines[at]) - len(lines[at].lstrip()), len(lines[at]), np.nan)]
        axes.plot(x, np.repeat(chosen, 3), color=colour, linewidth=width, solid_capstyle="round")
    axes.set(ylim=(len(lines), -1), title="two lines changed")
    axes.axis("off")
    text = "\n".join(lines[at].partition(" = ")[2] or lines[at].strip() for at in changes)
    code.figure.get_layout_engine().set(h_pad=0.07)  # descenders of the last line
    code.set_xlabel(text, color=ORANGE, family="monospace", fontsize=7)


DRAWINGS: Sequence[Callable[[], Figure]] = (
    *(bigbird_classifier, cp_decomposition, distributed_gcn, double_sparse, gcn, mixture_of_experts, own_level, pruned_mlp, recommender),
    *(rosa, sparse_attention, sparse_autoencoder, sparse_training, spqr, triangles_and_cores, two_four, unchanged_gcn, unchanged_mlp),
)


def compact(svg: str) -> str:
    """An SVG file without comments, metadata and indentation, and with coordinates rounded to a tenth of a point."""
    svg = re.sub(r"<!DOCTYPE.*?>|<metadata>.*?</metadata>|<!--.*?-->|^ +", "", svg, flags=re.DOTALL | re.MULTILINE)
    svg = re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"\s*([A-Za-z])\s*", r"\1", path[0].strip()), svg)
    svg = re.sub(r"scale\([^)]*\)|(?<!\d)\d+\.\d{2,}", lambda found: found[0] if found[0][0] == "s" else f"{float(found[0]):.1f}", svg)
    svg = re.sub(r'style="fill: (#\w+)"', r'fill="\1"', svg)
    return re.sub(r"\s*\n\s*", "\n", svg)


def fix_layout(figure: Any) -> None:
    """Round the positions of all axes: those of the layout differ between runs in their last digits."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(np.round(axes.get_position(original=True).bounds, 3))


def draw(drawing: Callable[[], Figure], folder: Path = FOLDER) -> Path:
    """Save a picture; return its path."""
    path = folder / f"{drawing.__name__}.svg"
    torch.manual_seed(0)
    with rc_context(STYLE):
        figure = drawing()
        fix_layout(figure)
        figure.savefig(file := io.StringIO(), format="svg", metadata={"Date": None, "Creator": None})
    path.write_text(compact(file.getvalue()), encoding="utf-8")
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path} has {path.stat().st_size:,} bytes, more than {LARGEST:,}")
    return path


def main(names: Sequence[str]) -> None:
    known = {drawing.__name__: drawing for drawing in DRAWINGS}
    if unknown := set(names) - set(known):
        raise SystemExit(f"no picture for {', '.join(sorted(unknown))}; there are pictures for {', '.join(known)}")
    sys.path.insert(0, str(EXAMPLES))
    common = load("common")
    common.tqdm = partial(common.tqdm, disable=True)
    torch.set_num_threads(1)  # sums over threads are not reproducible
    torch.use_deterministic_algorithms(True)  # numscorch then chooses no kernel by its time
    FOLDER.mkdir(exist_ok=True)
    for name in names or known:
        path = draw(known[name])
        print(f"{path.relative_to(ROOT)}   {path.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
