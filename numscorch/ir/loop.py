"""Loop IR: the imperative program of a kernel. Each node corresponds to a construct of the generated Python source.

Python's operators build expressions (``pos[p + 1]``, ``i * n + j``) and fold trivial ones (``x + 0``, ``x * 1``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import is_
from typing import TypeVar

from .tags import PartialSums


class Operators:
    """Operators that build loop expressions."""

    __slots__ = ()

    @property
    def parts(self) -> tuple[Expr, ...]:
        """The direct subexpressions."""
        return ()

    def __add__(self, other: ExprLike) -> Expr:
        return add(self, other)  # type: ignore[arg-type]

    def __sub__(self, other: ExprLike) -> Expr:
        other = as_expr(other)
        return self if other == Const(0) else BinOp("-", self, other)  # type: ignore[arg-type, return-value]

    def __mul__(self, other: ExprLike) -> Expr:
        return mul(self, other)  # type: ignore[arg-type]

    def __floordiv__(self, other: ExprLike) -> Expr:
        return BinOp("//", self, as_expr(other))  # type: ignore[arg-type]

    def __mod__(self, other: ExprLike) -> Expr:
        return BinOp("%", self, as_expr(other))  # type: ignore[arg-type]

    def __lt__(self, other: ExprLike) -> Expr:
        return BinOp("<", self, as_expr(other))  # type: ignore[arg-type]

    def __getitem__(self, index: ExprLike) -> Expr:
        return Load(self, as_expr(index))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Var(Operators):
    """A local variable or a parameter."""

    name: str


@dataclass(frozen=True, slots=True)
class Const(Operators):
    """A literal of a data type; None means a plain integer."""

    value: int | float | complex
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Load(Operators):
    """array[index]"""

    array: Var
    index: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.array, self.index)


@dataclass(frozen=True, slots=True)
class BinOp(Operators):
    """left op right"""

    op: str
    left: Expr
    right: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Call(Operators):
    """function(args): a call of an intrinsic, ``min`` or ``max``"""

    function: str
    args: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.args


@dataclass(frozen=True, slots=True)
class Choose(Operators):
    """value if condition else otherwise; only the selected operand is evaluated"""

    condition: Expr
    value: Expr
    otherwise: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.condition, self.value, self.otherwise)


@dataclass(frozen=True, slots=True)
class TableLoad(Operators):
    """values[index]: a load from a constant table; ``name`` is the table's name in the source"""

    name: str
    values: tuple[int, ...]
    index: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.index,)


Expr = Var | Const | Load | BinOp | Call | Choose | TableLoad
ExprLike = Expr | int


@dataclass(frozen=True, slots=True)
class Assign:
    """var = value"""

    var: Var
    value: Expr


@dataclass(frozen=True, slots=True)
class Accumulate:
    """var += value"""

    var: Var
    value: Expr


@dataclass(frozen=True, slots=True)
class Store:
    """array[index] = value, or array[index] += value if ``add``"""

    array: Var
    index: Expr
    value: Expr
    add: bool = False


@dataclass(frozen=True, slots=True)
class Do:
    """A call for its side effect."""

    call: Call


@dataclass(frozen=True, slots=True)
class For:
    """for var in range(start, stop, step): body, with prange if ``parallel``; ``sums``: partial sums of the lowered loop"""

    var: Var
    start: Expr
    stop: Expr
    body: tuple[Stmt, ...]
    step: Expr = Const(1)
    parallel: bool = False
    sums: PartialSums | None = None


@dataclass(frozen=True, slots=True)
class While:
    """while condition: body; ``sums``: partial sums of the lowered loop"""

    condition: Expr
    body: tuple[Stmt, ...]
    sums: PartialSums | None = None


@dataclass(frozen=True, slots=True)
class If:
    """if condition: body, else: orelse"""

    condition: Expr
    body: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


