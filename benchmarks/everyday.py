"""Everyday operators beside SciPy, torch and others: ``python -m benchmarks.everyday [GROUP ...] [--threads N] [--matrix FILE]``.

Each row is an operator that users of SciPy, torch or PyTorch Geometric know, with the bar that it should meet. Every call gets operands
whose pattern was never used before. Calls of both sides alternate; times are medians, without a first call that may compile: CPU time on
one thread, wall time on more.

    ours, peer    milliseconds
    ratio         ours over the peer's
    bar           the largest ratio, or the largest time of ours, that is good enough
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

import numscorch as ns
from numscorch.tensors.pattern import Pattern

from .generated import uniform
from .sweep import fresh

SIZE, IN_ROW = 100_000, 10
ROUNDS, SECONDS = 9, 10.0
UNSORTED = ns.Format("(i, j) -> (i: dense, j: compressed(ordered=False))")
Call = Callable[[], Any]
Make = Callable[[], Call]  # returns a call on fresh operands


@dataclass(frozen=True)
class Row:
    """A row of the table: how to make our call and the peer's; the bar is a ratio, or the largest time of ours in milliseconds."""

    name: str
    bar: float
    ours: Make
    peer: Make | None = None
    is_time: bool = False
    calls: int = 1  # of a timing, each on fresh operands: few calls find the processor's caches without Python's own data


def seconds_of(make: Make, clock: Callable[[], float], count: int = 1) -> float:
    """The mean seconds of calls, each on fresh operands."""
    calls = [make() for _ in range(count)]
    started = clock()
    for call in calls:
        call()
    return (clock() - started) / count


def measured(row: Row, clock: Callable[[], float]) -> tuple[float, float]:
    """Median milliseconds of our calls and the peer's, in turns; NaN without a peer."""
    ours, peer = list[float](), list[float]()
    began = time.monotonic()
    while len(ours) < ROUNDS and (len(ours) < 2 or time.monotonic() - began < SECONDS):
        ours.append(seconds_of(row.ours, clock, row.calls))
        peer.append(seconds_of(row.peer, clock, row.calls) if row.peer else float("nan"))
    return 1e3 * median(ours[1:]), 1e3 * median(peer[1:])


def on_fresh(A: ns.SparseTensor, function: Callable[[ns.SparseTensor], Any]) -> Make:
    """Calls of a function of a matrix with a new pattern."""

    def make() -> Call:
        operand = fresh(A)
        return lambda: function(operand)

    return make


def on_scipy(S: Any, function: Callable[[Any], Any]) -> Make:
    """Calls of a function of a SciPy matrix: a copy, since SciPy remembers whether indices are sorted."""

    def make() -> Call:
        operand = S.copy()
        return lambda: function(operand)

    return make


def again(call: Call) -> Make:
    """The same call each time: its operands have no pattern before."""
    return lambda: call


def pair(name: str, bar: float, A: ns.SparseTensor, ours: Callable[[Any], Any], scipys: Callable[[Any], Any], **options: Any) -> Row:
    """A row that compares a function of a matrix with a function of the same matrix in SciPy."""
    return Row(name, bar, on_fresh(A, ours), on_scipy(A.to_scipy(), scipys), **options)


def draw(count: int, share: float) -> np.ndarray:
    """A part of the coordinates below ``count`` in random order."""
    return np.random.default_rng(0).permutation(count)[: int(count * share)]


# ---- rows


def extremes(A: ns.SparseTensor) -> Iterator[Row]:
    """Extremes with their indices, and the largest entries of each row."""
    for name in ("argmax", "max", "min"):
        yield Row(f"{name}(1)", 3, on_fresh(A, partial(getattr(torch, name), dim=1)), on_fresh(A, lambda A: ns.amax(A, 1)))
    small = ns.from_scipy(sp.random_array((3000, 3000), density=0.02, format="csr", dtype=np.float32, rng=np.random.default_rng(0)))
    yield pair("topk(10, 1) of 3,000 x 3,000", 1.0, small, lambda A: ns.topk(A, 10, 1), largest_of_rows)
    yield Row("topk(10, 1) of 57 M entries", 1000, on_fresh(uniform(SIZE, SIZE, 570), lambda A: ns.topk(A, 10, 1)), is_time=True)
    yield pair("count_nonzero", 1.0, A, torch.count_nonzero, lambda S: S.count_nonzero())
    halved = A.with_values(A.values * (torch.arange(A.nnz) % 2))
    yield pair("eliminate_zeros", 1.0, halved, ns.eliminate_zeros, zeros_eliminated)


