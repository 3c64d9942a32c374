"""Random element-wise statements with every operator, chained comparisons and parentheses; Python is the reference.

Python evaluates the right side of a statement at each coordinate, with 0 for unstored entries. The reference is thus independent of
the parser of numscorch.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from dense_values import as_dense

import numscorch as ns

SHAPES = ((2, 3), (3, 3), (1, 4), (3, 1), (0, 2))
FORMATS = (None, "ds", "ss", "oo", "(i, j) -> (i: dense, j: bitmap)", "(i, j) -> (i // 2: dense, j: dense, i % 2: compressed)")
INDICES = ("i,j", "i,j", "i,j", "j", "i", "")
NUMBERS = ("0", "1", "2", "0.5")
OPERATORS = ("+", "-", "*", "*", "+")
BY_A_NUMBER = ("/ 2", "// 2", "% 2", "% 3", "// -1", "% -1", "% -3", "** 2", "** 3")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
FUNCTIONS = {
    "abs": abs,
    "relu": lambda x: max(x, 0.0),
    "maximum": max,
    "minimum": min,
    "where": lambda condition, a, b: a if condition else b,
    "tanh": math.tanh,
}
ARITY = {"maximum": 2, "minimum": 2, "where": 3}
ACCESS = re.compile(r"([ABC])\[([ij,]*)\]")


@dataclass(frozen=True)
class ArithmeticStatement:
    """Right side, shape of the result, and format of each operand; ``integers`` names the operands with integer values."""

    text: str
    shape: tuple[int, int]
    formats: tuple[str | None, ...]
    seed: int
    integers: str = ""

    def arrays(self) -> dict[str, np.ndarray]:
        """Dense operands of small integers, with the dimensions read by the text."""
        numbers, sizes = np.random.default_rng(self.seed), dict(zip("ij", self.shape, strict=True))
        arrays = {}
        for name, indices in sorted(set(ACCESS.findall(self.text))):
            shape = [sizes[index] for index in indices.split(",") if index]
            arrays[name] = np.asarray(numbers.integers(-2, 3, shape) * (numbers.random(shape) < 0.7), np.float64)
        return arrays

    def evaluated(self) -> Any:
        """Result of numscorch."""
        operands: dict[str, Any] = {}
        for name, array in self.arrays().items():
            fmt, tensor = self.formats["ABC".index(name)], torch.from_numpy(array.astype(np.int64) if name in self.integers else array)
            operands[name] = tensor if fmt is None or array.ndim != 2 else ns.from_torch(tensor, ns.Format(fmt))
        return ns.evaluate(f"D[i,j] = {self.text}", **operands)

    def expected(self) -> np.ndarray:
        """Result of Python at each coordinate."""
        arrays, result = self.arrays(), np.zeros(self.shape)
        code = compile(self.text, "statement", "eval")
        for i, j in product(*map(range, self.shape)):
            values = {name: Scalar(array, (i, j)) if array.ndim else {(): float(array)} for name, array in arrays.items()}
            result[i, j] = float(eval(code, {"__builtins__": {}, **FUNCTIONS}, {**values, "i": "i", "j": "j"}))
        return result


class Scalar:
    """An operand at one coordinate; ``A[i,j]`` reads it."""

    def __init__(self, array: np.ndarray, at: tuple[int, int]):
        self.array, self.at = array, dict(zip("ij", at, strict=True))

    def __getitem__(self, indices: str | tuple[str, ...]) -> float:
        return float(self.array[tuple(self.at[index] for index in indices)])


INTEGER_FORMS = (
    *("{} + {}", "{} - {}", "{} * {}", "{} // {}", "{} % {}", "fmod({}, {})", "floor_divide({}, {})", "remainder({}, {})"),
    *("maximum({}, {})", "minimum({}, {})", "fmax({}, {})", "fmin({}, {})", "where({} > {}, A[i], 1)", "{} == {}"),
    *("abs({})", "-{}", "square({})", "sign({})", "relu({})", "{} // -1", "{} % -1", "fmod({}, -1)", "{} // 3", "{} % -3", "fmod({}, 3)"),
)
INTEGER_FUNCTIONS: dict[str, Any] = {
    **{name: getattr(np, name) for name in ("abs", "fmax", "fmin", "fmod", "maximum", "minimum", "remainder", "sign", "square", "where")},
    "floor_divide": lambda x, y: x // y,
    "relu": lambda x: np.maximum(x, x - x),
}


@dataclass(frozen=True)
class IntegerStatement:
    """Right side, data type and format of a statement on vectors of integers at the edges of their type; NumPy is the reference."""

    text: str
    dtype: str
    format: str
    seed: int

    def arrays(self) -> dict[str, np.ndarray]:
        """The operands: the smallest and largest integer, -1, 0, 1 and others, in all pairs."""
        limits = np.iinfo(self.dtype)
        points = np.array([limits.min, limits.max, -1, 0, 1, random.Random(self.seed).randint(-7, 7)], self.dtype)
        return dict(zip("AB", (axis.ravel() for axis in np.meshgrid(points, points)), strict=True))

    def evaluated(self) -> np.ndarray | None:
        """Result of numscorch; None if an integer is divided by 0."""
        operands = {name: ns.from_torch(torch.from_numpy(a), ns.Format(self.format)) for name, a in self.arrays().items()}
        try:
            result = ns.evaluate(f"R[i] = {self.text}", **{name: operand for name, operand in operands.items() if name in self.text})
        except ns.DivisionError:
            return None
        return np.asarray(as_dense(result))

    def expected(self) -> np.ndarray | None:
        """Result of NumPy; None if an integer is divided by 0."""
        arrays, code = self.arrays(), compile(self.text.replace("[i]", ""), "statement", "eval")
        with np.errstate(over="ignore", divide="raise"):
            try:
                return np.asarray(eval(code, {"__builtins__": {}, **INTEGER_FUNCTIONS}, arrays)).astype(self.dtype)
            except FloatingPointError:
                return None


def random_integer_statement(seed: int) -> IntegerStatement:
    """One or two nested operators or functions of integers; no comparison is nested: NumPy's booleans have no ``-``."""
    rng = random.Random(seed)
    text = rng.choice(INTEGER_FORMS).format("A[i]", "B[i]")
    if "==" not in text and rng.random() < 0.5:
        text = rng.choice(INTEGER_FORMS).format(*rng.sample((f"({text})", rng.choice(("A[i]", "B[i]"))), 2))
    return IntegerStatement(text, rng.choice(("int8", "int16", "int32", "int64")), rng.choice(("s", "d", "(i) -> (i: bitmap)")), seed)


