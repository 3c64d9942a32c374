"""Parse programs in index notation, as ``evaluate`` takes them, into a sequence of requests.

A variable that is missing on the left side is reduced in the smallest subexpression that contains all its uses: in
``D[i,j] = relu(A[i,k] * B[k,j]) + C[i,j]``, the sum over k is inside ``relu``, and C is added once. Such a subexpression
becomes a temporary. ``+=``, ``max=``, ``min=`` and ``*=`` reduce the whole right side instead: ``y[i] += exp(A[i,j])`` is
a sum of exponentials. ``stored max=`` is the maximum of the stored terms. ``stored(A[i,j])`` reads only the pattern: it
is 1 where A stores an entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, count
from typing import TypeGuard

from ..errors import ExpressionError
from ..ir.format import dense
from ..ir.index import (
    Access,
    Apply,
    Assignment,
    Binary,
    Expr,
    IndexVar,
    Literal,
    TensorVar,
    accesses_in,
    mapped,
    variables_in,
)
from ..ir.notation import parse_stmt
from .parser import Subscripts
from .requests import MOST_OPERANDS, NAMES, Request

Variables = frozenset[IndexVar]
SEPARATOR = re.compile(r"[;\n]")
INDEX = re.compile(r"[A-Za-z]\d*")  # longer names could collide with variables and functions of generated kernels
SIZE = ":"  # prefix of the name of an operand of ones, followed by its index


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """A request, the names of its operands, and the name of its result."""

    name: str
    operands: tuple[str, ...]
    request: Request

    @property
    def is_temporary(self) -> bool:
        """Whether the result is a temporary for a subexpression; temporaries have numbers for names."""
        return self.name.isdigit()


def _read(text: str) -> Assignment:
    """Parse an assignment; an index that occurs only on the left side gets a factor of ones."""
    stmt = parse_stmt(text.strip())
    if not isinstance(stmt, Assignment):
        raise ExpressionError(f"a scheduled statement can't be evaluated: write an assignment, as y[i] = A[i,j] * x[j]\n  {text}")
    left, right = stmt.lhs, stmt.rhs
    if base_of(left.tensor.name) != left.tensor.name:
        raise ExpressionError(f"the left side cannot be a slice such as {left.tensor}: assign the whole result\n  {text}")
    if len(set(left.indices)) < len(left.indices):
        raise ExpressionError(f"the left side repeats an index: name each index once\n  {text}")
    for var in left.indices:
        if var not in variables_in(right):
            right = Binary("*", right, Access(TensorVar(f"{SIZE}{var}", dense(1)), (var,)))
    if not accesses_in(right):
        raise ExpressionError(f"the right side has no tensor\n  {text}")
    return replace(stmt, rhs=right)


def _parts_of(stmt: Assignment, text: str, before: int, short: Mapping[IndexVar, IndexVar]) -> list[ProgramPart]:
    """The parts of an assignment, with short index names; the last one computes the result, and the others are numbered temporaries."""

    def renamed(access: Access) -> Access:
        return replace(access, indices=tuple([short.get(var, var) for var in access.indices]))

    left, right = renamed(stmt.lhs), mapped(stmt.rhs, renamed)
    splitter = _Splitter(left, before, text)
    splitter.add(left.indices, splitter.final(right) if stmt.op == "=" else right, stmt.op, left.tensor.name)
    return splitter.parts


@lru_cache(maxsize=1024)
def parse_program(text: str) -> tuple[ProgramPart, ...]:
    """Parse statements separated by newlines or semicolons; each may read earlier results, and the last one is returned.

    Raises:
        ExpressionError: a statement cannot be parsed, repeats an index on the left side, assigns a tensor a second time, or reads a
            later result.

    >>> for part in parse_program("T[i,j] = A[i,k] * B[k,j] + C[i,j]; y[i] = relu(T[i,j] * x[j])"):
    ...     print(part.name, part.operands, part.request)
    1 ('A', 'B') A[i,k] * B[k,j] over ik,kj->ij
    T ('1', 'C') A[i,j] + B[i,j] over ij,ij->ij
    2 ('T', 'x') A[i,j] * B[j] over ij,j->i
    y ('2',) relu(A[i]) over i->i
    """
    statements, parts = _statements(text), list[ProgramPart]()
    assignments = [_read(statement) for statement in statements]
    short = short_names(assignments)
    for statement, stmt in zip(statements, assignments, strict=True):
        parts += _parts_of(stmt, statement, sum(part.is_temporary for part in parts), short)
    if len(statements) > 1:
        _check_names(text, parts)
    return (*map(_in_order, parts[:-1]), parts[-1])


def _statements(text: str) -> list[str]:
    return [piece for piece in SEPARATOR.split(text) if piece.strip()] or [text]


def index_names(text: str) -> dict[str, str]:
    """Map the short index names of a program's parts to the names in its text.

    >>> index_names("y[row] = A[row,col] * x[col]")
    {'r': 'row', 'c': 'col'}
    """
    return {short.name: var.name for var, short in short_names(map(_read, _statements(text))).items()}


def written_access(name: str, indices: Sequence[str], text: str) -> str:
    """Spell an access with the index names of a program's text.

    >>> written_access("A", ["r", "c"], "y[row] = A[row,col]")
    'A[row,col]'
    """
    written = index_names(text)
    return f"{name}[{','.join(written.get(index, index) for index in indices)}]"


def _check_names(text: str, parts: Sequence[ProgramPart]) -> None:
    """Check that each name is assigned once, before it is read, and with the same number of indices everywhere.

    Raises:
        ExpressionError: a name violates this.
    """
    orders: dict[str, int] = {}
    for part in parts:
        if part.name in orders:
            raise ExpressionError(f"{part.name} is assigned twice: give each result a different name\n  {text}")
        orders[part.name] = len(part.request.subscripts.result)
    seen: set[str] = set()
    for part in parts:
        for operand, indices in zip(part.operands, part.request.subscripts.operands, strict=True):
            name = base_of(operand)
            if name in orders and (name not in seen or is_size(operand)):
                where = "in the statement that assigns it" if name == part.name else "before it is assigned"
                raise ExpressionError(f"{name} is read {where}: rename one of the two, or assign {name} first\n  {text}")
            if operand == name and orders.get(name, len(indices)) != len(indices):
                message = f"{written_access(name, indices, text)} has {len(indices)} indices, but {name} is assigned with {orders[name]}"
                raise ExpressionError(f"{message}: use the same number\n  {text}")
        seen.add(part.name)


@lru_cache(maxsize=1024)
def tensor_names(text: str) -> frozenset[str]:
    """The operands of a program: the tensors that it reads without assigning them first.

    >>> sorted(tensor_names("T[i] = A[i,j] * x[j]; y[i] = T[i] + b[i]"))
    ['A', 'b', 'x']
    """
    parts = parse_program(text)
    read = frozenset(base_of(name) for part in parts for name in part.operands)
    return read.difference(part.name for part in parts[:-1])  # a single statement may read its own name


def _in_order(part: ProgramPart) -> ProgramPart:
    """The part, with the requirement that the rows of its result are sorted, since later parts read it."""
    request = part.request
    return part if request.form.in_order else replace(part, request=replace(request, form=replace(request.form, in_order=True)))


def _uses(expr: Expr) -> Variables:
    return frozenset(variables_in(expr))


def _is_sum(expr: Expr) -> TypeGuard[Binary]:
    return isinstance(expr, Binary) and expr.op in "+-"


def valued_access(access: Access) -> Access:
    """The access with values: a tensor of which both the pattern and the values are read is one operand."""
    return access.with_changes(dtype="float32")


class _Splitter:
    """Collects the parts of one statement; ``before`` is the number of temporaries of earlier statements."""

    def __init__(self, lhs: Access, before: int, text: str):
        self.lhs, self.before, self.text = lhs, before, text
        self.parts: list[ProgramPart] = []

    def add(self, indices: Iterable[IndexVar], value: Expr, op: str = "=", name: str = "") -> Access:
        """Add a part with these result indices, and return the access to its result.

        The name of a temporary is a number, which cannot name a user's tensor.
        """
        indices = tuple(indices)
        accesses = list(dict.fromkeys(valued_access(access) for access in accesses_in(value)))
        if len(accesses) > MOST_OPERANDS:
            raise ExpressionError(
                f"{len(accesses)} operands, but a statement has at most {MOST_OPERANDS}; a tensor counts once for each list of indices: "
                f"split it in two\n  {self.text}"
            )
        letters = {access: NAMES[at] for at, access in enumerate(accesses)}
        subscripts = Subscripts(tuple(tuple(v.name for v in a.indices) for a in accesses), tuple(v.name for v in indices))
        named = mapped(value, lambda a: Access(TensorVar(letters[valued_access(a)], dense(len(a.indices)), a.tensor.dtype), a.indices))
        name = name or str(self.before + len(self.parts) + 1)
        self.parts.append(ProgramPart(name, tuple(a.tensor.name for a in accesses), Request(subscripts, named, op)))
        return Access(TensorVar(name, dense(len(indices))), indices)

    def final(self, rhs: Expr) -> Expr:
        """The right side, with temporaries for its inner reductions; a reduction of the whole right side stays in the statement."""
        reduced = _uses(rhs).difference(self.lhs.indices)
        return self.reduced(rhs, reduced) if _is_sum(rhs) else self._inside(rhs, reduced)[0]

    def reduced(self, expr: Expr, variables: Variables) -> Expr:
        """The expression without these variables: temporaries replace the subexpressions that sum over them."""
        if not variables:
            return expr
        if _is_sum(expr):
            return Binary(expr.op, *(self.reduced(side, variables & _uses(side)) for side in (expr.left, expr.right)))
        inner, remaining = self._inside(expr, variables)
        return self.add((v for v in variables_in(inner) if v not in remaining), inner) if remaining else inner

    def _inside(self, expr: Expr, variables: Variables, outer: Variables = frozenset()) -> tuple[Expr, Variables]:
        """Move the reduction over a variable into the only argument that uses it; return the expression and the other variables.

        ``outer`` are the variables that the surrounding factors use.
        """
        match expr:
            case Binary("*", left, right):
                (a, left_over), (b, right_over) = (self._factor(s, variables, outer | _uses(o)) for s, o in ((left, right), (right, left)))
                return Binary("*", a, b), left_over | right_over
            case Binary("/", left, right):
                a, left_over = self._factor(left, variables, outer | _uses(right))
                summed = (variables & _uses(right)) - _uses(left) - outer
                return Binary("/", a, self.reduced(right, summed)), left_over | ((variables & _uses(right)) - summed)
            case Binary(op, left, right):
                (a, b), over = self._arguments((left, right), variables)
                return Binary(op, a, b), over
            case Apply(function, args):
                inner, over = self._arguments(args, variables)
                return Apply(function, inner), over
            case Access() | Literal():
                return expr, variables & _uses(expr)

    def _factor(self, side: Expr, variables: Variables, outer: Variables) -> tuple[Expr, Variables]:
        """Reduce a factor: a sum or function over the variables that no other factor uses, a product by each of its factors."""
        here = variables & _uses(side)
        if isinstance(side, Binary) and side.op in "*/":
            return self._inside(side, here, outer)
        if isinstance(side, Apply | Binary):
            summed = here - outer
            return self.reduced(side, summed), here - summed
        return side, here

    def _arguments(self, args: tuple[Expr, ...], variables: Variables) -> tuple[tuple[Expr, ...], Variables]:
        """Reduce each argument over the variables that no other argument uses; return the shared variables too."""
        uses = [_uses(arg) for arg in args]
        shared = frozenset(v for v in variables if sum(v in used for used in uses) > 1)
        inner = tuple(self.reduced(arg, (variables & used) - shared) for arg, used in zip(args, uses, strict=True))
        return inner, shared


def short_names(stmts: Iterable[Assignment]) -> dict[IndexVar, IndexVar]:
    """A letter with an optional number for each longer index name, which could collide with a kernel's variables.

    >>> {str(var): str(short) for var, short in short_names([parse_stmt("y[row] = A[row,r] * x[r,col]")]).items()}
    {'row': 'r0', 'col': 'c'}
    """
    variables = dict.fromkeys(var for stmt in stmts for var in (*stmt.lhs.indices, *variables_in(stmt.rhs)))
    used = {var.name for var in variables if INDEX.fullmatch(var.name)}
    short: dict[IndexVar, IndexVar] = {}
    for var in variables:
        if not INDEX.fullmatch(var.name):
            letter = next((char for char in var.name if char.isascii() and char.isalpha()), "i")
            name = next(name for name in chain([letter], (f"{letter}{at}" for at in count())) if name not in used)
            used.add(name)
            short[var] = IndexVar(name)
    return short


def base_of(name: str) -> str:
    """The name under which the user passes an operand: A for ``A[:,0]``, j for the ones ``:j``.

    >>> base_of("A[:,0]"), base_of(":j"), base_of("A")
    ('A', 'j', 'A')
    """
    return name[1:] if is_size(name) else name.partition("[")[0]


def is_size(name: str) -> bool:
    """Whether an operand stands for ones along an index, of which the user passes only the size."""
    return name.startswith(SIZE)