def largest_of_rows(S: Any) -> list[np.ndarray]:
    """The columns of the ten largest stored entries of each row."""
    rows = zip(S.indptr[:-1], S.indptr[1:], strict=True)
    return [S.indices[start:end][np.argsort(-S.data[start:end])[:10]] for start, end in rows]


def zeros_eliminated(S: Any) -> Any:
    """A copy without stored zeros."""
    copied = S.copy()
    copied.eliminate_zeros()
    return copied


def selections(A: ns.SparseTensor) -> Iterator[Row]:
    """Rows, columns and entries."""
    rows, columns = draw(A.shape[0], 0.5), draw(A.shape[1], 0.5)
    row_mask, column_mask = np.zeros(A.shape[0], bool), np.zeros(A.shape[1], bool)
    row_mask[rows] = column_mask[columns] = True
    r, c = torch.from_numpy(rows), torch.from_numpy(columns)
    increasing = np.sort(rows), np.sort(columns)
    yield pair("rows by mask", 1.5, A, lambda A: A[torch.from_numpy(row_mask)], lambda S: S[row_mask])
    yield pair("rows by list", 1.5, A, lambda A: A[r], lambda S: S[rows])
    yield pair("columns by mask", 1.5, A, lambda A: A[:, torch.from_numpy(column_mask)], lambda S: S[:, column_mask])
    yield pair("columns by list", 1.5, A, lambda A: A[:, c], lambda S: S[:, columns])
    yield pair("np.ix_", 1.5, A, lambda A: A[np.ix_(*increasing)], lambda S: S[np.ix_(*increasing)])
    yield pair("A[A > .5]", 1.5, A, lambda A: A[A > 0.5], lambda S: S[S > 0.5])
    i, j = A.shape[0] // 2, A.shape[1] // 2
    yield pair("one entry", 0.020, A, lambda A: A[i, j], lambda S: S[i, j], is_time=True, calls=20)
    yield pair("one row", 0.030, A, lambda A: A[i], lambda S: S[i], is_time=True, calls=20)
    yield pair("one column of CSR", 0.2, A, lambda A: A[:, j], lambda S: S[:, j], calls=5)


def joints(A: ns.SparseTensor) -> Iterator[Row]:
    """Stacked matrices."""
    yield pair("vstack", 1.5, A, lambda A: torch.vstack([A, A]), lambda S: sp.vstack([S, S]))
    yield pair("hstack", 1.5, A, lambda A: torch.hstack([A, A]), lambda S: sp.hstack([S, S], format="csr"))
    yield pair(
        "2 x 2 blocks", 1.5, A, lambda A: torch.vstack([torch.hstack([A, A])] * 2), lambda S: sp.block_array([[S, S]] * 2, format="csr")
    )
    yield pair("block_diag", 1.5, A, lambda A: torch.block_diag(A, A), lambda S: sp.block_diag([S, S], format="csr"))


