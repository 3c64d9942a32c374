"""order_values: values that are stored in another order are read through an array of places, or gathered before the kernel runs.

The index arrays of a converted operand are cached with the pattern, but values may change between calls. To gather them takes
longer than a product with a vector. Kernels that read each value about once save this time by reading it where it is stored.
"""

from __future__ import annotations

from ..ir.functions import is_intersection
from ..ir.index import Access, Stmt, Vector, is_relation, loops_of, map_expr, operands_of, value_of
from ..ir.level import INT32_MAX
from ..ir.levels import Compressed, Singleton
from . import cost, tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target


def order_values(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Read the values of converted operands through an array of places, if each value is read about once.

    Returns None if all values are stored in the order in which they are read.

    >>> from numscorch.ir.format import CSC, CSR
    >>> from numscorch.ir.index import IndexVar, TensorVar
    >>> from numscorch.ir.notation import parse_stmt
    >>> nest = parse_stmt("forall(i, forall(j, y[i] += A[i,j] * x[j]))", {"A": TensorVar("A", CSR)})
    >>> facts = Facts(((IndexVar("i"), 10), (IndexVar("j"), 20)), (("A", CSC, (20, 40)),))
    >>> nest, why = order_values(nest, facts)
    >>> print(why, [access.tensor.is_reordered for access in operands_of(nest)])
    A is stored as CSC, and each value is read about 1 times: through an array of places [True, False]
    """
    operands = {access.tensor.name: access for access in operands_of(stmt)}
    owners = {name: operands[access.tensor.shares or name] for name, access in operands.items() if access.tensor.has_values}
    times = {name: _times_read(stmt, operands[name], owner, facts) for name, owner in owners.items() if _is_in_another_order(owner, facts)}
    reordered = {name for name, reads in times.items() if reads <= tuning.REORDERED_READS}
    sizes = {name: facts.count(owners[name].tensor.name)[1][-1] * operands[name].tensor.type.itemsize for name in reordered}
    far = {name for name, size in sizes.items() if size > tuning.FAR_VALUES * target.own_cache}
    reasons = [
        f"{name} is stored as {facts.count(owners[name].tensor.name)[0].name}, and each value is read about {reads:.3g} times: "
        + ("through an array of places" if name in reordered else "gathered first")
        + (", prefetched" if name in far else "")
        for name, reads in times.items()
    ]
    if not reasons:
        return None

    def marked(access: Access) -> Access:
        name = access.tensor.name
        is_read = access.tensor.has_values and name in reordered
        return access.with_changes(is_reordered=True, is_far=name in far) if is_read else access

    return map_expr(stmt, marked), "; ".join(reasons)


def _is_in_another_order(access: Access, facts: Facts) -> bool:
    """Whether the loops read the entries of an operand in another order than it is stored in, one for each position."""
    if access.tensor.is_dense or is_relation(access):
        return False
    (stored, counts), read = facts.count(access.tensor.name), access.tensor.format
    is_moved = stored != read and not (stored.is_ordered and stored.parts == read.parts)
    has_entries_only = isinstance(read.levels[-1], Compressed | Singleton)
    return is_moved and has_entries_only and (access.tensor.index_dtype == "int64" or counts[-1] <= INT32_MAX)


def _times_read(stmt: Stmt, access: Access, owner: Access, facts: Facts) -> float:
    """Estimate how often a nest walks each fibre of an operand's last level, and reads its values.

    In an intersection, values are also read where another operand is absent. Later tiles of a vector loop find a value in the cache.
    """
    order = list(dict.fromkeys(loop.var for loop in loops_of(stmt) if not isinstance(loop.tag, Vector)))
    last = max((at for at, var in enumerate(order) if var in access.indices), default=0)
    visits, _ = cost.executions(order[:last], cost.walks_of(operands_of(stmt), facts), facts, not is_intersection(value_of(stmt)))
    fibres = (1.0, *cost.counts_of(owner, facts))[-2]
    return visits / max(fibres, 1.0)
