"""Plots of the paper's figures 5 to 8 from the records of ``benchmarks.paper``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .runs import Record
from .tables import CSR_FEATURES, DENSE, DENSE_FEATURES, PYG, SDPA, SPARSE, TABLE_1

WIDE, TALL = 9.0, 3.6  # inches
PAPER = "the paper"
MANY = 10  # labels beyond which they are rotated


def draw(records: Sequence[Record], folder: Path) -> Iterator[Path]:
    """Write a PNG for each figure that has records, and yield its path.

    Args:
        records: the records of a run.
        folder: the output folder; created if missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in FIGURES.items():
        path = folder / f"{name}.png"
        if figure(records, path):
            yield path


def figure_5(records: Sequence[Record], path: Path) -> bool:
    """GCN inference: speed-ups of numscorch and PyG over torch with dense features."""
    widths = {r["hidden"] for r in records if r["kernel"] == "gcn"}
    hidden = TABLE_1["hidden channels"] if TABLE_1["hidden channels"] in widths else max(widths, default=0)
    selected = [r for r in records if r["kernel"] == "gcn" and r["hidden"] == hidden and r["layout"] == "CSR"]
    graphs = list(dict.fromkeys(r["graph"] for r in selected))
    ratios = {(r["graph"], r["peer"]): r["ratio"] for r in selected}
    base = [ratios[name, DENSE_FEATURES] for name in graphs]
    bars = {"numscorch": base}
    bars |= {peer: [over / ratios[name, peer] for name, over in zip(graphs, base, strict=True)] for peer in (CSR_FEATURES, PYG)}
    return _bars(path, f"Figure 5: GCN inference, hidden {hidden}", "times as fast as torch, dense features", graphs, bars, [2.08])


def figure_6(records: Sequence[Record], path: Path) -> bool:
    """Autoencoders end to end: speed-ups over torch.sparse and over dense layers."""
    selected = [r for r in records if r["kernel"] == "autoencoder"]
    cases = [r for r in selected if r["peer"] == SPARSE]
    labels = [f"{r['size']}, {r['zeros']} %{' b' * r['blocks']}" for r in cases]
    over = {r["case"]: r["ratio"] for r in selected if r["peer"] == DENSE}
    bars = {SPARSE: [r["ratio"] for r in cases], DENSE: [over.get(r["case"], 0.0) for r in cases]}
    return _bars(path, "Figure 6: sparse autoencoders (b: blocks of 16 x 1)", "times as fast as", labels, bars, [1.42, 5.78])


def figure_7(records: Sequence[Record], path: Path) -> bool:
    """Encoder layers of BigBird and Longformer: speed-ups over masked dense attention."""
    selected = [r for r in records if r["kernel"] == "layer" and r["peer"] == SDPA]
    lengths = sorted({r["length"] for r in selected})
    by = {(r["pattern"], r["length"]): r["ratio"] for r in selected}
    bars = {name: [by[name, length] for length in lengths] for name in dict.fromkeys(r["pattern"] for r in selected)}
    title = "Figure 7: encoder layers of sparse transformers"
    return _bars(path, title, "times as fast as dense, masked", [f"{length} tokens" for length in lengths], bars, [1.24, 1.14, 1.05])


def figure_8(records: Sequence[Record], path: Path) -> bool:
    """SpMM: time against number of nonzeros, on logarithmic axes."""
    selected = sorted((r for r in records if r["kernel"] == "spmm"), key=lambda r: int(r["nnz"]))
    if not selected:
        return False
    plt, figure, axes = _axes((5.0, TALL + 0.4))
    for label, key, style in (("numscorch", "ours", "o"), ("torch CSR", "seconds", "x")):
        axes.loglog([r["nnz"] for r in selected], [1e3 * r[key] for r in selected], style, label=label, markersize=5)
    axes.set(xlabel="nonzeros", ylabel="ms", title="Figure 8: SpMM, 64 columns")
    _save(plt, figure, axes, path)
    return True


FIGURES: dict[str, Callable[[Sequence[Record], Path], bool]] = {
    "figure-5-gcn": figure_5,
    "figure-6-autoencoder": figure_6,
    "figure-7-transformer": figure_7,
    "figure-8-spmm": figure_8,
}


def _bars(path: Path, title: str, what: str, labels: Sequence[str], bars: dict[str, list[float]], paper: Sequence[float]) -> bool:
    """Draw a group of bars per label, and the paper's figures as lines; return False if there are no labels."""
    if not labels:
        return False
    plt, figure, axes = _axes((WIDE, TALL))
    width = 0.8 / len(bars)
    for number, (name, heights) in enumerate(bars.items()):
        axes.bar([place + number * width for place in range(len(labels))], heights, width, label=name)
    for number, height in enumerate(paper):
        axes.axhline(height, color="black", linestyle="--", linewidth=0.8, label=PAPER if not number else None)
    axes.axhline(1.0, color="gray", linewidth=0.8)
    rotation_angle = 60 if len(labels) > MANY else 0
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(labels))], labels, fontsize=7, rotation=rotation_angle)
    axes.set(ylabel=what, title=title, yscale="log")
    _save(plt, figure, axes, path)
    return True


def _axes(size: tuple[float, float]) -> tuple[Any, Any, Any]:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=size)
    return plt, figure, axes


def _save(plt: Any, figure: Any, axes: Any, path: Path) -> None:
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
