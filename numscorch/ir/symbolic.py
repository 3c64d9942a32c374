"""Symbolic sizes: integers that know how they follow from the sizes of the operands, and that record what is decided by them.

A plan is made for one set of operands and serves all operands for which every decision would be the same. While it is made,
sizes are :class:`Size` objects. Arithmetic with them gives sizes with a longer text. Whatever leaves this arithmetic (a
comparison, a function marked with :func:`decides`, a conversion to text) is a *question*, and is recorded with its answer.
Other sizes with equal answers get the same plan; the texts compute the numbers that the plan needs for them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

P = ParamSpec("P")
Answer = TypeVar("Answer")
T = TypeVar("T")
Question = str  # an expression of SIZES, a tuple of integers

MOST = 1024  # maximum number of objects kept for different answers
SIZES = "s"
PLACE = re.compile(r"\bs\[(\d+)\]")  # a size in a question
DECIDING: dict[str, Callable[..., Any]] = {}  # functions marked with ``decides``, by name; a test may replace one by a coarser one


@dataclass(slots=True)
class Record:
    """Questions about sizes with their answers, in the order in which they were asked; ``is_open`` until the plan is made."""

    answers: dict[Question, Any] = field(default_factory=dict)
    is_open: bool = True

    def ask(self, question: Question, answer: Any) -> None:
        """Record a question and its answer."""
        if self.is_open:
            self.answers.setdefault(question, answer)

    def closed(self) -> dict[Question, Any]:
        """End the recording, and return the questions with their answers."""
        self.is_open = False
        return self.answers


class Size(int if TYPE_CHECKING else object):  # type: ignore[misc]  # C code reads the value of a subclass of int unseen
    """A size with the text that computes it from the operands' sizes, and the record of the questions about it.

    It behaves as an integer. Any use outside the arithmetic of sizes records a question; by default, what its value is.

    >>> record = Record()
    >>> rows, columns = Size(3, "s[0]", record), Size(4, "s[1]", record)
    >>> (rows * columns + 1).text, rows * 1 is rows
    ('((s[0] * s[1]) + 1)', True)
    >>> rows < columns, rows == 1, 0.5 * columns
    (True, False, 2.0)
    >>> record.answers
    {'s[0] < s[1]': True, 's[0] == 1': False, 's[1]': 4}
    """

    __slots__ = ("record", "text", "value")

    def __init__(self, value: int, text: str, record: Record) -> None:
        self.value, self.text, self.record = value, text, record

    def known(self) -> int:
        """The plain integer, recorded as an answer, so that the plan serves only this value."""
        self.record.ask(self.text, self.value)
        return self.value

    def __bool__(self) -> bool:
        return self != 0

    def __format__(self, spec: str) -> str:
        return format(self.known(), spec)

    def bit_length(self) -> int:
        """Number of bits of the value."""
        return self.known().bit_length()

    def __neg__(self) -> int:
        return Size(-self.value, f"(-{self.text})", self.record)


def value_of(size: int) -> int:
    """The plain value of a size, without a question.

    >>> value_of(Size(3, "s[0]", Record())), value_of(4)
    (3, 4)
    """
    return size.value if isinstance(size, Size) else size


def text_of(value: Any) -> str:
    """The expression of a size, a tuple or another value in terms of SIZES."""
    if isinstance(value, Size):
        return value.text
    return f"({''.join(f'{text_of(item)}, ' for item in value)})" if type(value) is tuple else repr(value)


def _arithmetic(name: str, sign: str, without: int | None) -> None:
    """Define an operator and its reflected form. ``without`` is the right operand that leaves a size unchanged, such as 0 for +."""
    operation, is_commutative = getattr(operator, name), sign in "+*|"

    def apply(self: Size, other: Any) -> Any:
        if not isinstance(other, int | Size):
            return operation(self.known(), other)
        if type(other) is int and other == without:
            return self
        return Size(operation(self.value, value_of(other)), f"({self.text} {sign} {text_of(other)})", self.record)

    def reflected(self: Size, other: Any) -> Any:
        if not isinstance(other, int):
            return operation(other, self.known())
        return apply(self, other) if is_commutative else Size(operation(other, self.value), f"({other} {sign} {self.text})", self.record)

    setattr(Size, f"__{name.strip('_')}__", apply)
    setattr(Size, f"__r{name.strip('_')}__", reflected)


def _comparison(name: str, sign: str) -> None:
    compare = getattr(operator, name)

    def apply(self: Size, other: Any) -> Any:
        if not isinstance(other, int | Size):
            return NotImplemented if other is None or isinstance(other, str | tuple) else compare(self.known(), other)
        answer = compare(self.value, value_of(other))
        if text_of(other) != self.text:
            self.record.ask(f"{self.text} {sign} {text_of(other)}", answer)
        return answer

    setattr(Size, f"__{name}__", apply)


def _plain(name: str) -> None:
    """Define an operator whose result is a plain number, so that the plan serves only this value of the size."""
    operation = getattr(operator, name)
    setattr(Size, f"__{name}__", lambda self, other: operation(self.known(), other))
    setattr(Size, f"__r{name}__", lambda self, other: operation(other, self.known()))


def _conversion(name: str, convert: Callable[[int], Any]) -> None:
    """Define a conversion of the plain value, so that the plan serves only this value of the size."""
    setattr(Size, f"__{name}__", lambda self: convert(self.known()))


for _name, _convert in (("hash", hash), ("int", int), ("index", int), ("float", float), ("repr", repr), ("str", repr)):
    _conversion(_name, _convert)
for _name, _sign, _without in (
    ("add", "+", 0),
    ("sub", "-", 0),
    ("mul", "*", 1),
    ("floordiv", "//", 1),
    ("mod", "%", None),
    ("or_", "|", 0),
):
    _arithmetic(_name, _sign, _without)
for _name, _sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    _comparison(_name, _sign)
for _name in ("truediv", "pow", "lshift", "rshift"):
    _plain(_name)


def decides(function: Callable[P, Answer]) -> Callable[P, Answer]:
    """Mark a function as one question: its answer is recorded instead of the comparisons inside it.

    Its arguments are sizes, numbers, and tuples of these; its answer is hashable.

    >>> @decides
    ... def octave(size: int) -> int:
    ...     return size.bit_length()
    >>> record = Record()
    >>> octave(Size(1000, "s[2]", record)), record.answers
    (10, {'octave(s[2])': 10})
    """
    name = function.__name__
    DECIDING[name] = function

    @wraps(function)
    def asked(*arguments: P.args, **named: P.kwargs) -> Answer:
        symbolic = next((size for size in arguments if isinstance(size, Size)), None)
        if symbolic is None:
            return DECIDING[name](*arguments, **named)
        answer: Answer = DECIDING[name](*map(_without_record, arguments), **named)
        symbolic.record.ask(f"{name}({', '.join(map(text_of, arguments))})", answer)
        return answer

    return asked


def _without_record(value: Any) -> Any:
    return tuple(map(_without_record, value)) if type(value) is tuple else value_of(value)


@lru_cache(maxsize=4096)
def computing(text: str) -> Callable[[Sequence[int]], Any]:
    """Turn a text into the function of the operands' sizes that it describes."""
    return eval(f"lambda {SIZES}: {text}", DECIDING)


