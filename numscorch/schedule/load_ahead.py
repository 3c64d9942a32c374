"""load_ahead: rows that the coordinates of another operand choose are prefetched several positions before they are read.

The branch at the end of each row is mispredicted, and the next row is far away, so that the processor waits for each row in turn. A
prefetch starts these loads early (Callahan, Kennedy, Porterfield, "Software Prefetching", ASPLOS 1991).
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.dtype import DTYPES
from ..ir.index import Access, Ahead, Forall, Serial, Stmt, map_loops
from ..ir.verify import chosen_rows
from . import cost, tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target


def load_ahead(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Prefetch the rows that a loop's coordinates choose if they exceed the nearest cache; None if there are no such loops.

    >>> from ..ir.format import CSR
    >>> from ..ir.index import IndexVar, TensorVar
    >>> from ..ir.notation import parse_stmt
    >>> nest = parse_stmt("forall(i, forall(j, forall(k, C[i,k] += A[i,j] * B[j,k])))", {name: TensorVar(name, CSR) for name in "AB"})
    >>> counts = tuple((name, CSR, (1000, 8000)) for name in "AB")
    >>> print(*load_ahead(nest, Facts(tuple((IndexVar(name), 1000) for name in "ijk"), counts)) or (), sep="\\n")
    forall(i, ahead_forall<8>(j, forall(k, C[i,k] += A[i,j] * B[j,k])))
    j chooses rows of B, whose 9.6e+04 bytes exceed the nearest cache: they are prefetched
    """
    reasons: list[str] = []

    def tagged(loop: Forall) -> Forall:
        rows = chosen_rows(loop) if loop.tag == Serial() else []
        far = {access.tensor.name: size for access, at in rows if (size := _size(access, at, facts)) > tuning.NEAREST_CACHE}
        reasons.extend(
            f"{loop.var} chooses rows of {name}, whose {size:.3g} bytes exceed the nearest cache: they are prefetched"
            for name, size in far.items()
        )
        return replace(loop, tag=Ahead(tuning.ROWS_AHEAD)) if far else loop

    nest = map_loops(stmt, tagged)
    return (nest, "; ".join(reasons)) if reasons else None


def _size(access: Access, at: int, facts: Facts) -> float:
    """The bytes of an operand's level, with the values if it is the last one."""
    tensor = access.tensor
    values = tensor.type.itemsize if tensor.has_values and at + 1 == len(access.indices) else 0
    return cost.counts_of(access, facts)[at] * (DTYPES[tensor.index_dtype].itemsize + values)
