"""Other libraries, and what of theirs ours is measured against. Those that aren't installed are left out, and named as missing.

``pip install -e ".[dev,bench]"`` installs them. pydata/sparse and SciPy have one thread, whatever torch is told.
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

from .data import Case, Matrix

PYG = "PyG"
MODULES = {**KNOWN, PYG: "torch_geometric.nn"}

DENSE_LAYER, SCIPY_LAYER, TRANSPOSED = "torch F.linear, dense", "SciPy x @ CSR", "torch (CSR @ x.t()).t()"
OUR_CSR, FULL_PRODUCT, TORCH_COO = "ours in CSR", "torch, full dense product", "torch COO"
WHOLE_PRODUCT = "SciPy CSR, whole product"
DENSE_MODEL, EVERY_EXPERT = "torch, dense layers", "torch, every expert"
LABELS = {
    DENSE: "stores and multiplies the zeros",
    DENSE_LAYER: "stores and multiplies the zeros",
    SCIPY_LAYER: "leaves its result transposed, and gradients don't pass through it",
    TRANSPOSED: "leaves its result transposed, which the next layer would have to put in order",
    DENSE_MODEL: "stores and multiplies the zeros",
    EVERY_EXPERT: "unfair: sends every token to every expert, and drops most; seen as a baseline for mixtures of experts",
    OUR_CSR: "ours too, in another format",
    FULL_PRODUCT: "unfair: computes every entry of the dense product, and drops most; seen as a baseline for SDDMM",
    TORCH_COO: "unfair: torch's slowest layout for this; seen as a baseline for sparse products",
    WHOLE_PRODUCT: "computes entries that the mask then drops: SciPy has no masked product",
}
"""What is shown beside the peers, and why it is none."""


def has(library: str) -> bool:
    """Whether one of the libraries can be imported."""
    return is_installed(MODULES[library])


@cache
def missing() -> tuple[str, ...]:
    """The libraries that aren't installed."""
    return tuple(library for library in MODULES if not has(library))


def graphblas(threads: int) -> Any:
    """python-graphblas, told to use so many threads; None where it isn't installed."""
    if not has(GRAPHBLAS):
        return None
    library = import_module(MODULES[GRAPHBLAS])
    library.ss.config["nthreads"] = threads
    return library


def of_graphblas(threads: int, operands: Iterable[Matrix], make: Callable[..., Function]) -> dict[str, Function]:
    """The peer that ``make`` makes of the library and these matrices in it; none where it isn't installed."""
    library = graphblas(threads)
    return {} if library is None else {GRAPHBLAS: make(library, *(in_graphblas(library, own.tensor) for own in operands))}


def taking_turns(peers: Mapping[str, Function], threads: int) -> Iterator[tuple[dict[str, Function], float]]:
    """The peers in groups that take turns with ours, and what to rest before each call.

    GraphBLAS's OpenMP is another copy than torch's, and spins after each call, on cores that the others need. After a rest, though,
    threads have to be woken and caches are cold, which counts where a call takes microseconds: so it takes turns of its own.
    """
    apart = {name: peer for name, peer in peers.items() if threads > 1 and name.startswith(GRAPHBLAS)}
    yield {name: peer for name, peer in peers.items() if name not in apart}, 0.0
    if apart:
        yield apart, REST


def of_pydata(operands: Iterable[Case], make: Callable[..., Function]) -> dict[str, Function]:
    """The peer that ``make`` makes of the package sparse and these tensors in it; none where it isn't installed."""
    return {PYDATA: make(import_module(MODULES[PYDATA]), *(in_pydata(own.tensor) for own in operands))} if has(PYDATA) else {}


def of_torch(make: Callable[..., object], *operands: Matrix) -> dict[str, Function]:
    """A peer for each index type: ``make`` of these matrices as torch's CSR."""

    def peer(index_dtype: torch.dtype) -> Function:
        held = [own.in_torch_as(index_dtype) for own in operands]
        return lambda: make(*held)

    return {TORCH: peer(torch.int32), TORCH_64: peer(torch.int64)}
