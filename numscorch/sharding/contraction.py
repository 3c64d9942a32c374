"""Contraction of dense operands before an exchange, so that ranks send shorter rows: ``A @ (x @ W)`` instead of ``(A @ x) @ W``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import prod
from string import ascii_letters

import torch

from ..api import einsum
from ..errors import SizeError
from ..frontend.parser import Subscripts
from .dense_operands import LocalOperand
from .tensor import ShardedSparseTensor

Operands = Sequence[ShardedSparseTensor | LocalOperand]
Pair = tuple[int, int, tuple[str, ...]]  # positions of two operands, and the indices of their product
PRECISE = (torch.float32, torch.float64, torch.complex64, torch.complex128)  # a product of others could overflow in one order only


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


def contract(subscripts: Subscripts, operands: Operands, column: str) -> tuple[Subscripts, Operands]:
    """Multiply dense operands first where this shortens the rows to send.

    All ranks choose the same products, because only sizes and data types matter.

    Args:
        subscripts: the names of the indices.
        operands: the local operands.
        column: the name of the matrix's columns.

    Raises:
        SizeError: the sizes of dense operands clash.

    >>> x, W = LocalOperand(torch.ones(5, 8), "j", 0), LocalOperand(torch.ones(2, 8), None, 0)
    >>> subscripts, operands = contract(Subscripts((("j", "k"), ("f", "k")), ("j", "f")), [x, W], "j")
    >>> subscripts, operands[0].value.shape
    (Subscripts(operands=(('j', 'f'),), result=('j', 'f')), torch.Size([5, 2]))
    """
    sizes = _sizes(subscripts, operands)
    dtypes = {operand.values.dtype if isinstance(operand, ShardedSparseTensor) else operand.value.dtype for operand in operands}
    if len(dtypes) > 1 or not dtypes.issubset(PRECISE):
        return subscripts, operands
    while (pair := _shortening_pair(subscripts, operands, column, sizes)) is not None:
        at, factor_at, kept = pair
        both = Subscripts((subscripts.operands[at], subscripts.operands[factor_at]), kept)
        product = LocalOperand(einsum(text_of(both), operands[at].value, operands[factor_at].value), column, kept.index(column))
        remaining = [place for place in range(len(operands)) if place != factor_at]
        names = tuple(kept if place == at else subscripts.operands[place] for place in remaining)
        operands = [product if place == at else operands[place] for place in remaining]
        subscripts = Subscripts(names, subscripts.result)
    return subscripts, operands


def _sizes(subscripts: Subscripts, operands: Operands) -> dict[str, int]:
    """The sizes of the indices of dense operands, which are checked before anything is sent.

    Raises:
        SizeError: two operands have different sizes, neither of which is 1.
    """
    sizes: dict[str, int] = {}
    for names, operand in zip(subscripts.operands, operands, strict=True):
        for name, size in zip(names, operand.value.shape, strict=True) if isinstance(operand, LocalOperand) else ():
            if name == operand.index or size == 1:
                sizes.setdefault(name, size)
            elif sizes.get(name, 1) not in (1, size):
                raise SizeError(f"{text_of(subscripts)!r}: index {name} has size {sizes[name]} in one operand, and {size} in another one")
            else:
                sizes[name] = size
    return sizes


def _shortening_pair(subscripts: Subscripts, operands: Operands, column: str, sizes: dict[str, int]) -> Pair | None:
    """An operand whose rows are sent, and a factor with which the rows are shorter; None if there is none."""
    names = subscripts.operands
    for at, factor_at in permutations(range(len(operands)), 2):
        sent, factor = operands[at], operands[factor_at]
        if not isinstance(sent, LocalOperand) or not isinstance(factor, LocalOperand):
            continue
        if sent.index != column or sent.is_whole or factor.index is not None or not set(names[at]) & set(names[factor_at]):
            continue
        elsewhere = {*subscripts.result, *(name for place, others in enumerate(names) if place not in (at, factor_at) for name in others)}
        kept = tuple(dict.fromkeys(name for name in (*names[at], *names[factor_at]) if name in elsewhere))
        length = prod(sizes[name] for name in kept if name != column)
        if length < prod(size for name, size in zip(names[at], sent.value.shape, strict=True) if name != column):
            return at, factor_at, kept
    return None
