"""The kernel that finds out which combinations of rows the columns of an n:m:g matrix keep."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from ..ir.combinations import table
from .threads import call_lock, workers

if TYPE_CHECKING:
    from ..codegen.kernel import Kernel

TEXT = '''"""Which n of m rows each column keeps, in chunks of columns that share out all combinations of rows."""

from numba import prange

from numscorch.codegen.sharing import share


def kernel(weights_array, scale, rows_array, n, m, columns, chunk, kinds_array, workers):
    blocks = len(kinds_array) // columns
    weights = weights_array.reshape((blocks, m, columns))
    kinds = kinds_array.reshape((blocks, columns))
    rows = rows_array.reshape((len(rows_array) // n, n))
    for worker in prange(workers):
        share(weights, scale, rows, chunk, kinds, blocks * worker // workers, blocks * (worker + 1) // workers)
'''
SCALE = 2.0**44  # what the largest magnitude becomes as a whole number: sums of 62 of them fit
LEAST = 1e-200  # magnitudes below are taken for 0


@lru_cache(maxsize=4)
def _kernel(dtype: str) -> Kernel:
    """The kernel for weights of a data type."""
    from ..codegen.assembly import Param, Program
    from ..codegen.kernel import build
    from ..codegen.source import Source, hashed
    from ..ir.loop import Function
    from .target import host

    scalars = ("n", "m", "columns", "chunk")
    params = (
        Param("weights", "vals", dtype=dtype),
        Param("scale", "size", dtype="float64"),
        Param("rows", "crd"),
        *(Param(name, "size") for name in scalars),
        Param("kinds", "crd"),
        Param("workers", "workers"),
    )
    text = TEXT + f"\n\n# {dtype} weights\n"
    name = f"kernel_{hashed(text + files('numscorch.codegen').joinpath('sharing.py').read_text(), host())}"
    return build(Source(name, text, Program(Function("kernel", (), ()), params, False, True)))


def shared_out(weights: np.ndarray, n: int, g: int) -> np.ndarray:
    """The combination of rows that each column keeps, such that their magnitudes are the largest in all.

    Args:
        weights: magnitudes, none infinite, of shape (blocks, m, columns).
        n: rows that a column keeps.
        g: columns of a chunk with the same rows.

    Returns:
        the numbers of the combinations, of shape (blocks, columns).
    """
    blocks, m, columns = weights.shape
    rows = table(n, m)
    kinds = np.zeros(blocks * columns, dtype=np.int64)
    if not kinds.size:
        return kinds.reshape(blocks, columns)
    scale = SCALE / max(float(weights.max()), LEAST)
    kernel, count = _kernel(str(weights.dtype)), workers()
    run = kernel.serial() if count == 1 else kernel.parallel()
    with call_lock():
        run(weights.reshape(-1), scale, rows.reshape(-1), n, m, columns, len(rows) * g, kinds, count)
    return kinds.reshape(blocks, columns)
