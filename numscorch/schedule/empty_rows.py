"""empty_rows: a loop over a matrix with mostly empty rows walks only the rows that have entries.

In a loop over all rows, an empty row takes as long as an entry. The list of nonempty rows is built once and cached with the
pattern; columns and values are shared. The result vector starts as zeros, so empty rows need no step.
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
    """Return the access with its rows listed if loops in this order walk the rows and most rows are empty; else the same access.

    The statement must sum over each row into a dense vector, and the matrix must be its only sparse operand, since other
    operands could contribute to empty rows. A result with more dimensions gains nothing: filling it with zeros takes as
    long as a loop over all rows.

    >>> from numscorch.ir.format import CSR
    >>> from numscorch.ir.index import TensorVar
    >>> i, j = IndexVar("i"), IndexVar("j")
    >>> A, y = Access(TensorVar("A", CSR), (i, j)), Access(TensorVar("y", Format("d")), (i,))
    >>> facts = Facts(((i, 1000), (j, 1000)), (("A", CSR, (1000, 100)),))
    >>> str(without_empty_rows(Assignment(y, A), (i, j), A, facts).tensor.format)
    '(i, j) -> (i: compressed, j: compressed)'
    """
    tensor, result = access.tensor, stmt.lhs.tensor
    if len(order) != 2 or tensor.format.levels != BY_NUMBER or order != (access.level_var(0), access.level_var(1)):
        return access
    is_sum = stmt.op in ("=", "+=") and is_product(stmt.rhs) and result.is_dense
    is_only_sparse = all(other.tensor.is_dense or other == access for other in accesses_in(stmt.rhs))
    rows, entries = cost.counts_of(access, facts)
    if not (is_sum and is_only_sparse) or set(stmt.lhs.indices) == set(order) or entries * tuning.LISTED_ROWS > rows:
        return access
    return Access(replace(tensor, format=Format(LISTED, tensor.format.parts)), access.indices)
