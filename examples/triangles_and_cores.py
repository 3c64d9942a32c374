"""Triangles, cores and distances of a graph

Products of the adjacency matrix yield the triangles of each node, its core number, and its distance to the innermost core. The
example shows masked products, products with vectors, and products in the min-plus semiring. Run it with a random graph or with a file:

    python examples/triangles_and_cores.py                      # a random graph with many triangles
    python examples/triangles_and_cores.py --data graph.mtx     # the edges of a Matrix Market file, in both directions

The matrix A has a 1 for every edge:

* ``(A @ A)[i, j]`` counts the common neighbours of i and j. If i and j are adjacent, each of them closes a triangle. With
  ``mask=A``, only the entries of adjacent nodes are computed; A @ A also has entries for all other nodes with common neighbours.
* ``A @ alive`` counts the remaining neighbours of each node. The k-core is the graph that remains after repeatedly removing
  nodes with fewer than k neighbours (Seidman, "Network structure and minimum degree", Social Networks 1983).
* ``reduce="min_plus"`` replaces the sum of products by the minimum of sums: one such product extends shortest paths by one
  step, here the paths to the innermost core.

The results are compared with torch.sparse, and with networkx if it is installed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from common import Figure, agree, options, table, timed, times_as_fast, tqdm

import numscorch as ns


def random_graph(people: int, seed: int) -> ns.SparseTensor:
    """A random graph of cliques with power-law sizes, mostly of nodes that are close on a ring."""
    generator = np.random.default_rng(seed)
    sizes = np.minimum(3 + 2 * generator.pareto(1.3, people), people / 60).astype(int)
    circles = [generator.integers(people) + 4 * generator.standard_cauchy(size) for size in sizes]
    pairs = [np.stack(np.meshgrid(circle, circle)).reshape(2, -1) for circle in circles]
    return undirected(np.concatenate(pairs, axis=1).astype(int) % people, people)


def undirected(pairs: np.ndarray, nodes: int) -> ns.SparseTensor:
    """Adjacency matrix with a 1 at (i, j) and (j, i) for every pair of distinct nodes."""
    both = np.concatenate([pairs, pairs[::-1]], axis=1)
    both = np.unique(both[:, both[0] != both[1]], axis=1)
    return ns.from_coo(both, torch.ones(both.shape[1]), (nodes, nodes), format=ns.CSR)


def triangles(A: ns.SparseTensor) -> torch.Tensor:
    """Number of triangles of each node; the row sum counts each triangle twice, once per edge at the node."""
    return ns.einsum("ik,kj->ij", A, A, mask=A).sum(1) / 2


def triangles_in_torch(A: torch.Tensor) -> torch.Tensor:
    """Triangles in torch.sparse, which computes all of A @ A first. Its CSR product has unsorted rows, so A is in COO."""
    return torch.sparse.sum((A @ A) * A, 1).to_dense() / 2


def core_numbers(A: ns.SparseTensor | torch.Tensor) -> torch.Tensor:
    """For each node, the largest k such that the k-core contains it."""
    alive, core, k = torch.ones(A.shape[0]), torch.zeros(A.shape[0]), 0
    with tqdm(total=len(alive), desc="cores", unit=" nodes") as bar:
        while alive.any():
            neighbours = A @ alive
            weak = (alive > 0) & (neighbours <= k)
            if not weak.any():
                k = int(neighbours[alive > 0].min())
                continue
            core[weak], alive[weak] = k, 0
            bar.update(int(weak.sum()))
    return core


def steps_to(A: ns.SparseTensor, nodes: torch.Tensor) -> torch.Tensor:
    """Distance from each node to the nearest of the given nodes, inf if unreachable."""
    steps = torch.where(nodes, 0.0, torch.inf)
    while True:
        nearer = torch.minimum(steps, ns.einsum("ij,j->i", A, steps, reduce="min_plus"))
        if nearer.equal(steps):
            return steps
        steps = nearer


def with_networkx(A: ns.SparseTensor, core: torch.Tensor) -> dict[str, torch.Tensor]:
    """Triangles, core numbers and distances from networkx; empty if it is not installed."""
    try:
        import networkx as nx
    except ImportError:
        return {}
    graph = nx.from_edgelist(A.indices().T.tolist())
    graph.add_nodes_from(range(A.shape[0]))
    lengths = nx.multi_source_dijkstra_path_length(graph, set(torch.where(core == core.max())[0].tolist()))
    results = {"triangles": nx.triangles(graph), "cores": nx.core_number(graph), "steps": lengths}
    return {name: torch.tensor([float(of.get(node, torch.inf)) for node in range(A.shape[0])]) for name, of in results.items()}


def plot(A: ns.SparseTensor, count: torch.Tensor, core: torch.Tensor, path: Path) -> None:
    """Plot the size of each core, and core number against degree, coloured by triangles."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    levels = torch.arange(int(core.max()) + 1)
    left.step(levels, [(core >= k).sum() for k in levels], where="mid")
    left.set(xlabel="k", ylabel="nodes in the k-core", title=f"{A.shape[0]:,} nodes, {A.nnz // 2:,} edges")
    points = right.scatter(A.sum(1), core, c=count + 1, s=8, norm="log")
    right.set(xscale="log", xlabel="degree", ylabel="core number")
    figure.colorbar(points, label="triangles + 1")
    figure.savefig(path)


def main() -> None:
    chosen = options(__doc__, data="a Matrix Market file of a square matrix (.mtx, .mtx.gz)", people=2500, repeat=5)
    if chosen.data is None:
        A = random_graph(chosen.people, chosen.seed)
    else:
        matrix = ns.load(chosen.data)
        if len(set(matrix.shape)) > 1:
            raise SystemExit(f"{chosen.data} holds a matrix of shape {tuple(matrix.shape)}; that of a graph is square")
        A = undirected(matrix.indices().numpy(), matrix.shape[0])
    print(A)
    native, in_order = A.to_torch(), A.to_torch().to_sparse_coo()
    times: dict[str, list[float]] = {name: [] for name in ("triangles", "torch triangles", "cores", "torch cores")}
    for _ in tqdm(range(chosen.repeat), desc="triangles"):
        count = timed(times["triangles"], triangles, A)
        theirs = timed(times["torch triangles"], triangles_in_torch, in_order)
    agree("numbers of triangles", (count - theirs).abs().max().item(), 0)
    for _ in range(chosen.repeat):
        core = timed(times["cores"], core_numbers, A)
        theirs = timed(times["torch cores"], core_numbers, native)
    agree("core numbers", (core - theirs).abs().max().item(), 0)
    steps = steps_to(A, core == core.max())
    for name, theirs in with_networkx(A, core).items():
        ours = {"triangles": count, "cores": core, "steps": steps}[name]
        agree(f"{name} and networkx's", (ours - theirs).nan_to_num().abs().max().item(), 0)
    table(
        ("", "result", "numscorch", "torch.sparse", ""),
        ("triangles", f"{count.sum() / 3:,.0f}", *times_as_fast(times["triangles"], times["torch triangles"])),
        (
            "innermost core",
            f"k = {core.max():.0f}, {(core == core.max()).sum()} nodes",
            *times_as_fast(times["cores"], times["torch cores"]),
        ),
        ("steps to it", f"{steps[steps.isfinite()].mean():.2f} on average"),
    )
    plot(A, count, core, chosen.out)
    print(f"plot in {chosen.out}")


if __name__ == "__main__":
    main()
