"""The first step of one model or operation in a fresh process: ``python -m benchmarks.first_steps STEP [SIZE]``.

Prints the CPU and wall seconds as JSON. Not counted are the imports of torch and numscorch, the inputs, and torch's own first step.
This file uses only names that older commits also have, because ``cold_start`` runs it on their packages.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import numscorch as ns

Step = Callable[[], Any]
SIZE = 2048  # rows of a matrix, nodes of a graph
DEGREE = 100  # nonzeros per row of matrices
THREADS = 2


def edges(nodes: int) -> torch.Tensor:
    """The edge index of a random graph with four edges per node.

    >>> edges(10).shape
    torch.Size([2, 40])
    """
    return torch.randint(nodes, (2, 4 * nodes))


def matrix(rows: int, per_row: int = DEGREE) -> ns.SparseTensor:
    """A random square CSR matrix with int32 indices.

    >>> matrix(8, 2).nnz
    16
    """
    per_row = min(per_row, rows)
    columns = torch.rand(rows, rows).topk(per_row, 1).indices.sort(1).values
    starts = torch.arange(0, rows * per_row + 1, per_row)
    return ns.from_csr(starts.int(), columns.flatten().int(), torch.rand(rows * per_row), (rows, rows))


def _layers(size: int, first: torch.nn.Module, second: torch.nn.Module) -> Step:
    """Forward and backward pass of two graph layers."""
    graph, features = edges(size), torch.rand(size, 32)

    def step() -> None:
        second(first(features, graph).relu(), graph).sum().backward()

    return step


def gcn(size: int) -> Step:
    return _layers(size, ns.nn.GCNConv(32, 64), ns.nn.GCNConv(64, 16))


def sage(size: int) -> Step:
    return _layers(size, ns.nn.SAGEConv(32, 64), ns.nn.SAGEConv(64, 16))


def gin(size: int) -> Step:
    perceptrons = [torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.ReLU(), torch.nn.Linear(b, b)) for a, b in ((32, 64), (64, 16))]
    return _layers(size, *map(ns.nn.GINConv, perceptrons))


def gat(size: int) -> Step:
    return _layers(size, ns.nn.GATConv(32, 16, heads=4), ns.nn.GATConv(64, 16))


def attention(size: int) -> Step:
    """Sliding-window attention with four heads of 32 features, on ``size // 4`` tokens."""
    length = max(size // 4, 4)
    attend = ns.nn.SparseAttention(ns.nn.patterns.sliding_window(length, max(length // 32, 1)), embed_dim=128, num_heads=4)
    tokens = torch.rand(1, length, 128, requires_grad=True)
    return lambda: attend(tokens, tokens, tokens)[0].sum().backward()


def spgemm(size: int) -> Step:
    A = matrix(size, 10)
    return lambda: A @ A


def addition(size: int) -> Step:
    A = matrix(size, 10)
    return lambda: A + A.t()


def spmm(size: int) -> Step:
    A, X = matrix(size), torch.rand(size, 128)
    return lambda: ns.einsum("ij,jk->ik", A, X)


STEPS: dict[str, Callable[[int], Step]] = {
    "GCN": gcn,
    "SAGE": sage,
    "GIN": gin,
    "GAT": gat,
    "SparseAttention": attention,
    "A @ A": spgemm,
    "A + A.t()": addition,
    "SpMM": spmm,
}
FLOOR = "floor"


def floor(size: int) -> Step:
    """Numba's start-up: its import, and compiling one empty function."""

    def step() -> None:
        import numba

        numba.cfunc("void()")(_empty)

    return step


def _empty() -> None:
    pass


def start_torch() -> None:
    """A dense step, so that torch starts its threads and initializes its tables."""
    layer = torch.nn.Linear(512, 512)
    layer(torch.rand(512, 512)).relu().softmax(1).sum().backward()


def measure(name: str, size: int = SIZE) -> dict[str, float]:
    """CPU and wall seconds of a step, without its preparation.

    >>> sorted(measure("floor"))
    ['cpu', 'wall']
    """
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    start_torch()
    step = ({FLOOR: floor} | STEPS)[name](size)
    cpu, wall = time.process_time(), time.perf_counter()
    step()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], *map(int, sys.argv[2:]))))
