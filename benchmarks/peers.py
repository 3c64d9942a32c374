"""Other libraries that need not be installed: where one is missing, what it is a peer of is skipped.

``pip install -e ".[bench]"`` installs them. pydata/sparse has one thread, whatever torch is told, as SciPy has.
"""

from __future__ import annotations

from typing import Any

import pytest

from .data import Case

GRAPHBLAS, PYDATA = "python-graphblas", "pydata/sparse"
REST = 0.01  # seconds after which threads of GraphBLAS's own pool no longer spin on cores that others need


def graphblas(threads: int) -> Any:
    """python-graphblas, told to use so many threads."""
    library = pytest.importorskip("graphblas", reason=f"{GRAPHBLAS} is not installed")
    library.ss.config["nthreads"] = threads
    return library


def rest(threads: int) -> float:
    """What to wait before each turn, where GraphBLAS takes turns: its OpenMP is another copy than torch's."""
    return REST if threads > 1 else 0.0


def in_graphblas(case: Case, threads: int) -> Any:
    """A CSR matrix as GraphBLAS's; its arrays are copied."""
    pos, crd = (array.numpy() for array in case.tensor.pattern.arrays[1])
    return graphblas(threads).Matrix.from_csr(pos, crd, case.tensor.values.numpy(), nrows=case.shape[0], ncols=case.shape[1])


def pydata() -> Any:
    """The package sparse."""
    return pytest.importorskip("sparse", reason=f"{PYDATA} is not installed")


def in_pydata(case: Case) -> Any:
    """A tensor as a COO array of the package sparse."""
    indices, values = case.tensor.indices().numpy(), case.tensor.values.numpy()
    return pydata().COO(indices, values, shape=case.shape, has_duplicates=False, sorted=True)
