"""Sparsifiers that choose by magnitude: the entries, or the blocks, that are least become zero."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch

from ..errors import OperandError, SizeError, UnsupportedError
from ..ir.format import BCSR, CSR, Format
from ..ir.level import INT32_MAX
from ..ir.parts import whole_numbers
from .kinds import Kind
from .names import called_as, described
from .smallest import has_nan, others_than_least


@called_as("magnitude(0.9)")
@dataclass(frozen=True)
class magnitude:
    """The entries with the smallest absolute values become zero.

    Args:
        fraction: the share that becomes zero, of all entries: as many as torch.nn.utils.prune takes for its ``amount``.
            Of equal entries, those that come first.

    Shape:
        a tensor of any shape, to a bool mask of that shape, True where an entry is kept.

    Raises:
        SizeError: the fraction is not between 0 and 1.
        OperandError: the tensor holds NaN, or no floating-point numbers.

    Source: Han, Pool, Tran, Dally, "Learning both weights and connections for efficient neural networks", 2015.

    >>> magnitude(0.5)(torch.tensor([3.0, -1.0, 1.0, -2.0]))
    tensor([ True, False, False,  True])
    """

    fraction: float
    kind: ClassVar[Kind] = Kind.MATERIALIZING
    format: ClassVar[Format] = CSR

    def __post_init__(self) -> None:
        check_fraction(self, self.fraction)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mask of what is kept."""
        if not tensor.is_floating_point() or tensor.is_meta or has_nan(tensor):
            magnitudes(self, tensor)  # which says what is wrong
        return others_than_least(tensor, round(self.fraction * tensor.numel()))

    def of_stored(self, values: torch.Tensor, size: int, indices: torch.Tensor) -> torch.Tensor:
        """Which of a sparse tensor's values to keep, among ``size`` entries; those that aren't stored go first. O(nnz).

        Of equal ones those go that come first by their coordinates (ndim, nnz), in whatever order they are stored.
        """
        drop = round(self.fraction * size) - (size - len(values))
        return ~least_by_place(magnitudes(self, values), max(drop, 0), indices)

    def __repr__(self) -> str:
        return f"magnitude({self.fraction})"


