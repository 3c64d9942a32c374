"""End-to-end benchmarks of the reference paper: its models against their peers, and its figures beside the measured ones.

    python -m benchmarks.paper                        # everything: graph networks, autoencoders, transformers, experts, SpMM
    python -m benchmarks.paper gcn attention --seconds 0.1 --data ~/data

For each case, the script prints the time of numscorch and the ratio of each peer's time to it, by medians and by minima. It then prints
whether each bar is met, and writes plots of the paper's figures 5 to 8 and ``records.json`` to ``--out``. Both sides use the same
weights, allocate their results and are called in turn. Their results are compared before they are timed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ..data import FOLDER
from . import plots
from .attention import attention
from .autoencoder import autoencoder
from .gcn import gcn, training
from .mlp import mlp
from .moe import moe
from .runs import Run, summary
from .spmm import spmm
from .tables import FULL, QUICK, TABLE_1, TABLE_2, TABLE_3

SECTIONS: dict[str, Callable[[Run], None]] = {
    "gcn": gcn,
    "training": training,
    "autoencoder": autoencoder,
    "attention": attention,
    "moe": moe,
    "mlp": mlp,
    "spmm": spmm,
}
TABLES = {"gcn": TABLE_1, "training": TABLE_1, "autoencoder": TABLE_2, "attention": TABLE_3}


def main(arguments: Sequence[str] | None = None) -> Run:
    """Measure the named sections, by default all, and print the results."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.sections if name not in SECTIONS]:
        parser.error(f"no section {', '.join(unknown)}: choose from {', '.join(SECTIONS)}")
    if options.data:
        os.environ[FOLDER] = options.data
    torch.set_num_threads(options.threads)
    run = Run(QUICK if options.quick else FULL, options.seconds, tell=_tell)
    for name in options.sections or SECTIONS:
        _measure(run, name)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "records.json").write_text(json.dumps(run.records, indent=1), encoding="utf-8")
    _tell(f"\n{summary(run.records)}\n")
    for failure in run.failures:
        _tell(f"FAILED {failure}")
    for path in plots.draw(run.records, options.out):
        _tell(f"wrote {path}")
    return run


def _measure(run: Run, name: str) -> None:
    if name in TABLES:
        _tell(f"\n{name}, by the paper's table: " + ", ".join(f"{key} {value}" for key, value in TABLES[name].items()))
    else:
        _tell(f"\n{name}")
    start = time.perf_counter()
    SECTIONS[name](run)
    _tell(f"  {name}: {time.perf_counter() - start:.0f} s")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description="The reference paper's models, against torch and PyG.")
    parser.add_argument("sections", nargs="*", metavar="section", help=f"one or more of {', '.join(SECTIONS)}; by default all")
    parser.add_argument("--seconds", type=float, default=0.3, help="how long the functions of a case take turns (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="torch's and ours (%(default)s)")
    parser.add_argument("--data", help=f"a folder with graphs/*.npz and matrices; by default {FOLDER}, else random ones of the same sizes")
    parser.add_argument("--out", type=Path, default=Path(".benchmarks/paper"), help="where plots and records go (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    return parser


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(1 if main().failures else 0)
