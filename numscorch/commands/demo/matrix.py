"""The product of a sparse matrix from a file with a dense matrix, compared with torch.sparse."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path

import torch

import numscorch as ns

from ...errors import SizeError
from ...measuring.turns import in_turns
from ...tensors.sparse_tensor import SparseTensor

SPMM = "ij,jk->ik"
COLUMNS = 64  # of the dense matrix
SECONDS = 4.0  # total time of the measurement


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
