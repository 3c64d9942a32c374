"""Programs of index notation, as evaluate takes them: statements, each one request to the compiler after another.

A variable that the left side lacks is reduced in the smallest part of the right side that holds all
its uses: in ``D[i,j] = relu(A[i,k] * B[k,j]) + C[i,j]`` the sum over k stands inside ``relu``, and
C is added once.  Such a part becomes a temporary of its own.  ``+=``, ``max=``, ``min=`` and ``*=`` reduce
the whole right side instead: ``y[i] += exp(A[i,j])`` is a sum of exponentials.  ``stored max=`` is the largest of the
terms that are stored, and ``stored(A[i,j])``, an access of which only the pattern is read, 1 where A stores an entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeGuard

from ..errors import ExpressionError
from ..ir.format import dense
from ..ir.functions import REDUCTIONS
from ..ir.index import Access, Apply, Assignment, Binary, Expr, IndexVar, Literal, TensorVar, accesses_in, is_product, mapped, variables_in
from ..ir.notation import parse_stmt
from ..schedule.options import AUTOMATIC, Options, parse_options
from .parser import Subscripts, parse_einsum
from .statement_names import SIZE, base_of, is_size, short_names

Variables = frozenset[IndexVar]
SEPARATOR = re.compile(r"[;\n]")
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MOST_OPERANDS = len(NAMES) - 1  # one letter is the result's


@dataclass(frozen=True, slots=True)
class Form:
    """What is asked of a result besides its values.

    ``in_order``: its rows come in order. ``copies``: it has the operand's entries, in the format that is asked for (``copy_statements``).
    ``prunes``: it stores only where the condition of its value holds, or the n ``largest`` of every m. ``spaced``: its rows are padded
    (``relayout.row_length``). ``exact``: a result of sparse operands stores entries only where it has terms.
    """

    in_order: bool = False
    copies: bool = False
    prunes: bool = False
    largest: tuple[int, int] | None = None
    spaced: bool = False
    exact: bool = False


ANY_FORM = Form()


@dataclass(frozen=True, eq=False, slots=True)
class Request:
    """One thing to compute of operands A, B, ...: their subscripts, and a value; None is their product.

    ``op`` joins the terms of the reduced variables, ``mask`` is the operand whose pattern the result has, and whose values are not read;
    ``options`` are for the passes. Requests are compared by identity: each text makes its own.
    """

    subscripts: Subscripts
    value: Expr | None = None
    op: str = "="
    mask: int | None = None
    options: Options = AUTOMATIC
    form: Form = ANY_FORM

    @property
    def is_product(self) -> bool:
        """Whether it is the sum of products of all operands, with nothing else asked: what an einsum's text says."""
        return self.value is None and self.op == "=" and self.mask is None and self.options == AUTOMATIC and self.form == ANY_FORM

    @property
    def read(self) -> list[Expr]:
        """The expressions that are computed; none for a product of all operands."""
        return [] if self.value is None else [self.value]

    def __str__(self) -> str:
        return str(self.subscripts) if self.value is None else f"{self.value} over {self.subscripts}"


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """A request, the names of its operands, and the name of its result."""

    name: str
    operands: tuple[str, ...]
    request: Request

    @property
    def is_temporary(self) -> bool:
        """Whether a part of one statement's right side made it, which is named by a number."""
        return self.name.isdigit()


@lru_cache(maxsize=1024)
def parse_statement(text: str, before: int = 0) -> tuple[ProgramPart, ...]:
    """Read a statement; the last part's result is the statement's, the others are numbered from ``before``.

    Raises:
        ExpressionError: it can't be read, or an index is twice on the left.

    >>> for part in parse_statement("D[i,j] = A[i,k] * B[k,j] + C[i,j]"):
    ...     print(part.name, part.operands, part.request)
    1 ('A', 'B') A[i,k] * B[k,j] over ik,kj->ij
    D ('1', 'C') A[i,j] + B[i,j] over ij,ij->ij
    """
    stmt = _read(text)
    return _parts_of(stmt, text, before, short_names([stmt]))


