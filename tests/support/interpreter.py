"""Reference interpreter: runs index notation as dense loops, independent of formats and schedule."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from numscorch.ir.functions import FUNCTIONS, INFIX, REDUCTIONS, terms_of
from numscorch.ir.index import (
    Access,
    Apply,
    Assignment,
    Binary,
    Expr,
    Forall,
    IndexVar,
    Literal,
    Stmt,
    Tile,
    Where,
    assignments,
    variables_in,
)


def run(stmt: Stmt, arrays: Mapping[str, np.ndarray], extents: Mapping[IndexVar, int]) -> np.ndarray:
    """Run a statement at any stage on named dense operands; return the dense result.

    An assignment without loops sums over the variables missing on its left side.
    """
    result = next(assignments(stmt)).lhs
    values = dict(arrays)
    values[result.tensor.name] = np.zeros([extents[v] for v in result.indices])
    if isinstance(stmt, Assignment):
        stmt = concrete(stmt)
    execute(stmt, values, extents, {}, {})
    return values[result.tensor.name]


def concrete(stmt: Assignment) -> Stmt:
    """Loops around a compound assignment, in order of appearance."""
    nest: Stmt = Assignment(stmt.lhs, stmt.rhs, "+=")
    for var in reversed(variables_in(stmt.rhs)):
        nest = Forall(var, nest)
    return nest


def execute(
    stmt: Stmt,
    values: dict[str, np.ndarray],
    extents: Mapping[IndexVar, int],
    at: dict[IndexVar, int],
    tiles: Mapping[IndexVar, range],
) -> None:
    """Run a statement at the bound coordinates, within the tiles."""
    match stmt:
        case Forall(var, body, Tile(size)):
            for start in range(0, extents[var], size):
                execute(body, values, extents, at, {**tiles, var: range(start, min(start + size, extents[var]))})
        case Forall(var, body):
            for coordinate in tiles.get(var, range(extents[var])):
                execute(body, values, extents, {**at, var: coordinate}, tiles)
        case Where(consumer, producer):
            space = next(assignments(producer))
            start = REDUCTIONS[space.op].start(space.lhs.tensor.dtype) if space.op in REDUCTIONS else 0.0
            values[space.lhs.tensor.name] = np.full([extents[v] for v in space.lhs.indices], start, dtype=float)
            execute(producer, values, extents, at, tiles)
            execute(consumer, values, extents, at, tiles)
        case Assignment(lhs, rhs, op):
            place = place_of(lhs, values, at)
            new = value(terms_of(rhs, op, lhs.tensor.dtype), values, at)
            values[lhs.tensor.name][place] = new if op == "=" else REDUCTIONS[op].evaluate(values[lhs.tensor.name][place], new)


def value(expr: Expr, values: Mapping[str, np.ndarray], at: Mapping[IndexVar, int]) -> float:
    """Value of an expression at the bound coordinates."""
    match expr:
        case Access(tensor, indices) if not tensor.has_values:
            return float(len({at[v] for v in indices}) == 1)
        case Access(tensor):
            return float(values[tensor.name][place_of(expr, values, at)])
        case Literal(number):
            return number
        case Binary(op, left, right):
            return INFIX[op](value(left, values, at), value(right, values, at))
        case Apply(function, args):
            return FUNCTIONS[function].value(*(value(arg, values, at) for arg in args))
    raise ValueError(f"no meaning for {expr}")


def place_of(access: Access, values: Mapping[str, np.ndarray], at: Mapping[IndexVar, int]) -> tuple[int, ...]:
    """Coordinates of an access; dimensions of size 1 are broadcast."""
    shape = values[access.tensor.name].shape
    return tuple(0 if size == 1 else at[v] for size, v in zip(shape, access.indices, strict=True))


def steps(extents: Mapping[IndexVar, int]) -> int:
    """Number of iterations of a loop nest over the extents."""
    return prod(extents.values())
