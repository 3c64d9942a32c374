"""The demo: a graph network trained by numscorch, torch.sparse and PyTorch Geometric side by side; or one product of a matrix."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from .data import digits, from_file
from .matrix import multiply
from .report import report_graph, report_race
from .training import race

FOLDER = Path("numscorch-demo")


def run(graph: Path | None = None, matrix: Path | None = None, threads: int | None = None, folder: Path = FOLDER) -> None:
    """Run the demo and print its report.

    Args:
        graph: an ``.npz`` file as :func:`numscorch.files.load.load_graph` reads it; the digits' nearest neighbours otherwise.
        matrix: a Matrix Market file: multiply it with a dense matrix, and train nothing.
        threads: torch's thread count.
        folder: where the picture goes.

    Raises:
        NumscorchError: a file doesn't hold what it should, scikit-learn is not installed, or two libraries disagree.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's notices about its CSR tensors, and PyTorch Geometric's about extensions
        if matrix is not None:
            multiply(matrix)
            return
        task = digits() if graph is None else from_file(graph)
        report_graph(task)
        report_race(task, race(task), folder)
