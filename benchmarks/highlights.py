"""Table and plot of README.md from the newest recorded run, written by ``python docs/refresh.py highlights``."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from .peers import DENSE_LAYER, PYG
from .records import Record
from .report import table
from .tables import origin, recorded

PLOT = Path(__file__).parent.parent / "docs" / "plots" / "highlights.svg"
HEAD = ("what", "beside", "cases", "geometric mean", "lowest to highest")
MKL = "torch CSR int32"


@dataclass(frozen=True)
class Highlight:
    """Records of one row: a kernel against one peer with the same operand layout.

    Args:
        title: what is computed.
        kernel: the records' kernel.
        peer: the peer's name in the records.
        shown: the peer's name in the table.
        only: required values of record keys; a tuple lists alternatives.
    """

    title: str
    kernel: str
    peer: str
    shown: str
    only: Mapping[str, Any] = field(default_factory=dict)

    def ratios(self, records: Sequence[Record]) -> list[float]:
        """The speedup of numscorch over the peer for each case, at the highest thread count of the run."""
        most = max(int(record["threads"]) for record in records)
        return [float(r["peers"][self.peer]["ratio"]) for r in records if r["threads"] == most and self._takes(r)]

    def _takes(self, record: Record) -> bool:
        pairs = ((record.get(name), value) for name, value in self.only.items())
        same = all(actual in value if isinstance(value, tuple) else actual == value for actual, value in pairs)
        return same and record["kernel"] == self.kernel and self.peer in (record.get("peers") or ())


HIGHLIGHTS = (
    Highlight("SpMM, CSR x dense, 16 to 256 columns", "spmm", MKL, "torch.sparse (MKL), CSR", {"k": (16, 33, 64, 128, 256)}),
    Highlight(
        "attention at a sparse pattern, 512 to 2048 tokens",
        "models",
        "torch scaled_dot_product_attention, mask",
        "torch `scaled_dot_product_attention`, same mask",
        {"model": "sparse attention"},
    ),
    Highlight("training epoch of a GCN, dense features", "training", PYG, "PyTorch Geometric, same features", {"model": "GCN epoch"}),
    Highlight("linear layer, 75 % of 16 x 1 blocks pruned", "blocks", DENSE_LAYER, "torch dense `F.linear`", {"zeros": 75}),
    Highlight("SpGEMM, sparse x sparse", "spgemm", MKL, "torch.sparse (MKL), CSR"),
)


def highlights() -> str:
    """The table of README.md; also writes the plot."""
    run = recorded()
    PLOT.write_text(drawn(run.records), encoding="utf-8")
    return f"{table(HEAD, list(_rows(run.records)))}\n\n{origin(run)}"


def _rows(records: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    for row in HIGHLIGHTS:
        if not (ratios := row.ratios(records)):
            raise ValueError(f"the newest recorded run has no case of {row.title!r} beside {row.peer}: record a whole run")
        yield row.title, row.shown, str(len(ratios)), f"**{geometric_mean(ratios):.1f}x**", f"{min(ratios):.1f}x to {max(ratios):.1f}x"


def compiling() -> str:
    """The sentence of README.md on the time of a first call."""
    by_state = {str(record["what"]): record for record in recorded().records if record["kernel"] == "first call"}
    new, loaded = by_state["new kernel, median of 30, parallel"], by_state["cached kernel, median of 30, parallel"]
    each = new["each"].values()
    return (
        f"A new kernel takes {new['seconds']:.1f} s to compile (median of {len(each)} kernels with threads; at most {max(each):.1f} s),\n"
        f"and {loaded['seconds'] * 1e3:.0f} ms to load in a new process."
    )


def drawn(records: Sequence[Record]) -> str:
    """The plot as SVG: a point for each case and a bar for the geometric mean, on a logarithmic axis."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = [(row, ratios) for row in HIGHLIGHTS if (ratios := row.ratios(records))]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "highlights", "font.size": 10}):
        figure = Figure(figsize=(8, 0.55 * len(rows) + 0.8), layout="constrained")
        axes = figure.add_subplot()
        for place, (_, ratios) in enumerate(rows):
            axes.barh(place, geometric_mean(ratios) - 1, left=1, height=0.6, color="#9ecae1")
            axes.plot(ratios, [place] * len(ratios), "o", markersize=3, color="#08519c")
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xticks([0.5, 1, 2, 5, 10, 20], ["0.5x", "1x", "2x", "5x", "10x", "20x"])
        axes.set_yticks(range(len(rows)), [f"{row.title}\nbeside {row.shown.replace('`', '')}" for row, _ in rows])
        axes.tick_params(axis="y", labelsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("speed relative to the peer (a point for each case, a bar for the geometric mean)", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
