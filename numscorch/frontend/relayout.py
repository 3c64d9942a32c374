"""Relayout: copy dense operands and results so that one index is contiguous and vectorizes.

A kernel vectorizes over an index that is contiguous in every dense tensor with that index. In ``x @ W.t()``, the batch
index is not contiguous, and each row of ``W`` would gather values from each row of ``x``. A transposed copy of ``x`` is
read with vector loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from math import prod
from typing import TypeVar

from ..ir.dtype import DTYPES
from ..ir.format import dense
from ..ir.index import is_product
from ..schedule import tuning
from ..schedule.facts import AUTOMATIC, rounded
from .parser import Subscripts
from .requests import Form, Operand, Request, plain_request, row_major

LINE = 16  # float32 values in a cache line
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Relayout:
    """The index made contiguous, and its dimension in each copied operand and in a copied result (None if not copied)."""

    index: str
    operands: Mapping[int, int]
    result: int | None

    def __str__(self) -> str:
        return f"{self.index} contiguous"


def layouts(request: Request, operands: Sequence[Operand], shape: Sequence[int], dtype: str) -> Iterator[tuple[Relayout, float]]:
    """The candidate layouts, and the cost of their copies; ``shape`` is the shape of a dense row-major result.

    >>> from ..ir.format import CSR, dense
    >>> from .parser import parse_einsum
    >>> x, W = Operand(dense(2), (64, 9), "float32", strides=(9, 1)), Operand(CSR, (5, 9), "float32", counts=(5, 20))
    >>> found = layouts(Request(parse_einsum("bi,oi->bo", (2, 2))), (x, W), (64, 5), "float32")
    >>> [(str(layout), layout.operands, layout.result) for layout, _ in found]
    [('b contiguous', {0: 0}, 0)]
    """
    names, result = request.subscripts.operands, request.subscripts.result
    is_sum = request.op in ("=", "+=") and (request.value is None or is_product(request.value))
    if request.options != AUTOMATIC or not DTYPES[dtype].in_registers or not is_sum:
        return
    sparse = {name for indices, op in zip(names, operands, strict=True) if not op.format.is_dense for name in indices}
    if not sparse:
        return
    dense = dict.fromkeys(name for indices, op in zip(names, operands, strict=True) if op.format.is_dense for name in indices)
    for name in (name for name in dense if name not in sparse and all(indices.count(name) < 2 for indices in names)):
        given = enumerate(zip(names, operands, strict=True))
        moved = {at: indices.index(name) for at, (indices, op) in given if name in indices and _is_apart(op, indices.index(name))}
        last = result.index(name) if name in result[:-1] and shape[result.index(name)] > 1 else None
        values = sum(rounded(prod(operands[at].shape)) for at in moved) + (rounded(prod(shape)) if last is not None else 0)
        if values:
            yield Relayout(name, moved, last), tuning.COST_MOVE * values + tuning.COST_COPY * (len(moved) + (last is not None))


def _is_apart(operand: Operand, dimension: int) -> bool:
    """Whether a dense operand is neither contiguous nor broadcast along a dimension."""
    return operand.format.is_dense and operand.shape[dimension] > 1 and operand.strides[dimension] not in (0, 1)


def with_last(shape: Sequence[T], last: int) -> tuple[T, ...]:
    """Move the element at position ``last`` to the end.

    >>> with_last((2, 3, 4), 0)
    (3, 4, 2)
    """
    return (*shape[:last], *shape[last + 1 :], shape[last])


@lru_cache(maxsize=64)
def moving(order: int, last: int, back: bool = False) -> Request:
    """The request that copies a dense tensor with one dimension moved to the end, or back.

    >>> str(moving(2, 0)), str(moving(3, 0, back=True))
    ('ab->ba', 'bca->abc')
    """
    names = tuple("abcdefghijklmnopqrstuvwxyz"[:order])
    moved = with_last(names, last)
    return Request(Subscripts((moved,), names)) if back else Request(Subscripts((names,), moved), form=Form(spaced=True))


def row_length(size: int) -> int:
    """The row stride of a copy, in values; long rows are padded to an odd number of cache lines.

    With a power of two as row stride, a tile of columns would lie in few cache sets. Whole cache lines avoid vector loads that
    cross a line.

    >>> row_length(100), row_length(512), row_length(4000)
    (100, 528, 4016)
    """
    lines = -(-size // LINE)
    return LINE * (lines | 1) if lines >= tuning.PADDED_ROW else size


def spaced_with_last(shape: Sequence[int], last: int) -> tuple[int, ...]:
    """The shape of the memory of a copy whose dimension ``last`` is contiguous and padded.

    >>> spaced_with_last((512, 3, 4), 0)
    (3, 4, 528)
    """
    return (*shape[:last], *shape[last + 1 :], row_length(shape[last]))


def strides_with_last(shape: Sequence[int], last: int | None) -> tuple[int, ...]:
    """Strides, in values, of a tensor whose dimension ``last`` is contiguous and padded; row-major and unpadded if it is None.

    >>> strides_with_last((2, 3, 4), 0), strides_with_last((2, 3), None)
    ((1, 8, 2), (3, 1))
    """
    if last is None:
        return row_major(shape)
    outer = row_major(spaced_with_last(shape, last))
    return (*outer[:last], 1, *outer[last:-1])


@dataclass(frozen=True, slots=True)
class Slabs:
    """Slabs of ``size`` coordinates of an index of ``extent``; ``dimensions`` maps operands to the dimension of the index."""

    index: str
    size: int
    extent: int
    dimensions: dict[int, int]

    def __str__(self) -> str:
        return f"slabs of {self.size} along {self.index}"

    def of(self, operands: Sequence[Operand]) -> tuple[Operand, ...]:
        """The operands, narrowed to one slab."""
        narrowed = list(operands)
        for at, dimension in self.dimensions.items():
            shape = operands[at].shape
            narrowed[at] = replace(operands[at], shape=(*shape[:dimension], self.size, *shape[dimension + 1 :]))
        return tuple(narrowed)


def slab_starts(extent: int, size: int) -> tuple[int, ...]:
    """The start of each slab; the last slab ends at the extent, and may overlap the slab before it.

    >>> slab_starts(600, 256)
    (0, 256, 344)
    """
    return tuple(min(start, extent - size) for start in range(0, extent, size))


@dataclass(frozen=True, slots=True)
class Panels:
    """Panels of ``width`` coordinates of an index: dense tensors with the index are copied so that each panel is contiguous.

    The last panel ends at the extent of the index, and may overlap the panel before it.

    Attributes:
        request: the request for the copies. Their first dimension is the panel, and the index comes last.
        panel: the name of the index of the panel.
        index: the name of the index.
        width: the number of coordinates in a panel.
        extent: the extent of the index.
        group: the number of panels that are copied at a time.
        dimensions: maps operands to the dimension of the index.
        padded: extents of indices that the copied result pads to whole blocks of a sparse operand.
    """

    request: Request
    panel: str
    index: str
    width: int
    extent: int
    group: int
    dimensions: dict[int, int]
    padded: dict[str, int]

    def __str__(self) -> str:
        return f"panels of {self.width} along {self.index}"

    def of(self, operands: Sequence[Operand]) -> tuple[Operand, ...]:
        """The operands of the request: copies of one group of panels, and sparse operands with whole blocks."""
        described = list(operands)
        for at, operand in enumerate(operands):
            names = self.request.subscripts.operands[at]
            if at in self.dimensions:
                shape = self.shape(operand.shape, self.dimensions[at])
                described[at] = Operand(dense(len(shape)), shape, operand.dtype, strides=row_major(shape))
            elif not operand.format.is_dense:
                sizes = zip(names, operand.shape, strict=True)
                described[at] = replace(operand, shape=tuple(self.padded.get(name, size) for name, size in sizes))
        return tuple(described)

    def shape(self, shape: Sequence[int], dimension: int) -> tuple[int, ...]:
        """The shape of the copy of a tensor for one group."""
        return (self.group, *shape[:dimension], *shape[dimension + 1 :], self.width)

    def stored(self, names: Sequence[str]) -> tuple[str, ...]:
        """The indices of a tensor whose dimension of the index is viewed as two: the panel, and the coordinate within it."""
        return tuple(chain.from_iterable((self.panel, name) if name == self.index else (name,) for name in names))


def with_panels(names: Sequence[str], index: str, panel: str) -> tuple[str, ...]:
    """The indices of a copy in panels.

    >>> with_panels("abj", "b", "p")
    ('p', 'a', 'j', 'b')
    """
    return (panel, *(name for name in names if name != index), index) if index in names else tuple(names)


@lru_cache(maxsize=1024)
def panelled(subscripts: Subscripts, index: str) -> tuple[Request, str]:
    """The request that computes a product of copies in panels along an index, and the name of the index of the panel.

    >>> print(*panelled(Subscripts((("b", "j"), ("o", "j")), ("b", "o")), "b"))
    pjb,oj->pob p
    """
    used = set(chain(*subscripts.operands))
    panel = next(letter for letter in "pqrstuvwxyzabcdefghijklmno" if letter not in used)
    operands = tuple(with_panels(names, index, panel) for names in subscripts.operands)
    return plain_request(Subscripts(operands, with_panels(subscripts.result, index, panel))), panel
