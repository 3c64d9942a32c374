"""Index notation: the computation and, after scheduling, the order of its loops.

In einsum notation, a statement is a single assignment, summed over the variables that occur only on its right side.
Concrete index notation adds ``forall`` and ``where`` (Kjolstad, Ahrens, Kamil, Amarasinghe, "Tensor Algebra Compilation
with Workspaces", CGO 2019).

Nodes are frozen, hashable and compared by structure. The scheduled statement is the cache key of its kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from math import copysign
from typing import Any

from .dtype import DTYPES, DType
from .format import Format
from .tags import (
    SERIAL,
    Ahead as Ahead,
    Blend as Blend,
    Blocks as Blocks,
    Divide as Divide,
    Each as Each,
    FlatSum as FlatSum,
    Gallop as Gallop,
    Jam as Jam,
    Parallel as Parallel,
    PartialSums as PartialSums,
    Positions as Positions,
    Serial as Serial,
    Specialize as Specialize,
    Tag as Tag,
    Tile as Tile,
    Transpose as Transpose,
    Unroll as Unroll,
    Vector as Vector,
)
from .workspace_levels import Beside

SCALAR = Format("")
RETURNED = "_returned"  # suffix of the names of additional results
PATTERN = "pattern"  # data type of an operand whose values are not read
RELATION = "relation"  # data type of a pattern that the compiler adds to compute variables from other variables


@dataclass(frozen=True, slots=True)
class IndexVar:
    """An index variable, such as ``i``."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class TensorVar:
    """A tensor: its name, format and data types. Its sizes are known at run time only.

    Args:
        name: the name in statements.
        format: the storage format.
        dtype: the data type of the values; ``PATTERN`` or ``RELATION`` if there are none.
        index_dtype: the data type of the index arrays.
        strides: for dense tensors, one letter per dimension: "1" contiguous, "0" broadcast or of size 1, "n" any
            stride, known at run time.
        shares: the operand whose pattern a sparse result or a workspace shares.
        is_reordered: whether the values of an operand are stored in another order than its index arrays, and are found through
            an array with the place of each position's value.
        is_far: whether reordered values exceed a core's cache, so that kernels prefetch them.
        is_returned: whether it is a dense result returned in addition to the main one.
        prunes: whether an assembled result stores only some entries. Its value is ``where(condition, value, 0)``, and the
            entries for which the condition holds are stored.
        largest: (n, m) if a result that prunes stores only the n largest of every m consecutive entries along the last
            dimension, by absolute value.
        row_limit: maximum number of entries in each row of an assembled result, or 0 if there is none. Entries of the largest magnitude
            are stored; of equal ones, the last.
    """

    name: str
    format: Format
    dtype: str = "float32"
    index_dtype: str = "int64"
    strides: str = ""
    shares: str | None = None
    is_reordered: bool = False
    is_far: bool = False
    is_returned: bool = False
    prunes: bool = False
    largest: tuple[int, int] | None = None
    row_limit: int = 0

    @property
    def type(self) -> DType:
        """Facts about the data type of its values."""
        return DTYPES[self.dtype]

    @property
    def is_dense(self) -> bool:
        """Whether strides address its values."""
        return self.format.is_dense and self.shares is None

    @property
    def is_row(self) -> bool:
        """Whether it is a workspace for one row of a pattern, with a value for each position of the row."""
        return self.shares is not None and isinstance(self.format.levels[-1], Beside)

    @property
    def is_assembled(self) -> bool:
        """For a result: whether its pattern is new, so that the kernel writes its index arrays."""
        return not self.format.is_dense and self.shares is None

    @property
    def is_scalar(self) -> bool:
        """Whether it has no dimensions."""
        return self.format.order == 0

    @property
    def has_values(self) -> bool:
        """Whether it has values. Patterns and relations have none; each of their stored entries stands for 1."""
        return self.dtype not in (PATTERN, RELATION)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Access:
    """tensor[indices]"""

    tensor: TensorVar
    indices: tuple[IndexVar, ...]

    def level_var(self, level: int) -> IndexVar:
        """The variable that indexes a level, counted from 0."""
        return self.indices[self.tensor.format.mode_order[level]]

    def sparse_levels(self, var: IndexVar | None = None) -> list[int]:
        """The levels that do not store every coordinate; if ``var`` is given, only the levels that it indexes."""
        levels = enumerate(self.tensor.format.levels)
        return [at for at, level in levels if not level.full and (var is None or self.level_var(at) == var)]

    def with_changes(self, **changes: Any) -> Access:
        """The access to the tensor with some of its fields changed."""
        return Access(replace(self.tensor, **changes), self.indices)

    def __str__(self) -> str:
        text = f"{self.tensor}[{','.join(map(str, self.indices))}]" if self.indices else self.tensor.name
        return f"stored({text})" if self.tensor.dtype == PATTERN else text


