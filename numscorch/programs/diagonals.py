"""Diagonals: a rewrite of a program. A part of its own takes each diagonal, and the part that read it reads the result."""

from __future__ import annotations

from functools import lru_cache

from ..frontend.gradient_requests import without_diagonals
from ..frontend.requests import Request, diagonal_request
from ..frontend.statements import ProgramPart
from ..ir.index import is_product


def diagonals_first(parts: tuple[ProgramPart, ...], at: int) -> tuple[ProgramPart, ...]:
    """Take the diagonals of the operands of the part at index ``at`` first; return the same program if it sums products.

    Kernels of sums of products read diagonals where they lie. In other terms, entries that are not on the diagonal would be zeros.

    >>> from numscorch.frontend.statements import parse_program
    >>> [f"{part.name}: {part.operands} {part.request}" for part in diagonals_first(parse_program("y[i] = A[i,i] + b[i]"), 0)]
    ["1: ('A',) ii->i", "y: ('1', 'b') A[i] + B[i] over i,i->i"]
    """
    return _with_diagonals(parts, at) if _repeating(parts[at].request) else parts


@lru_cache(maxsize=1024)
def _repeating(request: Request) -> tuple[int, ...]:
    """The operands whose diagonals are taken first: those that repeat an index, unless the request sums products."""
    if request.op in ("=", "+=") and (request.value is None or is_product(request.value)):
        return ()
    return tuple(k for k, names in enumerate(request.subscripts.operands) if len(set(names)) < len(names))


@lru_cache(maxsize=1024)
def _with_diagonals(parts: tuple[ProgramPart, ...], at: int) -> tuple[ProgramPart, ...]:
    part, terms, repeating = parts[at], parts[at].request.subscripts.operands, _repeating(parts[at].request)
    names = list(part.operands)
    for number, k in enumerate(repeating, next_number(parts)):
        names[k] = str(number)
    pieces = (ProgramPart(names[k], (part.operands[k],), diagonal_request(terms[k])) for k in repeating)
    return (*parts[:at], *pieces, ProgramPart(part.name, tuple(names), without_diagonals(part.request)), *parts[at + 1 :])


def next_number(parts: tuple[ProgramPart, ...]) -> int:
    """The next free number for the name of a temporary."""
    return max((int(part.name) for part in parts if part.is_temporary), default=0) + 1
