"""Parse einsum expressions in NumPy's notation, and the text of ``rearrange``; errors mark the position with a caret."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from numbers import Integral
from typing import Any

import numpy as np

from ..errors import ExpressionError

ELLIPSIS = "..."
_TOKEN = re.compile(r"\.\.\.|.", re.DOTALL)
_NO_ARROW = re.compile(r"[-=]*>|[-=]+|[\u2192\u21d2]")  # misspellings of ->

Names = tuple[str, ...]  # names that ``rearrange`` merges into one dimension, outermost first
PlacedNames = tuple[tuple[str, int], ...]  # the same, each with its position in the text


@dataclass(frozen=True, slots=True)
class Subscripts:
    """The index names of every operand and of the result.

    >>> parse_einsum("ij,jk", (2, 2))
    Subscripts(operands=(('i', 'j'), ('j', 'k')), result=('i', 'k'))
    """

    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join(map("".join, self.operands)) + "->" + "".join(self.result)

    def sizes(self, shapes: Iterable[Sequence[Any]]) -> dict[str, Any]:
        """The size of each index; size 1 broadcasts.

        >>> parse_einsum("ij,jk", (2, 2)).sizes([(2, 1), (3, 4)])
        {'i': 2, 'j': 3, 'k': 4}
        """
        sizes: dict[str, Any] = {}
        for names, shape in zip(self.operands, shapes, strict=True):
            sizes |= {name: size for name, size in zip(names, shape, strict=True) if sizes.get(name, 1) == 1}
        return sizes


@lru_cache(maxsize=1024)
def parse_einsum(expr: str, ranks: tuple[int, ...]) -> Subscripts:
    """Parse an einsum expression for operands of these ranks.

    Without ``->``, the result has the dimensions of the ellipsis, then the indices that occur once in alphabetical order,
    as in NumPy. The dimensions of an ellipsis are named ``e0``, ``e1``, ... and aligned at the right. A result without an
    ellipsis sums over them, as in torch.

    Raises:
        ExpressionError: unknown characters, a wrong number of operands or indices, or unknown or repeated indices in
            the result.
    """
    left, arrow, right = expr.partition("->")
    if not arrow and (match := _NO_ARROW.search(expr)):
        raise pointed(expr, match.start(), f"{match[0]!r} is not an arrow: did you mean ->?")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ExpressionError(f"{expr!r} has {len(terms)} terms for {len(ranks)} operands: write one term for each, separated by commas")
    places = list(accumulate((len(term) + 1 for term in terms[:-1]), initial=0))
    ellipsis_ranks = [_ellipsis_rank(expr, term, rank, place) for term, rank, place in zip(terms, ranks, places, strict=True)]
    most = max(ellipsis_ranks)
    operands = tuple(_names(expr, t, n, most, p) for t, n, p in zip(terms, ellipsis_ranks, places, strict=True))
    if not arrow:
        counts = Counter(name for operand in operands for name in operand if len(name) == 1)
        once = sorted(name for name, count in counts.items() if count == 1)
        return Subscripts(operands, (*(f"e{d}" for d in range(most)), *once))
    result = _names(expr, right, most, most, len(left) + 2)
    _check_result(expr, operands, result, len(left) + 2)
    return Subscripts(operands, result)


def _ellipsis_rank(expr: str, term: str, rank: int, place: int) -> int:
    """The number of dimensions that an operand's ellipsis stands for."""
    letters = sum(c.isalpha() for c in term)
    if ELLIPSIS in term and rank >= letters:
        return rank - letters
    if letters != rank:
        raise pointed(expr, place, f"{term.strip()!r} names {letters} dimensions, but its operand has {rank}: name each, or use ...")
    return 0


def _names(expr: str, term: str, rank: int, most: int, place: int) -> tuple[str, ...]:
    names: list[str] = []
    for token in _TOKEN.finditer(term):
        if token[0] == ELLIPSIS and token.start() == term.find(ELLIPSIS):
            names += [f"e{d}" for d in range(most - rank, most)]
        elif token[0].isascii() and token[0].isalpha():
            names.append(token[0])
        elif not token[0].isspace():
            why = f"{token[0][0]!r} is not an index: use letters, commas, one ... in a term, and one ->"
            raise pointed(expr, place + token.start(), why)
    return tuple(names)


def _check_result(expr: str, operands: Sequence[tuple[str, ...]], result: tuple[str, ...], place: int) -> None:
    known = {name for operand in operands for name in operand}
    for name in result:
        at = expr.find(name, place) if len(name) == 1 else place
        if name not in known:
            raise pointed(expr, at, f"the result's index {name} is in no operand: the known ones are {', '.join(sorted(known))}")
        if result.count(name) > 1:
            raise pointed(expr, expr.rfind(name), f"the result's index {name} is repeated: name each once")


def pointed(expr: str, place: int, why: str) -> ExpressionError:
    """An error that shows the expression with a caret below the position."""
    return ExpressionError(f"{why}\n  {expr}\n  {' ' * place}^")


def from_sublists(args: Sequence[object]) -> tuple[str, list[object]]:
    """Convert NumPy's sublist form, ``einsum(A, [0, 1], B, [1, 2], [0, 2])``, to an expression and its operands.

    A sublist is a list, a tuple or a 1-D array.

    Raises:
        ExpressionError: a sublist contains anything but integers from 0 to 51 and ``...``.
    """
    pairs, result = (args[:-1], args[-1]) if len(args) % 2 else (args, None)
    operands, terms = list(pairs[::2]), [_letters(sub) for sub in pairs[1::2]]
    text = ",".join(terms)
    return (text if result is None else f"{text}->{_letters(result)}"), operands


