"""Graphs and comparisons for tests against PyTorch Geometric."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import numscorch as ns

NODES, SOURCES, IN, OUT = 40, 30, 6, 4


def edges_between(sources: int, targets: int, seed: int = 0) -> Tensor:
    """Edges with a hub, duplicates and self loops (one of them twice); the last five sources and targets are isolated."""
    torch.manual_seed(seed)
    some = torch.stack([torch.randint(0, sources - 5, (150,)), torch.randint(0, targets - 5, (150,))])
    hub = torch.stack([torch.arange(sources - 5), torch.full((sources - 5,), 3)])
    return torch.cat([some, hub, some[:, :20], torch.tensor([[2, 2, 7], [2, 2, 7]])], 1)


EDGES = edges_between(NODES, NODES)


BETWEEN = edges_between(SOURCES, NODES, seed=1)


X = torch.randn(NODES, IN, generator=torch.Generator().manual_seed(3))


PAIR = torch.randn(SOURCES, IN, generator=torch.Generator().manual_seed(4)), X[:, :5].contiguous()


WIDE = (IN, 5)


def adjacency(edges: Tensor, weights: Tensor | None = None) -> ns.SparseTensor:
    """CSR matrix of targets by sources, without duplicate edges."""
    distinct = torch.unique(edges, dim=1)
    return ns.from_coo(distinct.flip(0), torch.ones(distinct.shape[1]) if weights is None else weights, (NODES, NODES), ns.CSR)


def leaves(x: Any, dtype: torch.dtype) -> Any:
    """Copies of the features that require grad."""
    return tuple(leaves(part, dtype) for part in x) if isinstance(x, tuple) else x.detach().clone().to(dtype).requires_grad_()


def same_as_pyg(
    ours: Any, theirs: Any, x: Any, *graph: Any, theirs_graph: tuple[Any, ...] | None = None, dtype: torch.dtype = torch.float32
) -> None:
    """Check that outputs, feature gradients and parameter gradients agree for the weights of the PyTorch Geometric layer."""
    ours.load_state_dict(theirs.state_dict())
    ours, theirs = ours.to(dtype), theirs.to(dtype)
    inputs = [leaves(x, dtype), leaves(x, dtype)]
    results = [ours(inputs[0], *graph), theirs(inputs[1], *(graph if theirs_graph is None else theirs_graph))]
    assert type(results[0]) is Tensor
    close(results[0], results[1])
    upstream = torch.randn(results[0].shape, generator=torch.Generator().manual_seed(5), dtype=dtype)
    for result in results:
        (result * upstream).sum().backward()
    for tensor, other in zip(*(g if isinstance(g, tuple) else (g,) for g in inputs), strict=True):
        close(tensor.grad, other.grad)
    expected = dict(theirs.named_parameters())
    for name, tensor in ours.named_parameters():
        close(tensor.grad, expected.pop(name).grad)
    assert not expected


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def network(inputs: int = IN) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(inputs, 8), torch.nn.ReLU(), torch.nn.Linear(8, OUT))
