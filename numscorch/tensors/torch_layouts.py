"""Map torch's sparse layouts to formats and back.

CSR, CSC, BSR and BSC compress two dimensions; leading dimensions are batches, and trailing dimensions are dense. Their
values have the shape (\\*batch, stored, \\*block, \\*dense). This is the storage order of the levels, so conversions only
reshape views.
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
from torch.autograd import forward_ad

from ..errors import FormatError, SizeError, UnsupportedError
from ..ir.format import COO, Format
from ..ir.level import INT64_MAX
from ..ir.levels import Compressed, Dense
from ..ir.parts import Part
from .modes import in_transform
from .packing import coordinates, index_dtype_for
from .pattern import Pattern

T = TypeVar("T")
BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)
BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)
COMPRESSED = (torch.sparse_csr, torch.sparse_csc, *BLOCKED)


@dataclass(frozen=True, slots=True)
class TorchLayout:
    """A layout of torch with its numbers of batch, sparse and dense dimensions, and its block size.

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
        """The format with the same storage order."""
        if self.layout is torch.sparse_coo:
            return Format("o" * self.sparse + "d" * self.dense)
        outer = [Part(self.batch + at, size) for at, size in enumerate(self.block)]
        inner = [Part(self.batch + at, 1, size) for at, size in enumerate(self.block) if size > 1]
        before, after = range(self.batch), range(self.batch + 2, self.batch + 2 + self.dense)
        ordered = outer if self.layout in BY_ROWS else outer[::-1]
        levels = [*[Dense()] * (self.batch + 1), Compressed(), *[Dense()] * (len(inner) + self.dense)]
        return Format(levels, [*map(Part, before), *ordered, *inner, *map(Part, after)])

    def shape_of_values(self, shape: tuple[int, ...], stored: int) -> tuple[int, ...]:
        """The shape of torch's values; ``stored`` is the number of coordinates, or blocks, in each batch."""
        block = self.block if self.layout in BLOCKED else ()
        return (*shape[: self.batch], stored, *block, *shape[self.batch + self.sparse :])


@lru_cache(maxsize=1024)
def layout_of(format: Format) -> TorchLayout | None:
    """The layout of torch that is equivalent to a format, or None.

    >>> layout_of(Format("dds")), layout_of(Format("ss"))
    (TorchLayout(layout=torch.sparse_csr, batch=1, sparse=2, dense=0, block=(1, 1)), None)
    """
    return next((layout for layout in _candidates(format) if layout.format == format), None)


def _candidates(format: Format) -> Iterator[TorchLayout]:
    """The layouts that match a format's number of levels and block sizes."""
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
    """Whether results with this pattern are returned to torch in one of torch's layouts.

    Batched patterns must also have come from torch: the matrices of other batches may store different numbers of values, and the
    return type must not depend on the data.
    """
    return pattern.remember("has a torch layout", lambda: _is_given_back(pattern))


def _is_given_back(pattern: Pattern) -> bool:
    layout = layout_of(pattern.format)
    if layout is None or len(pattern.shape) < 2 or over_the_edge(pattern, layout):
        return False
    return not layout.batch or "from torch" in pattern.derived