@called_as("block_magnitude(16, 1, 0.9), rows and columns of a block and the share that becomes zero")
@dataclass(frozen=True)
class block_magnitude:
    """The blocks of a matrix with the least sums of absolute values become zero.

    Args:
        b0: rows of a block.
        b1: columns of a block; where the matrix's size isn't a multiple, the last blocks are smaller.
        fraction: the share of blocks that becomes zero, of equal ones those that come first. Smaller blocks have smaller sums, so
            that the share of entries may be another; ``nnz`` and ``density`` of what is left count entries inside of the matrix.

    Shape:
        a matrix, to a bool mask of its shape, True in the blocks that are kept.

    Raises:
        SizeError: the fraction is not between 0 and 1, or the tensor is no matrix.
        FormatError: the blocks have no rows or columns.
        OperandError: the tensor holds NaN, or no floating-point numbers.

    Source: Narang, Undersander, Diamos, "Block-sparse recurrent neural networks", 2017.

    >>> block_magnitude(2, 1, 0.5)(torch.tensor([[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [3.0, 0.0, 0.5]]))
    tensor([[ True,  True, False],
            [ True,  True, False],
            [ True, False, False]])
    """

    b0: int
    b1: int
    fraction: float
    kind: ClassVar[Kind] = Kind.MATERIALIZING

    def __post_init__(self) -> None:
        whole_numbers("block_magnitude", self.b0, self.b1)
        check_fraction(self, self.fraction)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mask of what is kept."""
        if tensor.ndim != 2:
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: blocks are those of a matrix; reshape it")
        rows, columns = tensor.shape
        weights = torch.nn.functional.pad(magnitudes(self, tensor), (0, -columns % self.b1, 0, -rows % self.b0))
        norms = weights.unflatten(0, (-(-rows // self.b0), self.b0)).unflatten(2, (-(-columns // self.b1), self.b1)).sum((1, 3))
        kept = ~lowest(norms, self.fraction)
        return kept.repeat_interleave(self.b0, 0)[:rows].repeat_interleave(self.b1, 1)[:, :columns]

    @cached_property
    def format(self) -> Format:
        """BCSR, in which ``sparsify`` stores what is left."""
        return BCSR(self.b0, self.b1)

    def __repr__(self) -> str:
        return f"block_magnitude({self.b0}, {self.b1}, {self.fraction})"


def check_fraction(sparsifier: object, fraction: Any) -> None:
    """That a share lies between 0 and 1.

    Raises:
        SizeError: it doesn't.

    >>> check_fraction("magnitude(90)", 90)
    Traceback (most recent call last):
    ...
    numscorch.SizeError: magnitude(90): the share that becomes zero lies between 0 and 1, as in 0.9
    >>> check_fraction(magnitude, "0.5")
    Traceback (most recent call last):
    ...
    numscorch.SizeError: magnitude: the share that becomes zero lies between 0 and 1, as in 0.9; '0.5' is no number
    """
    message = "the share that becomes zero lies between 0 and 1, as in 0.9"
    if not is_number(fraction):
        what = sparsifier if isinstance(sparsifier, str) else getattr(sparsifier, "__name__", type(sparsifier).__name__)
        raise SizeError(f"{what}: {message}; {described(fraction)} is no number")
    if not 0 <= fraction <= 1:
        raise SizeError(f"{sparsifier}: {message}")


def is_number(given: Any) -> bool:
    """Whether it is a real number, of Python or numpy.

    >>> is_number(np.float32(0.5)), is_number("0.5"), is_number(True)
    (True, False, False)
    """
    return isinstance(given, Real) and not isinstance(given, bool)


def magnitudes(sparsifier: object, tensor: torch.Tensor) -> torch.Tensor:
    """Absolute values that can be compared and added up.

    Raises:
        OperandError: the tensor holds NaN, or no floating-point numbers.
        UnsupportedError: it holds no values, on the meta device.
    """
    if tensor.is_meta:
        raise UnsupportedError(f"{sparsifier} of a meta tensor, which has no values: give it some first, as by to_empty(device='cpu')")
    if not tensor.is_floating_point():
        raise OperandError(f"{sparsifier} of a tensor of {tensor.dtype}: it takes floating-point numbers; convert with .to(torch.float32)")
    sizes = tensor.detach().abs()
    if not torch.compiler.is_compiling() and bool(
        sizes.sum().isnan()
    ):  # programs that torch compiles ask no values; positive numbers have no other sum that is NaN
        at = tuple(sizes.isnan().nonzero()[0].tolist())
        raise OperandError(f"{sparsifier} of a tensor with NaN at {at}, which is neither small nor large: replace it, as with nan_to_num()")
    return sizes if sizes.dtype == torch.float64 else sizes.float()


def lowest(scores: torch.Tensor, fraction: float) -> torch.Tensor:
    """The mask of this share of all scores, the lowest ones, and of equal ones those that come first. O(n).

    >>> lowest(torch.tensor([1.0, 0.0, 1.0, 1.0]), 0.75)
    tensor([ True,  True,  True, False])
    """
    return least(scores.reshape(-1), round(fraction * scores.numel())).reshape(scores.shape)


def least(scores: torch.Tensor, count: int, dim: int = -1) -> torch.Tensor:
    """The mask of so many scores of each slice, the lowest ones, and of equal ones those that come first. O(n).

    >>> least(torch.tensor([[1.0, 0.0, 1.0], [3.0, 2.0, 1.0]]), 2)
    tensor([[ True,  True, False],
            [False,  True,  True]])
    """
    if not count or not scores.numel():
        return torch.zeros_like(scores, dtype=torch.bool)
    slices = scores.movedim(dim, -1)
    rows = slices.reshape(-1, slices.shape[-1]).contiguous()
    bounds = np.partition(rows.numpy(force=True), count - 1)[:, count - 1 : count]  # ten times as fast as kthvalue
    bound = torch.from_numpy(bounds).to(scores.device)
    mask = rows <= bound
    if int(torch.count_nonzero(mask)) > count * len(rows):
        _leave_out(mask, rows == bound, count)
    return mask.reshape(slices.shape).movedim(-1, dim)


def least_by_place(scores: torch.Tensor, count: int, indices: torch.Tensor) -> torch.Tensor:
    """As :func:`least` of one slice, but of equal scores those come first that do so by their coordinates (ndim, n).

    >>> least_by_place(torch.tensor([1.0, 1.0, 2.0]), 1, torch.tensor([[1, 0, 0], [0, 1, 0]]))
    tensor([False,  True, False])
    """
    mask = least(scores, count)
    equal = (scores == scores[mask].max()).nonzero()[:, 0] if count else mask.nonzero()[:, 0]
    surplus = int(mask[equal].sum())
    if surplus < len(equal):
        ordered = torch.from_numpy(np.lexsort(indices[:, equal].flip(0).numpy()))  # whose last key counts the most
        mask[equal[ordered]] = torch.arange(len(equal)) < surplus
    return mask


def _leave_out(mask: torch.Tensor, equal: torch.Tensor, count: int) -> None:
    """Of equal scores, take out those that come last, until each row has found so many."""
    surplus = mask.sum(-1, keepdim=True) - count
    if len(mask) > 1:
        rows = surplus[:, 0].nonzero()[:, 0]  # most often a few
        part = mask[rows]
        _leave_out_last(part, equal[rows], surplus[rows])
        mask[rows] = part
    else:
        _leave_out_last(mask, equal, surplus)


def _leave_out_last(mask: torch.Tensor, equal: torch.Tensor, surplus: torch.Tensor) -> None:
    number = equal.cumsum(-1, dtype=torch.int32 if equal.shape[-1] <= INT32_MAX else torch.int64)
    mask &= ~(equal & (number > number[:, -1:] - surplus))
