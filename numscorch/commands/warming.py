"""Compilation ahead of time: run requests, or common layers and products on synthetic graphs, and store their kernels.

Kernels depend on formats and data types, on the number of SIMD registers per row of features, and on the length and the evenness of the
matrix rows. They don't depend on exact sizes, so a few widths on two kinds of graphs cover most problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import Linear, Module, ReLU, Sequential

from .. import nn
from ..codegen.kernel import BUILDING, build, jit_is_disabled
from ..convert.construct import from_coo
from ..errors import UnsupportedError
from ..interface import warmup
from ..interface.api import einsum
from ..interop.edge_lists import adj_t
from ..ir.format import CSR
from ..machine import launcher
from ..measuring.specifications import BoundRequest
from ..runtime.plans import Tables, apart
from ..tensors.sparse_tensor import SparseTensor

Run = Callable[[], None]
Make = Callable[[], SparseTensor]
WIDTHS = (16, 32, 64, 128, 256, 40)  # columns of dense matrices; 40 fills a register only partly
USUAL = (32, 64, 128)  # the same for less common formats and data types
NETWORKS = ((16, 7), (32, 3), (64, 8), (128, 10), (256, 40), (40, 2), (64, 4))  # hidden features, classes
NODES, FEW, FEATURES = 4096, 2048, 1000  # nodes of even graphs, nodes of the uneven one, features per node
TOKENS, EMBEDDING, WINDOW, HEADS = 512, 256, 32, (2, 4, 8, 16)  # sizes of attention
BATCHES, LINEAR = (1, 8, 64, 256), ((512, 512), (784, 512), (512, 10), (512, 2048))  # sparse linear layers: (inputs, outputs)
DENSITY = 0.1  # of the weights of sparse linear layers


def warm(request: BoundRequest) -> int:
    """Compile the kernels of a request, and return their number.

    Raises:
        UnsupportedError: the request compiles nothing, because all operands are dense; or NUMBA_DISABLE_JIT is set.
    """
    count = warm_all(request)
    if not count:
        raise UnsupportedError(f"nothing is compiled for {request.expr!r}: torch computes it\n{request}")
    return count


def warm_all(call: Callable[[], Any], tables: Tables | None = None) -> int:
    """Compile all kernels of a call, and return the number of kernels that are new to the tables.

    Args:
        call: a function.
        tables: the plans and kernels of earlier calls; by default empty.

    Raises:
        UnsupportedError: NUMBA_DISABLE_JIT is set.
    """
    if jit_is_disabled():
        raise UnsupportedError("NUMBA_DISABLE_JIT is set, so nothing is compiled: unset it")
    tables = tables_of_kernels() if tables is None else tables
    before = set(tables.kernels)
    with apart(tables):
        call()
        new = [kernel for name, kernel in tables.kernels.items() if name not in before]
        if any(kernel.addresses and kernel.source.program.parallel for kernel in new):
            launcher.keep(BUILDING)
    return len(new)


def tables_of_kernels() -> Tables:
    """Empty tables of plans and compiled kernels."""
    return Tables(build)


def common_runs() -> Iterator[tuple[str, Run]]:
    """Names and functions. Each function runs one kind of layer or product, forward and backward; layers also run in evaluation mode.

    >>> [name for name, _ in common_runs()][:2]
    ['GCNConv, dense features, 4 edges per node', 'SAGEConv, dense features, 4 edges per node']
    """
    for name, graph, features in INPUTS:
        for layer, make in LAYERS.items():
            yield f"{layer}, {name}", partial(_networks, make, graph, features)
    yield f"SparseAttention, {TOKENS} tokens", _attention
    yield "SparseLinear", _linear
    for name, graph, format, dtype, widths in PRODUCTS:
        yield f"SpMV, SpMM, SDDMM and SpGEMM, {name}", partial(_products, graph, format, dtype, widths)


def even_graph(nodes: int, edges: int) -> SparseTensor:
    """A directed graph with about ``edges`` edges to each node."""
    random = torch.Generator().manual_seed(0)
    return adj_t(torch.randint(nodes, (2, nodes * edges), generator=random).unique(dim=1), size=nodes)


def uneven_graph(nodes: int) -> SparseTensor:
    """An undirected graph with power-law degrees.

    >>> lengths = uneven_graph(4096).pattern.arrays[1][0].diff()
    >>> bool(lengths.max() > 16 * lengths.median())
    True
    """
    random = torch.Generator().manual_seed(0)
    edges = (nodes * torch.rand(2, nodes * 24, generator=random) ** 2.2).long()
    return adj_t(torch.cat([edges, edges.flip(0)], 1).unique(dim=1), size=nodes)


def bags_of_words(nodes: int, count: int) -> SparseTensor:
    """Node features as bags of ``count`` words with uneven frequencies."""
    random = torch.Generator().manual_seed(1)
    tokens = (FEATURES * torch.rand(nodes * count, generator=random) ** 2).long()
    return from_coo(torch.stack([torch.arange(nodes).repeat_interleave(count), tokens]), torch.ones(len(tokens)), (nodes, FEATURES), CSR)


def _gat(inputs: int, outputs: int) -> Module:
    """A first layer with up to 8 heads, or a second layer with one head."""
    heads = min(outputs // 4, 8) if inputs == FEATURES else 1
    return nn.GATConv(inputs, outputs // heads, heads)


LAYERS: dict[str, Callable[[int, int], Module]] = {
    "GCNConv": nn.GCNConv,
    "SAGEConv": nn.SAGEConv,
    "GINConv": lambda inputs, outputs: nn.GINConv(Sequential(Linear(inputs, outputs), ReLU(), Linear(outputs, outputs))),
    "GATConv": _gat,
}
INPUTS: tuple[tuple[str, Make, Callable[[], Any]], ...] = (
    ("dense features, 4 edges per node", partial(even_graph, NODES, 4), partial(torch.ones, NODES, FEATURES)),
    ("1 % dense features, 12 edges per node", partial(even_graph, NODES, 12), partial(bags_of_words, NODES, 12)),
    ("0.5 % dense features, power law", partial(uneven_graph, NODES), partial(bags_of_words, NODES, 5)),
    ("35 % dense features, 4 edges per node", partial(even_graph, NODES, 4), partial(bags_of_words, NODES, 500)),
)
PRODUCTS: tuple[tuple[str, Make, str, torch.dtype, Sequence[int]], ...] = (
    ("CSR, float32, 4 nonzeros per row", partial(even_graph, NODES, 4), "CSR", torch.float32, WIDTHS),
    ("CSR, float32, 12 nonzeros per row", partial(even_graph, NODES, 12), "CSR", torch.float32, WIDTHS),
    ("CSR, float32, power law", partial(uneven_graph, FEW), "CSR", torch.float32, WIDTHS),
    ("CSC, float32", partial(even_graph, NODES, 12), "CSC", torch.float32, USUAL),
    ("COO, float32", partial(even_graph, NODES, 12), "COO(2)", torch.float32, USUAL),
    ("CSR, float64", partial(even_graph, NODES, 12), "CSR", torch.float64, USUAL),
)


class _Network(Module):
    def __init__(self, make: Callable[[int, int], Module], hidden: int, classes: int):
        super().__init__()
        self.first, self.second = make(FEATURES, hidden), make(hidden, classes)

    def forward(self, x: Any, graph: SparseTensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x, graph)), graph)


def _networks(make: Callable[[int, int], Module], graph: Make, features: Callable[[], Any]) -> None:
    A, x = graph(), features()
    for hidden, classes in NETWORKS:
        warmup.warm(_Network(make, hidden, classes), x, A)


def _attention() -> None:
    x = torch.ones(1, TOKENS, EMBEDDING, requires_grad=True)
    for heads in HEADS:
        warmup.warm(nn.SparseAttention(nn.patterns.sliding_window(TOKENS, WINDOW), embed_dim=EMBEDDING, num_heads=heads), x, x, x)


def _linear() -> None:
    for batch in BATCHES:
        for inputs, outputs in LINEAR:
            warmup.warm(nn.SparseLinear(inputs, outputs, density=DENSITY), torch.ones(batch, inputs, requires_grad=True))


def _products(graph: Make, format: str, dtype: torch.dtype, widths: Sequence[int]) -> None:
    """Warm the products of a sparse matrix with dense matrices and with itself, and its sums; all values require grad."""
    matrix: Any = graph().to(dtype).to(format)
    A = matrix.with_values(matrix.values.clone().requires_grad_())
    warmup.warm(torch.matmul, A, _dense(A.shape[:1], dtype))
    for width in widths:
        x, y = (_dense((A.shape[0], width), dtype) for _ in range(2))
        warmup.warm(torch.matmul, A, x)
        warmup.warm(partial(einsum, "ij,ik,jk->ij"), A, x, y)
    warmup.warm(torch.matmul, A, A)
    warmup.warm(lambda A: (A + A.t(), A * A, A.sum(0), A.sum(1), A.sum()), A)


def _dense(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, requires_grad=True)
