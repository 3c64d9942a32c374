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
# # Two ranks: a graph network on two processes
#
# At the end of this tutorial, you have a program that trains a graph convolutional network (GCN) on two processes. Each
# process holds half of the graph, and the losses are those of a single process. You need numscorch, torch and matplotlib,
# and you should have trained a network with PyTorch before. A second machine is not needed.

# %%
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

import numscorch as ns
from numscorch.nn import GCNConv

generator = torch.manual_seed(0)
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A graph
#
# The graph has 1,000 papers of four subjects, in the order of their subjects. About nine of ten citations are between
# papers of one subject. The features of a paper say little about its subject, so a good network has to look at the
# neighbors.

# %%
PAPERS, SUBJECTS, FEATURES = 1000, 4, 16
labels = torch.arange(PAPERS) * SUBJECTS // PAPERS
features = torch.randn(PAPERS, FEATURES) + torch.eye(SUBJECTS, FEATURES)[labels]
in_training = torch.rand(PAPERS) < 0.2

ends = torch.randint(PAPERS, (2, 12_000))
related = labels[ends[0]] == labels[ends[1]]
ends = ends[:, related | (torch.rand(ends.shape[1]) < 0.04)]
graph = ns.adj_t(torch.cat([ends, ends.flip(0)], 1).unique(dim=1), size=PAPERS)
print(graph)

# %% [markdown]
# ## One process
#
# This is the usual program, and the reference for everything that follows. `GCNConv` takes the features and the adjacency
# matrix.

# %%
layers = torch.nn.ModuleList([GCNConv(FEATURES, 16), GCNConv(16, SUBJECTS)])
initial = {name: value.clone() for name, value in layers.state_dict().items()}
optimizer = torch.optim.Adam(layers.parameters(), lr=0.02)
losses = []
for _epoch in range(40):
    optimizer.zero_grad()
    scores = layers[1](layers[0](features, graph).relu(), graph)
    loss = cross_entropy(scores[in_training], labels[in_training])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
right = scores.argmax(1) == labels
print(f"accuracy of the other papers {right[~in_training].float().mean():.1%}")

# %% [markdown]
# ## Files
#
# Several processes share no Python objects, so the data goes to files. The graph is saved a second time with its papers
# in random order. It is the same graph, but its parts will be less convenient.

# %%
ns.save(graph, folder / "graph.npz")
order = torch.randperm(PAPERS)
ns.save(graph[order][:, order], folder / "shuffled.npz")
data = {"features": features, "labels": labels, "in_training": in_training, "initial": initial}
torch.save(data, folder / "data.pt")

# %% [markdown]
# ## The program: who owns which rows
#
# Each process that runs the program is a *rank*. `init_process_group` connects the ranks, and a mesh lists them. `load`
# of `numscorch.sharding` reads only the rows of its rank, and `rows_of` takes the same rows of a dense tensor.
#
# A rank needs the features of its own papers and of their neighbors. The rows of neighbors that other ranks own are the
# *halo*. The report of the sharded matrix counts them. Everything is collected on rank 0 and printed once.

# %%
beginning = """
import gc
import json
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from numscorch.nn import GCNConv
from numscorch.sharding import load

def describe(A, title):
    owned = [None] * dist.get_world_size()
    dist.all_gather_object(owned, repr(A))
    report = A.report()
    if dist.get_rank() == 0:
        print(title, *owned, report, sep="\\n")
"""

# %% [markdown]
# ## The program: training
#
# The loop differs from the one above in two places. The loss of a rank is the sum over its own papers, divided by the
# number of training papers on all ranks, so that the losses of the ranks add up to the mean. After `backward()`, each
# rank has its part of each gradient, and `all_reduce` adds the parts. Then all ranks take the same step. The products
# exchange the halo rows, also in `backward()`.

