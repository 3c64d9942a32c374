"""Loop IR: a dozen nodes, one for each thing the generated Python says.

Expressions are built with Python's operators (``pos[p + 1]``, ``i * n + j``), which fold the
identities that would only be noise in the source (``x + 0``, ``x * 1``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar, assert_never


class Operators:
    """Operators of loop expressions; each builds a node."""

    __slots__ = ()

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
    """A literal; ``dtype`` says which float it is, and None means a plain integer."""

    value: int | float | complex
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Load(Operators):
    """array[index]"""

    array: Var
    index: Expr


@dataclass(frozen=True, slots=True)
class BinOp(Operators):
    """left op right"""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Call(Operators):
    """function(args): an intrinsic, or min and max"""

    function: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Choose(Operators):
    """value if condition else otherwise: only the one that is chosen is evaluated"""

    condition: Expr
    value: Expr
    otherwise: Expr


@dataclass(frozen=True, slots=True)
class TableLoad(Operators):
    """values[index]: one of a table's numbers, which stands under this name in the source"""

    name: str
    values: tuple[int, ...]
    index: Expr


Expr = Var | Const | Load | BinOp | Call | Choose | TableLoad
LEAVES = (Var, Const)  # a tuple: `Var | Const` would make a new union at each test, which takes longer than the test
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
    """array[index] = value, or += where ``add``"""

    array: Var
    index: Expr
    value: Expr
    add: bool = False


@dataclass(frozen=True, slots=True)
class Do:
    """A call made for its effect."""

    call: Call


@dataclass(frozen=True, slots=True)
class For:
    """for var in range(start, stop, step), or prange where ``parallel``"""

    var: Var
    start: Expr
    stop: Expr
    body: tuple[Stmt, ...]
    step: Expr = Const(1)
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class While:
    """while condition: body"""

    condition: Expr
    body: tuple[Stmt, ...]


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
    """An integer becomes a Const; an expression is returned as it is."""
    return Const(value) if isinstance(value, int) else value


def add(left: ExprLike, right: ExprLike) -> Expr:
    """left + right, folded where one is 0 or both are constants."""
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
    """left * right, folded where one is 0 or 1 or both are constants."""
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
    """How many registers an expression loads.

    >>> registers_of(call("load", Var("x_vals"), Var("p"), 8, 4)), registers_of(call("load", Var("x_vals"), Var("p"), 8))
    (4, 1)
    """
    match expr:
        case Call("load", (_, _, _, Const(int(count)))) | Call("load_first", (_, _, _, _, Const(int(count)))):
            return count
        case _:
            return 1


def all_of(conditions: list[Expr], op: str = "and") -> Expr:
    """The conjunction of one or more conditions; of masks, by &."""
    result = conditions[0]
    for condition in conditions[1:]:
        result = BinOp(op, result, condition)
    return result


def any_of(conditions: list[Expr], op: str = "or") -> Expr:
    """The disjunction of one or more conditions; of masks, by |."""
    result = conditions[0]
    for condition in conditions[1:]:
        result = BinOp(op, result, condition)
    return result


def walked_by(condition: Expr) -> tuple[Var, Expr] | None:
    """The variable of a loop and its end, of several the first ones; None where the loop may go on after that.

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
    """The condition of a loop that ends earlier: where its first variable reaches ``end``."""
    match condition:
        case BinOp("<", var, _):
            return BinOp("<", var, end)
        case BinOp(op, first, rest):
            return BinOp(op, until(first, end), rest)
        case _:
            return condition


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that stand directly in a statement."""
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
    """expr and every expression inside it, outermost first."""
    waiting = [expr]
    while waiting:
        expr = waiting.pop()
        yield expr
        if not isinstance(expr, LEAVES):
            waiting += reversed(_parts(expr))


def _parts(expr: Expr) -> tuple[Expr, ...]:
    match expr:
        case BinOp(_, left, right):
            return (left, right)
        case Call(_, args):
            return args
        case Load(array, index):
            return (array, index)
        case Choose(condition, value, otherwise):
            return (condition, value, otherwise)
        case TableLoad(_, _, index):
            return (index,)
        case Var() | Const():
            return ()
        case _:
            assert_never(expr)


def map_expr(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The expression with every part for which ``change`` has an answer replaced by it, outermost first."""
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
    """The statement with every expression in it changed; loop bounds stay."""
    match stmt:
        case Assign(var, value):
            return Assign(var, map_expr(value, change))
        case Accumulate(var, value):
            return Accumulate(var, map_expr(value, change))
        case Store(array, index, value, add):
            return Store(array, map_expr(index, change), map_expr(value, change), add)
        case Do(Call(function, args)):
            return Do(Call(function, tuple(map_expr(arg, change) for arg in args)))
        case For() | While() | If():
            return map_blocks(stmt, lambda block: tuple(map_stmt(inner, change) for inner in block))


def map_blocks(stmt: Nested, change: Callable[[Block], Block]) -> Nested:
    """The statement with the blocks inside it changed."""
    if isinstance(stmt, If):
        return replace(stmt, body=change(stmt.body), orelse=change(stmt.orelse))
    return replace(stmt, body=change(stmt.body))


def walk_block(block: Block) -> Iterator[Stmt]:
    """Every statement of a block, nested ones included."""
    for stmt in block:
        yield stmt
        if isinstance(stmt, NESTED):
            yield from walk_block(stmt.body)
            if isinstance(stmt, If):
                yield from walk_block(stmt.orelse)


def has_threads(block: Block) -> bool:
    """Whether there is a parallel loop in it."""
    return any(isinstance(stmt, For) and stmt.parallel for stmt in walk_block(block))


def names_used(block: Block) -> set[str]:
    """Names of the variables that a block reads or writes."""
    names: set[str] = set()
    for stmt in walk_block(block):
        if isinstance(stmt, Assign | Accumulate | For):
            names.add(stmt.var.name)
        if isinstance(stmt, Store):
            names.add(stmt.array.name)
        for expr in expressions(stmt):
            names.update(e.name for e in walk(expr) if isinstance(e, Var))
    return names