def quietly(make: Callable[[], T]) -> T:
    """Call ``make`` with torch's beta warnings about sparse tensors suppressed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Sparse (\w+ tensor support is in beta|invariant checks are implicitly disabled)")
        return make()


# ---- from torch


def compressed_pattern(tensor: torch.Tensor, values: torch.Tensor, *, check_invariants: bool = True) -> Pattern:
    """The pattern of a CSR, CSC, BSR or BSC tensor; the pos arrays of batches are concatenated.

    Raises:
        FormatError: the pos array of a batch does not run from 0 to the number of its values.
        SizeError: the shapes of the arrays disagree.
    """
    by_rows, blocked = tensor.layout in BY_ROWS, tensor.layout in BLOCKED
    pos, crd = (tensor.crow_indices(), tensor.col_indices()) if by_rows else (tensor.ccol_indices(), tensor.row_indices())
    batch, shape = pos.ndim - 1, tuple(tensor.shape)
    block = tuple(values.shape[batch + 1 : batch + 3]) if blocked else (1, 1)
    layout = TorchLayout(tensor.layout, batch, dense=len(shape) - batch - 2, block=(block[0], block[1]) if len(block) == 2 else (0, 0))
    if crd.shape[:-1] != shape[:batch] or tuple(values.shape) != layout.shape_of_values(shape, crd.shape[-1]) or 0 in block:
        raise SizeError(
            f"a {layout.name} tensor of shape {shape} has starts of shape {tuple(pos.shape)}, coordinates of shape {tuple(crd.shape)} "
            f"and values of shape {tuple(values.shape)}, which don't fit together: each value or block needs one "
            "coordinate, and each array the batch dimensions of the shape"
        )
    needs_int64 = torch.int64 in (pos.dtype, crd.dtype) or index_dtype_for(shape, values.numel()) == np.int64
    dtype = torch.int64 if needs_int64 else torch.int32
    starts = _concatenated_starts(pos.detach().to(dtype), crd.shape[-1], check_invariants) if batch else pos.detach().to(dtype).contiguous()
    stored = (starts, crd.detach().to(dtype).reshape(-1).contiguous())
    format = layout.format
    pattern = Pattern(format, shape, tuple(stored if level == Compressed() else () for level in format.levels))
    pattern.derived["from torch"] = True
    return pattern


def _concatenated_starts(pos: torch.Tensor, stored: int, check_invariants: bool) -> torch.Tensor:
    """Concatenate the pos arrays (\\*batch, n + 1) of batches with equal numbers of values.

    Raises:
        FormatError: a pos array does not run from 0 to ``stored``.
    """
    rows = pos.reshape(-1, pos.shape[-1])
    invalid = ((rows[:, 0] != 0) | (rows[:, -1] != stored)).nonzero() if check_invariants else rows[:0]
    if len(invalid):
        at = int(invalid[0])
        raise FormatError(
            f"the starts of batch {at} run from {rows[at, 0]} to {rows[at, -1]}, but must run from 0 to its number of values, {stored}"
        )
    before = torch.arange(len(rows), dtype=pos.dtype) * stored
    return torch.cat([(rows[:, :-1] + before[:, None]).reshape(-1), pos.new_tensor([len(rows) * stored])])


def hybrid_pattern(head: Pattern, shape: tuple[int, ...]) -> Pattern:
    """The pattern of a COO tensor with trailing dense dimensions, from the pattern of its sparse dimensions."""
    dense = len(shape) - len(head.shape)
    return Pattern(TorchLayout(torch.sparse_coo, 0, len(head.shape), dense).format, shape, (*head.arrays, *((),) * dense))


# ---- to torch


def native_tensor(pattern: Pattern, values: torch.Tensor, layout: TorchLayout) -> torch.Tensor:
    """Convert to a torch tensor of a layout; shares the values. No block may cross the edge of the shape.

    Raises:
        SizeError: the number of entries exceeds int64.
        UnsupportedError: batches store different numbers of values.
    """
    shape = pattern.shape
    if prod(shape) > INT64_MAX:
        raise SizeError(
            f"torch counts the entries of a tensor in int64, and so can't hold one of shape {shape}: "
            "keep the SparseTensor; operands made by ns.from_torch give SparseTensor results"
        )
    if layout.layout is torch.sparse_coo:
        indices = _entries(pattern, layout.sparse)
        shaped = values.reshape(layout.shape_of_values(shape, indices.shape[1]))
        return _native(layout, lambda: torch.sparse_coo_tensor(indices, shaped, shape, is_coalesced=True, check_invariants=False))
    pos, crd = compressed_arrays(pattern, layout)
    shaped = values.reshape(layout.shape_of_values(shape, crd.shape[-1]))
    return _native(layout, lambda: torch.sparse_compressed_tensor(pos, crd, shaped, shape, layout=layout.layout, check_invariants=False))


def _native(layout: TorchLayout, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Make a tensor without torch's warnings about its layouts.

    Raises:
        UnsupportedError: torch does not support this layout in the active transform or forward-mode AD.
    """
    try:
        return quietly(make)
    except RuntimeError as error:
        if not in_transform() and forward_ad._current_level < 0:
            raise
        raise UnsupportedError(
            f"torch's {layout.name} tensors are unknown to this transform of torch.func, or to forward-mode AD: keep the SparseTensor, "
            "whose operators take part, or convert it outside"
        ) from error