# %%
training = """
def train(A, data):
    x, labels, chosen = (A.rows_of(data[name]) for name in ("features", "labels", "in_training"))
    layers = torch.nn.ModuleList([GCNConv(x.shape[1], 16), GCNConv(16, 4)])
    layers.load_state_dict(data["initial"])
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        scores = layers[1](layers[0](x, A).relu(), A)
        loss = cross_entropy(scores[chosen], labels[chosen], reduction="sum") / data["in_training"].sum()
        loss.backward()
        total = loss.detach()
        for part in [total, *(parameter.grad for parameter in layers.parameters())]:
            dist.all_reduce(part)
        optimizer.step()
        losses.append(total.item())
    return losses, A.gathered(scores.detach())
"""

# %% [markdown]
# `gathered` returns the scores of all papers on every rank; rank 0 writes them to a file. All matrices are local
# variables of functions, so that none of them outlives the process group. The first optimizer of a process imports
# parts of torch that keep these variables in a reference cycle; `gc.collect()` frees them.

# %%
end = """
def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    A = load("graph.npz", mesh)
    describe(A, "in the order of subjects")
    describe(load("shuffled.npz", mesh), "\\nin random order")
    losses, scores = train(A, torch.load("data.pt"))
    if dist.get_rank() == 0:
        torch.save(scores, "scores.pt")
        with open("losses.json", "w") as file:
            json.dump(losses, file)

main()
gc.collect()
dist.destroy_process_group()
"""
program = folder / "program.py"
length = program.write_text(beginning + training + end)

# %% [markdown]
# ## Run it
#
# `torch.distributed.run`, also known as `torchrun`, starts the processes, and gives each of them its rank. One thread for
# each process is right for two cores. The log of `torchrun` goes to stderr, and matters only if the program fails.

# %%
def run(processes: int) -> str:
    """What the program printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "program.py"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    if result.returncode:
        raise RuntimeError(result.stderr)
    return result.stdout


print(run(2))

# %% [markdown]
# Each rank owns half of the papers. In the order of subjects, most neighbors of a paper are on the same rank, and about a
# third of the other rank's rows are in the halo. In random order, almost every paper has a neighbor on the other rank, so
# almost all rows are sent for each product. A good order of the nodes saves most of the communication.
#
# ## Compare with one process
#
# Sums in another order have other rounding errors, so results agree up to a tolerance:

# %%
two_ranks = json.loads((folder / "losses.json").read_text())
scores_of_two = torch.load(folder / "scores.pt")
print("same losses:", torch.allclose(torch.tensor(two_ranks), torch.tensor(losses), atol=1e-4))
print("same scores:", torch.allclose(scores_of_two, scores, atol=1e-3))

# %% [markdown]
# The left plot shows the graph in the order of subjects. The lines separate the rows and columns of the ranks. Entries in
# the two quarters off the diagonal are citations between ranks; their columns are the halo.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
left.spy(graph.to_scipy(), markersize=0.5, color="black")
left.axhline(PAPERS / 2, color="C1")
left.axvline(PAPERS / 2, color="C1")
left.xaxis.tick_bottom()
left.set(xlabel="column", ylabel="row", title="rank 0 above, rank 1 below")
right.plot(losses, label="one process")
right.plot(two_ranks, "o", fillstyle="none", label="two ranks")
right.set(xlabel="epoch", ylabel="loss")
right.legend()
plt.show()

# %% [markdown]
# ## What you learned
#
# `numscorch.sharding` distributes the rows of a matrix over the ranks of a mesh. A program changes in three places: it
# loads its part of the graph, takes its rows of dense tensors, and sums losses and gradients over the ranks. The graph
# layers stay the same, and so do the results. The halo is the price of a product, and `report` shows it before you train.
#
# A graph of this size is faster on one process. Several processes pay off for graphs with hundreds of thousands of nodes,
# or for graphs that do not fit into the memory of one machine.
#
# Next:
#
# * [Distributed](../guide/distributed.md): partitions, `DTensor`, sharded weights, checkpoints, and failures.
# * [Graphs](../guide/graphs.md): directions of edges, and graphs of other libraries.
# * [Modules](../guide/modules.md): the other graph layers.
# * [A graph network](gcn.py): the same model from CSV files, with mini-batches, on one process.
