"""The kernel that assigns combinations of rows to the columns of an n:m:g matrix."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np

from ..ir.nmg_combinations import table
from ..machine.memory import address
from ..machine.threads import workers

if TYPE_CHECKING:
    from ..codegen.kernel import Kernel

TEXT = '''"""Which n of m rows each column keeps, in chunks of columns that share out all combinations of rows."""

from numba import carray, prange

from numscorch.codegen.nmg_transport import choose_combinations


def body(worker, weights, scale, rows, n, m, columns, chunk, kinds, blocks, combinations, workers):
    shaped, shared = carray(weights, (blocks, m, columns)), carray(kinds, (blocks, columns))
    first, last = blocks * worker // workers, blocks * (worker + 1) // workers
    choose_combinations(shaped, scale, carray(rows, (combinations, n)), chunk, shared, first, last)


def kernel(weights, scale, rows, n, m, columns, chunk, kinds, blocks, combinations, workers):
    for worker in prange(workers):
        body(worker, weights, scale, rows, n, m, columns, chunk, kinds, blocks, combinations, workers)
'''
PACK = Struct("qd9q").pack
SCALE = 2.0**44  # integer to which the largest magnitude is scaled: sums of 62 of them fit
LEAST = 1e-200  # lower bound of the largest magnitude, which avoids a division by 0


@lru_cache(maxsize=4)
def _kernel(dtype: str) -> Kernel:
    """Return the kernel for weights of a data type."""
    from ..codegen.assembly import KernelBody, Param
    from ..codegen.kernel import build
    from ..codegen.source import Source
    from ..ir.loop import FunctionDef
    from ..machine.fingerprints import hashed
    from ..machine.target import host

    params = (
        Param("weights", "vals", dtype=dtype),
        Param("scale", "size", dtype="float64"),
        Param("rows", "crd"),
        *(Param(name, "size") for name in ("n", "m", "columns", "chunk")),
        Param("kinds", "crd"),
        *(Param(name, "size") for name in ("blocks", "combinations")),
        Param("workers", "workers"),
    )
    names = tuple(param.name for param in params)
    functions = FunctionDef("body", ("worker", *names), ()), FunctionDef("kernel", names, ())
    text = TEXT + f"\n\n# {dtype} weights\n"
    name = f"kernel_{hashed(text + files('numscorch.codegen').joinpath('nmg_transport.py').read_text(), host())}"
    return build(Source(name, text, KernelBody(functions, params, False, True)))


def shared_out(weights: np.ndarray, n: int, g: int) -> np.ndarray:
    """Return the combination of rows that each column keeps, so that the kept sum of magnitudes is the largest.

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
    arrays = np.ascontiguousarray(weights).reshape(-1), np.ascontiguousarray(rows).reshape(-1), kinds
    if not kernel.is_compiled:
        kernel.plain(arrays[0], scale, arrays[1], n, m, columns, len(rows) * g, kinds, blocks, len(rows), count)
    else:
        at = [address(array) for array in arrays]
        kernel.run(PACK(at[0], scale, at[1], n, m, columns, len(rows) * g, at[2], blocks, len(rows), count), count)
    return kinds.reshape(blocks, columns)
