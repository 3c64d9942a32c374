"""Print loop IR as Python source. No other file spells names and syntax."""

from __future__ import annotations

from math import isfinite
from typing import assert_never

from ..ir.dtype import DTYPES
from ..ir.loop import (
    Accumulate,
    Assign,
    BinOp,
    Block,
    Call,
    Choose,
    Const,
    Do,
    Expr,
    For,
    FunctionDef,
    If,
    Load,
    Stmt,
    Store,
    TableLoad,
    Var,
    While,
)

INDENT = "    "
COMPARISONS = dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 3)
STRENGTH = {"or": 1, "and": 2, **COMPARISONS, "|": 4, "&": 5, "+": 6, "-": 6, "*": 7, "/": 7, "//": 7, "%": 7}


def emit_function(function: FunctionDef) -> str:
    """Return the source of a function."""
    return f"def {function.name}({', '.join(function.params)}):\n" + emit_block(function.body, 1)


def emit_block(block: Block, depth: int) -> str:
    """Return the source of a block, with one or more lines for each statement."""
    return "".join(emit(stmt, depth) for stmt in block) or f"{INDENT * depth}pass\n"


def emit(stmt: Stmt, depth: int) -> str:
    """Return the source of one statement.

    >>> print(emit(Store(Var("y_vals"), Var("i"), Var("t")), 0), end="")
    y_vals[i] = t
    """
    pad = INDENT * depth
    match stmt:
        case Assign(var, value):
            return f"{pad}{var.name} = {expr(value)}\n"
        case Accumulate(var, value):
            return f"{pad}{var.name} += {expr(value)}\n"
        case Store(array, index, value, add):
            return f"{pad}{array.name}[{expr(index)}] {'+=' if add else '='} {expr(value)}\n"
        case Do(effect):
            return f"{pad}{expr(effect)}\n"
        case For():
            return f"{pad}for {stmt.var.name} in {_range(stmt)}:\n{emit_block(stmt.body, depth + 1)}"
        case While(condition, body):
            return f"{pad}while {expr(condition)}:\n{emit_block(body, depth + 1)}"
        case If(condition, body, orelse):
            return f"{pad}if {expr(condition)}:\n{emit_block(body, depth + 1)}{_else_branch(orelse, depth)}"
        case _:
            assert_never(stmt)


def _else_branch(block: Block, depth: int) -> str:
    """Return the ``else`` branch, or an ``elif`` branch if the block is a single ``if``."""
    match block:
        case ():
            return ""
        case (If() as only,):
            return f"{INDENT * depth}el{emit(only, depth).lstrip()}"
        case _:
            return f"{INDENT * depth}else:\n{emit_block(block, depth + 1)}"


def _range(loop: For) -> str:
    bounds = [loop.start, loop.stop]
    if loop.step != Const(1):
        bounds.append(loop.step)
    elif loop.start == Const(0):
        bounds = [loop.stop]
    return f"{'prange' if loop.parallel else 'range'}({', '.join(map(expr, bounds))})"


def expr(node: Expr, strength: int = 0) -> str:
    """Return the source of an expression, in parentheses if its operator binds less tightly than its context.

    >>> expr((Var("i") + 1) * Var("n"))
    '(i + 1) * n'
    """
    match node:
        case Var(name):
            return name
        case Const(value, None):
            return str(value)
        case Const(int() | float() as value, dtype) if dtype is not None and DTYPES[dtype].kind == "integer" and isfinite(value):
            return f"{dtype}({int(value)})"
        case Const(value, dtype):
            return f"{dtype}({value!r})"  # repr of an infinity is "inf", which the file imports
        case Load(array, index):
            return f"{array.name}[{expr(index)}]"
        case TableLoad(name, _, index):
            return f"{name}[{expr(index)}]"
        case Call(function, args):
            return f"{function}({', '.join(map(expr, args))})"
        case Choose(condition, value, otherwise):
            text = f"{expr(value, 1)} if {expr(condition, 1)} else {expr(otherwise, 1)}"
            return f"({text})" if strength else text
        case BinOp(op, left, right):
            precedence = STRENGTH[op]
            text = f"{expr(left, precedence + (op in COMPARISONS))} {op} {expr(right, precedence + 1)}"
            return f"({text})" if precedence < strength else text
        case _:
            assert_never(node)
