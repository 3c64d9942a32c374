"""Warm calls in all surroundings, of two commits in turns: ``python -m benchmarks.surroundings --base COMMIT [--rounds N]``.

Twenty programs: plain, with gradients, fused, compiled by torch, bound by ``plan``, and sharded (over one rank). Each round runs
every program on both commits, each in a fresh process; the least time of a program over its rounds counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import numscorch as ns

from .cold_start import run_module
from .generated import uniform
from .worktrees import ROOT, WorktreeError, commit_of, tree_of

NODES, WIDTH, DEGREE = 1000, 32, 8
REPEATS, CALLS = 30, 10
GAT = """S[i,j] = stored(A[i,j]) * relu(p[i] + q[j])
m[i] stored max= S[i,j]
E[i,j] = stored(A[i,j]) * exp(S[i,j] - m[i])
l[i] = E[i,j]
O[i,k] = E[i,j] / l[i] * X[j,k]"""
Call = Callable[[], Any]


def programs() -> dict[str, Call]:
    """The programs, on a matrix of 1,000 rows with 8 entries each."""
    torch.manual_seed(0)
    A = uniform(NODES, NODES, DEGREE).to(torch.float32)
    W = A.with_values(A.values.clone().requires_grad_())
    X, V, x = torch.randn(NODES, WIDTH), torch.randn(NODES, WIDTH), torch.randn(NODES)
    L, R = X.clone().requires_grad_(), V.clone().requires_grad_()
    layer, conv = ns.nn.SparseLinear(256, 256, density=0.1), ns.nn.GCNConv(WIDTH, WIDTH)
    rows = torch.randn(64, 256)
    attention = ns.fuse(lambda Q, K, V: ns.softmax(A * (Q @ K.t()), 1) @ V)
    bias = ns.fuse(lambda A, X, b: torch.relu(A @ X + b))
    products = ns.plan("ij,jk->ik", A, X), ns.plan("ij,j->i", A, x), ns.plan("ik,jk->ij", X, V, mask=A)
    compiled = torch.compile(lambda X: torch.relu(A @ X) + 1, backend="eager")
    compiled_layer = torch.compile(layer, backend="eager")
    sharded = ns.sharding.shard(A, init_device_mesh("cpu", (1,)))

    def backward(call: Call) -> Call:
        return lambda: call().sum().backward()

    return {
        "A @ X": lambda: A @ X,
        "A + A.t()": lambda: A + A.t(),
        "softmax(A, 1)": lambda: ns.softmax(A, 1),
        "einsum of three": lambda: ns.einsum("ij,jk,k->i", A, X, X[0]),
        "evaluate, GAT": lambda: ns.evaluate(GAT, A=A, p=x, q=x, X=X),
        "backward: W @ X": backward(lambda: W @ L),
        "backward: SDDMM": backward(lambda: ns.einsum("ij,ik,jk->ij", A, L, R).values),
        "backward: softmax": backward(lambda: ns.softmax(W, 1).values),
        "backward: GCNConv": backward(lambda: conv(L, A)),
        "backward: SparseLinear": backward(lambda: layer(rows)),
        "fuse: attention": lambda: attention(X, V, X),
        "fuse: attention, backward": backward(lambda: attention(L, R, L)),
        "fuse: relu(A @ X + b)": lambda: bias(A, X, X[0]),
        "torch.compile: relu(A @ X) + 1": lambda: compiled(X),
        "torch.compile: its gradient": backward(lambda: compiled(L)),
        "torch.compile: SparseLinear": lambda: compiled_layer(rows),
        "plan: SpMM": lambda: products[0](A, X),
        "plan: SpMV": lambda: products[1](A, x),
        "plan: SDDMM": lambda: products[2](X, V),
        "sharded: A @ X": lambda: sharded @ X,
    }


def least(call: Call) -> float:
    """The least time of a call in microseconds, over groups of calls."""
    for _ in range(CALLS):
        call()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        seconds.append((time.perf_counter() - start) / CALLS)
    return min(seconds) * 1e6


def measured() -> dict[str, float]:
    """The time of each program, on one thread."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    times = {name: least(call) for name, call in programs().items()}
    dist.destroy_process_group()
    return times


def _of_tree(tree: Path) -> dict[str, float]:
    times: dict[str, float] = json.loads(run_module(tree, {}, "benchmarks.surroundings").splitlines()[-1])
    return times


def main(arguments: Sequence[str]) -> int:
    """Print the times of this tree as JSON or, with a base, a line for each program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.surroundings", description=__doc__)
    parser.add_argument("--base", help="a commit to compare with")
    parser.add_argument("--rounds", type=int, default=3, help="how often each commit is measured")
    options = parser.parse_args(arguments)
    if options.base is None:
        print(json.dumps(measured()))
        return 0
    try:
        with tree_of(commit_of(options.base)) as tree:
            rounds = [(_of_tree(tree), _of_tree(ROOT)) for _ in range(options.rounds)]
    except WorktreeError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{'':34}{'base us':>10}{'now us':>10}{'ratio':>8}")
    ratios: list[float] = []
    for name in rounds[0][0]:
        before, now = (min(times[side][name] for times in rounds) for side in (0, 1))
        ratios.append(now / before)
        print(f"{name:34}{before:10.1f}{now:10.1f}{ratios[-1]:8.2f}")
    print(f"geometric mean {geometric_mean(ratios):.3f}, worst {max(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
