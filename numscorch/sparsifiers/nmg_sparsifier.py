"""n:m:g sparsity: each column keeps n of every m rows, and each choice of n rows is kept by equally many columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from struct import Struct
from typing import ClassVar

import numpy as np
import torch

from ..codegen.assembly import KernelBody, Param
from ..codegen.kernel import Kernel, build
from ..codegen.source import Source
from ..errors import SizeError
from ..ir.format import NM, NMG, Format
from ..ir.loop import FunctionDef
from ..ir.nmg import Grouped
from ..ir.nmg_combinations import table
from ..ir.padded import Fixed
from ..machine.fingerprints import hashed
from ..machine.memory import address
from ..machine.target import host
from ..machine.threads import workers
from .base import Block, BuiltIn, Kind, called_as
from .magnitude import magnitudes
from .patterned import n_m

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
SCALE = 2.0**44  # the largest magnitude is scaled to this integer, so that sums of 62 magnitudes do not overflow
LEAST = 1e-200  # lower bound of the largest magnitude, which avoids a division by 0
SLAB = 1 << 22  # magnitudes per step, which bounds the extra memory


@lru_cache(maxsize=4)
def _kernel(dtype: str) -> Kernel:
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


@called_as("n_m_g(2, 4, 8)")
@dataclass(frozen=True, repr=False)
class n_m_g(BuiltIn):
    """Keep n of every m values along the first dimension, balanced over the choices of rows.

    In a chunk of C(m, n) * g columns, each choice of n rows is kept by g columns. Of all such assignments, the one that
    keeps the largest sum of magnitudes is used.

    Args:
        n: rows that a column keeps of a block.
        m: rows of a block. If the number of rows is not a multiple of m, the last block is smaller, and its columns may
            keep fewer.
        g: columns of a chunk that keep the same rows. A smaller last chunk divides its columns evenly.

    Shape:
        the input is a matrix of any size; the bool mask has the input's shape, and is True where an entry is kept.

    Raises:
        SizeError: the tensor is not a matrix.
        FormatError: n, m and g do not make a format.
        OperandError: the tensor holds NaN, or is not floating-point.

    Complexity:
        O(rows * columns * C(m, n) / m), and more if many columns prefer the same rows.

    Source: Ivanov, Ben-Nun, Hoefler et al., "STen: Productive and Efficient Sparsity in PyTorch", 2023, section 5. The
    paper's greedy choice keeps at most the same sum.

    >>> n_m_g(1, 2, 1)(torch.tensor([[3.0, 4.0], [1.0, 3.0]]))
    tensor([[ True, False],
            [False,  True]])
    """

    n: int
    m: int
    g: int
    kind: ClassVar[Kind] = Kind.BLOCKING

    def __post_init__(self) -> None:
        NMG(self.n, self.m, self.g)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim != 2:
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: n:m:g is for matrices; reshape it")
        step = max(SLAB // max(tensor.shape[1], 1) // self.m, 1) * self.m
        weights = magnitudes(self, tensor)
        return torch.cat([self._mask(weights[first : first + step]) for first in range(0, max(len(weights), 1), step)])

    def _mask(self, weights: torch.Tensor) -> torch.Tensor:
        rows, columns = weights.shape
        blocks = -(-rows // self.m)
        if weights.isinf().any():  # replace infinity by a number larger than all others
            weights = weights.where(~weights.isinf(), 2 * weights.where(~weights.isinf(), 0).max() + 1)
        padded = torch.nn.functional.pad(weights, (0, 0, 0, blocks * self.m - rows)).reshape(blocks, self.m, columns)
        kinds = torch.from_numpy(shared_out(padded.numpy(), self.n, self.g))
        choices = torch.zeros((len(table(self.n, self.m)), self.m), dtype=torch.bool)
        choices.scatter_(1, torch.from_numpy(table(self.n, self.m)), True)
        return choices[kinds].transpose(1, 2).reshape(blocks * self.m, columns)[:rows]

    @cached_property
    def format(self) -> Format:
        """NMG, the format in which ``sparsify`` stores the kept entries."""
        return NMG(self.n, self.m, self.g)

    @property
    def block(self) -> Block:
        """The rows of a block, and the columns of a chunk."""
        return self.m, len(table(self.n, self.m)) * self.g


def structured(format: Format) -> n_m | n_m_g | None:
    """Return the sparsifier whose masks a structured format stores; None for a format that stores any entries.

    >>> from ..ir.format import CSR
    >>> structured(NM(2, 4)), structured(NM(1, 8, 16)), structured(NMG(2, 4, 8)), structured(CSR)
    (n_m(2, 4), n_m(1, 8, rows=16), n_m_g(2, 4, 8), None)
    """
    grouped = next((level for level in format.levels if isinstance(level, Grouped)), None)
    if grouped is not None:
        return n_m_g(grouped.n, grouped.m, grouped.g) if format == NMG(grouped.n, grouped.m, grouped.g) else None
    kept = next((level.width for level in format.levels if isinstance(level, Fixed) and level.width), None)
    rows, m = (next((part.modulus for part in format.parts if part.dimension == d and part.modulus), 1) for d in (0, 1))
    fits = kept is not None and kept <= m and format.order == 2 and format == NM(kept, m, rows)
    return n_m(kept, m, rows) if fits and kept is not None else None
