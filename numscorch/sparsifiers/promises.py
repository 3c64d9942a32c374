"""Checks of the properties that a registered sparsifier promises by its kind: a valid mask, determinism, and locality.

The checks run the sparsifier on small tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
            if mask is not None and (kind is Kind.STREAMING or (block is not None and tensor.ndim == 2)):
                _check_parts(function, tensor, mask, block, message)


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


def _check_parts(function: Function, tensor: torch.Tensor, mask: torch.Tensor, block: Block | None, message: str) -> None:
    """Check that the sparsifier masks each part alone as it does within the tensor; it may refuse partial blocks at the edges.

    Parts are the blocks of a matrix, or single entries if ``block`` is None.
    """
    extents = tuple(_extent(size, whole) for size, whole in zip(block or (1,) * tensor.ndim, tensor.shape, strict=True))
    for corner in product(*(range(0, size, max(extent, 1)) for size, extent in zip(tensor.shape, extents, strict=True))):
        at = tuple(slice(first, first + extent) for first, extent in zip(corner, extents, strict=True))
        part = tensor[at].clone()
        spans = [f"{first}-{first + size - 1}" for first, size in zip(corner, part.shape, strict=True)]
        where = f"entry {corner}" if block is None else f"the block at rows {spans[0]}, columns {spans[1]}"
        answer = _checked_mask(function, part, f"{message}, {where} alone", part.shape == extents)
        if answer is None or torch.equal(answer, mask[at]):
            continue
        if block is not None:
            raise OperandError(
                f"{message}, {where} has another mask alone than within the tensor: a blocking sparsifier decides within blocks of "
                f"block={block}; one that compares blocks is kind='materializing'"
            )
        within, alone = ("is kept", "isn't") if mask[at] else ("isn't kept", "is")
        raise OperandError(
            f"{message}, {where} = {part.item():g} {within} within the tensor, but {alone} alone: a streaming sparsifier decides by one "
            "value; one that compares values is kind='materializing'"
        )
