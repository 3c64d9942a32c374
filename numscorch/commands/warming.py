"""Kernels that are compiled ahead: those of requests that are named, or of common requests and modules.

Which kernel a request takes depends on its operands' formats, data types, rough sizes and numbers of entries, so that requests and modules
run on operands like those that will come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from .. import nn, warmup
from ..codegen.kernel import BUILDING, build, jit_is_disabled
from ..errors import UnsupportedError
from ..machine import launcher
from ..measuring.requests import Asked
from ..runtime.plans import Tables, apart

FORMATS, DTYPES, COLUMNS = ("CSR", "CSC", "COO"), ("float32", "float64"), (16, 32, 64, 128)
MATRIX, ROWS = "uniform:20000x20000:0.0005", 20000
SMALL = "uniform:2000x2000:0.005"  # whose products have few entries, too
NODES, DEGREE, FEATURES, HEADS = 4096, 8, (16, 32, 64, 128), (1, 4, 8)  # of graphs and their layers
TOKENS, EMBEDDING, WINDOW = 512, 256, 32  # of attention
BATCHES, NEURONS, DENSITY = (1, 64, 256), 512, 0.1  # of sparse linear layers


def common() -> tuple[str, ...]:
    """The requests that sparse programs are made of, in the words of the command line.

    Products of a sparse matrix with a vector, with dense matrices of some widths from either side, sampled dense products, products,
    sums and element-wise products of sparse matrices, and sums of rows and columns.

    Source:
        Scorch (arXiv 2405.16883), section 3.2.

    >>> common()[0]
    'ij,j->i --operand A=uniform:20000x20000:0.0005 --operand B=dense:20000 --format A=CSR --dtype float32'
    """
    return tuple(f"{request} --dtype {dtype}" for dtype in DTYPES for request in [*_with_dense(), *_of_sparse()])


def _with_dense() -> list[str]:
    lines = [f"ij,j->i {_given('A', MATRIX)} {_given('B', f'dense:{ROWS}')} --format A={own}" for own in FORMATS]
    for own, width in product(FORMATS, COLUMNS):
        lines.append(f"ij,jk->ik {_given('A', MATRIX)} {_given('B', f'dense:{ROWS}x{width}')} --format A={own}")
    for width in COLUMNS:
        sides = f"{_given('B', f'dense:{ROWS}x{width}')} {_given('C', f'dense:{ROWS}x{width}')}"
        lines.append(f"ij,ik,jk->ij {_given('A', MATRIX)} {sides} --format A=CSR")
    batch = _given("A", "dense:64x2000")
    return [*lines, f"bi,oi->bo {batch} {_given('B', 'uniform:2000x2000:0.1')} --format B=CSR"]


def _of_sparse() -> list[str]:
    """Operands that are all sparse."""
    both = f"{_given('A', SMALL)} {_given('B', SMALL)}"
    lines = [f'"{request}" {both}' for request in ("ij,jk->ik", "C[i,j] = A[i,j] + B[i,j]", "ij,ij->ij")]
    return [*lines, *(f"{request} {_given('A', MATRIX)}" for request in ("ij->i", "ij->j", "ij->"))]


def _given(name: str, what: str) -> str:
    return f"--operand {name}={what}"


def modules() -> tuple[tuple[str, Callable[[], Any]], ...]:
    """Layers of graphs, attention and sparse linear layers in common sizes: what each is called, and forward and backward of it.

    >>> list(dict(modules()))[:2]
    ['GCNConv(16, 16)', 'GCNConv(32, 32)']
    """
    attention = [(f"SparseAttention({EMBEDDING}, num_heads={heads})", partial(_attention, heads)) for heads in (4, 8)]
    linear = [(f"SparseLinear({NEURONS}, {NEURONS}), batch {batch}", partial(_linear, batch)) for batch in BATCHES]
    return (*((name, partial(_on_graph, make, width)) for name, make, width in _graph_layers()), *attention, *linear)


def _graph_layers() -> Iterator[tuple[str, Callable[[], torch.nn.Module], int]]:
    """What a layer is called, how it is made, and the features of a node."""
    for made, width in product((nn.GCNConv, nn.SAGEConv), FEATURES):
        yield f"{made.__name__}({width}, {width})", partial(made, width, width), width
    for width in FEATURES:
        yield f"GINConv(Linear({width}, {width}))", partial(_gin, width), width
    for heads in HEADS:
        yield f"GATConv(64, {64 // heads}, heads={heads})", partial(nn.GATConv, 64, 64 // heads, heads), 64


def _gin(width: int) -> torch.nn.Module:
    return nn.GINConv(torch.nn.Linear(width, width))


def _on_graph(make: Callable[[], torch.nn.Module], width: int) -> None:
    """A layer on a random graph, with features that require grad, as in a second layer."""
    random = torch.Generator().manual_seed(0)
    edges = torch.randint(NODES, (2, NODES * DEGREE), generator=random)
    warmup.warm(make(), torch.rand(NODES, width, generator=random, requires_grad=True), edges)


def _attention(heads: int) -> None:
    layer = nn.SparseAttention(nn.patterns.sliding_window(TOKENS, WINDOW), embed_dim=EMBEDDING, num_heads=heads)
    warmup.warm(lambda x: layer(x, x, x)[0], torch.ones(1, TOKENS, EMBEDDING, requires_grad=True))


def _linear(batch: int) -> None:
    layer = nn.SparseLinear(NEURONS, NEURONS, density=DENSITY)
    warmup.warm(layer, torch.ones(batch, NEURONS, requires_grad=True))


def warm(request: Asked) -> int:
    """Compile the kernels of a request; how many there are.

    Raises:
        UnsupportedError: nothing is compiled for it, all its operands being dense, or with NUMBA_DISABLE_JIT.
    """
    count = warm_all(request)
    if not count:
        raise UnsupportedError(f"nothing is compiled for {request.expr!r}: torch computes it\n{request}")
    return count


def warm_all(call: Callable[[], Any]) -> int:
    """Compile all kernels of a call; how many there are.

    Raises:
        UnsupportedError: NUMBA_DISABLE_JIT is set.
    """
    if jit_is_disabled():
        raise UnsupportedError("NUMBA_DISABLE_JIT asks for plain Python, so that nothing is compiled: unset it")
    tables = Tables(build, {}, {})
    with apart(tables):
        call()
        for kernel in tables.kernels.values():
            if kernel.addresses and kernel.source.program.parallel:
                launcher.keep(BUILDING)
    return len(tables.kernels)
