"""scatter_rows: a row that is merged with many other rows is scattered into dense arrays and looked up there.

A merge walks the row again for each of the other rows. A lookup takes steps only for the coordinates of the other row. The
dense arrays are the sparse accumulator of Gilbert, Moler and Schreiber ("Sparse Matrices in MATLAB", 1992), which here is
only read, so that several positions of the other row are looked up at once. The places of the row are cleared afterwards.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.format import Format
from ..ir.index import (
    Access,
    Assignment,
    Forall,
    IndexVar,
    Serial,
    Stmt,
    TensorVar,
    Where,
    accesses_in,
    is_product,
    map_expr,
    map_loops,
    operands_of,
    result_of,
    value_of,
)
from ..ir.workspace_levels import Scattered
from . import cost, tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target
from .vector import take_positions
from .walks import merged_in

Choice = tuple[Access, IndexVar, tuple[IndexVar, ...]]


def scatter_rows(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Scatter a row that is merged with several other rows, and look it up in sums; None if there is no such row.

    >>> from numscorch.ir.format import CSC, CSR
    >>> from numscorch.ir.notation import parse_stmt
    >>> tensors = {"A": TensorVar("A", CSR), "B": TensorVar("B", CSC), "C": TensorVar("C", CSR)}
    >>> nest = parse_stmt("forall(i, forall(k, where(D[i,k] = C[i,k] * u, forall(j, u += A[i,j] * B[j,k]))))", tensors)
    >>> counts = (("A", CSR, (10, 80)), ("B", CSC, (10, 80)), ("C", CSR, (10, 80)))
    >>> found = scatter_rows(nest, Facts(tuple((IndexVar(name), 10) for name in "ijk"), counts))
    >>> print(*found or (), sep="\\n")
    forall(i, where(forall(k, where(D[i,k] = C[i,k] * u, position_forall<4>(j, u += A_row[j] * B[j,k]))), forall(j, A_row[j] = A[i,j])))
    at j, A is merged about 8 times for each i: its row is scattered into a dense array
    """
    if result_of(stmt).tensor.is_assembled or not is_product(value_of(stmt)):
        return None
    choice = _find_row(stmt, (), facts)
    if choice is None:
        return None
    row, var, between = choice
    last = row.level_var(len(row.indices) - 1)
    times = cost.executions(between, cost.walks_of(operands_of(stmt), facts), facts)[0]
    times *= facts.spread(row.tensor.name, len(row.indices) - 1)  # long rows hold most values, and take part in more merges
    if times < tuning.SCATTERED_MERGES:
        return None
    reason = f"at {last}, {row.tensor} is merged about {times:.3g} times for each {var}: its row is scattered into a dense array"
    return _scatter_row(stmt, row, var, last, facts, target), reason


def _find_row(stmt: Stmt, outer: tuple[IndexVar, ...], facts: Facts) -> Choice | None:
    """The row that is merged repeatedly, the loop that fixes it, and the loops between that loop and the merge; None if there is none."""
    match stmt:
        case Forall(var, Assignment() as body, Serial()) if body.lhs.tensor.is_scalar and body.op == "+=":
            names = merged_in(stmt, body) if facts.extent(var) <= tuning.SCATTERED_EXTENT else []
            operands = [access for access in accesses_in(body.rhs) if access.tensor.name in names] if len(names) == 2 else []
            excluded: set[str | None] = {access.tensor.name for access in operands if not access.tensor.has_values}
            excluded |= {access.tensor.shares for access in accesses_in(body.rhs)}  # values are read at their positions
            rows = [access for access in operands if access.tensor.name not in excluded]
            choices = [choice for row in rows if (choice := _choice(row, var, outer)) is not None]
            return max(choices, key=lambda choice: len(choice[2]), default=None)
        case Forall(var, body, Serial()):  # vector loops do not mask terms
            return _find_row(body, (*outer, var), facts)
        case Where(consumer, producer):
            return _find_row(producer, outer, facts) or _find_row(consumer, outer, facts)
        case _:
            return None


def _choice(row: Access, var: IndexVar, outer: tuple[IndexVar, ...]) -> Choice | None:
    above = [outer.index(index) for index in row.indices if index != var]
    if not above or max(above) == len(outer) - 1:
        return None
    return row, outer[max(above)], outer[max(above) + 1 :]


def _scatter_row(stmt: Stmt, row: Access, at: IndexVar, last: IndexVar, facts: Facts, target: Target) -> Stmt:
    """Scatter the row where the body of the loop over ``at`` starts, and gather its values where they were merged."""
    walks = cost.walks_of(operands_of(stmt), facts)
    length = min(cost.length_of_row(walk, last, walks, facts) for walk in walks if last in walk.fans and walk.access != row)
    space = Access(TensorVar(f"{row.tensor}_row", Format((Scattered(),)), row.tensor.dtype, strides="1"), (last,))

    def scattered(loop: Forall) -> Forall:
        body = map_expr(loop.body, lambda access: space if access == row else access)
        if loop.var == last and isinstance(body, Assignment):
            read = replace(loop, body=body)
            positions = take_positions(read, body, facts, target, length) if body.lhs.tensor.type.in_registers else None
            return read if positions is None else positions[0]
        return replace(loop, body=Where(body, Forall(last, Assignment(space, row)))) if loop.var == at else loop

    return map_loops(stmt, scattered)
