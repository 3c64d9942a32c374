# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Graph analytics with semirings
#
# At the end of this tutorial, you can write reachability, shortest paths, widest paths, connected components,
# triangle counts and PageRank as products of a sparse matrix, and check each of them. You need numscorch, torch,
# numpy, matplotlib, scipy and networkx, and you should know matrix products. Knowledge of graph libraries helps
# but is not required.

# %%
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import torch
from matplotlib.collections import LineCollection
from scipy.sparse import csgraph

import numscorch as ns

# %% [markdown]
# ## A graph with places
#
# A random geometric graph places nodes in a rectangle and connects nodes that are close, like towns and roads. Paths
# in it are long, so algorithms need many steps, and a map shows whether a result is plausible. The weight of an
# edge is its length.

# %%
generator = np.random.default_rng(0)
places = generator.random((2000, 2)) * [2, 1]
graph = nx.random_geometric_graph(2000, 0.05, pos=dict(enumerate(places)))
for u, v in graph.edges:
    graph[u][v]["weight"] = float(np.linalg.norm(places[u] - places[v]))

lengths = ns.from_networkx(graph)
print(lengths)

# %% [markdown]
# An undirected edge is stored twice, as `lengths[u, v]` and `lengths[v, u]`. Algorithms that only ask whether an
# edge exists need the same pattern with other values. `with_values` keeps the index arrays of the matrix, so a second
# matrix costs one array of values.

# %%
edges = lengths.with_values(torch.ones(lengths.nnz, dtype=torch.bool))
ones = lengths.with_values(torch.ones(lengths.nnz))
print(edges)

# %% [markdown]
# ## What a semiring replaces
#
# The product `y[i] = sum over j of A[i,j] * x[j]` combines an edge with a value by `*`, and combines the edges of a
# node by `+`. Other pairs of operations answer other questions:
#
# | question | combine along an edge | combine at a node | numscorch |
# |---|---|---|---|
# | Which nodes can be reached? | and | or | `reduce="or_and"` |
# | How long is the shortest path? | + | min | `reduce="min_plus"` |
# | How wide is the widest path? | min | max | `evaluate`, with `max=` and `minimum` |
#
# One product extends all paths by one edge. Most algorithms repeat it until nothing changes, so one helper serves
# all of them.


# %%
Step = Callable[[torch.Tensor], torch.Tensor]


