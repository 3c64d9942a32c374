"""torch's sparse layouts as formats: the levels that store what a layout does, and back.

CSR, CSC, BSR and BSC store two dimensions; those before are batches, those after dense.  Their values
have the shape (\\*batch, stored, \\*block, \\*dense), which is the order of our levels, so they are only viewed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TypeVar

import numpy as np
import torch

from ..errors import FormatError, SizeError, UnsupportedError
from ..ir.format import COO, Format
from ..ir.level import INT64_MAX
from ..ir.levels import Compressed, Dense
from ..ir.parts import Part
from .packing import coordinates, index_dtype_for
from .pattern import Pattern

T = TypeVar("T")
NOTICES = (r"Sparse \w+ tensor support is in beta", "Sparse invariant checks are implicitly disabled")
BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)
BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)
COMPRESSED = (torch.sparse_csr, torch.sparse_csc, *BLOCKED)


@dataclass(frozen=True, slots=True)
class TorchLayout:
    """A layout of torch: how many dimensions are batches, sparse and dense, and the size of blocks.

    >>> print(TorchLayout(torch.sparse_bsc, block=(2, 3)).format)
    (i, j) -> (j // 3: dense, i // 2: compressed, i % 2: dense, j % 3: dense)
    """

    layout: torch.layout
    batch: int = 0
    sparse: int = 2
    dense: int = 0
    block: tuple[int, int] = (1, 1)

    @property
    def name(self) -> str:
        """CSR, CSC, BSR, BSC or COO."""
        return str(self.layout).rpartition("_")[2].upper()

    @property
    def format(self) -> Format:
        """The format that stores the same in the same order."""
        if self.layout is torch.sparse_coo:
            return Format("o" * self.sparse + "d" * self.dense)
        outer = [Part(self.batch + at, size) for at, size in enumerate(self.block)]
        inner = [Part(self.batch + at, 1, size) for at, size in enumerate(self.block) if size > 1]
        before, after = range(self.batch), range(self.batch + 2, self.batch + 2 + self.dense)
        ordered = outer if self.layout in BY_ROWS else outer[::-1]
        levels = [*[Dense()] * (self.batch + 1), Compressed(), *[Dense()] * (len(inner) + self.dense)]
        return Format(levels, [*map(Part, before), *ordered, *inner, *map(Part, after)])

    def shape_of_values(self, shape: tuple[int, ...], stored: int) -> tuple[int, ...]:
        """The shape of torch's values, for a tensor that stores so many coordinates, or blocks, in each batch."""
        block = self.block if self.layout in BLOCKED else ()
        return (*shape[: self.batch], stored, *block, *shape[self.batch + self.sparse :])


@lru_cache(maxsize=1024)
def layout_of(format: Format) -> TorchLayout | None:
    """The layout of torch that stores what a format does, if there is one.

    >>> layout_of(Format("dds")), layout_of(Format("ss"))
    (TorchLayout(layout=torch.sparse_csr, batch=1, sparse=2, dense=0, block=(1, 1)), None)
    """
    return next((layout for layout in _candidates(format) if layout.format == format), None)


def _candidates(format: Format) -> Iterator[TorchLayout]:
    """What the number of levels and the sizes of blocks leave open."""
    for sparse in range(format.order, 0, -1):
        yield TorchLayout(torch.sparse_coo, sparse=sparse, dense=format.order - sparse)
    batch = next((at for at, level in enumerate(format.levels) if not level.full), 0) - 1
    if batch < 0 or batch + 2 > format.order:
        return
    sizes = [next((p.modulus for p in format.parts if p.dimension == d and p.modulus), 1) for d in (batch, batch + 1)]
    rows, columns = BLOCKED if sizes != [1, 1] else COMPRESSED[:2]
    kind = rows if format.parts[batch].dimension == batch else columns
    yield TorchLayout(kind, batch, dense=format.order - batch - 2, block=(sizes[0], sizes[1]))


def has_torch_layout(pattern: Pattern) -> bool:
    """Whether results with this pattern are given to torch's users in one of torch's own layouts.

    A batch is, where the pattern came from torch: in others, the numbers of values may differ from matrix to
    matrix, and what a program returns does not depend on its data.
    """
    return pattern.remember("has a torch layout", lambda: _is_given_back(pattern))


def _is_given_back(pattern: Pattern) -> bool:
    layout = layout_of(pattern.format)
    if layout is None or len(pattern.shape) < 2 or _over_the_edge(pattern, layout):
        return False
    return not layout.batch or "from torch" in pattern.derived


def quietly(make: Callable[[], T]) -> T:
    """What ``make`` returns, without torch's notices about sparse CSR tensors."""
    with warnings.catch_warnings():
        for notice in NOTICES:
            warnings.filterwarnings("ignore", message=notice)
        return make()


# ---- from torch


def compressed_pattern(tensor: torch.Tensor, values: torch.Tensor, *, check_invariants: bool = True) -> Pattern:
    """The pattern of a CSR, CSC, BSR or BSC tensor; of batches, the starts are gathered into one array.

    Raises:
        FormatError: a batch's starts don't run from 0 to the number of its values.
        SizeError: shapes that disagree.
    """
    by_rows, blocked = tensor.layout in BY_ROWS, tensor.layout in BLOCKED
    pos, crd = (tensor.crow_indices(), tensor.col_indices()) if by_rows else (tensor.ccol_indices(), tensor.row_indices())
    batch, shape = pos.ndim - 1, tuple(tensor.shape)
    block = tuple(values.shape[batch + 1 : batch + 3]) if blocked else (1, 1)
    layout = TorchLayout(tensor.layout, batch, dense=len(shape) - batch - 2, block=(block[0], block[1]) if len(block) == 2 else (0, 0))
    if crd.shape[:-1] != shape[:batch] or tuple(values.shape) != layout.shape_of_values(shape, crd.shape[-1]) or 0 in block:
        raise SizeError(
            f"a {layout.name} tensor of shape {shape} has starts of shape {tuple(pos.shape)}, coordinates of shape {tuple(crd.shape)} "
            f"and values of shape {tuple(values.shape)}, which don't fit together: make it with check_invariants=True"
        )
    wide = torch.int64 in (pos.dtype, crd.dtype) or index_dtype_for(shape, values.numel()) == np.int64
    dtype = torch.int64 if wide else torch.int32
    starts = _joined_starts(pos.detach().to(dtype), crd.shape[-1], check_invariants) if batch else pos.detach().to(dtype).contiguous()
    stored = (starts, crd.detach().to(dtype).reshape(-1).contiguous())
    format = layout.format
    pattern = Pattern(format, shape, tuple(stored if level == Compressed() else () for level in format.levels))
    pattern.derived["from torch"] = True
    return pattern


def _joined_starts(pos: torch.Tensor, stored: int, check_invariants: bool) -> torch.Tensor:
    """The starts (\\*batch, n + 1) of batches that store equally many, one after the other."""
    rows = pos.reshape(-1, pos.shape[-1])
    wrong = ((rows[:, 0] != 0) | (rows[:, -1] != stored)).nonzero() if check_invariants else rows[:0]
    if len(wrong):
        at = int(wrong[0])
        raise FormatError(f"the starts of batch {at} run from {rows[at, 0]} to {rows[at, -1]}, but it stores {stored}: from 0 to {stored}")
    before = torch.arange(len(rows), dtype=pos.dtype) * stored
    return torch.cat([(rows[:, :-1] + before[:, None]).reshape(-1), pos.new_tensor([len(rows) * stored])])


def hybrid_pattern(head: Pattern, shape: tuple[int, ...]) -> Pattern:
    """The pattern of a COO tensor with dense dimensions, from that of its coordinates."""
    dense = len(shape) - len(head.shape)
    return Pattern(TorchLayout(torch.sparse_coo, 0, len(head.shape), dense).format, shape, (*head.arrays, *((),) * dense))


# ---- to torch


def native_tensor(pattern: Pattern, values: torch.Tensor, layout: TorchLayout) -> torch.Tensor:
    """A tensor of torch that shares the values.

    Raises:
        SizeError: torch can't count the entries of this shape.
        UnsupportedError: blocks reach over the edge, or batches store different numbers of values.
    """
    shape = pattern.shape
    if prod(shape) > INT64_MAX:
        raise SizeError(
            f"torch counts the entries of a tensor in int64, and so can't hold one of shape {shape}: "
            "stay with the SparseTensor, as results do of operands made by ns.from_torch"
        )
    if layout.layout is torch.sparse_coo:
        indices = _entries(pattern, layout.sparse)
        shaped = values.reshape(layout.shape_of_values(shape, indices.shape[1]))
        return quietly(lambda: torch.sparse_coo_tensor(indices, shaped, shape, is_coalesced=True, check_invariants=False))
    if _over_the_edge(pattern, layout):
        raise UnsupportedError(
            f"torch's {layout.name} tensors are made of whole blocks, but those of {pattern.format.name} reach over the edge "
            f"of shape {shape}: use .to(ns.CSR) first, or pad the shape to multiples of {layout.block}"
        )
    pos, crd = compressed_arrays(pattern, layout)
    shaped = values.reshape(layout.shape_of_values(shape, crd.shape[-1]))
    return quietly(lambda: torch.sparse_compressed_tensor(pos, crd, shaped, shape, layout=layout.layout, check_invariants=False))


def compressed_arrays(pattern: Pattern, layout: TorchLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """The starts (\\*batch, n + 1) and coordinates (\\*batch, stored) of a compressed layout; without batches, those of the pattern itself.

    Raises:
        UnsupportedError: batches store different numbers of values.
    """
    pos, crd = pattern.arrays[layout.batch + 1]
    if not layout.batch:
        return pos, crd
    starts = pattern.remember("torch starts", lambda: _split_starts(pattern, layout))
    return starts, crd.reshape(*pattern.shape[: layout.batch], crd.numel() // max(pattern.counts[layout.batch - 1], 1))


def format_of(layout: torch.layout, ndim: int, blocksize: Sequence[int] | None = None, dense: int = 0) -> Format:
    """The format of so many dimensions that stores what a layout of torch does, the last ``dense`` ones in full.

    Raises:
        SizeError: too few dimensions, or a block that isn't of two.
        UnsupportedError: strided, a block for a layout without, or none for one of blocks.

    >>> format_of(torch.sparse_csc, 2).name, format_of(torch.sparse_bsr, 2, (4, 4)).name
    ('CSC', 'BCSR(4, 4)')
    """
    name = str(layout).removeprefix("torch.")
    if layout is not torch.sparse_coo and layout not in COMPRESSED:
        raise UnsupportedError(f"{name} is no sparse layout that formats follow: .to_dense() makes a strided tensor")
    if (layout in BLOCKED) != (blocksize is not None):
        way_out = f"name its block, as .to_{name}((b0, b1)), or .to(ns.BCSR(b0, b1))" if blocksize is None else "leave blocksize out"
        raise UnsupportedError(f"{name} {'has blocks' if blocksize is None else 'has no blocks'}: {way_out}")
    sparse = ndim - dense if layout is torch.sparse_coo else 2
    block = tuple(map(int, blocksize)) if blocksize is not None else (1, 1)
    if dense < 0 or sparse < 1 or ndim - dense < sparse or len(block) != 2 or min(block) < 1:
        raise SizeError(f"{name} with {dense} dense dimensions and blocks {block} of a {ndim}-dimensional tensor: there is no such layout")
    return TorchLayout(layout, ndim - dense - sparse, sparse, dense, (block[0], block[1])).format


def _over_the_edge(pattern: Pattern, layout: TorchLayout) -> bool:
    return any(pattern.shape[layout.batch + at] % size for at, size in enumerate(layout.block) if size > 1)


def _entries(pattern: Pattern, sparse: int) -> torch.Tensor:
    """The coordinates of the first dimensions, which levels of coordinates store."""
    if sparse == len(pattern.shape):
        return coordinates(pattern)
    return pattern.remember("entries", lambda: coordinates(Pattern(COO(sparse), pattern.shape[:sparse], pattern.arrays[:sparse])))


def _split_starts(pattern: Pattern, layout: TorchLayout) -> torch.Tensor:
    """The starts of each batch, counted from 0; torch wants as many values in each."""
    pos, batches = pattern.arrays[layout.batch + 1][0], pattern.counts[layout.batch - 1]
    per_batch = (len(pos) - 1) // max(batches, 1)
    first = torch.arange(batches)[:, None] * per_batch
    starts = pos[first + torch.arange(per_batch + 1)] - pos[first]
    different = (starts[:, -1] != starts[:1, -1]).nonzero()
    if len(different):
        at = int(different[0])
        raise UnsupportedError(
            f"a batch of torch's {layout.name} matrices stores equally many values in each, but matrix 0 has {int(starts[0, -1])} "
            f"and matrix {at} has {int(starts[at, -1])}: use .to(ns.COO({len(pattern.shape)})) first"
        )
    return starts.reshape(*pattern.shape[: layout.batch], per_batch + 1)
