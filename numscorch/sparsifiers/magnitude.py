"""Sparsifiers that choose by magnitude: ``magnitude`` and ``block_magnitude``, and their selection functions.

The smallest absolute values of large tensors are selected chunk by chunk, with little extra memory. Without its sign bit, a float's bit
pattern is an integer that orders as the float does. The bound of the smallest values is found by radix selection, 16 bits at a time, from
the highest digit: each pass counts the keys that share the digits found so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from ..errors import OperandError, SizeError, UnsupportedError
from ..ir.format import BCSR, Format
from ..ir.level import INT32_MAX
from ..ir.parts import whole_numbers
from .base import BuiltIn, WithFraction, called_as, check_fraction

CHUNK = 1 << 20  # values per chunk
DIGITS = 1 << 16  # values of a 16-bit digit


@called_as("magnitude(0.9)")
@dataclass(frozen=True, repr=False)
class magnitude(BuiltIn, WithFraction):
    """Zero the entries with the smallest absolute values.

    Args:
        fraction: the fraction of all entries that becomes zero, rounded as ``torch.nn.utils.prune`` rounds its ``amount``. Of equal
            absolute values, the first become zero.

    Shape:
        the input has any shape; the bool mask has the input's shape, and is True where an entry is kept.

    Raises:
        SizeError: the fraction is not between 0 and 1.
        OperandError: the tensor holds NaN, or is not floating-point.

    Source: Han, Pool, Tran, Dally, "Learning both weights and connections for efficient neural networks", 2015.

    >>> magnitude(0.5)(torch.tensor([3.0, -1.0, 1.0, -2.0]))
    tensor([ True, False, False,  True])
    """

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or tensor.is_meta or has_nan(tensor):
            magnitudes(self, tensor)  # raises the error
        return others_than_least(tensor, round(self.fraction * tensor.numel()))

    def of_stored(self, values: torch.Tensor, size: int, indices: torch.Tensor) -> torch.Tensor:
        """Return the mask of the stored values to keep. O(nnz).

        Unstored entries are dropped first. Of equal values, those with the first coordinates are dropped, regardless of the storage
        order.

        Args:
            values: the stored values, a floating-point tensor (nnz,).
            size: the number of all entries of the tensor.
            indices: the coordinates of the values, an integer tensor (ndim, nnz).

        Returns:
            A bool tensor (nnz,).

        Raises:
            OperandError: the values hold NaN, or are not floating-point.
        """
        drop = round(self.fraction * size) - (size - len(values))
        return ~least_by_place(magnitudes(self, values), max(drop, 0), indices)


@called_as("block_magnitude(16, 1, 0.9), rows and columns of a block and the share that becomes zero")
@dataclass(frozen=True, repr=False)
class block_magnitude(BuiltIn):
    """Zero the blocks of a matrix with the smallest sums of absolute values.

    Args:
        b0: rows of a block.
        b1: columns of a block. The last blocks are smaller if the sizes of the matrix are not multiples of the block's.
        fraction: the fraction of blocks that becomes zero. Of blocks with equal sums, the first are dropped. Smaller blocks have smaller
            sums, so the fraction of entries may differ.

    Shape:
        the input is a matrix; the bool mask has the input's shape, and is True in the blocks that are kept.

    Raises:
        SizeError: the fraction is not between 0 and 1, or the tensor is not a matrix.
        FormatError: b0 or b1 is not a positive integer.
        OperandError: the tensor holds NaN, or is not floating-point.

    Source: Narang, Undersander, Diamos, "Block-sparse recurrent neural networks", 2017.

    >>> block_magnitude(2, 1, 0.5)(torch.tensor([[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [3.0, 0.0, 0.5]]))
    tensor([[ True,  True, False],
            [ True,  True, False],
            [ True, False, False]])
    """

    b0: int
    b1: int
    fraction: float

    def __post_init__(self) -> None:
        whole_numbers("block_magnitude", self.b0, self.b1)
        check_fraction(self, self.fraction)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim != 2:
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: blocks divide a matrix; reshape it")
        rows, columns = tensor.shape
        kept = ~lowest(block_sums(magnitudes(self, tensor), self.b0, self.b1), self.fraction)
        return kept.repeat_interleave(self.b0, 0)[:rows].repeat_interleave(self.b1, 1)[:, :columns]

    @cached_property
    def format(self) -> Format:
        """BCSR, the format in which ``sparsify`` stores the kept blocks."""
        return BCSR(self.b0, self.b1)


def block_sums(scores: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the sums of blocks of the last two dimensions; blocks at the edges may be smaller.

    >>> block_sums(torch.ones(3, 5), 2, 2)
    tensor([[4., 4., 2.],
            [2., 2., 1.]])
    """
    rows, columns = scores.shape[-2:]
    padded = torch.nn.functional.pad(scores, (0, -columns % width, 0, -rows % height))
    return padded.unflatten(-1, (-(-columns // width), width)).unflatten(-3, (-(-rows // height), height)).sum((-3, -1))


def magnitudes(sparsifier: object, tensor: torch.Tensor) -> torch.Tensor:
    """Return absolute values that can be compared and added.

    Raises:
        OperandError: the tensor holds NaN, or is not floating-point.
        UnsupportedError: the tensor is on the meta device.
    """
    if tensor.is_meta:
        raise UnsupportedError(f"{sparsifier} of a meta tensor, which has no values: give it values first, as with to_empty(device='cpu')")
    if not tensor.is_floating_point():
        raise OperandError(f"{sparsifier} of a tensor of {tensor.dtype}: it takes floating-point numbers; convert with .to(torch.float32)")
    sizes = tensor.detach().abs()
    if not torch.compiler.is_compiling() and bool(
        sizes.sum().isnan()
    ):  # compiled programs skip this check, which reads values; a sum of nonnegative numbers is NaN only if one of them is
        at = tuple(sizes.isnan().nonzero()[0].tolist())
        raise OperandError(f"{sparsifier} of a tensor with NaN at {at}, which cannot be compared: replace it, as with nan_to_num()")
    return sizes if sizes.dtype == torch.float64 else sizes.float()


def lowest(scores: torch.Tensor, fraction: float) -> torch.Tensor:
    """Return the mask of the given fraction of lowest scores; of equal scores, the first are in the mask. O(n).

    >>> lowest(torch.tensor([1.0, 0.0, 1.0, 1.0]), 0.75)
    tensor([ True,  True,  True, False])
    """
    return least(scores.reshape(-1), round(fraction * scores.numel())).reshape(scores.shape)


def least(scores: torch.Tensor, count: int, dim: int = -1) -> torch.Tensor:
    """Return the mask of the ``count`` lowest scores of each slice along ``dim``; of equal scores, the first are in the mask. O(n).

    >>> least(torch.tensor([[1.0, 0.0, 1.0], [3.0, 2.0, 1.0]]), 2)
    tensor([[ True,  True, False],
            [False,  True,  True]])
    """
    if not count or not scores.numel():
        return torch.zeros_like(scores, dtype=torch.bool)
    slices = scores.movedim(dim, -1)
    rows = slices.reshape(-1, slices.shape[-1]).contiguous()
    bounds = np.partition(rows.numpy(force=True), count - 1)[:, count - 1 : count]  # ten times faster than kthvalue
    bound = torch.from_numpy(bounds).to(scores.device)
    mask = rows <= bound
    if int(torch.count_nonzero(mask)) > count * len(rows):
        _remove_ties(mask, rows == bound, count)
    return mask.reshape(slices.shape).movedim(-1, dim)


def least_by_place(scores: torch.Tensor, count: int, indices: torch.Tensor) -> torch.Tensor:
    """Return the mask of :func:`least` for one slice; of equal scores, those with the first coordinates (ndim, n) are in the mask.

    >>> least_by_place(torch.tensor([1.0, 1.0, 2.0]), 1, torch.tensor([[1, 0, 0], [0, 1, 0]]))
    tensor([False,  True, False])
    """
    mask = least(scores, count)
    equal = (scores == scores[mask].max()).nonzero()[:, 0] if count else mask.nonzero()[:, 0]
    surplus = int(mask[equal].sum())
    if surplus < len(equal):
        ordered = torch.from_numpy(np.lexsort(indices[:, equal].flip(0).numpy()))  # lexsort's last key is the primary one
        mask[equal[ordered]] = torch.arange(len(equal)) < surplus
    return mask


def _remove_ties(mask: torch.Tensor, equal: torch.Tensor, count: int) -> None:
    """Remove the last equal scores from each row of a mask, until the row has ``count`` entries."""
    surplus = mask.sum(-1, keepdim=True) - count
    rows = surplus[:, 0].nonzero()[:, 0]  # usually only a few rows have ties
    tied = equal[rows]
    number = tied.cumsum(-1, dtype=torch.int32 if tied.shape[-1] <= INT32_MAX else torch.int64)
    mask[rows] &= ~(tied & (number > number[:, -1:] - surplus[rows]))


def bound_of(tensors: Sequence[torch.Tensor], count: int) -> tuple[int, int]:
    """Return the key of the ``count``-th smallest absolute value of all tensors, and how many of the ``count`` smallest values equal it.

    >>> bound, equal = bound_of([torch.tensor([1.0, -2.0]), torch.tensor([2.0, 3.0])], 2)
    >>> bound == int(torch.tensor(2.0).view(torch.int32)), equal
    (True, 1)
    """
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    bound, first = 0, 48 if wide else 16
    if not tensors:
        return 0, 0
    for shift in range(first, -1, -16):
        histogram = torch.zeros(DIGITS, dtype=torch.int64, device=tensors[0].device)
        for _, keys in keys_of(tensors, wide):
            among = keys if shift == first else keys[keys >> shift + 16 == bound]
            histogram += torch.bincount(among >> shift & DIGITS - 1, minlength=DIGITS)
        before = histogram.cumsum(0)
        digit = min(int(torch.searchsorted(before, count)), DIGITS - 1)
        count -= int(before[digit] - histogram[digit])
        bound = bound << 16 | digit
    return bound, count


def keys_of(tensors: Sequence[torch.Tensor], wide: bool) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the keys of the tensors' values, chunk by chunk, each chunk with the index of its tensor."""
    for at, tensor in enumerate(tensors):
        for part in tensor.detach().reshape(-1).split(CHUNK):
            yield at, part.double().abs().view(torch.int64) if wide else part.float().abs().view(torch.int32)


def counts_of(tensors: Sequence[torch.Tensor], bound: int) -> list[tuple[int, int]]:
    """Return, for each tensor, how many keys are below a bound, and how many equal it."""
    counts = [(0, 0)] * len(tensors)
    for at, keys in keys_of(tensors, any(tensor.dtype == torch.float64 for tensor in tensors)):
        counts[at] = counts[at][0] + int((keys < bound).sum()), counts[at][1] + int((keys == bound).sum())
    return counts


def others_than_least(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return the mask of all but the ``count`` smallest absolute values; of equal values, the first are dropped. O(n).

    >>> others_than_least(torch.tensor([1.0, 0.0, -1.0, 1.0]), 3)
    tensor([False, False, False,  True])
    """
    mask = torch.ones(tensor.numel(), dtype=torch.bool, device=tensor.device)
    if not count:
        return mask.reshape(tensor.shape)
    bound, equal = bound_of([tensor], count)
    for (_, keys), chunk in zip(keys_of([tensor], tensor.dtype == torch.float64), mask.split(CHUNK), strict=True):
        torch.ge(keys, bound, out=chunk)
        if equal:
            ties = (keys == bound).nonzero()[:equal, 0]
            chunk[ties] = False
            equal -= len(ties)
    return mask.reshape(tensor.shape)


def has_nan(tensor: torch.Tensor) -> bool:
    """Return whether some value is NaN, without a mask of all values.

    >>> has_nan(torch.tensor([1.0, torch.nan])), has_nan(torch.tensor([torch.inf, -torch.inf])), has_nan(torch.empty(0))
    (True, False, False)
    """
    return bool(tensor.numel()) and bool(tensor.detach().amax().isnan())