def symbols_for(sizes: Iterable[int]) -> tuple[tuple[int, ...], Record]:
    """Symbolic sizes with these values, and the record of the questions about them.

    >>> (rows, columns), record = symbols_for((3, 4))
    >>> rows == columns, record.closed()
    (False, {'s[0] == s[1]': False})
    """
    record = Record()
    return tuple(Size(size, f"{SIZES}[{at}]", record) for at, size in enumerate(sizes)), record


def repeat(answers: Mapping[Question, Any], sizes: Sequence[int]) -> None:
    """Record earlier questions and answers again, with these sizes in place of ``s[0]``, ``s[1]``, ...

    >>> (rows, columns), record = symbols_for((3, 4))
    >>> repeat({"s[0] == 12": True}, [rows * columns])
    >>> record.closed()
    {'(s[0] * s[1]) == 12': True}
    """
    symbols = [size for size in sizes if isinstance(size, Size)]
    for question, answer in answers.items() if symbols else ():
        text = PLACE.sub(lambda match: text_of(sizes[int(match[1])]), question)
        if PLACE.search(text):
            symbols[0].record.ask(text, answer)


def evaluated(value: T, sizes: Sequence[int]) -> T:
    """Evaluate a symbolic size, or a tuple of such sizes, for these sizes of the operands.

    >>> evaluated((Size(3, "s[0]", Record()) * 2, 5), [10])
    (20, 5)
    """
    return computing(text_of(value))(sizes)


class Decisions:
    """A cache of objects made for some sizes. Other sizes find the same object if they give the same answers to its questions.

    >>> made = Decisions()
    >>> made.add({"s[0] == 1": False, "s[1] % 4": 2}, "blocks with an edge")
    >>> made.find((7, 10)), made.find((1, 10)), made.find((7, 12))
    ('blocks with an edge', None, None)
    """

    __slots__ = ("tables",)

    def __init__(self) -> None:
        self.tables: dict[tuple[Question, ...], tuple[Callable[[Sequence[int]], Any], dict[Any, Any]]] = {}

    def __len__(self) -> int:
        return sum(len(plans) for _, plans in self.tables.values())

    def find(self, sizes: Sequence[int], answers: dict[Question, Any] | None = None) -> Any:
        """The object that was made for sizes with the same answers, or None. Its questions and answers are added to ``answers``."""
        for questions, (ask, plans) in self.tables.items():
            try:
                key = ask(sizes)
            except (ArithmeticError, LookupError, ValueError):  # such as a remainder by 0, which is asked only of other sizes
                continue
            if key in plans:
                if answers is not None:
                    answers |= zip(questions, key, strict=True)
                return plans[key]
        return None

    def of(self, given: Sequence[int], make: Callable[[tuple[int, ...]], T]) -> T:
        """The object that was made for sizes with the same answers; if there is none, ``make`` makes it from symbolic sizes.

        If ``given`` sizes are symbolic themselves, their record gets the questions too.

        >>> decisions = Decisions()
        >>> [decisions.of([size], lambda sizes: "whole blocks" if sizes[0] % 4 == 0 else "an edge") for size in (8, 12, 9)]
        ['whole blocks', 'whole blocks', 'an edge']
        >>> len(decisions)
        2
        """
        sizes, answers = tuple(map(value_of, given)), dict[Question, Any]()
        result: T | None = self.find(sizes, answers)
        if result is None:
            symbols, record = symbols_for(sizes)
            result = make(symbols)
            answers = record.closed()
            self.add(answers, result)
        repeat(answers, given)
        return result

    def add(self, answers: dict[Question, Any], plan: Any) -> None:
        """Keep a plan with the questions and answers that led to it. If ``MOST`` plans are kept already, all of these are dropped."""
        tables, questions = self.tables if len(self) < MOST else {}, tuple(answers)
        ask, plans = tables.get(questions) or (computing(f"({''.join(f'{question}, ' for question in questions)})"), {})
        newest = ask, plans | {tuple(answers.values()): plan}
        self.tables = {questions: newest} | {other: table for other, table in tables.items() if other != questions}