@dataclass(frozen=True, slots=True)
class Literal:
    """A number. ``is_float`` distinguishes 2.0 from 2, since 2.0 promotes integers to floats; ``signs`` distinguishes -0.0 from 0.0."""

    value: float | complex
    dtype: str
    is_float: bool = False
    signs: float = field(init=False, repr=False)  # of the real and the imaginary part

    def __post_init__(self) -> None:
        object.__setattr__(self, "signs", copysign(1, self.value.real) + copysign(2, self.value.imag))

    def __str__(self) -> str:
        if isinstance(self.value, complex):
            return str(self.value)
        if not self.is_float and float(self.value).is_integer():
            return f"{self.value:.0f}"
        text = f"{self.value:g}" if float(f"{self.value:g}") == self.value else repr(self.value)
        return f"{text}.0" if text.lstrip("-").isdigit() else text


STRENGTH = {"==": 1, "!=": 1, "<": 1, "<=": 1, ">": 1, ">=": 1, "+": 2, "-": 2, "*": 3, "/": 3}


@dataclass(frozen=True, slots=True)
class Binary:
    """left op right"""

    op: str
    left: Expr
    right: Expr

    def __str__(self) -> str:
        strength = STRENGTH[self.op]
        return f"{_within(self.left, strength + (strength == 1))} {self.op} {_within(self.right, strength + 1)}"


@dataclass(frozen=True, slots=True)
class Apply:
    """function(args), one of ``functions.FUNCTIONS``"""

    function: str
    args: tuple[Expr, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.args))})"


Expr = Access | Literal | Binary | Apply
LEAVES = (Access, Literal)


def _within(expr: Expr, strength: int) -> str:
    """The text of an operand, in parentheses if its operator binds less strongly than ``strength``."""
    return f"({expr})" if isinstance(expr, Binary) and STRENGTH[expr.op] < strength else str(expr)


@dataclass(frozen=True, slots=True)
class Assignment:
    """lhs = rhs, or a reduction: lhs += rhs, or with *=, max=, min= and other operators of ``REDUCTIONS``"""

    lhs: Access
    rhs: Expr
    op: str = "="

    def __str__(self) -> str:
        return f"{self.lhs} {self.op} {self.rhs}"


@dataclass(frozen=True, slots=True)
class Forall:
    """forall(i, body): run body once for each coordinate of i. ``sums``: how the loop adds a long sum; None if it adds no such sum."""

    var: IndexVar
    body: Stmt
    tag: Tag = SERIAL
    sums: PartialSums | None = None

    def __str__(self) -> str:
        return f"{self.tag}({self.var}{'' if self.sums is None else f': {self.sums}'}, {self.body})"


@dataclass(frozen=True, slots=True)
class Where:
    """where(consumer, producer): the producer fills a workspace, then the consumer reads it."""

    consumer: Stmt
    producer: Stmt

    def __str__(self) -> str:
        return f"where({self.consumer}, {self.producer})"


Stmt = Assignment | Forall | Where


