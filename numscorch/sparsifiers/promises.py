"""Checks of the properties that a registered sparsifier promises by its kind: a valid mask, determinism, and locality.

The checks run the sparsifier on small tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch

from ..errors import OperandError
from .kinds import WHOLE, Block, Kind

Function = Callable[[torch.Tensor], torch.Tensor]
MATRICES = ((8, 12), (5, 7))  # shapes that every sparsifier has to accept
OPTIONAL_SHAPES = ((1, 1), (0, 3), (3, 0), (0, 0), (6,), (0,), (2, 3, 4), (2, 3, 2, 2))  # shapes that a sparsifier may refuse
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-30, torch.inf, -torch.inf)


def check_promises(function: Function, name: str, kind: Kind, block: Block | None) -> None:
    """Run a sparsifier on small tensors of several shapes and data types.

    Raises:
        OperandError: the sparsifier breaks a promise. The error names the promise and the tensor.

    >>> check_promises(lambda t: t.abs() > t.abs().mean(), "above_mean", Kind.STREAMING, None)
    Traceback (most recent call last):
    ...
    numscorch.OperandError: sparsifier 'above_mean', registered as streaming: of a float32 tensor of shape (8, 12), ...
    """
    multiples = ((2 * _extent(block[0], 3), 3 * _extent(block[1], 4)),) if block else ()
    for shape, dtype in product((*multiples, *(() if block else MATRICES), *OPTIONAL_SHAPES, *(MATRICES if block else ())), DTYPES):
        needed = shape in (multiples or MATRICES) and dtype is torch.float32
        message = f"sparsifier {name!r}, registered as {kind}: of a {str(dtype).removeprefix('torch.')} tensor of shape {shape}"
        for at, tensor in enumerate(examples(shape, dtype)):
            mask = _checked_mask(function, tensor, message, needed and at == 0)
            if mask is not None and kind is Kind.STREAMING:
                _check_alone(function, tensor, mask, message)
            elif mask is not None and block is not None and tensor.ndim == 2:
                _check_blocks(function, tensor, mask, block, message)


def examples(shape: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return normally distributed numbers, and a copy with equal, zero and infinite values; both are always the same."""
    example = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(0)).to(dtype)
    special = example.clone().reshape(-1)
    special[1::2] = torch.tensor(SPECIAL, dtype=dtype).repeat(-(-len(special) // (2 * len(SPECIAL))))[: len(special) // 2]
    return example, special.reshape(example.shape)


def _extent(size: int, whole: int) -> int:
    return whole if size == WHOLE else size


def _checked_mask(function: Function, tensor: torch.Tensor, message: str, needed: bool) -> torch.Tensor | None:
    """Return the mask; None if the sparsifier refuses a tensor that it need not accept."""
    given = tensor.clone()
    try:
        mask = function(given)
    except Exception as error:
        if not needed:
            return None
        raise OperandError(f"{message}, it raised {type(error).__name__}: {error}") from error
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or mask.layout != torch.strided:
        what = f"a {mask.layout} tensor of {mask.dtype}" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise OperandError(f"{message}, it returned {what}: a mask is a dense bool tensor, True where an entry is kept")
    if mask.shape != tensor.shape:
        raise OperandError(f"{message}, it returned a mask of shape {tuple(mask.shape)}: a mask has the tensor's shape")
    if given._version != 0 or not torch.equal(given, tensor):
        raise OperandError(f"{message}, it wrote to its input: work on tensor.clone()")
    if not torch.equal(function(given), mask):
        raise OperandError(f"{message}, it returned another mask when called again: draw random numbers from a fixed seed, as random does")
    return mask


def _check_alone(function: Function, tensor: torch.Tensor, mask: torch.Tensor, message: str) -> None:
    """Check that the sparsifier decides on each entry alone as it does within the tensor."""
    for at in product(*map(range, tensor.shape)):
        answer = _checked_mask(function, tensor[at].clone().reshape((1,) * tensor.ndim), f"{message}, entry {at} alone", True)
        if answer is not None and bool(answer) != bool(mask[at]):
            within, alone = ("is kept", "isn't") if mask[at] else ("isn't kept", "is")
            raise OperandError(
                f"{message}, entry {at} = {tensor[at].item():g} {within} within the tensor, but {alone} alone: a streaming sparsifier "
                "decides by one value; one that compares values is kind='materializing'"
            )


def _check_blocks(function: Function, tensor: torch.Tensor, mask: torch.Tensor, block: Block, message: str) -> None:
    """Check that the sparsifier masks each block alone as it does within the tensor; it may refuse partial edge blocks."""
    for rows, columns in _blocks(tensor.shape, block):
        where = f"the block at rows {rows.start}-{rows.stop - 1}, columns {columns.start}-{columns.stop - 1}"
        tile = tensor[rows, columns].clone()
        is_whole = all(size in (extent, WHOLE) for size, extent in zip(block, tile.shape, strict=True))
        answer = _checked_mask(function, tile, f"{message}, {where} alone", is_whole)
        if answer is not None and not torch.equal(answer, mask[rows, columns]):
            raise OperandError(
                f"{message}, {where} has another mask alone than within the tensor: a blocking sparsifier decides within blocks of "
                f"block={block}; one that compares blocks is kind='materializing'"
            )


def _blocks(shape: Sequence[int], block: Block) -> Iterator[tuple[slice, slice]]:
    """Yield the row and column ranges of the blocks; blocks at the edges may be smaller."""
    starts = [range(0, size, _extent(extent, max(size, 1))) for size, extent in zip(shape, block, strict=True)]
    for row, column in product(*starts):
        rows, columns = (_extent(extent, size) for size, extent in zip(shape, block, strict=True))
        yield slice(row, min(row + rows, shape[0])), slice(column, min(column + columns, shape[1]))
