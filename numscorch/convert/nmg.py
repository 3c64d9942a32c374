"""Convert dense matrices to n:m:g without a list of entries: the mask of kept entries determines the storage."""

from __future__ import annotations

import torch

from ..errors import FormatError
from ..ir.format import Format
from ..ir.level import INT32_MAX
from ..ir.nmg import Combination, Grouped
from ..ir.nmg_combinations import kinds_at, table
from ..ir.parts import Part
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor


def grouped(tensor: torch.Tensor, kept: torch.Tensor | None, format: Format) -> SparseTensor | None:
    """Convert the masked entries of a dense matrix, by default its nonzeros, to n:m:g; None for any other format.

    Gradients flow to the tensor.

    Raises:
        FormatError: a column keeps too many values in a block, or too many columns keep the same combination; names the block.

    Complexity:
        O(size of the matrix), plus a sort of the result's columns.

    >>> A = grouped(torch.eye(4), torch.eye(4) > 0, Format("NMG(1, 2, 1)"))
    >>> A, A.values
    (SparseTensor(NMG(1, 2, 1), shape=(4, 4), nnz=8, density=0.5, float32, int32 indices), tensor([1., 1., 0., 0., 0., 0., 1., 1.]))
    """
    level = format.levels[1] if len(format.levels) == 3 else None
    if not isinstance(level, Grouped) or format.parts != (Part(0, level.m), Part(1), Part(0, 1, level.m)) or tensor.numel() > INT32_MAX:
        return None
    kept = tensor != 0 if kept is None else kept
    (rows, columns), blocks = tensor.shape, -(-tensor.shape[0] // level.m)
    try:
        crd = torch.from_numpy(level.stored(_used(kept, blocks, level.m).numpy()))
    except FormatError as error:
        raise FormatError(f"level 2 ({level}) of {format} {error}") from error
    chosen = torch.from_numpy(table(level.n, level.m)[kinds_at(torch.arange(columns).numpy(), columns, level.kinds, level.g)])
    row = torch.arange(blocks)[:, None, None] * level.m + chosen
    places = (row * columns + crd[:, :, None]).reshape(-1)
    flat = torch.nn.functional.pad(torch.where(kept, tensor, torch.zeros((), dtype=tensor.dtype)).reshape(-1), (0, 1))
    values = flat.index_select(0, places.clamp_(max=rows * columns))
    dtype = getattr(torch, level.array_dtype("crd") or "int32")
    grouped_format = Format((format.levels[0], level, Combination(level.n, level.m, level.g)), format.parts)
    return SparseTensor(Pattern(grouped_format, (rows, columns), ((), (crd.reshape(-1).to(dtype),), ())), values)


def _used(kept: torch.Tensor, blocks: int, m: int) -> torch.Tensor:
    """The rows that each column keeps in each block, as a bit mask; int64, shape (blocks, columns)."""
    rows, columns = kept.shape
    inside = torch.nn.functional.pad(kept, (0, 0, 0, blocks * m - rows)).reshape(blocks, m, columns)
    used = torch.zeros((blocks, columns), dtype=torch.int64)
    for place in range(m):
        used |= inside[:, place].to(torch.int64) << place
    return used