def _read(text: str) -> Assignment:
    """The assignment that a text spells; an index on its left side only is that of a factor, which is 1 everywhere."""
    stmt = parse_stmt(text.strip())
    if not isinstance(stmt, Assignment):
        raise ExpressionError(f"a scheduled statement can't be evaluated: write an assignment, as y[i] = A[i,j] * x[j]\n  {text}")
    left, right = stmt.lhs, stmt.rhs
    if base_of(left.tensor.name) != left.tensor.name:
        raise ExpressionError(f"the left side takes names of indices only, not {left.tensor}: write all of the result\n  {text}")
    if len(set(left.indices)) < len(left.indices):
        raise ExpressionError(f"the left side repeats an index, so its place is unknown\n  {text}")
    for var in left.indices:
        if var not in variables_in(right):
            right = Binary("*", right, Access(TensorVar(f"{SIZE}{var}", dense(1)), (var,)))
    if not accesses_in(right):
        raise ExpressionError(f"the right side has no tensor\n  {text}")
    return replace(stmt, rhs=right)


def _parts_of(stmt: Assignment, text: str, before: int, short: Mapping[IndexVar, IndexVar]) -> tuple[ProgramPart, ...]:
    """The parts of an assignment, with short names of its indices."""

    def renamed(access: Access) -> Access:
        return replace(access, indices=tuple([short.get(var, var) for var in access.indices]))

    left, right = renamed(stmt.lhs), mapped(stmt.rhs, renamed)
    splitter = _Splitter(left, before, text)
    splitter.add(left.indices, splitter.final(right) if stmt.op == "=" else right, stmt.op, left.tensor.name)
    temporaries = [_in_order(part) for part in splitter.parts[:-1]]
    return (*temporaries, splitter.parts[-1])


@lru_cache(maxsize=1024)
def parse_program(text: str) -> tuple[ProgramPart, ...]:
    """Read statements that newlines or semicolons separate; each reads what those before it made, and the last one's result is all's.

    Raises:
        ExpressionError: a statement can't be read, two make the same tensor, or one reads what a later one makes.

    >>> for part in parse_program("T[i,j] = A[i,k] * B[k,j] + C[i,j]; y[i] = relu(T[i,j] * x[j])"):
    ...     print(part.name, part.operands, part.request)
    1 ('A', 'B') A[i,k] * B[k,j] over ik,kj->ij
    T ('1', 'C') A[i,j] + B[i,j] over ij,ij->ij
    2 ('T', 'x') A[i,j] * B[j] over ij,j->i
    y ('2',) relu(A[i]) over i->i
    """
    statements = _statements(text)
    if len(statements) < 2:
        return parse_statement(statements[0] if statements else text)
    parts: list[ProgramPart] = []
    read = [_read(statement) for statement in statements]
    short = short_names(read)
    for statement, stmt in zip(statements, read, strict=True):
        parts += _parts_of(stmt, statement, sum(part.is_temporary for part in parts), short)
    _check_names(text, parts)
    return (*map(_in_order, parts[:-1]), parts[-1])


def _statements(text: str) -> list[str]:
    return [piece for piece in SEPARATOR.split(text) if piece.strip()]


def index_names(text: str) -> dict[str, str]:
    """The names of indices in a program's text, by the short names that its parts use instead.

    >>> index_names("y[row] = A[row,col] * x[col]")
    {'r': 'row', 'c': 'col'}
    """
    return {short.name: var.name for var, short in short_names(map(_read, _statements(text))).items()}


def written_access(name: str, indices: Sequence[str], text: str) -> str:
    """An access with the names of the indices in a program's text.

    >>> written_access("A", ["r", "c"], "y[row] = A[row,col]")
    'A[row,col]'
    """
    written = index_names(text)
    return f"{name}[{','.join(written.get(index, index) for index in indices)}]"


def _check_names(text: str, parts: Sequence[ProgramPart]) -> None:
    """That each name is made once, and read only after that; and with the same number of indices everywhere."""
    orders: dict[str, int] = {}
    for part in parts:
        if part.name in orders:
            raise ExpressionError(f"{part.name} is assigned twice: give each result a name of its own\n  {text}")
        orders[part.name] = len(part.request.subscripts.result)
    seen: set[str] = set()
    for part in parts:
        for operand, indices in zip(part.operands, part.request.subscripts.operands, strict=True):
            name = base_of(operand)
            if name in orders and (name not in seen or is_size(operand)):
                where = "in the statement that makes it" if name == part.name else "before it is assigned"
                raise ExpressionError(f"{name} is read {where}: rename one of the two, or assign {name} first\n  {text}")
            if operand == name and orders.get(name, len(indices)) != len(indices):
                message = f"{written_access(name, indices, text)} has {len(indices)} indices, but {name} is assigned with {orders[name]}"
                raise ExpressionError(f"{message}: write as many\n  {text}")
        seen.add(part.name)


