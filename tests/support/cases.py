"""Seeded random cases: expressions, formats, mode orders and shapes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch

import numscorch as ns
from numscorch.ir.levels import Compressed, Dense
from numscorch.ir.padded import Bitmap, Fixed
from numscorch.ir.parts import Part

SIZES = (0, 1, 2, 3, 4, 5, 7, 9, 17, 33)
WEIGHTS = (1, 3, 3, 4, 4, 4, 3, 2, 1, 1)
LETTERS = "dso"
PARTED = (ns.DIA, ns.DIA.permuted((1, 0)), ns.ELL, ns.BCSR(2, 3), ns.BCSR(4, 1), ns.BCSR(1, 2))
ANY_ENTRIES = (Dense(), Dense(), Compressed(), Compressed(), Compressed(ordered=False), Fixed(), Bitmap())


@dataclass(frozen=True)
class EinsumCase:
    """An einsum with dense arrays and formats of its operands."""

    expr: str
    arrays: tuple[np.ndarray, ...]
    formats: tuple[ns.Format | None, ...]
    seed: int
    result: ns.Format | None = None
    twins: tuple[int, ...] = ()

    def operands(self) -> list[object]:
        """Operands: SparseTensors if they have a format, else strided tensors. The last operands share the patterns of ``twins``."""
        operands = [as_operand(array, fmt) for array, fmt in zip(self.arrays, self.formats, strict=True)]
        for at, twin in enumerate(self.twins, len(operands) - len(self.twins)):
            operands[at] = squared(operands[twin])
        return operands

    def expected(self) -> np.ndarray:
        """Dense reference result; values are small integers, so it is exact in any order."""
        return np.einsum(self.expr, *self.arrays)

    def __str__(self) -> str:
        listed = ", ".join(f"{a.shape} {f.name if f else 'dense'}" for a, f in zip(self.arrays, self.formats, strict=True))
        return f"seed {self.seed}: {self.expr}  {listed}" + (f" -> {self.result.name}" if self.result else "")


def as_operand(array: np.ndarray, fmt: ns.Format | None) -> object:
    """An operand from an array; dense operands keep the strides of the array."""
    if fmt is None:
        return torch.from_numpy(array)
    indices = np.argwhere(array).T.reshape(array.ndim, -1)
    coo = ns.from_coo(indices, array[tuple(indices)], array.shape)
    return coo.to(fmt)


def squared(A: object) -> ns.SparseTensor:
    """The squares of A, as a tensor that shares its pattern."""
    assert isinstance(A, ns.SparseTensor)
    return A.with_values(A.values * A.values)


def with_twins(case: EinsumCase) -> EinsumCase:
    """The case with one or two more operands that share indices and pattern of a sparse operand; most results are scalars."""
    rng = random.Random(case.seed)
    (left, arrow, result), twin = case.expr.partition("->"), rng.choice([at for at, fmt in enumerate(case.formats) if fmt is not None])
    twins = (twin,) * rng.choice((1, 1, 2))
    expr = ",".join([left, *(left.split(",")[at] for at in twins)]) + "->" + (result if arrow and rng.random() < 0.3 else "")
    arrays = (*case.arrays, *(case.arrays[at] ** 2 for at in twins))
    return EinsumCase(expr, arrays, (*case.formats, *(case.formats[at] for at in twins)), case.seed, twins=twins)


def with_likes(case: EinsumCase) -> EinsumCase:
    """The case with one more operand, with indices and format of a sparse operand but other entries; most results have its indices."""
    rng = random.Random(case.seed)
    (left, arrow, result), like = case.expr.partition("->"), rng.choice([at for at, fmt in enumerate(case.formats) if fmt is not None])
    term, array = left.split(",")[like], case.arrays[like]
    values = np.random.default_rng(case.seed).integers(-1, 2, array.shape).astype(np.float64)
    names = list(dict.fromkeys(term))
    rng.shuffle(names)
    expr = f"{left},{term}->{''.join(names)}" if rng.random() < 0.6 else f"{left},{term}{arrow}{result}"
    formats = (*case.formats, case.formats[like])
    if array.ndim == 2 and rng.random() < 0.5:
        formats = tuple(PARTED[case.seed % len(PARTED)] if at in (like, len(formats) - 1) else fmt for at, fmt in enumerate(formats))
    return EinsumCase(expr, (*case.arrays, values), formats, case.seed, case.result if expr.endswith(f"->{result}") else None)


def random_case(seed: int) -> EinsumCase:
    """A case with one to four operands, at least one of which is sparse."""
    rng = random.Random(seed)
    count = rng.choices((1, 2, 3, 4), (3, 6, 4, 1))[0]
    names = rng.choice(("ijklm", "tuvwi", "ABCtj"))[: rng.randint(1, 5 if count < 4 else 4)]
    sizes = {name: rng.choices(SIZES, WEIGHTS)[0] for name in names}
    if count * len(names) > 8:
        sizes = {name: min(size, 5) for name, size in sizes.items()}
    terms = [_term(rng, names) for _ in range(count)]
    sparse = [rng.random() < 0.6 for _ in terms]
    if not any(s and t for s, t in zip(sparse, terms, strict=True)):
        terms[0], sparse[0] = names[0], True
    arrays = tuple(_array(rng, term, sizes, is_sparse) for term, is_sparse in zip(terms, sparse, strict=True))
    formats = tuple(random_format(rng, len(t)) if s and t else None for t, s in zip(terms, sparse, strict=True))
    expr = _expression(rng, terms)
    return EinsumCase(expr, arrays, formats, seed, _result_format(rng, np.einsum(expr, *arrays).ndim))


def _term(rng: random.Random, names: str) -> str:
    rank = rng.choices((0, 1, 2, 3, 4), (1, 5, 9, 5, 1))[0]
    term = rng.sample(names, min(rank, len(names)))
    if term and rng.random() < 0.08:
        term.append(rng.choice(term))
    return "".join(term)


def _expression(rng: random.Random, terms: list[str]) -> str:
    used = sorted(set("".join(terms)))
    left = ",".join(terms)
    if rng.random() < 0.08:
        return left
    chosen = [name for name in used if rng.random() < 0.6]
    rng.shuffle(chosen)
    if rng.random() < 0.25:
        chosen = list(dict.fromkeys(max(terms, key=len)))
    return f"{left}->{''.join(chosen)}"


def _array(rng: random.Random, term: str, sizes: dict[str, int], is_sparse: bool) -> np.ndarray:
    """Small integers; dense operands may be transposed, strided or broadcast."""
    shape = [1 if rng.random() < 0.04 and term.count(name) == 1 else sizes[name] for name in term]
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    array = np.asarray(numbers.integers(-3, 4, shape), np.float64)
    if is_sparse:
        return np.asarray(array * (numbers.random(shape) < rng.choice((0.0, 0.1, 0.3, 0.6, 1.0))))
    kind = rng.random()
    if array.ndim and kind < 0.25:
        order = rng.sample(range(array.ndim), array.ndim)
        return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
    if array.ndim and kind < 0.4:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if array.ndim and kind < 0.5:
        return _expanded(array, rng.randrange(array.ndim))
    return array


def _expanded(array: np.ndarray, axis: int) -> np.ndarray:
    """The first slice along an axis, repeated with stride 0."""
    strides = [0 if at == axis else stride for at, stride in enumerate(array.strides)]
    return np.lib.stride_tricks.as_strided(array, array.shape, strides)


def _result_format(rng: random.Random, order: int) -> ns.Format | None:
    """None, or a format that can store any pattern."""
    if order == 0 or rng.random() < 0.6:
        return None
    if order > 1 and rng.random() < 0.2:
        return ns.COO(order)
    return ns.Format("".join(rng.choice("ds") for _ in range(order)), rng.choice(list(permutations(range(order)))))


def random_format(rng: random.Random, order: int) -> ns.Format:
    """A random mix of levels in any mode order, sometimes with blocks."""
    if order and rng.random() < 0.4:
        return _random_parts(rng, order)
    letters = "".join(rng.choice(LETTERS) for _ in range(order))
    return ns.Format(letters, rng.choice(list(permutations(range(order)))))


def _random_parts(rng: random.Random, order: int) -> ns.Format:
    """A format of whole and split dimensions, with levels that can store any entries."""
    if order == 2 and rng.random() < 0.2:
        return rng.choice(PARTED)
    parts: list[Part] = []
    for dimension in range(order):
        size = rng.choice((2, 2, 3, 4))
        blocked = rng.random() < 0.4
        parts += [Part(dimension, size), Part(dimension, 1, size)] if blocked else [Part(dimension)]
    if rng.random() < 0.7:
        parts.sort(key=lambda part: part.modulus)
    else:
        rng.shuffle(parts)
    return ns.Format([rng.choice(ANY_ENTRIES) for _ in parts], parts)
