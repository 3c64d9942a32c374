"""Structured sparsifiers: ``topk`` keeps k entries per slice, ``n_m`` n of every m, and ``n_m_g`` balances the choices of n rows."""

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
from ..errors import RangeError, SizeError
from ..ir.format import NM, NMG, Format
from ..ir.loop import FunctionDef
from ..ir.nmg import Grouped
from ..ir.nmg_combinations import table
from ..ir.padded import Fixed
from ..machine.fingerprints import hashed
from ..machine.target import host
from ..machine.threads import workers
from .base import WHOLE, Block, BuiltIn, Kind, called_as, described
from .magnitude import block_sums, least, magnitudes

FEW = 8  # largest block in which comparing all pairs is faster than a partition
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


@called_as("topk(16)")
@dataclass(frozen=True, repr=False)
class topk(BuiltIn):
    """Keep the k entries with the largest absolute values of each slice.

    Args:
        k: entries to keep per slice; of equal absolute values, the last are kept.
        dim: the dimension along which a slice runs.

    Shape:
        the input has any shape with an extent of at least k along ``dim``; the bool mask has the input's shape, and is
        True where an entry is kept.

    Raises:
        SizeError: k is not an integer of at least 0, or a slice has fewer than k entries.
        RangeError: the tensor has no dimension ``dim``.
        OperandError: the tensor holds NaN, or is not floating-point.

    >>> topk(1)(torch.tensor([[3.0, -4.0], [2.0, 1.0]]))
    tensor([[False,  True],
            [ True, False]])
    """

    k: int
    dim: int = -1
    kind: ClassVar[Kind] = Kind.BLOCKING

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 0 or not isinstance(self.dim, int):
            raise SizeError(f"topk({described(self.k)}, dim={described(self.dim)}): k is an integer of at least 0, and dim a dimension")

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if not -tensor.ndim <= self.dim < tensor.ndim:
            raise RangeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: it has {tensor.ndim} dimensions, so choose another dim")
        extent = tensor.shape[self.dim]
        if extent < self.k:
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: k is at most {extent}, the size of that dimension")
        return ~least(magnitudes(self, tensor), extent - self.k, self.dim)

    @property
    def block(self) -> Block:
        """The rows and columns of a slice of a matrix; -1 stands for the whole extent."""
        return (1, WHOLE) if self.dim in (-1, 1) else (WHOLE, 1)


def ranks(scores: torch.Tensor) -> torch.Tensor:
    """Return the rank of each score: the number of scores along the last dimension that are larger, or equal and at a later index.

    O(m^2) for a dimension of size m, without a sort.

    >>> ranks(torch.tensor([1.0, 3.0, 1.0, 2.0]))
    tensor([3, 0, 2, 1], dtype=torch.int8)
    """
    columns, ranks_ = scores.unbind(-1), []
    for at, column in enumerate(columns):
        above = torch.zeros_like(column, dtype=torch.int8)
        for other, score in enumerate(columns):
            if other != at:
                above += (score >= column) if other > at else (score > column)
        ranks_.append(above)
    return torch.stack(ranks_, -1)


@called_as("n_m(2, 4)")
@dataclass(frozen=True, repr=False)
class n_m(BuiltIn):
    """Keep the n entries with the largest absolute values of every m consecutive entries along the last dimension.

    Args:
        n: entries to keep per block; of equal absolute values, the last are kept.
        m: entries of a block. If the size is not a multiple of m, the last block is smaller, and keeps up to n entries.
        rows: number of adjacent rows that keep the same columns. The columns with the largest sums of absolute values are kept. The
            last group may have fewer rows.

    Shape:
        the input has at least one dimension, or two if ``rows`` is more than 1; the bool mask has the input's shape,
        and is True where an entry is kept.

    Raises:
        FormatError: n is greater than m, or an argument is not a positive integer.
        SizeError: the tensor has too few dimensions.
        OperandError: the tensor holds NaN, or is not floating-point.

    Source: Mishra, Latorre, Pool, Stosic, Stosic, Venkatesh, Yu, Micikevicius, "Accelerating sparse deep neural networks", 2021.

    >>> n_m(1, 2)(torch.tensor([[3.0, -4.0, 2.0, 1.0, 5.0]]))
    tensor([[False,  True,  True, False,  True]])
    """

    n: int
    m: int
    rows: int = 1
    kind: ClassVar[Kind] = Kind.BLOCKING

    def __post_init__(self) -> None:
        _ = self.format  # validates the arguments

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim < (1 if self.rows == 1 else 2):
            wanted = "blocks run along its last dimension" if self.rows == 1 else f"groups of {self.rows} rows need a matrix; reshape it"
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: {wanted}")
        scores = magnitudes(self, tensor)
        if self.rows == 1:
            return self._largest(scores)
        return self._largest(block_sums(scores, self.rows, 1)).repeat_interleave(self.rows, -2)[..., : tensor.shape[-2], :]

    def _largest(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the mask of the n largest scores of each block."""
        columns = scores.shape[-1]
        blocks = -(-columns // self.m)
        if blocks * self.m != columns:  # the padding is lower than any score
            scores = torch.nn.functional.pad(scores, (0, blocks * self.m - columns), value=-1.0)
        blocked = scores.unflatten(-1, (blocks, self.m))
        kept = ranks(blocked) < self.n if self.m <= FEW else ~least(blocked, self.m - self.n)
        return kept.flatten(-2)[..., :columns]

    @cached_property
    def format(self) -> Format:
        """NM, the format in which ``sparsify`` stores the kept entries of a matrix."""
        return NM(self.n, self.m, self.rows)

    @property
    def block(self) -> Block:
        """The rows and columns of a block."""
        return self.rows, self.m

    def __repr__(self) -> str:
        return super().__repr__() if self.rows > 1 else f"n_m({self.n}, {self.m})"


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
        at = [array.ctypes.data for array in arrays]
        kernel.run(PACK(at[0], scale, at[1], n, m, columns, len(rows) * g, at[2], blocks, len(rows), count), count)
    return kinds.reshape(blocks, columns)


@called_as("n_m_g(2, 4, 8)")
@dataclass(frozen=True, repr=False)
class n_m_g(BuiltIn):
    """Keep n of every m values along the first dimension, such that all combinations of n rows occur equally often.

    In a chunk of C(m, n) * g columns, g columns keep each combination of n rows. Of all such assignments, the one with the largest sum of
    kept absolute values is used.

    Args:
        n: rows of a block that a column keeps.
        m: rows of a block. If the number of rows is not a multiple of m, the last block is smaller, and its columns may keep fewer rows.
        g: columns of a chunk that keep the same rows. If the last chunk is smaller, its columns are divided evenly.

    Shape:
        the input is a matrix of any size; the bool mask has the input's shape, and is True where an entry is kept.

    Raises:
        SizeError: the tensor is not a matrix.
        FormatError: n is greater than m, m is less than 2, or an argument is not a positive integer.
        OperandError: the tensor holds NaN, or is not floating-point.

    Complexity:
        O(rows * columns * C(m, n) / m), and more if many columns prefer the same rows.

    Source: Ivanov et al., "STen: Productive and Efficient Sparsity in PyTorch", 2023, section 5. The
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
