"""Unroll and jam: run a loop's body for several coordinates at once, interleaved by statement, with shared statements run once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

from ..ir import index as ix
from ..ir.loop import (
    Accumulate,
    Assign,
    BinOp,
    Block,
    Const,
    Expr,
    For,
    If,
    Load,
    Stmt,
    Store,
    Var,
    While,
    add,
    expressions,
    map_stmt,
    walk,
)
from .environment import Env, Lower

LETTERS = "abcdefghijklmnop"
FEWEST = 2  # number of common terms from which a variable pays off


def lower_jam(stmt: ix.Forall, tag: ix.Jam, env: Env, lower: Lower, serial: Callable[[ix.Forall, Env, tuple[Expr, Expr]], Block]) -> Block:
    """Process ``tag.times`` coordinates at once, and the remaining coordinates one by one."""
    (first, stop), base = env.bounds(stmt.var), Var(stmt.var.name)
    if (first, stop) == (Const(0), Const(tag.times)):
        return interleaved([_copy(stmt, number, Const(number), env, lower) for number in range(tag.times)])
    split = (stop - first) // tag.times * tag.times + first if tag.rest else stop
    jammed = For(base, first, split, interleaved(_copies(stmt, tag.times, env, lower)), step=Const(tag.times))
    return (jammed, *serial(replace(stmt, tag=ix.Serial()), env, (split, stop))) if tag.rest else (jammed,)


def _copies(stmt: ix.Forall, times: int, env: Env, lower: Lower) -> list[Block]:
    """Lower the body for each coordinate, assigned to a variable."""
    names = [Var(f"{stmt.var}_u{number}") for number in range(times)]  # no index variable has such a name
    blocks = [_copy(stmt, number, names[number], env, lower) for number in range(times)]
    return [(Assign(names[number], Var(stmt.var.name) + number), *blocks[number]) for number in range(times)]


def _copy(stmt: ix.Forall, number: int, coordinate: Expr, env: Env, lower: Lower) -> Block:
    """Lower the body for one coordinate, with distinct names for its registers and other values that depend on the coordinate."""
    result = ix.result_of(stmt).tensor
    registers = {a.lhs.tensor for a in ix.assignments(stmt)} - {result}
    body = ix.map_expr(stmt.body, lambda access: _rename(access, number) if access.tensor in registers else access)
    return lower(body, replace(env.bind(stmt.var, coordinate), copy=(stmt.var, number)))


def _rename(access: ix.Access, number: int) -> ix.Access:
    return replace(access, tensor=replace(access.tensor, name=f"{access.tensor.name}{LETTERS[number]}"))


def interleaved(blocks: list[Block]) -> Block:
    """Interleave blocks of the same shape, statement by statement. Statements that all blocks share run once.

    Raises:
        TypeError: a ``while`` differs between blocks; the shared statements before it could initialize only one of the loops.

    >>> from numscorch.ir.loop import Accumulate, Load
    >>> x = Load(Var("X"), Var("p"))
    >>> a, b = (Assign(Var("x"), x), Accumulate(Var("s"), x)), (Assign(Var("x"), x), Accumulate(Var("t"), x))
    >>> interleaved([a, b]) == (a[0], a[1], b[1])
    True
    """
    out: list[Stmt] = []
    for row in zip(*blocks, strict=True):
        first = row[0]
        if all(stmt == first for stmt in row):
            out.append(first)
        elif isinstance(first, For) and all(isinstance(stmt, For) and replace(stmt, body=first.body) == first for stmt in row):
            out.append(replace(first, body=interleaved([stmt.body for stmt in row if isinstance(stmt, For)])))
        elif isinstance(first, If) and all(isinstance(stmt, If) and stmt.condition == first.condition and not stmt.orelse for stmt in row):
            out.append(replace(first, body=interleaved([stmt.body for stmt in row if isinstance(stmt, If)])))
        elif isinstance(first, While):
            raise TypeError(f"copies of {first} can't be interleaved")
        else:
            out += share_positions(row)
    return tuple(out)


def share_positions(copies: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Return the copies of a statement, preceded by the common terms of their loads' positions.

    The copies of an unrolled statement load from positions that differ in one term. LLVM adds loop-invariant terms first, so each
    of eight rows keeps an address for each term that changes: more addresses than there are registers. With the common terms
    in a variable, each row keeps one invariant address, and each load adds the variable.

    >>> A, t, i, j, n = Var("A_vals"), Var("t"), Var("i"), Var("j"), Var("n")
    >>> shared, *copies = share_positions([Assign(t, A[Var(f"u{c}") * n + i * n + j]) for c in range(2)])
    >>> shared == Assign(Var("pA_all"), i * n + j), copies[1] == Assign(t, A[Var("u1") * n + Var("pA_all")])
    (True, True)
    """
    if not all(isinstance(stmt, Assign | Accumulate | Store) for stmt in copies):
        return tuple(copies)
    shared_addresses: dict[Expr, Expr] = {}
    shared: list[Stmt] = []
    for same in zip(*(_loads(stmt) for stmt in copies), strict=False):
        terms = [_terms(load.index) for load in same]
        common = [term for term in terms[0] if all(term in summands for summands in terms)]
        if len(common) < FEWEST or len(common) == len(terms[0]) or len({load.array for load in same}) > 1:
            continue
        name = Var(f"p{same[0].array.name.removesuffix('_vals')}_all{len(shared) or ''}")
        shared.append(Assign(name, reduce(add, common)))
        for load, summands in zip(same, terms, strict=True):
            shared_addresses[load] = Load(load.array, reduce(add, [*(term for term in summands if term not in common), name]))
    return (*shared, *(map_stmt(stmt, shared_addresses.get) for stmt in copies)) if shared else tuple(copies)


def _loads(stmt: Stmt) -> list[Load]:
    """Return the distinct loads of single values, in order."""
    return list(dict.fromkeys(e for top in expressions(stmt) for e in walk(top) if isinstance(e, Load) and isinstance(e.array, Var)))


def _terms(expr: Expr) -> list[Expr]:
    return [*_terms(expr.left), *_terms(expr.right)] if isinstance(expr, BinOp) and expr.op == "+" else [expr]