def fixed_point(step: Step, x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Repeat a step until its result no longer changes; count the repetitions."""
    for count in range(10_000):
        following = step(x)
        if torch.equal(following, x):
            return x, count
        x = following
    raise RuntimeError("no fixed point after 10,000 steps")


# %% [markdown]
# ## Reachability
#
# A node is reached if it was reached before *or* one of its neighbours was reached *and* the edge exists. This is
# breadth-first search: the product visits all edges of the frontier at once. networkx lists the nodes that have a path
# to node 0.

# %%
start = torch.zeros(len(graph), dtype=torch.bool)
start[0] = True


def visit(reached: torch.Tensor) -> torch.Tensor:
    """Extend paths by one edge."""
    return reached | ns.einsum("ij,j->i", edges, reached, reduce="or_and")


reached, steps = fixed_point(visit, start)
expected = nx.node_connected_component(graph, 0)
print(f"{int(reached.sum())} of {len(graph)} nodes reached in {steps} steps")
print("equal to networkx:", set(reached.nonzero().flatten().tolist()) == expected)

# %% [markdown]
# ## Shortest paths
#
# The distance of a node is the smallest sum of a neighbour's distance and the length of the edge between them. This
# is the Bellman-Ford algorithm. A missing edge takes no part in the minimum, so no infinity is stored in the matrix:
# nodes without a path keep their initial `inf`.

# %%
source = torch.full((len(graph),), torch.inf)
source[0] = 0


def relax(matrix: ns.SparseTensor, distance: torch.Tensor) -> torch.Tensor:
    """Extend shortest paths by one edge."""
    nearer = ns.einsum("ij,j->i", matrix, distance, reduce="min_plus")
    return torch.minimum(distance, nearer)


distance, steps = fixed_point(partial(relax, lengths), source)
paths = nx.single_source_dijkstra_path_length(graph, 0)
expected_distance = torch.tensor([paths.get(node, torch.inf) for node in graph])
print(f"longest distance {distance[reached].max():.3f} after {steps} steps")
print("equal to networkx:", torch.allclose(distance, expected_distance))

# %% [markdown]
# Distances do not say which edges a path uses. Gradients do: the derivative of a distance with respect to the length
# of an edge is 1 if the shortest path uses the edge and 0 otherwise. The distance of the farthest node therefore has
# its path as gradient. The gradient has one value for each stored entry, not a dense matrix.

# %%
target = int(torch.where(reached, distance, -1).argmax())
trainable = lengths.with_values(lengths.values.clone().requires_grad_())
differentiable, _ = fixed_point(partial(relax, trainable), source)
(gradient,) = torch.autograd.grad(differentiable[target], trainable.values)

used = {frozenset(edge) for edge in trainable.indices()[:, gradient > 0.5].T.tolist()}
route = nx.dijkstra_path(graph, 0, target)
print(f"{len(gradient)} stored entries, {len(used)} of them on the path to node {target}")
print("equal to networkx:", used == {frozenset(edge) for edge in pairwise(route)})

# %% [markdown]
# The map shows the distances and the path. Grey nodes are in other components and have no path.

# %%
far = distance.masked_fill(~reached, torch.nan)
roads = LineCollection(list(places[list(graph.edges)]), colors="0.8", linewidths=0.4, zorder=0)
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.add_collection(roads)
axes.scatter(*places[~reached.numpy()].T, s=4, c="0.6")
points = axes.scatter(*places.T, s=4, c=far)
axes.plot(*places[route].T, "r", linewidth=1.5)
axes.set(xticks=[], yticks=[], aspect="equal", title="the shortest path to the farthest node")
figure.colorbar(points, label="distance from node 0")
plt.show()

# %% [markdown]
# ## Widest paths
#
# Suppose that each road has a capacity. The width of a path is the smallest capacity on it, and the widest path between
# two nodes has the largest width. No named reduction computes max-min, but `evaluate` takes any element-wise
# function below a reduction.

# %%
for u, v in graph.edges:
    graph[u][v]["capacity"] = float(generator.integers(1, 100))
capacity = ns.from_networkx(graph, weight="capacity")

# %% [markdown]
# The factor `stored(C[i,j])` matters. `max=` counts a missing edge as 0, and `minimum(0, x[j])` depends on `x[j]`, so
# without the factor the kernel must visit all pairs of nodes. `stored(...)` is 0 at a missing edge, and a product with 0
# needs no visit. Capacities are positive, so the zeros do not change the maximum.

# %%
widen = "w[i] max= stored(C[i,j]) * minimum(C[i,j], x[j])"
unlimited = torch.zeros(len(graph))
unlimited[0] = torch.inf


def broaden(width: torch.Tensor) -> torch.Tensor:
    """Extend widest paths by one edge."""
    return torch.maximum(width, ns.evaluate(widen, C=capacity, x=width))


width, steps = fixed_point(broaden, unlimited)
print(f"widths from {width[reached].min():.0f} to {width[1:].max():.0f} after {steps} steps")

# %% [markdown]
# `explain` returns the source of the kernel that numscorch compiles. Only the kernel without `stored` has a loop over all
# `j_size` columns.

# %%
for statement in (widen, "w[i] max= minimum(C[i,j], x[j])"):
    kernel = ns.explain(statement, C=capacity, x=width).source
    print(f"loop over all columns: {'range(j_size)' in kernel!s:6} {statement}")

# %% [markdown]
# networkx has no widest paths, but a known theorem gives a check: paths in a maximum spanning tree are widest paths.

# %%
tree = nx.maximum_spanning_tree(graph, weight="capacity")
widest = {0: torch.inf}
for parent, child in nx.bfs_edges(tree, 0):
    widest[child] = min(widest[parent], tree[parent][child]["capacity"])
expected_width = torch.tensor([widest.get(node, 0.0) for node in graph])
print("equal to the spanning tree:", torch.equal(width, expected_width))

# %% [markdown]
# ## Connected components
#
# Label propagation gives each node a number and replaces it by the largest number among its neighbours. Two nodes
# end with the same label if and only if a path connects them. The labels start at 1, because `reduce="max"` counts missing
# entries as 0.

# %%
numbers = torch.arange(1.0, len(graph) + 1)


def spread(labels: torch.Tensor) -> torch.Tensor:
    """Give each node the largest label next to it, or its own."""
    return torch.maximum(labels, ns.einsum("ij,j->i", ones, labels, reduce="max"))


labels, steps = fixed_point(spread, numbers)
sizes = labels.unique(return_counts=True)[1].sort(descending=True).values
print(f"{len(sizes)} components after {steps} steps, of {sizes.tolist()} nodes")

# %% [markdown]
# SciPy numbers components in another order. The results agree if each label goes with one number of SciPy and each number
# with one label.

# %%
components, membership = csgraph.connected_components(lengths.to_scipy(), directed=False)
pairs = torch.stack([labels.long(), torch.from_numpy(membership)]).unique(dim=1)
print("equal to SciPy:", pairs.shape[1] == components == len(sizes))

# %% [markdown]
# ## Triangles
#
# The entry `(i, j)` of `A @ A` counts the common neighbours of `i` and `j`. Each of them closes a triangle if `i` and
# `j` are adjacent themselves. `mask=` restricts the product to adjacent pairs: the kernel never computes the other entries,
# and the result shares the index arrays of the mask.

# %%
common = ns.einsum("ik,kj->ij", ones, ones, mask=ones)
triangles = common.sum(1) / 2  # each triangle counts at two edges of a node
print(f"{common.nnz} entries with the mask, {(ones @ ones).nnz} without")
print(f"{int(triangles.sum()) // 3} triangles")
print("equal to networkx:", triangles.tolist() == list(nx.triangles(graph).values()))

# %% [markdown]
# ## PageRank
#
# PageRank needs the usual sum of products and a directed graph, here a scale-free one with a few hubs. An edge
# `A[u, v]` goes from page `u` to page `v`, so rank flows along rows of the transpose: `A.t()` shares the memory of `A`.
# Each row is divided by its sum, so a page passes its rank to its links in equal parts.

# %%
web = nx.DiGraph(nx.scale_free_graph(2000, seed=1))
web.remove_edges_from(list(nx.selfloop_edges(web)))
links = ns.from_networkx(web, weight=None, dtype=torch.float64)
out_degree = links.sum(1)
flow = (links / out_degree.clamp(min=1)[:, None]).t()
print(flow)


# %% [markdown]
# A page without links would lose its rank. As in networkx, such a page passes its rank to all pages in equal parts.


# %%
def surf(rank: torch.Tensor, damping: float = 0.85) -> torch.Tensor:
    """Follow a link with probability `damping`, and open a random page otherwise."""
    dangling = rank[out_degree == 0].sum()
    return damping * (flow @ rank + dangling / len(rank)) + (1 - damping) / len(rank)


rank = torch.full((len(web),), 1 / len(web), dtype=torch.float64)
for _ in range(100):
    rank = surf(rank)
theirs = torch.tensor(list(nx.pagerank(web, tol=1e-10).values()), dtype=torch.float64)
print("pages with the highest ranks:", rank.topk(3).indices.tolist())
print("equal to networkx:", torch.allclose(rank, theirs, atol=1e-6))

# %%
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.loglog(links.sum(0) + 1, rank, ".", markersize=4)
axes.set(xlabel="links to a page, plus 1", ylabel="PageRank")
plt.show()

# %% [markdown]
# ## What you learned
#
# * A product over another semiring extends all paths by one edge, and a fixed point of it solves a path problem.
# * `reduce=` has the usual semirings, and `evaluate` with `max=` expresses max-min. `stored(...)` keeps its kernel sparse.
# * `mask=` restricts a product to the entries of a matrix.
# * Gradients flow through `min_plus`, and the gradient of a distance marks its shortest path.
#
# ## Next
#
# * [Expressions](../concepts/expressions.md): all of `einsum` and `evaluate`.
# * [Operators](../OPERATORS.md): the meaning of unstored entries in each reduction.
# * [Graphs](../guide/graphs.md): the direction of edges, and graphs of other libraries.
# * [A graph network from an edge list in a CSV file](gcn.py): learn from a graph.
