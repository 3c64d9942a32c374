"""The parser of index notation. ``str(stmt)`` prints a statement, :func:`parse_stmt` parses it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from ..errors import ExpressionError
from .format import dense
from .functions import FUNCTIONS, REDUCTIONS
from .index import (
    PATTERN,
    STRENGTH,
    Access,
    Ahead,
    Apply,
    Assignment,
    Binary,
    Blend,
    Blocks,
    Divide,
    Each,
    Expr,
    FlatSum,
    Forall,
    Gallop,
    IndexVar,
    Jam,
    Literal,
    Parallel,
    PartialSums,
    Positions,
    Serial,
    Specialize,
    Stmt,
    Tag,
    TensorVar,
    Tile,
    Transpose,
    Unroll,
    Vector,
    Where,
    arguments_of,
)

T = TypeVar("T")
TOKEN = re.compile(
    r"\s*(\w+_forall<[^>]*>|sums<[^>]*>|stored\s+max=(?!=)|(?:max|min)=(?!=)|[A-Za-z_]\w*|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[jJ]?"
    r"|[-+*]=|[=!<>]=|\*\*|//|[-+*/%=(),\[\]<>]|\S)"
)
STORED = "stored"
NUMBER = re.compile(r"\.?\d")
POWER = "**"
CALLED = {POWER: "pow", "%": "remainder", "//": "floor_divide"}  # operators that are parsed to functions
STRENGTH_OF = {**STRENGTH, "%": STRENGTH["*"], "//": STRENGTH["*"]}  # precedence of binary operators, without the power
MOST_NESTED = 100  # maximum nesting depth of parentheses, calls and powers
DEEPEST = 200  # maximum depth of an expression: passes recurse once per operator
COMPARISON = STRENGTH["<"]
CHAINED = "comparisons are not chained: write (A[i] < B[i]) * (B[i] < C[i]), or parentheses around one of them"
BOUNDS = "the bounds of a window are whole numbers, not names: write the number into the text, as in f'A[i,0:{n}:2]'"


def _vector(lanes: str, registers: str, once: str | None, rest: str | None, masked: str | None, overlapped: str | None) -> Vector:
    loop, tail = (0, int(registers)) if once else (int(registers), int(rest or 0))
    return Vector(int(lanes), loop, tail, bool(masked), bool(overlapped))


COUNT = r"([1-9]\d*)"
# the texts of tags, and how to build a tag from the groups of its text
TAGS: tuple[tuple[str, Callable[..., Tag]], ...] = (
    ("forall", Serial),
    ("parallel_forall", Parallel),
    (rf"divide_forall<(\w+)(?:, {COUNT})?>", lambda var, blocks: Divide(var, int(blocks or 0))),
    (rf"vector_forall<{COUNT} x {COUNT}(, once)?(?:, rest {COUNT})?(, masked)?(, overlapped)?>", _vector),
    (rf"unroll_forall<{COUNT}>", lambda times: Unroll(int(times))),
    (rf"position_forall<{COUNT}>", lambda lanes: Positions(int(lanes))),
    (rf"entry_forall<{COUNT} x {COUNT}>", lambda lanes, registers: FlatSum(int(lanes), int(registers))),
    ("each_forall", Each),
    (rf"ahead_forall<{COUNT}>", lambda positions: Ahead(int(positions))),
    (r"gallop_forall<(\w+)>", Gallop),
    (r"blend_forall(<ahead>)?", lambda ahead: Blend(bool(ahead))),
    (rf"tile_forall<{COUNT}>", lambda size: Tile(int(size))),
    (rf"block_forall<{COUNT}>", lambda count: Blocks(int(count))),
    (rf"jam_forall<{COUNT}(, rest)?>", lambda times, rest: Jam(int(times), bool(rest))),
    (rf"transpose_forall<{COUNT}>", lambda lanes: Transpose(int(lanes))),
    (rf"specialize_forall<(kinds|tiles|coordinates)(?:, {COUNT})?>", lambda over, lanes: Specialize(over, int(lanes or 0))),
)


def parse_stmt(text: str, tensors: Mapping[str, TensorVar] | None = None) -> Stmt:
    """Parse a statement. Tensors that are not given are dense, float32 and row-major.

    Raises:
        ExpressionError: the text is not a statement; a caret marks the error.

    >>> stmt = parse_stmt("forall(i, where(y[i] = t, forall(j, t += A[i,j] * x[j])))")
    >>> print(stmt)
    forall(i, where(y[i] = t, forall(j, t += A[i,j] * x[j])))
    """
    return _parsed(text, tensors, _Parser.statement)


def parse_expr(text: str, tensors: Mapping[str, TensorVar] | None = None) -> Expr:
    """Parse an expression.

    >>> print(parse_expr("(A[i,j] + 2) * abs(x[j])"))
    (A[i,j] + 2) * abs(x[j])
    """
    return _parsed(text, tensors, _Parser.whole)


def _parsed(text: str, tensors: Mapping[str, TensorVar] | None, read: Callable[[_Parser], T]) -> T:
    reader = _Parser(text, dict(tensors or {}))
    result = read(reader)
    if reader.peek():
        raise reader.error("expected the end")
    return result


def operated(op: str, left: Expr, right: Expr) -> Expr:
    """Apply a binary operator; ``**``, ``%`` and ``//`` become functions.

    >>> print(parse_expr("-x[i] ** 2 % 3"))
    remainder(0 - pow(x[i], 2), 3)
    """
    return Apply(CALLED[op], (left, right)) if op in CALLED else Binary(op, left, right)


def literal(token: str, dtype: str) -> Literal:
    """The literal of a number token. A decimal point or an exponent makes an integral number a float.

    >>> print(*(literal(token, "float32") for token in ("2", "2.", "2e0", "1.5j")))
    2 2.0 2.0 1.5j
    """
    value = complex(token) if token[-1] in "jJ" else float(token)
    is_float = not token.isdigit() and not isinstance(value, complex) and value.is_integer()
    return Literal(value, dtype, is_float)


def depth_of(expr: Expr) -> int:
    """The depth of an expression, computed without recursion."""
    deepest, stack = 0, [(expr, 0)]
    while stack:
        inner, depth = stack.pop()
        deepest = max(deepest, depth)
        stack += [(arg, depth + 1) for arg in arguments_of(inner)]
    return deepest


class _Parser:
    """A recursive-descent parser of one text."""

    def __init__(self, text: str, tensors: dict[str, TensorVar], dtype: str = "float32"):
        self.text, self.tensors, self.dtype, self.at, self.depth, self.windows = text, tensors, dtype, 0, 0, 0
        self.tokens = [(m.start(1), m[1]) for m in TOKEN.finditer(text)]

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, wanted: str | None = None) -> str:
        token = self.peek()
        if not token or (wanted is not None and token != wanted):
            raise self.error(f"expected {wanted or 'more'}, found {token or 'the end'}")
        self.at += 1
        return token

    def name(self) -> str:
        if self.peek() and not self.peek().isidentifier():
            raise self.error(f"expected a name, found {self.peek()}")
        return self.take()

    def error(self, why: str) -> ExpressionError:
        place = self.tokens[self.at][0] if self.at < len(self.tokens) else len(self.text)
        return ExpressionError(f"{why}\n  {self.text}\n  {' ' * place}^")

    def statement(self) -> Stmt:
        token = self.peek()
        if token == "where":
            return self.where()
        return self.forall() if token == "forall" or "_forall" in token else self.assignment()

    def where(self) -> Where:
        self.take("where")
        self.take("(")
        consumer = self.statement()
        self.take(",")
        producer = self.statement()
        self.take(")")
        return Where(consumer, producer)

    def forall(self) -> Forall:
        tag = self.tag(self.take())
        self.take("(")
        var = IndexVar(self.name())
        sums = self.sums() if self.peek() == ":" else None
        self.take(",")
        body = self.statement()
        self.take(")")
        return Forall(var, body, tag, sums)

    def sums(self) -> PartialSums:
        """Parse the partial sums of a loop, such as ``: sums<64>``."""
        self.take(":")
        token = self.take()
        if re.fullmatch(rf"sums(<{COUNT}(, {COUNT})*>)?", token) is None:
            raise self.error(f"expected sums, found {token}")
        return PartialSums(tuple(map(int, re.findall(COUNT, token))))

    def tag(self, token: str) -> Tag:
        for pattern, build in TAGS:
            if match := re.fullmatch(pattern, token):
                return build(*match.groups())
        raise self.error(f"unknown loop {token}")

    def assignment(self) -> Assignment:
        lhs = self.access()
        if self.peek() in ("min", "max") and [token for _, token in self.tokens[self.at + 1 : self.at + 3]] == ["plus", "="]:
            semiring = f"{self.peek()}_plus"
            raise self.error(f"statements do not support semirings: use einsum, as in einsum('ij,jk->ik', A, B, reduce='{semiring}')")
        op = " ".join(self.take().split())
        if op not in ("=", *REDUCTIONS):
            self.at -= 1
            raise self.error(f"expected = or {', '.join(op for op in REDUCTIONS if ' ' not in op)}, found {op}")
        return Assignment(lhs, self.whole(), op)

    def whole(self) -> Expr:
        """Parse an expression and check its depth.

        Raises:
            ExpressionError: the expression is deeper than :data:`DEEPEST`.
        """
        expr = self.expression()
        if depth_of(expr) > DEEPEST:
            raise self.error(f"more than {DEEPEST} operators in a row, or nested: split the statement in two")
        return expr

    def expression(self, strength: int = 1) -> Expr:
        """Parse binary operators that bind at least this strongly. Operators of equal strength are left-associative.

        Raises:
            ExpressionError: a chain of comparisons, or deeper nesting than :data:`MOST_NESTED`.
        """
        expr = self.unary()
        is_comparison = False
        while (binding := STRENGTH_OF.get(self.peek(), 0)) >= strength:
            if is_comparison and binding == COMPARISON:
                raise self.error(CHAINED)
            is_comparison = binding == COMPARISON
            expr = operated(self.take(), expr, self.expression(binding + 1))
        return expr

    def unary(self) -> Expr:
        """Parse signs and a power. ``-x ** 2`` is ``-(x ** 2)``."""
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.take() == "-"
        inner = self.power()
        if not negative:
            return inner
        return replace(inner, value=-inner.value) if isinstance(inner, Literal) else Binary("-", Literal(0.0, self.dtype), inner)

    def power(self) -> Expr:
        """Parse an operand or a power. Powers are right-associative."""
        base = self.operand()
        if self.peek() != POWER:
            return base
        return operated(self.take(), base, self.nested(self.unary))

    def nested(self, read: Callable[[], Expr]) -> Expr:
        """Parse an expression in parentheses, a call or a power.

        Raises:
            ExpressionError: the nesting is too deep.
        """
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise self.error(f"parentheses, calls and powers nest more than {MOST_NESTED} deep: split the statement in two")
        expr = read()
        self.depth -= 1
        return expr

    def listed(self, opening: str, read: Callable[[], T], closing: str) -> list[T]:
        """Parse one or more items in brackets, separated by commas."""
        self.take(opening)
        items = [read()]
        while self.peek() == ",":
            self.take()
            items.append(read())
        self.take(closing)
        return items

    def operand(self) -> Expr:
        token = self.peek()
        if NUMBER.match(token):
            return literal(self.take(), self.dtype)
        if token == "(":
            self.take()
            inner = self.nested(self.expression)
            self.take(")")
            return inner
        if self.at + 1 < len(self.tokens) and self.tokens[self.at + 1][1] == "(":
            return self.call()
        return self.access()

    def stored(self) -> Access:
        """Parse stored(A[i,j]), the pattern of A: 1 where A stores an entry, whatever its value."""
        self.take("(")
        if not self.peek().isidentifier():
            raise self.error("stored takes a tensor, as in stored(A[i,j])")
        access = self.access()
        if self.peek() != ")":
            raise self.error("stored takes one tensor, as in stored(A[i,j])")
        self.take(")")
        return access.with_changes(dtype=PATTERN)

    def call(self) -> Expr:
        name = self.name()
        if name == STORED:
            return self.stored()
        if name not in FUNCTIONS:
            self.at -= 1
            raise self.error(f"unknown function {name}: use one of {', '.join((*FUNCTIONS, STORED))}")
        args = self.listed("(", lambda: self.nested(self.expression), ")")
        if len(args) != FUNCTIONS[name].arity:
            raise self.error(f"{name} takes {FUNCTIONS[name].arity} arguments, not {len(args)}")
        return Apply(name, tuple(args))

    def access(self) -> Access:
        """Parse an access. The name of the tensor includes its windows and constant indices, such as ``A[0,:]``."""
        name = self.name()
        subscripts = self.listed("[", self.index, "]") if self.peek() == "[" else []
        if any(window != ":" for _, window in subscripts):
            name = f"{name}[{','.join(window for _, window in subscripts)}]"
        indices = tuple(var for var, _ in subscripts if var is not None)
        order = len(indices)
        default = TensorVar(name, dense(order), strides="n" * (order - 1) + "1" if order else "")
        return Access(self.tensors.setdefault(name, default), indices)

    def index(self) -> tuple[IndexVar | None, str]:
        """Parse an index: ``i``, ``0``, ``i(1:8:2)``, or ``1:8:2``, which gets a new variable.

        Returns:
            The index variable, or None for a constant; and the text of the window or constant, ``:`` for a whole dimension.
        """
        if self.peek().isidentifier():
            var = IndexVar(self.take())
            if self.peek() == ":":
                self.at -= 1
                raise self.error(BOUNDS)
            if self.peek() != "(":
                return var, ":"
            self.take("(")
            window = self.window(self.bound())
            self.take(")")
            return var, window
        first = self.bound()
        if first and self.peek() != ":":
            return None, first
        self.windows += 1
        return IndexVar(f"window_{self.windows}"), self.window(first)

    def window(self, first: str) -> str:
        """Parse the window first:last:step after ``first``; each number is optional."""
        self.take(":")
        bounds = [first, self.bound()]
        if self.peek() == ":":
            self.take()
            if (step := self.bound()).startswith(("-", "0")):
                raise self.error("the step of a window is positive")
            bounds += [step] if step else []
        return ":".join(bounds)

    def bound(self) -> str:
        """Parse an integer; empty if there is none."""
        sign = "-" if self.peek() == "-" and self.take() else ""
        if self.peek() in (":", ")", "]", ",") and not sign:
            return ""
        if self.peek().isidentifier():
            raise self.error(BOUNDS)
        if not self.peek().isdigit():
            raise self.error("an index is a name, a whole number such as 0, or a window such as 0:8:2 or j(0:8:2)")
        return sign + str(int(self.take()))