def product(factors: list[Expr], op: str = "*") -> Expr:
    """The product of one or more factors; ``op`` is the operator between them, which differs for semirings."""
    return reduce(partial(Binary, op), factors)


def factors_of(expr: Expr) -> list[Expr]:
    """The factors of a product, left to right."""
    match expr:
        case Binary("*", left, right):
            return factors_of(left) + factors_of(right)
        case _:
            return [expr]


def is_relation(access: Access) -> bool:
    """Whether the compiler added the access, for example to compute a diagonal. Its tensor is not an operand and keeps its format."""
    return access.tensor.dtype == RELATION


def is_product(expr: Expr) -> bool:
    """Whether an expression is a product of accesses and numbers."""
    return all(isinstance(factor, Access | Literal) for factor in factors_of(expr))


def arguments_of(expr: Expr) -> tuple[Expr, ...]:
    """The arguments of an operator or a function; empty for accesses and numbers."""
    match expr:
        case Binary(_, left, right):
            return left, right
        case Apply(_, args):
            return args
        case Access() | Literal():
            return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """Iterate over an expression and its subexpressions, outermost first, left to right."""
    stack = [expr]
    while stack:
        expr = stack.pop()
        yield expr
        if not isinstance(expr, LEAVES):
            stack += arguments_of(expr)[::-1]


def accesses_in(expr: Expr) -> list[Access]:
    """All accesses of an expression, left to right."""
    return [inner for inner in walk(expr) if isinstance(inner, Access)]


def operators_in(expr: Expr) -> set[str]:
    """The operators and functions of an expression."""
    return {inner.op if isinstance(inner, Binary) else inner.function for inner in walk(expr) if isinstance(inner, Binary | Apply)}


def statements(stmt: Stmt) -> Iterator[Stmt]:
    """Iterate over a statement and the statements in it, outermost first; consumers before producers."""
    yield stmt
    match stmt:
        case Forall(_, body):
            yield from statements(body)
        case Where(consumer, producer):
            yield from statements(consumer)
            yield from statements(producer)


def assignments(stmt: Stmt) -> Iterator[Assignment]:
    """All assignments of a statement; consumers before producers."""
    return (inner for inner in statements(stmt) if isinstance(inner, Assignment))


def loops_of(stmt: Stmt) -> list[Forall]:
    """All loops of a statement, outermost first; consumers before producers."""
    return [inner for inner in statements(stmt) if isinstance(inner, Forall)]


def result_of(stmt: Stmt) -> Access:
    """The result of the statement."""
    return next(assignments(stmt)).lhs


def returned_by(stmt: Stmt) -> list[Access]:
    """The results that the statement returns besides its main result, sorted by name."""
    return sorted(
        {a.lhs for a in assignments(stmt) if a.lhs.tensor.is_returned}, key=lambda access: access.tensor.name.removesuffix(RETURNED)
    )


def operands_of(stmt: Stmt) -> list[Access]:
    """The operands of a statement, sorted by name, without workspaces.

    If an operand is read both with values and as a pattern, the access with values is returned.
    """
    written = {a.lhs.tensor for a in assignments(stmt)}
    read = [x for a in assignments(stmt) for x in accesses_in(a.rhs) if x.tensor not in written]
    operands = {x.tensor.name: x for x in sorted(read, key=lambda x: x.tensor.has_values)}  # later accesses, those with values, win
    return [operands[name] for name in sorted(operands)]


def variables_in(expr: Expr) -> list[IndexVar]:
    """The index variables of an expression, in order of first appearance."""
    return list(dict.fromkeys(v for access in accesses_in(expr) for v in access.indices))


def unwrap(stmt: Stmt) -> tuple[list[Forall], Stmt]:
    """The perfectly nested loops around a statement, and the statement."""
    loops: list[Forall] = []
    while isinstance(stmt, Forall):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def wrap(loops: list[Forall], body: Stmt) -> Stmt:
    """The statement inside these loops, outermost first."""
    for loop in reversed(loops):
        body = replace(loop, body=body)
    return body


