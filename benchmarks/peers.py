"""Other libraries, and what of theirs ours is measured against. Those that aren't installed are left out, and named as missing.

``pip install -e ".[dev,bench]"`` installs them. pydata/sparse and SciPy have one thread, whatever torch is told.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import torch

from numscorch.measuring.turns import Function

from .data import Case, Matrix

TORCH, TORCH_64 = "torch CSR int32", "torch CSR int64"
SCIPY, GRAPHBLAS, PYDATA, PYG = "SciPy CSR", "python-graphblas", "pydata/sparse", "PyG"
MODULES = {GRAPHBLAS: "graphblas", PYDATA: "sparse", PYG: "torch_geometric.nn", "SciPy": "scipy"}
REST = 0.01  # seconds after which threads of GraphBLAS's own pool no longer spin on cores that others need

DENSE, DENSE_LAYER, SCIPY_LAYER, TRANSPOSED = "torch, dense", "torch F.linear, dense", "SciPy x @ CSR", "torch (CSR @ x.t()).t()"
OUR_CSR, FULL_PRODUCT, TORCH_COO = "ours in CSR", "torch, full dense product", "torch COO"
WHOLE_PRODUCT = "SciPy CSR, whole product"
DENSE_MODEL, EVERY_EXPERT = "torch, dense layers", "torch, every expert"
LABELS = {
    DENSE: "stores and multiplies the zeros",
    DENSE_LAYER: "stores and multiplies the zeros",
    SCIPY_LAYER: "one thread, and no part of torch: gradients don't pass through it",
    TRANSPOSED: "leaves its result transposed, which the next layer would have to put in order",
    DENSE_MODEL: "stores and multiplies the zeros",
    EVERY_EXPERT: "unfair: sends every token to every expert, and drops most; seen as a baseline for mixtures of experts",
    OUR_CSR: "ours too, in another format",
    FULL_PRODUCT: "unfair: computes every entry of the dense product, and drops most; seen as a baseline for SDDMM",
    TORCH_COO: "unfair: torch's slowest layout for this; seen as a baseline for sparse products",
    WHOLE_PRODUCT: "computes entries that the mask then drops: SciPy has no masked product",
}
"""What is shown beside the peers, and why it is none."""


@cache
def is_installed(library: str) -> bool:
    """Whether one of the libraries can be imported; what it warns of then is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import_module(MODULES[library])
        except ImportError:
            return False
    return True


@cache
def missing() -> tuple[str, ...]:
    """The libraries that aren't installed."""
    return tuple(library for library in MODULES if not is_installed(library))


def graphblas(threads: int) -> Any:
    """python-graphblas, told to use so many threads; None where it isn't installed."""
    if not is_installed(GRAPHBLAS):
        return None
    library = import_module("graphblas")
    library.ss.config["nthreads"] = threads
    return library


def of_graphblas(threads: int, operands: Iterable[Matrix], make: Callable[..., Function]) -> dict[str, Function]:
    """The peer that ``make`` makes of the library and these matrices in it; none where it isn't installed."""
    library = graphblas(threads)
    return {} if library is None else {GRAPHBLAS: make(library, *(in_graphblas(library, own) for own in operands))}


def taking_turns(peers: Mapping[str, Function], threads: int) -> Iterator[tuple[dict[str, Function], float]]:
    """The peers in groups that take turns with ours, and what to rest before each call.

    GraphBLAS's OpenMP is another copy than torch's, and spins after each call, on cores that the others need. After a rest, though,
    threads have to be woken and caches are cold, which counts where a call takes microseconds: so it takes turns of its own.
    """
    apart = {name: peer for name, peer in peers.items() if threads > 1 and name.startswith(GRAPHBLAS)}
    yield {name: peer for name, peer in peers.items() if name not in apart}, 0.0
    if apart:
        yield apart, REST


def in_graphblas(library: Any, case: Matrix) -> Any:
    """A CSR matrix as GraphBLAS's; its arrays are copied."""
    pos, crd = (array.numpy() for array in case.arrays)
    return library.Matrix.from_csr(pos, crd, case.tensor.values.numpy(), nrows=case.shape[0], ncols=case.shape[1])


def pydata() -> Any:
    """The package sparse; None where it isn't installed."""
    return import_module("sparse") if is_installed(PYDATA) else None


def of_pydata(make: Callable[[Any], Function]) -> dict[str, Function]:
    """The peer that ``make`` makes of the package sparse; none where it isn't installed."""
    library = pydata()
    return {} if library is None else {PYDATA: make(library)}


def in_pydata(case: Case) -> Any:
    """A tensor as a COO array of the package sparse, which has to be installed."""
    indices, values = case.tensor.indices().numpy(), case.tensor.values.numpy()
    return pydata().COO(indices, values, shape=case.shape, has_duplicates=False, sorted=True)


def rows_in_pydata(case: Matrix) -> Any:
    """A matrix as a GCXS array of the package sparse, which is its CSR."""
    pos, crd = (array.numpy() for array in case.arrays)
    return pydata().GCXS((case.tensor.values.numpy(), crd, pos), shape=case.shape, compressed_axes=(0,))


def in_torch(case: Matrix) -> dict[str, torch.Tensor]:
    """A matrix as torch's CSR, with indices as MKL takes them, and as torch makes them unless it is told otherwise."""
    return {TORCH: case.in_torch, TORCH_64: case.in_torch_as(torch.int64)}


def of_torch(make: Callable[..., object], *operands: Matrix) -> dict[str, Function]:
    """A peer for each index type: ``make`` of these matrices as torch's CSR."""
    held = [in_torch(own) for own in operands]
    return {name: (lambda taken=[own[name] for own in held]: make(*taken)) for name in (TORCH, TORCH_64)}  # type: ignore[misc]
