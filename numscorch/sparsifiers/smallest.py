"""Selection of the smallest absolute values of tensors, chunk by chunk, with little extra memory.

Without its sign bit, a float's bit pattern is an integer that orders as the float does. The bound of the smallest
values is found by radix selection, 16 bits at a time, from the highest digit: each pass counts the keys that share the
digits found so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

CHUNK = 1 << 20  # values per chunk
DIGITS = 1 << 16  # values of a 16-bit digit


def bound_of(tensors: Sequence[torch.Tensor], count: int) -> tuple[int, int]:
    """Return the key of the ``count``-th smallest absolute value of all tensors, and how many of these ``count`` values equal it.

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