def random_statement(seed: int) -> ArithmeticStatement:
    """The statement of a seed; its text contains i and j."""
    rng = random.Random(seed)
    indices = dict(zip("ABC", ("i,j", *rng.choices(INDICES[:-1], k=2)), strict=True))
    text = _expression(rng, indices, rng.choice((1, 2, 2, 3)))
    if "A[i,j]" not in text:
        text = f"A[i,j] {rng.choice((*OPERATORS, *COMPARISONS))} {text}"
    return ArithmeticStatement(text, rng.choice(SHAPES), tuple(rng.choice(FORMATS[1:] if at == 0 else FORMATS) for at in range(3)), seed)


def _expression(rng: random.Random, indices: dict[str, str], depth: int) -> str:
    """An expression of at most ``depth`` levels; chains of comparisons have up to four terms."""
    if depth == 0:
        name = rng.choice("AABC")
        return rng.choice(NUMBERS) if rng.random() < 0.15 else f"{name}[{indices[name]}]"
    terms = [_expression(rng, indices, depth - 1) for _ in range(4)]
    kind = rng.random()
    if kind < 0.3:
        count = rng.choice((2, 3, 3, 4))
        text = terms[0] + "".join(f" {rng.choice(COMPARISONS)} {term}" for term in terms[1:count])
        return text if rng.random() < 0.5 else f"({text})"
    if kind < 0.45:
        name = rng.choice(list(FUNCTIONS))
        return f"{name}({', '.join(terms[: ARITY.get(name, 1)])})"
    if kind < 0.55:
        text = f"{rng.choice('--+')}{terms[0]}"
        return text if rng.random() < 0.5 else f"({text})"
    if kind < 0.7:  # by a nonzero number: 0 / 0 is NaN in Python, but 0 at unstored entries
        return f"{terms[0]} {rng.choice(BY_A_NUMBER)}" if rng.random() < 0.5 else f"({terms[0]}) {rng.choice(BY_A_NUMBER)}"
    text = f"{terms[0]} {rng.choice(OPERATORS)} {terms[1]}"
    return text if rng.random() < 0.5 else f"({text})"


def is_chained(text: str) -> bool:
    """Whether the text has a chained comparison.

    >>> is_chained("A[i,j] < 1 + B[i,j] < 2"), is_chained("(A[i,j] < 1) < 2")
    (True, False)
    """
    import ast

    return any(isinstance(node, ast.Compare) and len(node.ops) > 1 for node in ast.walk(ast.parse(text, mode="eval")))