Stmt = Assign | Accumulate | Store | Do | For | While | If
NESTED = (For, While, If)
Block = tuple[Stmt, ...]
Nested = TypeVar("Nested", bound="For | While | If")


@dataclass(frozen=True, slots=True)
class FunctionDef:
    """def name(params): body"""

    name: str
    params: tuple[str, ...]
    body: Block


def as_expr(value: ExprLike) -> Expr:
    """Convert an integer to a Const; return an expression unchanged."""
    return Const(value) if isinstance(value, int) else value


def add(left: ExprLike, right: ExprLike) -> Expr:
    """left + right, folded if an operand is 0 or both are constants."""
    match as_expr(left), as_expr(right):
        case Const(0, None), other:
            return other
        case other, Const(0, None):
            return other
        case Const(int(a), None), Const(int(b), None):
            return Const(a + b)
        case BinOp("+", inner, Const(int(a), None)), Const(int(b), None):
            return BinOp("+", inner, Const(a + b))
        case a, b:
            return BinOp("+", a, b)


def mul(left: ExprLike, right: ExprLike) -> Expr:
    """left * right, folded if an operand is 0 or 1 or both are constants."""
    match as_expr(left), as_expr(right):
        case (Const(0, None), _) | (_, Const(0, None)):
            return Const(0)
        case Const(1, None), other:
            return other
        case other, Const(1, None):
            return other
        case Const(int(a), None), Const(int(b), None):
            return Const(a * b)
        case a, b:
            return BinOp("*", a, b)


def call(function: str, *args: ExprLike) -> Call:
    """function(*args)"""
    return Call(function, tuple(as_expr(a) for a in args))


def registers_of(expr: Expr) -> int:
    """The number of registers that an expression loads.

    >>> registers_of(call("load", Var("x_vals"), Var("p"), 8, 4)), registers_of(call("load", Var("x_vals"), Var("p"), 8))
    (4, 1)
    """
    match expr:
        case Call("load", (_, _, _, Const(int(count)), *_)):
            return count
        case _:
            return 1


def all_of(conditions: list[Expr], op: str = "and") -> Expr:
    """The conjunction of one or more conditions; pass ``&`` for masks."""
    return reduce(partial(BinOp, op), conditions)


def any_of(conditions: list[Expr], op: str = "or") -> Expr:
    """The disjunction of one or more conditions; pass ``|`` for masks."""
    return all_of(conditions, op)


def walked_by(condition: Expr) -> tuple[Var, Expr] | None:
    """The first variable of a loop's condition and its end; None if the loop may continue after that variable reaches its end.

    >>> p, q, n = Var("p"), Var("q"), Var("n")
    >>> walked_by(all_of([p < n, q < n])), walked_by(any_of([p < n, q < n]))
    ((Var(name='p'), Var(name='n')), None)
    """
    match condition:
        case BinOp("<", Var() as var, end):
            return var, end
        case BinOp("and", first, _):
            return walked_by(first)
        case _:
            return None


def until(condition: Expr, end: Expr) -> Expr:
    """The condition of a loop that ends when its first variable reaches ``end``."""
    match condition:
        case BinOp("<", var, _):
            return BinOp("<", var, end)
        case BinOp(op, first, second):
            return BinOp(op, until(first, end), second)
        case _:
            return condition


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions of a statement, without those of nested statements."""
    match stmt:
        case Assign(_, value) | Accumulate(_, value):
            return (value,)
        case Store(_, index, value):
            return (index, value)
        case Do(effect):
            return (effect,)
        case For(_, start, stop, _, step):
            return (start, stop, step)
        case While(condition) | If(condition):
            return (condition,)


def walk(expr: Expr) -> Iterator[Expr]:
    """Iterate over an expression and its subexpressions, outermost first."""
    stack = [expr]
    while stack:
        expr = stack.pop()
        yield expr
        stack += expr.parts[::-1]


def map_expr(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Replace each subexpression for which ``change`` returns an expression, outermost first."""
    changed = change(expr)
    if changed is not None:
        return changed
    match expr:
        case BinOp(op, left, right):
            return BinOp(op, map_expr(left, change), map_expr(right, change))
        case Call(function, args):
            return Call(function, tuple(map_expr(arg, change) for arg in args))
        case Load(array, index):
            return Load(array, map_expr(index, change))
        case TableLoad(name, values, index):
            return TableLoad(name, values, map_expr(index, change))
        case Choose(condition, value, otherwise):
            return Choose(map_expr(condition, change), map_expr(value, change), map_expr(otherwise, change))
        case Var() | Const():
            return expr