def compressed_arrays(pattern: Pattern, layout: TorchLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """The pos (\\*batch, n + 1) and crd (\\*batch, stored) arrays of a compressed layout; shared with the pattern if unbatched.

    Raises:
        UnsupportedError: batches store different numbers of values.
    """
    pos, crd = pattern.arrays[layout.batch + 1]
    if not layout.batch:
        return pos, crd
    starts = pattern.remember("torch starts", lambda: _split_starts(pattern, layout))
    return starts, crd.reshape(*pattern.shape[: layout.batch], crd.numel() // max(pattern.counts[layout.batch - 1], 1))


def format_of(layout: torch.layout, ndim: int, blocksize: Sequence[int] | None = None, dense: int = 0) -> Format:
    """The format of a torch layout with ``ndim`` dimensions, the last ``dense`` of which are dense.

    Raises:
        SizeError: too few dimensions, or a block size that is not a pair of positive numbers.
        UnsupportedError: a strided layout, a block size for an unblocked layout, or none for a blocked one.

    >>> format_of(torch.sparse_csc, 2).name, format_of(torch.sparse_bsr, 2, (4, 4)).name
    ('CSC', 'BCSR(4, 4)')
    """
    name = str(layout).removeprefix("torch.")
    if layout is not torch.sparse_coo and layout not in COMPRESSED:
        raise UnsupportedError(f"{name} is not a supported sparse layout: .to_dense() makes a strided tensor")
    if (layout in BLOCKED) != (blocksize is not None):
        suggestion = f"name its block, as .to_{name}((b0, b1)), or .to(ns.BCSR(b0, b1))" if blocksize is None else "leave blocksize out"
        raise UnsupportedError(f"{name} {'has blocks' if blocksize is None else 'has no blocks'}: {suggestion}")
    sparse = ndim - dense if layout is torch.sparse_coo else 2
    block = tuple(map(int, blocksize)) if blocksize is not None else (1, 1)
    if dense < 0 or sparse < 1 or ndim - dense < sparse or len(block) != 2 or min(block) < 1:
        raise SizeError(f"{name} with {dense} dense dimensions and blocks {block} of a {ndim}-dimensional tensor: there is no such layout")
    return TorchLayout(layout, ndim - dense - sparse, sparse, dense, (block[0], block[1])).format


def over_the_edge(pattern: Pattern, layout: TorchLayout) -> bool:
    """Whether blocks cross the edge of the shape."""
    return any(pattern.shape[layout.batch + at] % size for at, size in enumerate(layout.block) if size > 1)


def _entries(pattern: Pattern, sparse: int) -> torch.Tensor:
    """The coordinates in the first ``sparse`` dimensions of a COO pattern."""
    if sparse == len(pattern.shape):
        return coordinates(pattern)
    return pattern.remember("entries", lambda: coordinates(Pattern(COO(sparse), pattern.shape[:sparse], pattern.arrays[:sparse])))


def _split_starts(pattern: Pattern, layout: TorchLayout) -> torch.Tensor:
    """The pos array of each batch, starting at 0.

    Raises:
        UnsupportedError: batches store different numbers of values, which torch's layouts do not allow.
    """
    pos, batches = pattern.arrays[layout.batch + 1][0], pattern.counts[layout.batch - 1]
    per_batch = (len(pos) - 1) // max(batches, 1)
    first = torch.arange(batches)[:, None] * per_batch
    starts = pos[first + torch.arange(per_batch + 1)] - pos[first]
    mismatches = (starts[:, -1] != starts[:1, -1]).nonzero()
    if len(mismatches):
        at = int(mismatches[0])
        raise UnsupportedError(
            f"all {layout.name} matrices of a torch batch store the same number of values, but matrix 0 has {int(starts[0, -1])} "
            f"and matrix {at} has {int(starts[at, -1])}: use .to(ns.COO({len(pattern.shape)})) first"
        )
    return starts.reshape(*pattern.shape[: layout.batch], per_batch + 1)
