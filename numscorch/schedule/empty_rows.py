"""empty_rows: of a matrix most of whose rows have no entries, only those that have some are walked.

A loop over all rows takes as long for an empty one as for an entry. Rows that have entries are listed once, and the list is
remembered with the pattern; values and columns are shared, and a vector that starts as zeros is all that the others need.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.format import Format
from ..ir.index import Access, Assignment, IndexVar, accesses_in, is_product
from ..ir.levels import Compressed, Dense
from . import cost, tuning
from .facts import Facts

BY_NUMBER = (Dense(), Compressed())
LISTED = (Compressed(), Compressed())


def without_empty_rows(stmt: Assignment, order: tuple[IndexVar, ...], access: Access, facts: Facts) -> Access:
    """The access with its rows listed, if loops in this order walk the rows, and most have no entries; else the very same.

    The statement is a sum over the rows' entries with a dense result, and the matrix its only sparse operand: another one may
    lend it rows. A result with further dimensions has to be filled with as many zeros as a loop over all rows would write.

    >>> from numscorch.ir.format import CSR
    >>> from numscorch.ir.index import TensorVar
    >>> i, j = IndexVar("i"), IndexVar("j")
    >>> A, y = Access(TensorVar("A", CSR), (i, j)), Access(TensorVar("y", Format("d")), (i,))
    >>> facts = Facts(((i, 1000), (j, 1000)), (("A", CSR, (1000, 100)),))
    >>> str(without_empty_rows(Assignment(y, A), (i, j), A, facts).tensor.format)
    '(i, j) -> (i: compressed, j: compressed)'
    """
    tensor, result = access.tensor, stmt.lhs.tensor
    if tensor.format.levels != BY_NUMBER or order != (access.level_var(0), access.level_var(1)):
        return access
    sums = stmt.op in ("=", "+=") and is_product(stmt.rhs) and result.is_dense
    alone = all(other.tensor.is_dense or other == access for other in accesses_in(stmt.rhs))
    rows, entries = cost.counts_of(access, facts)
    if not (sums and alone) or set(stmt.lhs.indices) == set(order) or entries * tuning.LISTED_ROWS > rows:
        return access
    return Access(replace(tensor, format=Format(LISTED, tensor.format.parts)), access.indices)
