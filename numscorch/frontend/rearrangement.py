"""Parse the text of ``rearrange`` into the names of the dimensions before and after."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

from .parser import ELLIPSIS, pointed

Names = tuple[str, ...]  # names that are merged into one dimension, outermost first
PlacedNames = tuple[tuple[str, int], ...]  # the same, each with its position in the text


def _place_of(text: str, name: str) -> int:
    match = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)
    return match.start() if match else text.find(name)


@lru_cache(maxsize=1024)
def parse_rearrangement(text: str, rank: int, given: tuple[str, ...]) -> tuple[tuple[Names, ...], tuple[Names, ...]]:
    """Parse the names of each dimension before and after.

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
    """The names without positions, with one name for each dimension of an ellipsis."""
    names: list[Names] = []
    for dimension in dimensions:
        names += [(f"{ELLIPSIS}{at}",) for at in range(hidden)] if _is_ellipsis(dimension) else [tuple(name for name, _ in dimension)]
    return tuple(names)