def map_stmt(stmt: Stmt, change: Callable[[Expr], Expr | None]) -> Stmt:
    """Apply :func:`map_expr` to a statement and the statements in it, except to loop bounds and conditions."""
    match stmt:
        case Assign(var, value) | Accumulate(var, value):
            return type(stmt)(var, map_expr(value, change))
        case Store(array, index, value, add):
            return Store(array, map_expr(index, change), map_expr(value, change), add)
        case Do(Call(function, args)):
            return Do(Call(function, tuple(map_expr(arg, change) for arg in args)))
        case For() | While() | If():
            return map_blocks(stmt, lambda block: tuple(map_stmt(inner, change) for inner in block))


def map_blocks(stmt: Nested, change: Callable[[Block], Block]) -> Nested:
    """The statement with ``change`` applied to its blocks; the same object if ``change`` returns the same blocks."""
    body = change(stmt.body)
    if isinstance(stmt, If):
        orelse = change(stmt.orelse)
        return stmt if body is stmt.body and orelse is stmt.orelse else replace(stmt, body=body, orelse=orelse)
    return stmt if body is stmt.body else replace(stmt, body=body)


def rewrite(block: Block, change: Callable[[Stmt], Block]) -> Block:
    """Replace each statement of a block by the statements that ``change`` returns, innermost first."""
    inner = (map_blocks(stmt, lambda body: rewrite(body, change)) if isinstance(stmt, NESTED) else stmt for stmt in block)
    changed = tuple(new for stmt in inner for new in change(stmt))
    return block if len(changed) == len(block) and all(map(is_, changed, block)) else changed


def walk_block(block: Block) -> Iterator[Stmt]:
    """Iterate over all statements of a block, including nested ones."""
    stack = list(block[::-1])
    while stack:
        stmt = stack.pop()
        yield stmt
        if isinstance(stmt, NESTED):
            if isinstance(stmt, If):
                stack += stmt.orelse[::-1]
            stack += stmt.body[::-1]


def has_threads(block: Block) -> bool:
    """Whether a block contains a parallel loop."""
    return any(isinstance(stmt, For) and stmt.parallel for stmt in walk_block(block))


def expressions_in(block: Block) -> Iterator[Expr]:
    """Iterate over all expressions of a block and their subexpressions."""
    return (expr for stmt in walk_block(block) for outermost in expressions(stmt) for expr in walk(outermost))


def names_in(*exprs: Expr) -> set[str]:
    """The names of the variables in these expressions."""
    names, left = set(), list(exprs)
    while left:
        expr = left.pop()
        if isinstance(expr, Var):
            names.add(expr.name)
        else:
            left += expr.parts
    return names


def names_read(block: Block) -> set[str]:
    """The names of the variables that the expressions of a block contain."""
    return names_in(*(expr for stmt in walk_block(block) for expr in expressions(stmt)))


def names_written(block: Block) -> set[str]:
    """The names of the variables that a block assigns to, and of the arrays that it stores into."""
    writes = (stmt for stmt in walk_block(block) if isinstance(stmt, Assign | Accumulate | For | Store))
    return {stmt.array.name if isinstance(stmt, Store) else stmt.var.name for stmt in writes}


def names_used(block: Block) -> set[str]:
    """The names of the variables that a block reads or writes."""
    return names_read(block) | names_written(block)
