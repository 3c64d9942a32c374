"""Diagonals: a rewrite of a program. A part of its own takes each diagonal, and the part that read it reads the result."""

from __future__ import annotations

from functools import lru_cache

from ..frontend.gradient_requests import without_diagonals
from ..frontend.requests import diagonal_request
from ..frontend.statements import ProgramPart
from ..ir.index import is_product


@lru_cache(maxsize=1024)
def diagonals_first(parts: tuple[ProgramPart, ...], at: int) -> tuple[ProgramPart, ...]:
    """Take the diagonals of the operands of the part at index ``at`` first; return the same program if it sums products.

    Kernels of sums of products read diagonals where they lie. In other terms, entries that are not on the diagonal would be zeros.

    >>> from numscorch.frontend.statements import parse_program
    >>> [f"{part.name}: {part.operands} {part.request}" for part in diagonals_first(parse_program("y[i] = A[i,i] + b[i]"), 0)]
    ["1: ('A',) ii->i", "y: ('1', 'b') A[i] + B[i] over i,i->i"]
    """
    part, request = parts[at], parts[at].request
    terms = request.subscripts.operands
    repeated = [k for k, names in enumerate(terms) if len(set(names)) < len(names)]
    sums_products = request.op in ("=", "+=") and (request.value is None or is_product(request.value))
    if not repeated or sums_products:
        return parts
    names, first = list(part.operands), next_number(parts)
    for number, k in enumerate(repeated, first):
        names[k] = str(number)
    pieces = (ProgramPart(names[k], (part.operands[k],), diagonal_request(terms[k])) for k in repeated)
    return (*parts[:at], *pieces, ProgramPart(part.name, tuple(names), without_diagonals(request)), *parts[at + 1 :])


def next_number(parts: tuple[ProgramPart, ...]) -> int:
    """The next free number for the name of a temporary."""
    return max((int(part.name) for part in parts if part.is_temporary), default=0) + 1