def _letters(sublist: object) -> str:
    names = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    if isinstance(sublist, np.ndarray) and sublist.ndim == 1:
        sublist = sublist.tolist()
    if not isinstance(sublist, list | tuple) or not all(s is Ellipsis or (isinstance(s, Integral) and 0 <= int(s) < 52) for s in sublist):
        shown = repr(sublist) if isinstance(sublist, list | tuple | str | int | None) else f"a {type(sublist).__name__}"
        raise ExpressionError(f"{shown} is not a sublist: give integers from 0 to 51, or ..., as in einsum(A, [0, 1], B, [1, 2], [0, 2])")
    return "".join(ELLIPSIS if s is Ellipsis else names[int(s)] for s in sublist)


def _place_of(text: str, name: str) -> int:
    match = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)
    return match.start() if match else text.find(name)


@lru_cache(maxsize=1024)
def parse_rearrangement(text: str, rank: int, given: tuple[str, ...]) -> tuple[tuple[Names, ...], tuple[Names, ...]]:
    """Parse the names of each dimension before and after the rearrangement.

    Args:
        text: the expression, such as ``"b (h w) -> b h w"``.
        rank: number of dimensions of the tensor.
        given: the names whose sizes are passed.

    Raises:
        ExpressionError: the text cannot be parsed, or does not fit the rank; a caret marks the position.

    >>> parse_rearrangement("bd->bnd", 2, ("n",))
    ((('b',), ('d',)), (('b',), ('n',), ('d',)))
    >>> parse_rearrangement("... (h w) -> h w ...", 3, ("h",))
    ((('...0',), ('...1',), ('h', 'w')), (('h',), ('w',), ('...0',), ('...1',)))
    """
    left, arrow, right = text.partition("->")
    if not arrow or "->" in right:
        raise pointed(text, len(text) if not arrow else text.rfind("->"), "rearrange takes names on both sides of one ->")
    words = any(re.search(r"\S\s+\S", side.strip()) for side in (left, right))
    before, after = _dimensions(text, left, 0, words), _dimensions(text, right, len(left) + 2, words)
    hidden = rank - sum(not _is_ellipsis(dimension) for dimension in before)
    if hidden < 0 or (hidden and not any(map(_is_ellipsis, before))):
        raise pointed(text, 0, f"{left.strip()!r} names {rank - hidden} dimensions, but the tensor has {rank}: name each, or use ...")
    _check_names(text, before, after, given)
    return _expand_ellipsis(before, hidden), _expand_ellipsis(after, hidden)


def _dimensions(text: str, side: str, start: int, words: bool) -> list[PlacedNames]:
    """Parse the dimensions of one side; names are whole words if ``words``, else single letters."""
    dimensions: list[PlacedNames] = []
    group: list[tuple[str, int]] | None = None  # the names inside an open parenthesis
    for match in re.finditer(r"(\s+|\.\.\.|[()]|1(?!\w)|[A-Za-z]\w*)|." if words else r"(\s+|\.\.\.|[()1A-Za-z])|.", side):
        token, place = match[0], start + match.start()
        if match[1] is None or (token == ")" and group is None) or (token in ("(", ELLIPSIS) and group is not None):
            raise pointed(text, place, f"{token!r} is not a name here: use names, 1, ( ) around names to merge, and one ...")
        if token == "(":
            group = []
        elif token == ")":
            dimensions.append(tuple(group or ()))
            group = None
        elif group is None and not token.isspace():
            dimensions.append(() if token == "1" else ((token, place),))
        elif group is not None and not token.isspace() and token != "1":
            group.append((token, place))
    if group is not None:
        raise pointed(text, start + len(side), "a parenthesis is open: close it with )")
    return dimensions


def _is_ellipsis(dimension: PlacedNames) -> bool:
    return bool(dimension) and dimension[0][0] == ELLIPSIS


def _check_names(text: str, before: list[PlacedNames], after: list[PlacedNames], given: tuple[str, ...]) -> None:
    """Check that each name occurs once on each side, and that new names have a size.

    Raises:
        ExpressionError: a name is repeated, missing, new without a size, or unused.
    """
    old, new = dict(chain(*before)), dict(chain(*after))
    for name, place in chain(*before, *after):
        if place not in (old.get(name), new.get(name)):
            raise pointed(text, place, f"{name} is repeated: name each dimension once; use einsum for a diagonal")
        if name not in new:
            raise pointed(text, place, f"{name} is missing on the right: sum over it with einsum, or name it there")
        if name not in old and (name == ELLIPSIS or name not in given):
            suggestion = "name it on the left" if name == ELLIPSIS else f"give its size, as {name}=2, or name it on the left"
            raise pointed(text, place, f"the size of the new dimension {name} is unknown: {suggestion}")
    for name in given:
        if name not in new:
            raise pointed(text, 0, f"{name}= does not name a dimension: the names are {', '.join(new)}")


def _expand_ellipsis(dimensions: Iterable[PlacedNames], hidden: int) -> tuple[Names, ...]:
    """The names alone, without their places in the text; an ellipsis becomes one name for each of its dimensions."""
    ellipsis = [(f"{ELLIPSIS}{at}",) for at in range(hidden)]
    named = (ellipsis if _is_ellipsis(dimension) else [tuple(name for name, _ in dimension)] for dimension in dimensions)
    return tuple(chain.from_iterable(named))