def conversions(_: ns.SparseTensor) -> Iterator[Row]:
    """Conversions at several sizes, beside the faster of SciPy and torch."""
    for entries, bar in ((1000, 2.0), (10_000, 2.0), (100_000, 1.2), (1_000_000, 1.2)):
        A = uniform(entries // IN_ROW, entries // IN_ROW, IN_ROW)
        S, T = A.to_scipy(), A.to_torch()
        order = torch.from_numpy(np.random.default_rng(1).permutation(A.nnz))
        coo = A.to(ns.COO(2))
        plain = sp.coo_array((coo.values.numpy(), tuple(A.indices().numpy())), shape=S.shape)
        yield faster(
            f"CSR to CSC, {entries:,}",
            bar,
            on_fresh(A, lambda A: A.to(ns.CSC)),
            on_scipy(S, lambda S: S.tocsc()),
            on_torch(T, "to_sparse_csc"),
        )
        yield faster(
            f"CSR to COO, {entries:,}",
            bar,
            on_fresh(A, lambda A: A.to(ns.COO(2))),
            on_scipy(S, lambda S: S.tocoo()),
            on_torch(T, "to_sparse_coo"),
        )
        listed = on_torch(T.to_sparse_coo().coalesce(), "to_sparse_csr")
        yield faster(f"COO to CSR, {entries:,}", bar, on_fresh(coo, lambda A: A.to(ns.CSR)), on_scipy(plain, lambda S: S.tocsr()), listed)
        shuffled, values = A.indices()[:, order], coo.values[order]
        mixed = sp.coo_array((values.numpy(), tuple(shuffled.numpy())), shape=S.shape)
        ours = partial(ns.from_coo, shuffled, values, A.shape, ns.CSR)
        yield faster(f"unsorted entries to CSR, {entries:,}", bar, again(ours), on_scipy(mixed, lambda S: S.tocsr()))
        rows, columns = A.indices().numpy()
        backwards = np.lexsort((-columns, rows))
        unsorted_scipy = sp.csr_array((S.data[backwards], S.indices[backwards], S.indptr), shape=S.shape)
        levels: Any = (), (torch.from_numpy(unsorted_scipy.indptr), torch.from_numpy(unsorted_scipy.indices))
        unsorted = ns.SparseTensor(Pattern(UNSORTED, tuple(A.shape), levels), torch.from_numpy(unsorted_scipy.data))
        yield faster(f"sort, {entries:,}", bar, on_fresh(unsorted, ns.sort), on_scipy(unsorted_scipy, lambda S: S.sorted_indices()))
        ours = partial(ns.from_coo, A.indices().clone(), coo.values, A.shape)
        yield faster(f"from_coo of sorted entries, {entries:,}", bar, again(ours), coalesced(A, coo))


def coalesced(A: ns.SparseTensor, coo: ns.SparseTensor) -> Make:
    """torch's constructor of sorted entries with its checks."""
    return lambda: partial(torch.sparse_coo_tensor, A.indices(), coo.values, tuple(A.shape), is_coalesced=True, check_invariants=True)


def on_torch(T: torch.Tensor, method: str) -> Make:
    """Calls of a method of a torch tensor."""
    return lambda: getattr(T.clone(), method)


def faster(name: str, bar: float, ours: Make, *peers: Make) -> Row:
    """A row beside the fastest of several peers, as measured once here."""
    return Row(name, bar, ours, min(peers, key=lambda make: min(seconds_of(make, time.process_time) for _ in range(5))))


def files(A: ns.SparseTensor) -> Iterator[Row]:
    """Matrix Market files."""
    folder = tempfile.TemporaryDirectory()
    mine, theirs = Path(folder.name) / "mine.mtx", Path(folder.name) / "theirs.mtx"
    S = A.to_scipy()
    scipy.io.mmwrite(theirs, S)
    yield Row("reading .mtx", 1.3, lambda: lambda: ns.load(theirs), lambda: lambda: scipy.io.mmread(theirs).tocsr())
    yield pair("writing .mtx", 1.3, A, lambda A: ns.save(A, mine), lambda S: scipy.io.mmwrite(theirs, S))
    folder.cleanup()


class Rows(Dataset[Any]):
    """The rows of a matrix as the items of a data set."""

    def __init__(self, A: ns.SparseTensor):
        self.A = A

    def __len__(self) -> int:
        return len(self.A)

    def __getitem__(self, at: Any) -> Any:
        return self.A[at]


def loaders(_: ns.SparseTensor) -> Iterator[Row]:
    """All batches of a data set of 9,000 rows."""
    items = Rows(uniform(9000, 2000, 50))
    sampler = BatchSampler(RandomSampler(items), 256, False)
    yield Row("DataLoader, default collation", 1000, lambda: lambda: list(DataLoader(items, batch_size=256)), is_time=True)
    yield Row("DataLoader, BatchSampler", 1000, lambda: lambda: list(DataLoader(items, sampler=sampler, batch_size=None)), is_time=True)


def searches(_: ns.SparseTensor) -> Iterator[Row]:
    """Breadth-first search, in steps of a boolean product; and shortest paths of integers."""
    A = uniform(SIZE, SIZE, 8)
    A = A.with_values(torch.ones(A.nnz, dtype=torch.bool))
    yield pair("breadth-first search", 2, A, levels_by_products, levels_by_scipy)
    lengths = A.with_values(torch.ones(A.nnz, dtype=torch.int64))
    start = torch.full((SIZE,), torch.iinfo(torch.int64).max)
    start[0] = 0
    yield Row("integer min_plus", 1000, on_fresh(lengths, lambda A: ns.einsum("ij,j->i", A, start, reduce="min_plus")), is_time=True)


def levels_by_products(A: ns.SparseTensor) -> torch.Tensor:
    """The distances from the first vertex."""
    distances, frontier = torch.full((SIZE,), -1), torch.zeros(SIZE, dtype=torch.bool)
    frontier[0], step = True, 0
    while frontier.any():
        distances[frontier] = step
        frontier = ns.einsum("ij,i->j", A, frontier, reduce="or_and") & (distances < 0)
        step += 1
    return distances


def levels_by_scipy(S: Any) -> np.ndarray:
    """The same with SciPy's product."""
    distances, frontier = np.full(SIZE, -1), np.zeros(SIZE, bool)
    frontier[0], step = True, 0
    transposed = S.T
    while frontier.any():
        distances[frontier] = step
        frontier = (transposed @ frontier) & (distances < 0)
        step += 1
    return distances


def factorizations(A: ns.SparseTensor) -> Iterator[Row]:
    """Factorizations of low rank, of our tensors and of torch's own."""
    T = A.to_torch()
    yield Row("svd_lowrank", 1.2, on_fresh(A, partial(torch.svd_lowrank, q=8)), lambda: partial(torch.svd_lowrank, T, 8))


def graphs(_: ns.SparseTensor) -> Iterator[Row]:
    """Layers on graphs that are new at every step, beside PyTorch Geometric's; and on a large edge list."""
    features, weights = torch.randn(500, 16), torch.ones(2000)

    def step(layer: torch.nn.Module, graph_of: Callable[[torch.Tensor], Any] = lambda edges: edges) -> Make:
        def make() -> Call:
            edges = torch.randint(500, (2, 2000))
            return lambda: layer(features, graph_of(edges)).sum().backward()

        return make

    with suppress(ImportError):
        from torch_geometric import nn as pyg

        for name in ("GCNConv", "SAGEConv", "GATConv", "GINConv"):
            sizes: tuple[Any, ...] = (torch.nn.Linear(16, 16),) if name == "GINConv" else (16, 16)
            yield Row(f"{name} on a new graph", 1.0, step(getattr(ns.nn, name)(*sizes)), step(getattr(pyg, name)(*sizes)), calls=5)
        layer, peer = ns.nn.GCNConv(16, 16), step(pyg.GCNConv(16, 16))
        yield Row("GCNConv on a new adj_t", 1.0, step(layer, lambda edges: ns.adj_t(edges, weights, size=500)), peer, calls=5)
        coo = step(layer, lambda edges: ns.from_coo(edges.flip(0), weights, (500, 500)))
        yield Row("GCNConv on a new from_coo", 1.0, coo, peer, calls=5)
    large, nodes = torch.randint(1_000_000, (2, 10_000_000), generator=torch.Generator().manual_seed(0)), torch.randn(1_000_000, 16)
    for kind in (ns.nn.GCNConv, ns.nn.SAGEConv):
        module = kind(16, 16)
        yield Row(f"{kind.__name__} of 10 M edges", 1000, again(partial(module, nodes, large)), is_time=True)


GROUPS: dict[str, Callable[[ns.SparseTensor], Iterator[Row]]] = {
    group.__name__: group for group in (selections, joints, extremes, conversions, files, loaders, searches, factorizations, graphs)
}


@cache
def matrix(file: str | None) -> ns.SparseTensor:
    """The matrix of a file as CSR with float32 values, or a random one."""
    if file is None:
        return uniform(SIZE, SIZE, IN_ROW)
    loaded: ns.SparseTensor = ns.load(file)
    return loaded.to(ns.CSR).to(torch.float32)


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.everyday", description="Everyday operators beside SciPy, torch and others.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; by default all")
    parser.add_argument("--rows", metavar="TEXT", default="", help="only rows whose names contain this text")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--matrix", metavar="FILE", help="a square matrix instead of a random one")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    clock = time.process_time if options.threads == 1 else time.perf_counter
    print(f"{'':34}{'ours':>10}{'peer':>10}{'ratio':>8}{'bar':>8}")
    for group in options.groups or GROUPS:
        for row in GROUPS[group](matrix(options.matrix)):
            if options.rows not in row.name:
                continue
            try:
                ours, peer = measured(row, clock)
            except (ns.errors.NumscorchError, RuntimeError, MemoryError) as error:
                print(f"{row.name:34} {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
                continue
            reached, bar = (ours, f"{row.bar:g} ms") if row.is_time else (ours / peer, f"{row.bar:g}")
            verdict = "" if reached <= row.bar else "  above"
            print(f"{row.name:34}{ours:10.3f}{peer:10.3f}{ours / peer:8.2f}{bar:>10}{verdict}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
