"""Tests of level formats: run a list of expressions uncompiled, with checked accesses, and compare with torch on dense tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from ..convert.construct import from_torch
from ..errors import FormatError
from ..ir.format import COO, CSC, CSF, CSR, DCSR, Format
from ..ir.format_text import LEVELS
from ..ir.level import Level
from ..ir.levels import Compressed, Dense
from ..ir.parts import Part
from ..programs.evaluation import evaluate_parts
from ..runtime.plans import uncompiled
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.validate import validate

# A has the tested format, S and T have other sparse formats, and x, X and Y are dense
EXPRESSIONS: dict[int, tuple[str, ...]] = {
    1: (
        "R = A[i]", "R[i] = A[i] * x[i]", "R[i] = A[i] * S[i]", "R[i] = A[i] + S[i]", "R[i,j] = A[i] * x[j]", "R[j] = A[i] * S[i,j]",
        "R[i] = relu(A[i]) - x[i]", "R max= A[i]", "R[i,j] = A[i] * S[j]", "R[i] = abs(A[i]) + S[i] * T[i]",
    ),
    2: (
        "R[i] = A[i,j] * x[j]", "R[j] = A[i,j] * x[i]", "R[i,k] = A[i,j] * X[j,k]", "R[k,j] = X[k,i] * A[i,j]",
        "R[i,k] = X[k,j] * A[i,j]", "R[i,j] = A[i,j] * X[i,j]", "R[i,j] = A[i,j] * X[i,k] * Y[j,k]", "R = A[i,j]", "R[j] = A[i,j]",
        "R[j,i] = A[i,j]", "R = A[i,j] * S[i,j]", "R[i,k] = A[i,j] * S[j,k]", "R[i,k] = S[i,j] * A[j,k]", "R[i,k] = A[i,j] * S[k,j]",
        "R[i,j] = A[i,j] * S[i,j]", "R[i,j] = A[i,j] + S[i,j]", "R[i,j] = A[i,j] - 2 * S[i,j] + T[i,j]",
        "R[i,j] = (A[i,j] + S[i,j]) * T[i,j]", "R[i,j] = A[i,j] + X[i,j]", "R[i,j] = A[i,j] + S[j,i]", "R[i,j] = relu(A[i,j]) * 2",
        "R[i,j] = exp(A[i,j])", "R[i,j] = maximum(A[i,j], S[i,j])", "R[i] max= A[i,j]", "R[j] min= A[i,j]", "R[i] = A[i,i]",
        "R = A[i,i]", "R[i,k] = A[i,j] * X[j,k] + Y[i,k]", "R[i,l] = A[i,j] * S[j,k] * X[k,l]", "R[i,j] = A[i,j] * x[i]",
        "R[i,j,k] = A[i,j] * S[k]", "R[i,j,k] = S[i] * A[j,k]", "R[i,j,k] = A[i,j] * S[j,k]", "R[i,j,k] = A[i,j] * S[i,k]",
        "R[i,j,k,l] = A[i,j] * S[k,l]",
    ),
    3: (
        "R[i,j] = A[i,j,k] * x[k]", "R[i,j,l] = A[i,j,k] * X[k,l]", "R[i,l] = A[i,j,k] * X[j,l] * Y[k,l]", "R = A[i,j,k]",
        "R[k] = A[i,j,k]", "R[k,i,j] = A[i,j,k]", "R[i,j,k] = A[i,j,k] + S[i,j,k]", "R[i,j,k] = A[i,j,k] * S[i,j,k]",
        "R[k] = A[i,j,k] * S[i,j]", "R[i] = A[i,j,k] * S[k,j]", "R[i,j,k] = relu(A[i,j,k])", "R[i,k] max= A[i,j,k]",
        "R[i,j] = A[i,j,i]", "R[i,j,k] = A[i,j,k] * x[j]",
    ),
    4: (
        "R[i,j,k] = A[i,j,k,l] * x[l]", "R = A[i,j,k,l]", "R[l,i] = A[i,j,k,l]", "R[i,j,k,l] = A[i,j,k,l] + S[i,j,k,l]",
        "R[i,m] = A[i,j,k,l] * X[j,m] * Y[k,m]", "R[i,j,k,l] = A[i,j,k,l] * S[k,l]",
    ),
}  # fmt: skip
MOST_CHECKS = 400  # default upper bound of the checks of a level (about 1400 exist)
FORMATS_BESIDE: dict[int, tuple[Format, ...]] = {
    1: (Format("s"), Format("d"), Format("o")),
    2: (CSR, CSC, COO(2), DCSR),
    3: (CSF(3), COO(3), Format("dss")),
    4: (CSF(4), COO(4)),
}  # formats of S and T, by order


@dataclass(frozen=True)
class RandomCheck:
    """A check: a statement, the formats of its sparse operands and of its result, and the seed of its values."""

    text: str
    formats: dict[str, Format]
    result: Format | None
    seed: int

    def __str__(self) -> str:
        listed = ", ".join(f"{name}: {fmt.name}" for name, fmt in self.formats.items())
        return f"{self.text}   {listed}" + (f" -> {self.result.name}" if self.result else "") + f"   seed {self.seed}"

    def operands(self) -> dict[str, torch.Tensor]:
        """Random dense operands. Values are small integers, so sums are exact; all sizes are equal if an operand repeats an index."""
        numbers = random.Random(self.seed)
        sizes = {name: numbers.choice((1, 2, 3, 4, 5, 7)) for name in "ijklm"}
        terms = _terms(self.text)
        if any(len(set(term)) < len(term) for term in terms.values()) or "S[j,i]" in self.text:
            sizes = dict.fromkeys(sizes, numbers.choice((3, 4, 5)))
        torch_numbers = torch.Generator().manual_seed(self.seed)
        operands = {}
        for name, term in terms.items():
            shape = [sizes[index] for index in term]
            values = torch.randint(-3, 4, shape, generator=torch_numbers).to(torch.float64)
            mask = torch.rand(shape, generator=torch_numbers) < numbers.choice((0.0, 0.2, 0.5, 1.0))
            operands[name] = values * mask if name in "AST" else values
        return operands

    def run(self) -> bool:
        """Run the check; return whether the formats could store the entries.

        Raises:
            FormatError: the result is wrong; the text starts with the statement and the formats.
        """
        try:
            return self._compare()
        except Exception as error:
            reason = error if isinstance(error, FormatError) else f"{type(error).__name__}: {error}"
            raise FormatError(f"{self}: {reason}") from error

    def _compare(self) -> bool:
        dense = self.operands()
        expected = evaluate_parts(self.text, dense, None)
        try:
            operands: dict[str, Any] = {
                name: from_torch(value, self.formats[name]) if name in self.formats else value for name, value in dense.items()
            }
            if self.result is not None:
                from_torch(expected, self.result)
        except FormatError:
            return False
        for name, fmt in self.formats.items():
            self.expect(torch.equal(operands[name].to_dense(), dense[name]), f"{name} changed when it was stored in {fmt}")
            exact = fmt.is_padded or operands[name].nnz == int(dense[name].count_nonzero())
            self.expect(exact, f"{name} has positions without an entry in {fmt}, whose innermost level says padded = False")
        try:
            result = evaluate_parts(self.text, operands, self.result)
        except FormatError:
            if self.result is None:
                raise
            return False  # explicit zeros may exceed the capacity of the format
        if isinstance(result, SparseTensor):
            validate(result.pattern)
            has_format = self.result is None or result.format.parts == self.result.parts
            self.expect(has_format, f"the result has the format {result.format.name}")
        actual = result.to_dense() if isinstance(result, SparseTensor) else result
        self.expect(np.allclose(actual, expected, equal_nan=True), f"the result is\n{actual}\nbut should be\n{expected}")
        return True

    def expect(self, condition: bool, problem: str) -> None:
        if not condition:
            raise FormatError(problem)


def _terms(text: str) -> dict[str, str]:
    """The index names of each operand of a statement."""
    value = text.split("=", 1)[1]
    pieces = [piece.split("[") for piece in value.replace("(", " ").replace(")", " ").split() if "[" in piece]
    return {name: indices.rstrip("],").replace(",", "") for name, indices in pieces}


def checks(formats: Sequence[Format], seed: int = 0) -> Iterator[RandomCheck]:
    """All checks of some formats: each is the format of operand A and, if its order fits, of the result, and of both."""
    numbers = random.Random(seed)
    for fmt in formats:
        for text in EXPRESSIONS[fmt.order]:
            terms = _terms(text)
            others = {name: numbers.choice(FORMATS_BESIDE[len(term)]) for name, term in terms.items() if name in "ST"}
            order = text.split("=")[0].count(",") + ("[" in text.split("=")[0])
            for role in ("operand", "both", "result") if order == fmt.order else ("operand",):
                format_ = fmt if role != "result" else numbers.choice(FORMATS_BESIDE[fmt.order])
                yield RandomCheck(text, {"A": format_, **others}, None if role == "operand" else fmt, numbers.randrange(1 << 30))


def formats_with(level: Level) -> list[Format]:
    """Formats of orders 1 to 3 with the level in every place among dense and compressed levels, and formats with blocks."""
    places: list[tuple[list[Level], Sequence[int | Part]]] = []
    for order in (1, 2, 3):
        for place, others in product(range(order), product((Dense(), Compressed()), repeat=order - 1)):
            levels = [*others[:place], level, *others[place:]]
            places += [(levels, range(order)), (levels, range(order)[::-1])]
    places.append(([Dense(), Compressed(), level, Dense()], [Part(0, 2), Part(1, 2), Part(1, 1, 2), Part(0, 1, 2)]))
    places.append(([Dense(), level, Dense()], [Part(0, 2), Part(1), Part(0, 1, 2)]))
    formats: dict[Format, None] = {}
    for levels, parts in places:
        with suppress(FormatError):  # the level is not allowed in this place
            formats[Format(levels, list(parts))] = None
    return list(formats)


def register_level(level: Level, *, check: bool = True, most: int = MOST_CHECKS) -> None:
    """Register a user-defined level for use in formats, after checking it in many formats and expressions.

    The level is a frozen dataclass derived from :class:`numscorch.ir.levels.Level`. It has level functions in loop IR, and ``pack``,
    ``unpack`` and ``count`` on numpy arrays. Its ``spelling`` is its name in the text of formats, with the dataclass's fields as
    arguments.

    The check stores random entries in formats with the level in every place. It runs many expressions uncompiled, with checked memory
    accesses, and compares the results with those of dense tensors. It takes about half a minute. The selection of expressions and
    formats depends only on ``most``.

    Args:
        level: an example of the level, with parameters that can store some random entries.
        check: whether to run the check.
        most: the upper bound of expressions to run (about 1400 exist).

    Raises:
        FormatError: the argument isn't a level, another level has this name, no random entries can be stored, or a result is wrong.
            For a wrong result, the text starts with the statement, the formats, and the seed of the entries.

    >>> from numscorch.ir.padded import Fixed
    >>> register_level(Fixed(), check=False)
    """
    if not isinstance(level, Level):
        raise FormatError(f"register_level takes a level (an instance of a class derived from Level, such as MyLevel()), not {level!r}")
    if LEVELS.get(level.spelling, type(level)) is not type(level) or not level.spelling.isidentifier():
        raise FormatError(f"{level.spelling!r} is the name of another level, or not an identifier: choose another spelling")
    if check:
        check_formats(formats_with(level), most=most)
    LEVELS[level.spelling] = type(level)


def check_formats(formats: Sequence[Format], seed: int = 0, most: int | None = None) -> int:
    """Run the checks of some formats uncompiled (at most ``most``), and return the number of checks whose entries could be stored.

    Raises:
        FormatError: a result is wrong, or none of the random entries could be stored.
    """
    selected = list(checks(formats, seed))
    if most is not None and most < len(selected):
        selected = random.Random(seed).sample(selected, most)
    with uncompiled():
        stored = sum(check.run() for check in selected)
    if not stored:
        raise FormatError(f"none of the random entries could be stored in {', '.join(map(str, formats[:3]))}")
    return stored