@lru_cache(maxsize=1024)
def tensor_names(text: str) -> frozenset[str]:
    """A program's operands: the tensors that it reads and hasn't made.

    >>> sorted(tensor_names("T[i] = A[i,j] * x[j]; y[i] = T[i] + b[i]"))
    ['A', 'b', 'x']
    """
    assigned: set[str] = set()
    read: set[str] = set()
    for part in parse_program(text):
        read |= {name for name in map(base_of, part.operands) if name not in assigned}
        assigned.add(part.name)
    return frozenset(read)


def _in_order(part: ProgramPart) -> ProgramPart:
    """A part whose result is read by others, so that its rows are in order."""
    request = part.request
    return part if request.form.in_order else replace(part, request=replace(request, form=replace(request.form, in_order=True)))


@lru_cache(maxsize=4096)
def only_patterns(request: Request) -> frozenset[int]:
    """The operands of which just the pattern is read: the mask, and those that stand within ``stored`` alone.

    >>> only_patterns(parse_statement("E[i,j] = stored(M[i,j]) * stored(S[i,j]) * exp(S[i,j])")[0].request)
    frozenset({0})
    """
    tensors = [access.tensor for value in request.read for access in accesses_in(value) if access.tensor.name in set(NAMES)]
    patterns = {NAMES.index(tensor.name) for tensor in tensors if not tensor.has_values}
    values = {NAMES.index(tensor.name) for tensor in tensors if tensor.has_values}
    return frozenset(patterns - values) | ({request.mask} if request.mask is not None else frozenset())


def _has_diagonal(value: Expr, op: str) -> bool:
    """Whether another reduction than a sum is of a diagonal: entries off it are no terms."""
    return op not in ("=", "+=") and any(len(set(a.indices)) < len(a.indices) for a in accesses_in(value))


def _uses(expr: Expr) -> Variables:
    return frozenset(variables_in(expr))


def _is_sum(expr: Expr) -> TypeGuard[Binary]:
    return isinstance(expr, Binary) and expr.op in "+-"


def _valued(access: Access) -> Access:
    """An access as one of values: of a tensor whose pattern is read beside its values, there is one operand."""
    return replace(access, tensor=replace(access.tensor, dtype="float32"))


