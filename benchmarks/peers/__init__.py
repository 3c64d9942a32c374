"""Peer libraries and their functions. Libraries that are not installed are skipped and listed as missing.

``pip install -e ".[dev,bench]"`` installs them. pydata/sparse and SciPy use one thread, regardless of torch's setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import torch

from numscorch.measuring.peers import (
    DENSE,
    GRAPHBLAS,
    MODULES as KNOWN,
    PYDATA,
    REST,
    TORCH,
    TORCH_64,
    in_graphblas,
    in_pydata,
    is_installed,
)
from numscorch.measuring.turns import Function

from ..data import Case, Matrix

PYG = "PyG"
MODULES = {**KNOWN, PYG: "torch_geometric.nn"}

DENSE_LAYER, SCIPY_LAYER, TRANSPOSED = "torch F.linear, dense", "SciPy x @ CSR", "torch (CSR @ x.t()).t()"
OUR_CSR, FULL_PRODUCT, TORCH_COO = "ours in CSR", "torch, full dense product", "torch COO"
WHOLE_PRODUCT = "SciPy CSR, whole product"
DENSE_MODEL, EVERY_EXPERT = "torch, dense layers", "torch, every expert"
LABELS = {
    DENSE: "stores and multiplies the zeros",
    DENSE_LAYER: "stores and multiplies the zeros",
    SCIPY_LAYER: "its result is transposed, and it has no gradients",
    TRANSPOSED: "its result is transposed, and the next layer would have to copy it",
    DENSE_MODEL: "stores and multiplies the zeros",
    EVERY_EXPERT: "sends every token to every expert, and drops most results; an unfair but common baseline for mixtures of experts",
    OUR_CSR: "numscorch with another format",
    FULL_PRODUCT: "computes every entry of the dense product, and drops most; an unfair but common baseline for SDDMM",
    TORCH_COO: "torch's slowest layout for this operation; an unfair but common baseline for sparse products",
    WHOLE_PRODUCT: "computes entries that the mask drops, because SciPy has no masked product",
}
"""Baselines that are not peers, and the reason."""


def has(library: str) -> bool:
    """Whether a peer library is installed."""
    return is_installed(MODULES[library])


@cache
def missing() -> tuple[str, ...]:
    """Peer libraries that are not installed."""
    return tuple(library for library in MODULES if not has(library))


def graphblas(threads: int) -> Any:
    """python-graphblas, set to a number of threads; None if it is not installed."""
    if not has(GRAPHBLAS):
        return None
    library = import_module(MODULES[GRAPHBLAS])
    library.ss.config["nthreads"] = threads
    return library


def of_graphblas(threads: int, operands: Iterable[Matrix], make: Callable[..., Function]) -> dict[str, Function]:
    """Peer built by ``make`` from the GraphBLAS library and the matrices; empty if the library is not installed."""
    library = graphblas(threads)
    return {} if library is None else {GRAPHBLAS: make(library, *(in_graphblas(library, matrix.tensor) for matrix in operands))}


def taking_turns(peers: Mapping[str, Function], threads: int) -> Iterator[tuple[dict[str, Function], float]]:
    """Groups of peers to time in turn with numscorch, and the rest in seconds before each call of the group.

    GraphBLAS loads a second OpenMP runtime, and its threads spin after each call on cores that other functions need. A rest avoids this,
    but leaves threads asleep and caches cold, which matters for calls of microseconds. GraphBLAS is therefore timed in a separate group.
    """
    apart = {name: peer for name, peer in peers.items() if threads > 1 and name.startswith(GRAPHBLAS)}
    yield {name: peer for name, peer in peers.items() if name not in apart}, 0.0
    if apart:
        yield apart, REST


def of_pydata(operands: Iterable[Case], make: Callable[..., Function]) -> dict[str, Function]:
    """Peer built by ``make`` from the package sparse and the tensors; empty if the package is not installed."""
    return {PYDATA: make(import_module(MODULES[PYDATA]), *(in_pydata(case.tensor) for case in operands))} if has(PYDATA) else {}


def of_torch(make: Callable[..., object], *operands: Matrix) -> dict[str, Function]:
    """Peers for int32 and int64 indices: ``make`` applied to the matrices as torch CSR tensors."""

    def peer(index_dtype: torch.dtype) -> Function:
        matrices = [matrix.in_torch_as(index_dtype) for matrix in operands]
        return lambda: make(*matrices)

    return {TORCH: peer(torch.int32), TORCH_64: peer(torch.int64)}
