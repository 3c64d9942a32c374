"""specialize_table: rows that a table of constants chooses are summed in registers, one for each row of a block.

In n:m:g a column of a block adds to n of the block's m rows, and the kind of the column determines these rows. The loop over
columns takes one kind after the other, so its body is written once for each kind, with the registers of its n rows. The
workspace ``t`` has m registers; no index is loaded, and nothing is scattered (STen, section 5).
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from ..ir.format import Format
from ..ir.index import (
    Access,
    Assignment,
    Forall,
    IndexVar,
    Specialize,
    Stmt,
    TensorVar,
    Vector,
    Where,
    result_of,
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


def specialize_table(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Keep the rows of a block in registers while its columns are walked kind by kind; None if no table chooses rows.

    >>> from numscorch.ir.derived_formats import flattened
    >>> from numscorch.ir.format import NMG
    >>> from numscorch.ir.notation import parse_stmt
    >>> nest = "forall(u, forall(j, forall(i, vector_forall<8 x 2, once>(k, C[u,i,k] += A[u,j,i] * B[j,k]))))"
    >>> extents = {IndexVar("u"): 100, IndexVar("i"): 4, IndexVar("j"): 100, IndexVar("k"): 16}
    >>> tensors = {"A": TensorVar("A", flattened(NMG(2, 4, 8)))}
    >>> stmt, why = specialize_table(parse_stmt(nest, tensors), Facts.of(extents, {}, 8, Target()), Target())
    >>> print(str(stmt).replace("specialize_forall<coordinates>(i, t[i] += A[u,j,i] * B[j,k])", "..."))
    forall(u, vector_forall<8 x 2, once>(k, where(specialize_forall<coordinates>(i, C[u,i,k] = t[i]), specialize_forall<kinds>(j, ...))))
    """
    may_tile = options.tile is None
    loops, body = unwrap(stmt)
    if not isinstance(body, Assignment) or len(loops) < 3 or not isinstance(loops[-1].tag, Vector) or body.op != "+=":
        return None
    *outer, columns, rows, vector = loops
    chooser = chosen_by_table(body, tuple(loop.var for loop in loops))
    if chooser is None or any(loop.var not in body.lhs.indices for loop in outer) or not isinstance(vector.tag, Vector):
        return None
    if may_tile and (registers := _registers_of_a_kind(chooser, vector.var, vector.tag, stmt, facts, target)):
        return _sum_by_kind(loops, vector.tag, body, registers, chooser, facts)
    registers = _registers(chooser, vector.tag, target)
    if not registers:
        return None
    tiles = _tiles(columns.var, vector.var, registers, chooser, stmt, facts, target) if may_tile else {}
    outer = [loop for loop in outer if vector.var not in tiles or loop.var != vector.var]  # the new tiles replace larger ones
    nest = _sum_in_registers(loops, body, "=", chooser)
    specialized = wrap(outer, replace(vector, tag=narrowed(vector.var, vector.tag, registers, facts), body=nest))
    why = f"a table gives {rows.var} for each kind of {columns.var}: {_sizes(chooser)[1]} x {registers} registers hold all rows"
    for var, size in tiles.items():
        specialized, why = tiled(specialized, var, size), f"{why}; tiles of {size} of {var}"
    return specialized, why


def _registers_of_a_kind(chooser: Access, lanes: IndexVar, tag: Vector, stmt: Stmt, facts: Facts, target: Target) -> int:
    """Number of registers for the sums of the row that a kind chooses; 0 if summing row by row does not pay.

    The columns of a chunk must stay in the nearest cache, and all sums in a core's own cache. Summing row by row does not pay if a
    kind has several rows, which share loads, or so few columns that loading the sums takes longer.
    """
    each, rows = _sizes(chooser)
    chunk, size = chooser.tensor.format.levels[-2].kind_chunk, result_of(stmt).tensor.type.itemsize
    if each > 1 or chunk < tuning.TABLE_COLUMNS * rows:
        return 0
    results = prod(facts.extent(var) for var in result_of(stmt).indices if var != lanes)
    most = min(
        tuning.TABLE_TILE_ADDED // (chunk * target.vector_bytes),
        target.own_cache // (results * target.lanes(result_of(stmt).tensor.dtype) * size),
    )
    most = min(int(most), tag.registers or tag.tail, tuning.ACCUMULATORS)
    return 1 << (most.bit_length() - 1) if most > 1 else 0


