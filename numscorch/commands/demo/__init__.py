"""The demo: train a graph network with numscorch, torch.sparse and PyTorch Geometric, or time one matrix product."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from .report import multiply, report_graph, report_race
from .training import digits, from_file, race

FOLDER = Path("numscorch-demo")


def run(graph: Path | None = None, matrix: Path | None = None, threads: int | None = None, folder: Path = FOLDER) -> None:
    """Run the demo and print its report.

    Args:
        graph: an ``.npz`` file that :func:`numscorch.files.load.load_graph` reads; by default the nearest-neighbour graph of the digits.
        matrix: a Matrix Market file. If given, the demo times its product with a dense matrix, and trains nothing.
        threads: torch's number of threads.
        folder: the folder of the picture.

    Raises:
        NumscorchError: a file is malformed, scikit-learn is not installed, or two libraries disagree.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warning about CSR tensors, PyTorch Geometric's about extensions
        if matrix is not None:
            multiply(matrix)
            return
        task = digits() if graph is None else from_file(graph)
        report_graph(task)
        report_race(task, race(task), folder)
