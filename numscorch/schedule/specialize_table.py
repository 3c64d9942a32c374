"""specialize_table: rows that a table of constants chooses are summed in registers, kind by kind.

In n:m:g a column of a block adds to n of the block's m rows, and the kind of the column determines these rows. The body is
written once for each kind. It sums all columns of the kind in the chunks of a tile in n x R registers, and adds the sums to the
result. No index of a row is loaded, and nothing is scattered (STen, section 5).
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

from ..ir.format import Format
from ..ir.index import (
    Access,
    Assignment,
    Forall,
    Specialize,
    Stmt,
    TensorVar,
    Tile,
    Vector,
    Where,
    accesses_in,
    is_product,
    unwrap,
    wrap,
)
from ..ir.workspace_levels import Held
from . import tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target
from .loop_order import chosen_by_table
from .tiles import tiled
from .vector import narrowed
from .workspace import free_names

Table = tuple[tuple[int, ...], ...]  # the rows of each kind


def specialize_table(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Sum the columns of each kind in registers; None if no table chooses rows.

    A tile of columns has whole chunks whose dense rows stay in the nearest cache. Loops over variables that the operand with the
    table lacks run around the tiles. If these have many coordinates, the sums of a tile of blocks stay in a core's own cache.

    >>> from numscorch.ir.derived_formats import flattened
    >>> from numscorch.ir.format import NMG
    >>> from numscorch.ir.index import IndexVar
    >>> from numscorch.ir.notation import parse_stmt
    >>> nest = "forall(u, forall(j, forall(i, vector_forall<8 x 2, once>(k, C[u,i,k] += A[u,j,i] * B[j,k]))))"
    >>> extents = {IndexVar("u"): 100, IndexVar("i"): 4, IndexVar("j"): 100, IndexVar("k"): 16}
    >>> tensors = {"A": TensorVar("A", flattened(NMG(2, 4, 8)))}
    >>> stmt, why = specialize_table(parse_stmt(nest, tensors), Facts.of(extents, {}, 8, Target()), Target())
    >>> print(str(stmt).replace("specialize_forall<kinds>(j, specialize_forall<coordinates>(i, t[i] += A[u,j,i] * B[j,k]))", "..."))
    forall(u, vector_forall<8 x 2, once>(k, specialize_forall<tiles>(j, where(specialize_forall<coordinates>(i, C[u,i,k] += t[i]), ...))))
    """
    loops, body = unwrap(stmt)
    if not isinstance(body, Assignment) or body.op != "+=":
        return None
    chooser = chosen_by_table(body, tuple(loop.var for loop in loops))
    if chooser is None:
        return None
    last = [] if loops[-1].var in chooser.indices else loops[-1:]
    *outer, columns, rows = loops[: len(loops) - len(last)]
    if any(loop.var not in body.lhs.indices for loop in outer):
        return None
    table = chooser.tensor.format.levels[-1].constants
    registers, width = 1, 1
    for loop in last:
        if isinstance(loop.tag, Vector):
            held = loop.tag.registers or loop.tag.tail
            registers = min(registers_of_a_row(table, target), held)
            width = held // registers * registers * loop.tag.lanes
            last = [replace(loop, tag=narrowed(loop.var, loop.tag, registers, facts))]
        elif facts.extent(loop.var) > 1:
            return None  # its coordinates fill no register
    chunk = chooser.tensor.format.levels[-2].kind_chunk
    lanes = _lanes(body, columns, rows, chunk // len(table), target) if width == 1 else 0
    kinds = replace(columns, tag=Specialize("tiles"), body=_sum_in_registers(columns, rows, free_names(loops)[0], body, table, lanes))
    outer = [loop for loop in outer if not isinstance(loop.tag, Tile)]  # the new tiles replace larger ones
    blocks, around = ([loop for loop in outer if (loop.var in chooser.indices) == is_inside] for is_inside in (True, False))
    nest = wrap([*blocks, *last], kinds)
    why = f"a table gives {rows.var} for each kind of {columns.var}: {len(table[0])} x {registers} registers sum a kind"
    if lanes:
        why = f"{why}; {lanes} columns fill a register"
    size = width * body.lhs.tensor.type.itemsize
    sizes = {columns.var: max(tuning.TABLE_TILE // size // chunk, 1) * chunk, **{loop.var: width for loop in last}}
    if width == 1 and not lanes and chunk < facts.extent(columns.var) and options.tile is None:  # the sums of several kinds are in flight
        nest, sizes = wrap([*blocks, *last], tiled(kinds, columns.var, chunk)), {}
    if blocks and prod(facts.extent(loop.var) for loop in around) >= tuning.SHARED_COORDINATES:  # else blocks run in parallel
        sizes[blocks[-1].var] = max(int(target.own_cache / 2 / size / facts.extent(rows.var)), 1)
    for var, most in sizes.items() if options.tile is None else ():
        if most < facts.extent(var):
            nest, why = tiled(nest, var, most), f"{why}; tiles of {most} of {var}"
    return wrap(around, nest), why


def registers_of_a_row(table: Table, target: Target) -> int:
    """Number of registers for the sums of each row: enough independent sums to hide their latency, if they fit.

    A factor takes one register besides the sums. So do the registers of a column, or the values of the rows, if these are fewer.

    >>> [registers_of_a_row((tuple(range(n)),), Target(registers=16)) for n in (1, 2, 3, 5, 7)]
    [8, 4, 4, 2, 1]
    """
    each = len(table[0])
    registers = 1 << (-(-tuning.SUMS_IN_FLIGHT // each) - 1).bit_length()
    while registers > 1 and each * registers + min(each, registers) + 1 > target.registers:
        registers //= 2
    return registers


def _lanes(body: Assignment, columns: Forall, rows: Forall, group: int, target: Target) -> int:
    """Number of columns of a group whose values fill a register; 0 if there are too few, or a factor can't be gathered."""
    dense = [access for access in accesses_in(body.rhs) if access.tensor.is_dense]
    is_gathered = all(rows.var not in access.indices for access in dense) and any(columns.var in access.indices for access in dense)
    lanes = gcd(group, target.lanes(body.lhs.tensor.dtype)) if body.lhs.tensor.type.in_registers and is_product(body.rhs) else 0
    return lanes if lanes >= tuning.GATHERED_LANES and is_gathered and len(dense) == len(accesses_in(body.rhs)) - 1 else 0


def _sum_in_registers(columns: Forall, rows: Forall, name: str, body: Assignment, table: Table, lanes: int) -> Where:
    """Sum the rows of a kind in registers, and add the sums to the result."""
    space = Access(TensorVar(name, Format((Held(1 + max(map(max, table))),)), body.lhs.tensor.dtype), (rows.var,))
    each_row = replace(rows, tag=Specialize("coordinates"), body=replace(body, lhs=space))
    sum_nest = replace(columns, tag=Specialize("kinds", lanes), body=each_row)
    return Where(replace(rows, tag=Specialize("coordinates"), body=Assignment(body.lhs, space, "+=")), sum_nest)
