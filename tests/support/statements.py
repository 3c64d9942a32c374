"""Seeded random statements for evaluate: sums of products, element-wise functions and reductions."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from cases import as_operand, random_format

import numscorch as ns

SIZES = (0, 1, 2, 3, 4, 5, 7)
WEIGHTS = (1, 3, 3, 4, 4, 3, 1)
Array = np.ndarray
UNARY: dict[str, Callable[[Array], Array]] = {
    "relu({})": lambda x: np.maximum(x, 0),
    "abs({})": np.abs,
    "({} > 1)": lambda x: (x > 1) * 1.0,
    "({} == 0)": lambda x: (x == 0) * 1.0,
    "maximum({}, 2)": lambda x: np.maximum(x, 2),
    "minimum({}, 2)": lambda x: np.minimum(x, 2),
    "-{}": lambda x: -x,
    "({} / 2)": lambda x: x / 2,
    "where({}, 2, 0)": lambda x: np.where(x != 0, 2.0, 0.0),
    "(({}) ** 2)": lambda x: x**2,
    "-({}) ** 2": lambda x: -(x**2),
    "(({}) % 3)": lambda x: x % 3,
    "(({}) // 2)": lambda x: x // 2,
    "+{}": lambda x: x,
    "clamp({}, -1, 2)": lambda x: np.clip(x, -1, 2),
    "fmod({}, 2)": lambda x: np.fmod(x, 2),
    "sign({})": np.sign,
    "round({} / 2)": lambda x: np.rint(x / 2),
    "cos(0 * {})": np.ones_like,
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "({} + {})": np.add,
    "({} - {})": np.subtract,
    "maximum({}, {})": np.maximum,
    "minimum({}, {})": np.minimum,
    "({} != {})": lambda a, b: (a != b) * 1.0,
    "(({} < {}) == 0)": lambda a, b: (a >= b) * 1.0,
    "fmax({}, {})": np.fmax,
    "heaviside({}, {})": np.heaviside,
}
FACTORS: dict[str, Callable[..., Array]] = {
    "{}": lambda a: a,
    "({} + {})": np.add,
    "maximum({}, {})": np.maximum,
    "({} + 2)": lambda a: a + 2,
    "({} * {} + 1)": lambda a, b: a * b + 1,
}


@dataclass
class Drawn:
    """State of a generator: arrays and formats of the tensors by name, and extents of the indices."""

    rng: random.Random
    sizes: dict[str, int]
    arrays: dict[str, Array]
    formats: dict[str, ns.Format | None]
    densities: tuple[float, ...] = (0.0, 0.2, 0.5, 1.0)

    def access(self, order: int | None = None) -> tuple[str, Array]:
        """Text of an access to a new tensor, with any order by default, and its values over all indices."""
        order = self.rng.choices((0, 1, 2, 3), (1, 4, 8, 2))[0] if order is None else order
        term = self.rng.sample(sorted(self.sizes), min(order, len(self.sizes)))
        numbers = np.random.default_rng(self.rng.randrange(1 << 30))
        shape, read = self.windows(term)
        array = np.asarray(numbers.integers(-3, 4, shape), np.float64)
        is_sparse = bool(term) and self.rng.random() < 0.75
        if is_sparse:
            array = np.asarray(array * (numbers.random(shape) < self.rng.choice(self.densities)))
        name = f"T{len(self.arrays)}"
        if self.arrays and self.rng.random() < 0.2:  # promoted to the data type of the first tensor
            array = array.astype(self.rng.choice((np.int32, np.int64, np.float32)))
        self.arrays[name] = array
        self.formats[name] = random_format(self.rng, len(shape)) if is_sparse else None
        return f"{name}[{','.join(text for text, _ in read)}]" if read else name, self.spread(array[tuple(key for _, key in read)], term)

    def windows(self, term: list[str]) -> tuple[list[int], list[tuple[str, slice | int]]]:
        """Shape of a tensor, and text and key for each dimension: usually an index, sometimes a window or a constant."""
        shape, read = [], []
        for name in term:
            first, step, more = self.rng.choice(((0, 1, 0),) * 18 + ((2, 1, 0), (1, 2, 1)))
            stop = first + step * self.sizes[name]
            shape.append(stop + more)
            window = f"{name}({first or ''}:{stop}{f':{step}' if step > 1 else ''})"
            read.append((name if stop + more == self.sizes[name] else window, slice(first, stop, step)))
        if term and self.rng.random() < 0.08:
            size, place = self.rng.randint(1, 3), self.rng.randint(0, len(term))
            shape.insert(place, size)
            at = self.rng.randrange(-size, size)
            read.insert(place, (str(at), at))
        return shape, read

    def spread(self, array: Array, term: list[str]) -> Array:
        """The array with one dimension per index."""
        order = [term.index(name) for name in self.sizes if name in term]
        return array.transpose(order).reshape([self.sizes[name] if name in term else 1 for name in self.sizes])

    def elementwise(self, depth: int) -> tuple[str, Array]:
        """An element-wise expression."""
        kind = self.rng.random()
        if depth == 0 or kind < 0.4:
            return self.access()
        if kind < 0.65:
            form = self.rng.choice(list(UNARY))
            text, value = self.elementwise(depth - 1)
            return form.format(text), UNARY[form](value)
        form = self.rng.choice(list(BINARY))
        (left, a), (right, b) = self.elementwise(depth - 1), self.elementwise(depth - 1)
        return form.format(left, right), BINARY[form](a, b)

    def factor(self, order: int, forms: Sequence[str]) -> tuple[str, Array]:
        """A factor in one of these forms, of accesses of this order."""
        form = self.rng.choice(forms)
        accesses = [self.access(order) for _ in range(form.count("{}"))]
        return form.format(*(text for text, _ in accesses)), FACTORS[form](*(value for _, value in accesses))

    def product(self, sums: bool = False) -> tuple[str, Array]:
        """A product of accesses; if ``sums`` is set, some factors are sums of two accesses."""
        texts, values = [], []
        for _ in range(many := self.rng.choices((1, 2, 3), (2, 5, 2))[0]):
            text, value = self.access()
            if sums and many > 1 and self.rng.random() < 0.4:  # a single sum would be two terms
                other, more = self.access()
                text, value = f"({text} + {other})", value + more
            texts.append(text)
            values.append(value)
        result = values[0]
        for value in values[1:]:
            result = result * value
        return " * ".join(texts), result


@dataclass(frozen=True)
class Statement:
    """Text, operands, result format and dense reference result of a statement."""

    text: str
    operands: dict[str, Any]
    format: ns.Format | None
    expected: Array
    listed: str

    def __str__(self) -> str:
        return f"{self.text}   {self.listed}" + (f" -> {self.format.name}" if self.format else "")


def random_statement(seed: int) -> Statement:
    """A sum of products, an element-wise expression, or a reduction of an element-wise expression."""
    rng = random.Random(seed)
    names = rng.sample(("i", "j", "k", "row", "r_2"), rng.randint(1, 3))
    drawn = Drawn(rng, {name: rng.choices(SIZES, WEIGHTS)[0] for name in sorted(names)}, {}, {})
    kind = rng.choice(("sum", "sum", "elementwise", "max=", "min=", "*=", "+="))
    if kind == "sum":
        text, result, value = _sum_of_products(drawn)
    else:
        text, full = drawn.elementwise(2) if kind != "+=" or rng.random() < 0.5 else drawn.product(sums=True)
        used = used_in(text, drawn.sizes)
        result = used if kind == "elementwise" else [name for name in used if rng.random() < 0.5]
        if any(drawn.sizes[name] == 0 for name in used):  # max and min of no terms are undefined
            result = used
        value = _reduced(drawn, full, used, result, kind if result != used else "elementwise")
    rng.shuffle(order := list(result))
    value = np.asarray(value).transpose([result.index(name) for name in order])
    sizes = {"wide": rng.choice((0, 1, 3))} if rng.random() < 0.1 else {}
    for name, size in sizes.items():  # index on the left side only
        order.append(name)
        value = np.repeat(value[..., None], size, axis=-1)
    fmt = ns.Format("".join(rng.choice("ds") for _ in order)) if order and rng.random() < 0.3 else None
    return _statement(seed, drawn, order, f"{kind if kind.endswith('=') else '='} {text}", value, sizes, fmt)


def random_absences(seed: int) -> Statement:
    """A sum of products of mostly empty operands, where loops merge several operands, and some factors are nonzero without an entry."""
    rng = random.Random(seed)
    names = ("i", "j", "k")[: rng.choice((2, 2, 3))]
    drawn = Drawn(rng, {name: rng.randint(1, 5) for name in names}, {}, {}, (0.0, 0.0, 0.5, 1.0))
    factors = [drawn.factor(1, tuple(FACTORS)[1:]) for _ in range(rng.randint(1, 2))]
    factors += [drawn.factor(rng.choice((2, 2, 3)), tuple(FACTORS)[:3]) for _ in range(rng.randint(1, 2))]
    rng.shuffle(factors)
    text, full = " * ".join(text for text, _ in factors), reduce(np.multiply, (value for _, value in factors))
    used = used_in(text, names)
    result = [name for name in used if rng.random() < 0.6]
    return _statement(seed, drawn, result, f"+= {text}", _reduced(drawn, full, used, result, "+"), {}, None)


def _statement(
    seed: int, drawn: Drawn, indices: list[str], right: str, value: Array, sizes: dict[str, int], fmt: ns.Format | None
) -> Statement:
    """A statement with these indices of the result, operator and right side, and sizes of indices that only the result has."""
    operands: dict[str, Any] = {name: as_operand(array, drawn.formats[name]) for name, array in drawn.arrays.items()}
    listed = ", ".join(f"{n}: {a.shape} {f.name if (f := drawn.formats[n]) else 'dense'}" for n, a in drawn.arrays.items())
    lhs = f"R[{','.join(indices)}]" if indices else "R"
    return Statement(f"{lhs} {right}", operands | sizes, fmt, value, f"seed {seed}: {listed}")


def used_in(text: str, names: Iterable[str]) -> list[str]:
    """Indices in a text."""
    return [name for name in names if re.search(rf"\b{name}\b", text)]


def _sum_of_products(drawn: Drawn) -> tuple[str, list[str], Array]:
    """A sum of terms, each reduced over the indices missing in the result."""
    terms = [drawn.product() for _ in range(drawn.rng.randint(1, 3))]
    used = [used_in(text, drawn.sizes) for text, _ in terms]
    result = [name for name in drawn.sizes if any(name in names for names in used) and drawn.rng.random() < 0.6]
    total: Array = np.zeros([drawn.sizes[name] for name in result])
    for (_, value), names in zip(terms, used, strict=True):
        total = total + _reduced(drawn, value, names, result, "+")
    return " + ".join(text for text, _ in terms), result, total


def _reduced(drawn: Drawn, value: Array, used: list[str], result: list[str], kind: str) -> Array:
    """Values over all indices, reduced to the indices of the result; unused indices are dropped."""
    all_names = list(drawn.sizes)
    value = np.broadcast_to(value, [drawn.sizes[n] if n in used else 1 for n in all_names])
    axes = tuple(at for at, n in enumerate(all_names) if n in used and n not in result)
    join: Callable[..., Array] = {"+": np.sum, "+=": np.sum, "max=": np.max, "min=": np.min, "*=": np.prod, "elementwise": np.sum}[kind]
    value = join(value, axis=axes, keepdims=True)
    drop = tuple(at for at, n in enumerate(all_names) if n not in result)
    return np.asarray(value.squeeze(axis=drop))
