"""tile: loops over tiles keep reused operands in the cache (Scorch, section 4.2 and Algorithm 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from ..errors import ScheduleError
from ..ir.index import Access, Assignment, Forall, IndexVar, Stmt, Tile, assignments, loops_of, map_assignments, operands_of, result_of
from . import tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target
from .loop_order import unit_stride
from .parallel import work_of
from .statements import statements_of


def tile(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str]:
    """Add an outermost loop over tiles of a dense dimension if the loops reuse more data than the cache holds.

    Algorithm 3 says which loops may be tiled. They are tiled if a dense operand exceeds the cache, is reused often, and has few
    enough rows for a tile to fit. Summed loops are tiled only on request; tiling them was slower in
    every measurement. The options may name a variable and its tile size, or disable tiles.

    Raises:
        ScheduleError: the variable of the options cannot be tiled.

    >>> from numscorch.ir.format import CSR
    >>> from numscorch.ir.index import TensorVar
    >>> from numscorch.ir.notation import parse_stmt
    >>> stmt = parse_stmt("forall(i, forall(j, forall(k, C[i,k] += A[i,j] * B[j,k])))", {"A": TensorVar("A", CSR)})
    >>> extents = dict(zip(map(IndexVar, "ijk"), (10_000, 10_000, 1000)))
    >>> facts = Facts.of(extents, {"A": (CSR, (10_000, 1_000_000))}, 8, Target())
    >>> print(tile(stmt, facts, Target(cache=32 << 20))[0])
    tile_forall<128>(k, forall(i, forall(j, forall(k, C[i,k] += A[i,j] * B[j,k]))))
    """
    if statements_of(stmt)[0]:
        return stmt, "fused statements are not tiled: each tile would repeat the statements that do not depend on it"
    if options.tile is None:
        return _tile_if_it_pays(stmt, facts, target)
    name, size = options.tile
    if not name:
        return stmt, "requested: no tiles"
    if (why := refusal(IndexVar(name), stmt)) is not None:
        raise ScheduleError(
            f"tile({name}, {size}): {why}\n  {stmt}     only a dense loop below all sparse loops can be tiled: reorder(...) puts it there"
        )
    return tiled(stmt, IndexVar(name), size), f"requested: tiles of {size}"


def _tile_if_it_pays(stmt: Stmt, facts: Facts, target: Target) -> tuple[Stmt, str]:
    for var in dict.fromkeys(loop.var for loop in loops_of(stmt)):
        for access in _reused_operands(var, stmt, facts) if refusal(var, stmt) is None else ():
            size = _tile_size(access, var, facts, target)
            if size:
                return tiled(stmt, var, size), f"{access} is reused and exceeds the cache: tiles of {size} fit"
    return stmt, "no dense operand is reused often, exceeds the cache, and fits it in tiles"


def _reused_operands(var: IndexVar, stmt: Stmt, facts: Facts) -> Iterator[Access]:
    """Yield the contiguous dense operands whose values are used many times, if the result's values also have many terms."""
    result = result_of(stmt)
    work = work_of(stmt, facts) if var in result.indices else 0.0
    for access in operands_of(stmt):
        is_contiguous = access.tensor.is_dense and access.tensor.has_values and var in access.indices and unit_stride(access, var)
        if is_contiguous and work >= tuning.TILE_REUSE * max(_values(access, facts), _values(result, facts)):
            yield access


def _values(access: Access, facts: Facts) -> float:
    """Product of the extents of a tensor, without its broadcast dimensions."""
    strides = access.tensor.strides or "n" * len(access.indices)
    return prod(facts.extent(var) for var, stride in zip(access.indices, strides, strict=True) if stride != "0")


def _tile_size(access: Access, var: IndexVar, facts: Facts, target: Target) -> int:
    """The largest power of two for which a tile of the operand fits in its share of the cache; 0 if tiles do not pay."""
    total = _values(access, facts) * access.tensor.type.itemsize
    if total <= target.cache / tuning.TILED_SHARE:
        return 0
    limit = int(target.cache / tuning.TILE_SHARE / total * facts.extent(var))
    size = 1 << max(limit.bit_length() - 1, 0)
    return size if size * access.tensor.type.itemsize >= tuning.TILE_ROW else 0


def tiled(stmt: Stmt, var: IndexVar, size: int) -> Stmt:
    """Run the statement once for each tile; a sum over the variable is added to the result tile by tile."""
    lhs = result_of(stmt)

    def added(assignment: Assignment) -> Assignment:
        return replace(assignment, op="+=") if assignment.op == "=" and assignment.lhs.tensor == lhs.tensor else assignment

    return Forall(var, stmt if var in lhs.indices else map_assignments(stmt, added), Tile(size))


def refusal(var: IndexVar, stmt: Stmt) -> str | None:
    """The reason why a variable cannot be tiled; None if it can."""
    loops, result = loops_of(stmt), result_of(stmt)
    if all(loop.var != var for loop in loops):
        return f"no loop runs over {var}, only over {', '.join(dict.fromkeys(str(loop.var) for loop in loops))}"
    if result.tensor.is_assembled:
        return f"the entries of {result} are appended in order"
    if (access := _sparse_at(var, stmt)) is not None:
        return f"{var} is sparse in {access}"
    for inner in (inner for loop in loops if loop.var == var for inner in loops_of(loop.body)):
        if (access := _sparse_at(inner.var, stmt)) is not None:
            return f"the loop over {var} contains the loop over {inner.var}, which is sparse in {access}"
    if var not in result.indices and any(a.op not in ("=", "+=") for a in assignments(stmt)):
        return f"only sums can be tiled, and {var} is reduced by another operation"
    return None


def _sparse_at(var: IndexVar, stmt: Stmt) -> Access | None:
    return next((access for access in operands_of(stmt) if access.sparse_levels(var)), None)
