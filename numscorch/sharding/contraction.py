"""Contraction of dense operands before an exchange, so that ranks send shorter rows: ``A @ (x @ W)`` instead of ``(A @ x) @ W``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import prod
from string import ascii_letters

import torch

from ..api import einsum
from ..frontend.parser import Subscripts
from .dense_operands import LocalOperand
from .placements import Names
from .tensor import ShardedSparseTensor

Operands = Sequence[ShardedSparseTensor | LocalOperand]
Pair = tuple[int, int, tuple[str, ...]]  # positions of two operands, and the indices of their product


def text_of(subscripts: Subscripts) -> str:
    """The text of an einsum, in which letters stand for the dimensions of an ellipsis.

    >>> text_of(Subscripts((("e0", "a"), ("i", "a")), ("e0", "i")))
    'ba,ia->bi'
    """
    names = dict.fromkeys(name for operand in subscripts.operands for name in operand)
    free = (letter for letter in ascii_letters if letter not in names)
    letters = {name: name if len(name) == 1 else next(free) for name in names}
    terms = ["".join(letters[name] for name in names) for names in (*subscripts.operands, subscripts.result)]
    return f"{','.join(terms[:-1])}->{terms[-1]}"


def contracted(subscripts: Subscripts, operands: Operands, column: str) -> tuple[Subscripts, Operands]:
    """The expression after products of dense operands that make the rows to send shorter.

    A row whose gradient is sent back counts twice. Rows of the same length are multiplied before, too: afterwards, each rank would
    multiply those of its halo.

    Args:
        subscripts: the names of the indices.
        operands: of this rank.
        column: the name of the matrix's columns.
    """
    dtypes = {operand.values.dtype if isinstance(operand, ShardedSparseTensor) else operand.value.dtype for operand in operands}
    if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point:  # the order matters where integers overflow
        return subscripts, operands
    while (pair := _pair(subscripts, operands, column)) is not None:
        at, factor_at, kept = pair
        both = Subscripts((subscripts.operands[at], subscripts.operands[factor_at]), kept)
        product = LocalOperand(einsum(text_of(both), operands[at].value, operands[factor_at].value), column, kept.index(column))
        left = [place for place in range(len(operands)) if place != factor_at]
        names = tuple(kept if place == at else subscripts.operands[place] for place in left)
        operands = [product if place == at else operands[place] for place in left]
        subscripts = Subscripts(names, subscripts.result)
    return subscripts, operands


def _pair(subscripts: Subscripts, operands: Operands, column: str) -> Pair | None:
    """An operand whose rows are sent and a factor, whose product has rows that are no longer; None if there is none."""
    names = subscripts.operands
    for at, factor_at in permutations(range(len(operands)), 2):
        sent, factor = operands[at], operands[factor_at]
        if not isinstance(sent, LocalOperand) or not isinstance(factor, LocalOperand):
            continue
        if sent.index != column or sent.is_whole or factor.index is not None or not set(names[at]) & set(names[factor_at]):
            continue
        elsewhere = {*subscripts.result, *(name for place, others in enumerate(names) if place not in (at, factor_at) for name in others)}
        kept = tuple(dict.fromkeys(name for name in (*names[at], *names[factor_at]) if name in elsewhere))
        sizes = [dict(zip(names[place], operands[place].value.shape, strict=True)) for place in (at, factor_at)]
        both = Subscripts((names[at], names[factor_at]), kept).sizes([sent.value.shape, factor.value.shape])
        if any(size not in (1, both[name]) for one in sizes for name, size in one.items()):
            continue  # sizes clash: the error shows the whole expression
        if _length(both, kept, column, sent.value, factor.value) <= _length(sizes[0], names[at], column, sent.value):
            return at, factor_at, kept
    return None


def _length(sizes: dict[str, int], names: Names, column: str, *values: torch.Tensor) -> int:
    """The numbers that are sent for each row of an operand computed from these values, forth and, in the backward pass, back."""
    is_differentiated = torch.is_grad_enabled() and any(value.requires_grad for value in values)
    return prod(sizes[name] for name in names if name != column) * (2 if is_differentiated else 1)