def _sum_in_registers(loops: list[Forall], body: Assignment, op: str, chooser: Access) -> Where:
    """Sum the rows of a block in registers, and write the sums to the result or add them to it."""
    *_, columns, rows, _ = loops
    space = Access(TensorVar(free_names(loops)[0], Format((Held(_sizes(chooser)[1]),)), body.lhs.tensor.dtype), (rows.var,))
    sum_nest = replace(columns, tag=Specialize("kinds"), body=replace(rows, tag=Specialize("coordinates"), body=replace(body, lhs=space)))
    return Where(replace(rows, tag=Specialize("coordinates"), body=Assignment(body.lhs, space, op)), sum_nest)


def _sum_by_kind(loops: list[Forall], tag: Vector, body: Assignment, registers: int, chooser: Access, facts: Facts) -> tuple[Stmt, str]:
    """Sum the columns of a chunk that share a row in registers, and add the sums to the result, row by row."""
    *outer, columns, _, vector = loops
    tag, sums = narrowed(vector.var, tag, registers, facts), _sum_in_registers(loops, body, "+=", chooser)
    nest = wrap([*outer, replace(vector, tag=tag)], replace(columns, tag=Specialize("tiles"), body=sums))
    size, chunk = registers * tag.lanes, chooser.tensor.format.levels[-2].kind_chunk
    why = f"a table gives one row for each kind of {columns.var}: {registers} registers sum the columns of a kind in a chunk"
    for var, most in ((columns.var, chunk), (vector.var, size)):
        if most < facts.extent(var):
            nest, why = tiled(nest, var, most), f"{why}; tiles of {most} of {var}"
    return nest, why


def _sizes(access: Access) -> tuple[int, int]:
    """Number of rows that a column adds to, and number of rows of a block."""
    table = access.tensor.format.levels[-1].constants
    return len(table[0]), 1 + max(max(rows) for rows in table)


def _registers(access: Access, tag: Vector, target: Target) -> int:
    """Number of registers for each row. A factor takes one register; a column that is used more than once takes as many as a row."""
    each, rows = _sizes(access)
    most = (target.registers - 1) // (rows + (1 if each > 1 else 0))
    return min(tag.registers or tag.tail, 1 << (most.bit_length() - 1)) if most else 0


def _tiles(
    columns: IndexVar, lanes: IndexVar, registers: int, chooser: Access, stmt: Stmt, facts: Facts, target: Target
) -> dict[IndexVar, int]:
    """Tile sizes of the columns and of the dense operand's rows; inner tile loops come first.

    A tile has whole chunks of columns, and sums are stored after each tile. If the sums of all rows in a tile fit in a core's
    own cache, the dense rows of a tile stay in the nearest cache and are as wide as one register tile. Otherwise they stay in
    half of the core's own cache, on pages that the TLB finds quickly.
    """
    size, chunk = result_of(stmt).tensor.type.itemsize, chooser.tensor.format.levels[-2].kind_chunk
    least = registers * target.lanes(result_of(stmt).tensor.dtype)
    rows = prod(facts.extent(var) for var in result_of(stmt).indices if var != lanes)
    if rows * least * size * 4 <= target.own_cache:
        sizes = {columns: max(tuning.TABLE_TILE // (least * size) // chunk, 1) * chunk, lanes: least}
    else:
        parts = ceil(facts.extent(columns) / tuning.TABLE_ROWS)
        tile_columns = ceil(facts.extent(columns) / parts)
        width = max(target.own_cache // 2 // size // tile_columns // least, 1) * least
        sizes = {lanes: width, columns: ceil(tile_columns / chunk) * chunk}
    return {var: tile for var, tile in sizes.items() if tile < facts.extent(var)}
