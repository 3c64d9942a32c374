"""Whether a format does what it promises: every expression of a list, un-jitted with checked accesses, against torch on dense tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from .convert.construct import from_torch
from .errors import FormatError
from .ir.format import COO, CSC, CSF, CSR, DCSR, Format
from .ir.format_text import LEVELS
from .ir.level import Level
from .ir.levels import Compressed, Dense
from .ir.parts import Part
from .programs.evaluation import evaluate_parts
from .runtime.plans import uncompiled
from .tensors.sparse_tensor import SparseTensor
from .tensors.validate import validate

# A is stored in the format that is checked; S, T are stored otherwise, x, X, Y are dense
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
MOST_CHECKS = 400  # of the checks of a level, which are about 1400
OTHERS = {1: ("s", "d", "o"), 2: (CSR, CSC, COO(2), DCSR), 3: (CSF(3), COO(3), "dss"), 4: (CSF(4), COO(4))}


@dataclass(frozen=True)
class RandomCheck:
    """One statement, the formats of its sparse operands and of its result, and the seed of its values."""

    text: str
    formats: dict[str, Format]
    result: Format | None
    seed: int

    def __str__(self) -> str:
        listed = ", ".join(f"{name}: {fmt.name}" for name, fmt in self.formats.items())
        return f"{self.text}   {listed}" + (f" -> {self.result.name}" if self.result else "") + f"   seed {self.seed}"

    def operands(self) -> dict[str, torch.Tensor]:
        """Dense operands of small integers, so that sums are exact; square where indices repeat."""
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
            kept = torch.rand(shape, generator=torch_numbers) < numbers.choice((0.0, 0.2, 0.5, 1.0))
            operands[name] = values * kept if name in "AST" else values
        return operands

    def run(self) -> bool:
        """Whether the entries could be stored; if so, the answer was right.

        Raises:
            FormatError: it was not; the text starts with the statement and the formats.
        """
        try:
            return self._holds()
        except Exception as error:
            reason = error if isinstance(error, FormatError) else f"{type(error).__name__}: {error}"
            raise FormatError(f"{self}: {reason}") from error

    def _holds(self) -> bool:
        dense = self.operands()
        expected = evaluate_parts(self.text, dense, None)
        try:
            given = {name: from_torch(value, self.formats[name]) if name in self.formats else value for name, value in dense.items()}
            if self.result is not None:
                from_torch(expected, self.result)
        except FormatError:
            return False
        for name, fmt in self.formats.items():
            self.expect(torch.equal(given[name].to_dense(), dense[name]), f"{name} was not stored as it is in {fmt}")
            stored: Any = given[name]
            exact = fmt.is_padded or stored.nnz == int(dense[name].count_nonzero())
            self.expect(exact, f"{name} has positions without an entry in {fmt}, whose innermost level says padded = False")
        try:
            result = evaluate_parts(self.text, given, self.result)
        except FormatError:
            if self.result is None:
                raise
            return False  # zeros that are stored have no place in a format with room for a few entries
        if isinstance(result, SparseTensor):
            validate(result.pattern)
            right = self.result is None or result.format.parts == self.result.parts
            self.expect(right, f"the result has the format {result.format.name}")
        result_ = result.to_dense() if isinstance(result, SparseTensor) else result
        self.expect(np.allclose(result_, expected, equal_nan=True), f"the result is\n{result_}\nbut should be\n{expected}")
        return True

    def expect(self, holds: bool, what: str) -> None:
        """Raise FormatError unless something holds."""
        if not holds:
            raise FormatError(what)


def _terms(text: str) -> dict[str, str]:
    """The index names of each operand of a statement."""
    rest = text.split("=", 1)[1]
    pieces = [piece.split("[") for piece in rest.replace("(", " ").replace(")", " ").split() if "[" in piece]
    return {name: indices.rstrip("],").replace(",", "") for name, indices in pieces}


def checks(formats: Sequence[Format], seed: int = 0) -> Iterator[RandomCheck]:
    """Every expression with each format for its operand A, for the results that have its order, or for both."""
    numbers = random.Random(seed)
    for fmt in formats:
        for text in EXPRESSIONS[fmt.order]:
            terms = _terms(text)
            others = {name: _other(numbers, len(term)) for name, term in terms.items() if name in "ST"}
            order = text.split("=")[0].count(",") + ("[" in text.split("=")[0])
            for role in ("operand", "both", "result") if order == fmt.order else ("operand",):
                format_ = fmt if role != "result" else _other(numbers, fmt.order)
                yield RandomCheck(text, {"A": format_, **others}, None if role == "operand" else fmt, numbers.randrange(1 << 30))


def _other(numbers: random.Random, order: int) -> Format:
    chosen = numbers.choice(OTHERS[order])
    return chosen if isinstance(chosen, Format) else Format(chosen)


def formats_with(level: Level) -> list[Format]:
    """Formats of order 1 to 3 with a level in every place, beside dense and compressed ones, and within blocks."""
    formats: list[Format] = []
    for order in (1, 2, 3):
        for place, others in product(range(order), product((Dense(), Compressed()), repeat=order - 1)):
            levels = [*others[:place], level, *others[place:]]
            for modes in (range(order), reversed(range(order))):
                _keep_valid(formats, levels, list(modes))
    _keep_valid(formats, [Dense(), Compressed(), level, Dense()], [Part(0, 2), Part(1, 2), Part(1, 1, 2), Part(0, 1, 2)])
    _keep_valid(formats, [Dense(), level, Dense()], [Part(0, 2), Part(1), Part(0, 1, 2)])
    return formats


def _keep_valid(formats: list[Format], levels: Sequence[Level], parts: Sequence[int | Part]) -> None:
    """Add a format, unless a level refuses its place."""
    try:
        format_ = Format(levels, parts)
    except FormatError:
        return
    if format_ not in formats:
        formats.append(format_)


def register_level(level: Level, *, check: bool = True, most: int = MOST_CHECKS) -> None:
    """Let formats name a level of your own, after checking it in many places and expressions.

    The level is a frozen dataclass derived from :class:`numscorch.ir.levels.Level`: level functions in loop IR, and
    ``pack``, ``unpack`` and ``count`` on numpy arrays. Its ``spelling`` is its name in the text of formats, with the
    dataclass's fields as arguments. The check stores random entries in formats that have the level in every place, and
    runs many expressions un-jitted, with checked memory accesses, against dense tensors. It takes half a minute or so;
    which expressions are run with which formats depends on nothing but ``most``.

    Args:
        level: an example, with parameters that can store some random entries.
        check: run the check.
        most: how many expressions to run at the most, of about 1400.

    Raises:
        FormatError: another level has this name, no random entries can be stored, or an answer is wrong. The text
            starts with the statement, the formats, and the seed of the entries.

    >>> from numscorch.ir.padded import Fixed
    >>> register_level(Fixed(), check=False)
    """
    if not isinstance(level, Level):
        raise FormatError(f"register_level takes a level, as MyLevel(), an object of a class derived from Level, not {level!r}")
    known = LEVELS.get(level.spelling, type(level))
    if known is not type(level) or not level.spelling.isidentifier():
        raise FormatError(f"{level.spelling!r} is the name of another level, or no name: choose a spelling of your own")
    if check:
        check_formats(formats_with(level), most=most)
    LEVELS[level.spelling] = type(level)


def check_formats(formats: Sequence[Format], seed: int = 0, most: int | None = None) -> int:
    """Run the checks of some formats un-jitted, ``most`` of them where that is given, and say in how many entries could be stored.

    Raises:
        FormatError: an answer is wrong, or none of the random entries could be stored.
    """
    listed = list(checks(formats, seed))
    if most is not None and most < len(listed):
        listed = random.Random(seed).sample(listed, most)
    with uncompiled():
        stored = sum(check.run() for check in listed)
    if not stored:
        raise FormatError(f"none of the random entries could be stored in {', '.join(map(str, formats[:3]))}")
    return stored
