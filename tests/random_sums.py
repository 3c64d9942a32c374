"""Random long sums in float32, whose error is compared with that of torch.sum."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import numscorch as ns

WAYS: dict[str, Callable[[Any, Tensor], Any]] = {
    "A.sum(1)": lambda A, x: A.sum(1),
    "A.sum()": lambda A, x: A.sum(),
    "A.mean(1)": lambda A, x: A.mean(1) * A.shape[1],
    "einsum ij->i": lambda A, x: ns.einsum("ij->i", A, format="dense"),
    "einsum ij->": lambda A, x: ns.einsum("ij->", A),
    "einsum mean": lambda A, x: ns.einsum("ij->i", A, reduce="mean", format="dense") * A.shape[1],
    "einsum ij,j->i": lambda A, x: ns.einsum("ij,j->i", A, x),
    "einsum ij,j->": lambda A, x: ns.einsum("ij,j->", A, x),
    "evaluate +=": lambda A, x: ns.evaluate("y[i] += A[i,j] * x[j]", A=A, x=x),
    "evaluate of a function": lambda A, x: ns.evaluate("y[i] += abs(A[i,j])", format="dense", A=A),
}
FORMATS = ("ds", "ss", "oo", "(i, j) -> (j: dense, i: compressed)", "(i, j) -> (i: dense, j // 4: compressed, j % 4: dense)")
LENGTHS = (1 << 12, 50_000, 1 << 18, 1 << 20)
ROUNDING = 2.0**-23  # of float32


@dataclass(frozen=True)
class LongSum:
    """Rows of this length, all of whose entries are stored: of one number, or of random ones where it is None."""

    way: str
    format: str
    rows: int
    length: int
    number: float | None
    seed: int

    def values(self) -> Tensor:
        if self.number is not None:
            return torch.full((self.rows, self.length), self.number)
        return torch.rand((self.rows, self.length), generator=torch.Generator().manual_seed(self.seed))

    def errors(self) -> tuple[float, float]:
        """The relative error of numscorch, and the one that torch.sum of the same terms has."""
        values = self.values()
        rows = () if self.way in ("A.sum()", "einsum ij->", "einsum ij,j->") else (1,)
        exact = values.double().sum(rows)
        A = ns.from_torch(values, ns.Format(self.format))
        found = WAYS[self.way](A, torch.ones(self.length))
        return _relative(found, exact), _relative(values.sum(rows), exact)


def _relative(found: Tensor, exact: Tensor) -> float:
    return float(((found.double() - exact).abs() / exact).max())


def random_sum(seed: int) -> LongSum:
    """The sum of a seed."""
    rng = random.Random(seed)
    number = rng.choice((0.1, 0.1, None))
    return LongSum(rng.choice(list(WAYS)), rng.choice(FORMATS), rng.choice((1, 3)), rng.choice(LENGTHS), number, seed)