class _Splitter:
    """Collects the parts of one statement, whose temporaries are numbered from those ``before``."""

    def __init__(self, lhs: Access, before: int = 0, text: str = ""):
        self.lhs, self.before, self.text = lhs, before, text
        self.parts: list[ProgramPart] = []

    def add(self, indices: Iterable[IndexVar], value: Expr, op: str = "=", name: str = "", exact: bool = False) -> Access:
        """A part, and the access to its result, which has these indices; where it is no sum of products, diagonals are taken first.

        A temporary is named by a number, which no tensor of the user's is.
        """
        indices = tuple(indices)
        if not is_product(value) or _has_diagonal(value, op):
            value = mapped(value, self._diagonal)
        accesses = list(dict.fromkeys(_valued(access) for access in accesses_in(value)))
        if len(accesses) > MOST_OPERANDS:
            raise ExpressionError(
                f"{len(accesses)} operands, but a statement has at most {MOST_OPERANDS}, a tensor counting once for each list of indices: "
                f"split it in two\n  {self.text}"
            )
        letters = {access: NAMES[at] for at, access in enumerate(accesses)}
        subscripts = Subscripts(tuple(tuple(v.name for v in a.indices) for a in accesses), tuple(v.name for v in indices))
        named = mapped(value, lambda a: Access(TensorVar(letters[_valued(a)], dense(len(a.indices)), a.tensor.dtype), a.indices))
        name = name or str(self.before + len(self.parts) + 1)
        self.parts.append(ProgramPart(name, tuple(a.tensor.name for a in accesses), Request(subscripts, named, op, form=Form(exact=exact))))
        return Access(TensorVar(name, dense(len(indices))), indices)

    def final(self, rhs: Expr) -> Expr:
        """The right side; what is reduced is left in place where that is all of it."""
        wanted = _uses(rhs).difference(self.lhs.indices)
        return self.reduced(rhs, wanted) if _is_sum(rhs) else self._inside(rhs, wanted)[0]

    def reduced(self, expr: Expr, wanted: Variables) -> Expr:
        """The expression without these variables: temporaries stand where they were summed over."""
        if not wanted:
            return expr
        if _is_sum(expr):
            return Binary(expr.op, *(self.reduced(side, wanted & _uses(side)) for side in (expr.left, expr.right)))
        inner, left = self._inside(expr, wanted)
        return self.add((v for v in variables_in(inner) if v not in left), inner) if left else inner

    def _inside(self, expr: Expr, wanted: Variables, outer: Variables = frozenset()) -> tuple[Expr, Variables]:
        """The expression with what only one of its arguments sums over reduced there, and the variables that are left.

        ``outer`` are the variables of the factors around it, whose uses count too.
        """
        match expr:
            case Binary("*", left, right):
                (a, left_over), (b, right_over) = (self._factor(s, wanted, outer | _uses(o)) for s, o in ((left, right), (right, left)))
                return Binary("*", a, b), left_over | right_over
            case Binary("/", left, right):
                a, left_over = self._factor(left, wanted, outer | _uses(right))
                summed = (wanted & _uses(right)) - _uses(left) - outer
                return Binary("/", a, self.reduced(right, summed)), left_over | ((wanted & _uses(right)) - summed)
            case Binary(op, left, right):
                (a, b), over = self._arguments((left, right), wanted)
                return Binary(op, a, b), over
            case Apply(function, args):
                inner, over = self._arguments(args, wanted)
                return Apply(function, inner), over
            case Access() | Literal():
                return expr, wanted & _uses(expr)

    def _factor(self, side: Expr, wanted: Variables, outer: Variables) -> tuple[Expr, Variables]:
        """A factor of a product: products stay open, sums and functions are closed over what no other factor uses."""
        here = wanted & _uses(side)
        if isinstance(side, Binary) and side.op in "*/":
            return self._inside(side, here, outer)
        if isinstance(side, Apply | Binary):
            summed = here - outer
            return self.reduced(side, summed), here - summed
        return side, here

    def _arguments(self, args: tuple[Expr, ...], wanted: Variables) -> tuple[tuple[Expr, ...], Variables]:
        """Arguments, each reduced over what no other one uses, and the variables that several use."""
        uses = [_uses(arg) for arg in args]
        shared = frozenset(v for v in wanted if sum(v in used for used in uses) > 1)
        inner = tuple(self.reduced(arg, (wanted & used) - shared) for arg, used in zip(args, uses, strict=True))
        return inner, shared

    def _diagonal(self, access: Access) -> Access:
        """A[i,i] as a temporary of one index: the sum by which its entries are found holds nothing else."""
        indices = tuple(dict.fromkeys(access.indices))
        return access if indices == access.indices else self.add(indices, access, exact=True)


@lru_cache(maxsize=1024)
def reducing(subscripts: Subscripts, op: str, test: bool = False, mask: int | None = None) -> Request:
    """The product of the operands, its terms joined by another operator than the sum; ``test`` asks only whether it isn't 0."""
    if op != "=" and op not in REDUCTIONS:
        raise ValueError(f"unknown reduction {op}")
    value: Expr = Literal(1.0, "float32")
    for at, names in enumerate(subscripts.operands):
        access = Access(TensorVar(NAMES[at], dense(len(names))), tuple(map(IndexVar, names)))
        value = access if at == 0 else Binary("*", value, access)
    if test:
        value = Binary("!=", value, Literal(0.0, "float32"))
    return Request(subscripts, value, op, mask)


@lru_cache(maxsize=1024)
def diagonal_request(names: tuple[str, ...]) -> Request:
    """The diagonal of an operand along each index that repeats; entries that the operand does not store are not stored."""
    return Request(Subscripts((names,), tuple(dict.fromkeys(names))), form=Form(exact=True))


@lru_cache(maxsize=1024)
def plain_request(subscripts: Subscripts) -> Request:
    """The sum of products."""
    return Request(subscripts)


@lru_cache(maxsize=1024)
def einsum_request(text: str, ranks: tuple[int, ...]) -> Request:
    """The request of an einsum's text, for operands of these ranks; the same one for the same subscripts.

    Raises:
        ExpressionError: the text can't be read, or doesn't fit the ranks.

    >>> print(einsum_request("...j,j", (2, 1)))
    e0j,j->e0
    """
    return plain_request(parse_einsum(text, ranks))


def scheduled(request: Request, text: str) -> Request:
    """The request, to be compiled by a user's schedule.

    Raises:
        ScheduleError: the schedule can't be read.
    """
    return _scheduled(request, parse_options(text))


@lru_cache(maxsize=1024)
def _scheduled(request: Request, options: Options) -> Request:
    return replace(request, options=options)