def map_leaves(expr: Expr, change: Callable[[Access | Literal], Expr]) -> Expr:
    """The expression with ``change`` applied to every access and number."""
    match expr:
        case Access() | Literal():
            return change(expr)
        case Binary(op, left, right):
            new_left, new_right = map_leaves(left, change), map_leaves(right, change)
            return expr if new_left is left and new_right is right else Binary(op, new_left, new_right)
        case Apply(function, args):
            return Apply(function, tuple(map_leaves(arg, change) for arg in args))


def mapped(expr: Expr, change: Callable[[Access], Expr]) -> Expr:
    """The expression with ``change`` applied to every access."""
    return map_leaves(expr, lambda leaf: change(leaf) if isinstance(leaf, Access) else leaf)


def with_part(expr: Expr, part: Expr, replacement: Expr) -> Expr:
    """Replace a subexpression wherever it occurs.

    >>> from .notation import parse_expr
    >>> print(with_part(parse_expr("exp(A[i]) * B[i]"), parse_expr("exp(A[i])"), parse_expr("E[i]")))
    E[i] * B[i]
    """
    match expr:
        case _ if expr == part:
            return replacement
        case Binary(op, left, right):
            return Binary(op, with_part(left, part, replacement), with_part(right, part, replacement))
        case Apply(function, args):
            return Apply(function, tuple([with_part(arg, part, replacement) for arg in args]))
    return expr


def with_dtype(expr: Expr, dtype: str) -> Expr:
    """The expression with this data type for all its numbers."""
    return map_leaves(expr, lambda leaf: replace(leaf, dtype=dtype) if isinstance(leaf, Literal) else leaf)


def map_parts(stmt: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """The statement with ``change`` applied to the body of a loop, or to the consumer and the producer of a ``where``."""
    match stmt:
        case Assignment():
            return stmt
        case Forall(_, body):
            return replace(stmt, body=change(body))
        case Where(consumer, producer):
            return Where(change(consumer), change(producer))


def map_assignments(stmt: Stmt, change: Callable[[Assignment], Stmt]) -> Stmt:
    """The statement with ``change`` applied to every assignment."""
    return change(stmt) if isinstance(stmt, Assignment) else map_parts(stmt, partial(map_assignments, change=change))


def map_loops(stmt: Stmt, change: Callable[[Forall], Forall]) -> Stmt:
    """The statement with ``change`` applied to every loop, innermost first."""
    changed = map_parts(stmt, partial(map_loops, change=change))
    return change(changed) if isinstance(changed, Forall) else changed


def map_expr(stmt: Stmt, change: Callable[[Access], Access]) -> Stmt:
    """The statement with ``change`` applied to every access, also on left sides."""
    return map_assignments(stmt, lambda inner: Assignment(change(inner.lhs), mapped(inner.rhs, change), inner.op))


def with_tensor(stmt: Stmt, tensor: TensorVar, other: TensorVar) -> Stmt:
    """The statement with ``other`` in place of ``tensor``."""
    return map_expr(stmt, lambda access: replace(access, tensor=other) if access.tensor == tensor else access)


def map_rhs(stmt: Stmt, change: Callable[[Expr], Expr]) -> Stmt:
    """The statement with ``change`` applied to the right side of every assignment."""
    return map_assignments(stmt, lambda inner: replace(inner, rhs=change(inner.rhs)))


def value_of(stmt: Stmt) -> Expr:
    """The value that a statement computes, as one expression of its operands: workspaces are replaced by their values."""
    match stmt:
        case Assignment(_, rhs):
            return rhs
        case Forall(_, body):
            return value_of(body)
        case Where(consumer, producer):
            name, produced = result_of(producer).tensor.name, value_of(producer)
            return mapped(value_of(consumer), lambda a: produced if a.tensor.name == name else a)
