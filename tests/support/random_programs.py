"""Seeded random programs for ``evaluate`` with their operands, and smaller variants of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

import numscorch as ns

WIDTHS = (0, 1, 2, 3, 15, 16, 17, 33)
ROWS = (0, 1, 15, 16, 17)  # entries per row
HEIGHTS, COLUMNS, LEADING = (1, 2, 3, 5, 0), (17, 17, 20, 3, 1, 0), (1, 2, 3)
FORMATS = {"CSR": ns.CSR, "CSC": ns.CSC, "COO": ns.COO(2)}
LAYOUTS = ("plain", "plain", "transposed", "expanded", "strided")
NAMES = (
    "A",
    "B",
    "E",
    "t",
    "S_row",
    "m_value",
    "every_m",
    "grad_S",
    "result",
    "upstream",
    "k1",
    "S",
    "m",
    "X",
    "every_x",
    "x",
    "grad_x",
    *"TUVWYZpqln",
)
LABELS = (("i", "j", "k", "h"), ("i", "j", "k1", "h"), ("r", "c", "e0", "b"), ("A", "B", "E", "t"))
ONE = (
    "relu({})",
    "sigmoid({})",
    "tanh({})",
    "exp(tanh({}))",
    "exp(0 - abs({}))",
    "sqrt(abs({}) + 0.1)",
    "0.5 * {}",
    "({} + 0.3)",
    "abs({})",
)
TWO = ("{} * {}", "{} * {}", "({} + {})", "({} - {})", "maximum({}, {})", "minimum({}, {})", "{} / (abs({}) + 1)", "where({} > 0, {}, 0.2)")
OPS = ("=", "=", "=", "+=", "+=", "max=", "min=", "min=", "max=", "stored max=")


def accessed(name: str, indices: str, labels: Mapping[str, str]) -> str:
    """Name of a tensor with its indices, if any."""
    return f"{name}[{','.join(labels[at] for at in indices)}]" if indices else name


@dataclass(frozen=True)
class Node:
    """An expression: a template with arguments, or an access with a name and indices."""

    text: str
    args: tuple[Node, ...] = ()
    indices: str | None = None

    def shown(self, labels: Mapping[str, str]) -> str:
        if self.indices is None:
            return self.text.format(*(arg.shown(labels) for arg in self.args))
        return accessed(self.text, self.indices, labels)

    def accesses(self) -> Iterator[Node]:
        if self.indices is not None:
            yield self
        for arg in self.args:
            yield from arg.accesses()

    def smaller(self) -> Iterator[Node]:
        """Smaller expressions: the arguments, and copies with one smaller argument."""
        if self.text != "stored({})":
            yield from self.args
        for at, arg in enumerate(self.args):
            for smaller_arg in arg.smaller():
                yield replace(self, args=(*self.args[:at], smaller_arg, *self.args[at + 1 :]))


@dataclass(frozen=True)
class ProgramStatement:
    name: str
    indices: str
    op: str
    value: Node

    def shown(self, labels: Mapping[str, str]) -> str:
        return f"{accessed(self.name, self.indices, labels)} {self.op} {self.value.shown(labels)}"


@dataclass(frozen=True)
class RandomOperand:
    """An operand: its shape as letters of extents (1 is broadcast), its layout in memory, and an operand whose pattern it shares."""

    name: str
    shape: str
    layout: str
    seed: int
    shares: str = ""

    def tensor(self, extents: Mapping[str, int], dtype: torch.dtype) -> Tensor | ns.SparseTensor:
        shape = [1 if at == "1" else extents[at] for at in self.shape]
        generator = torch.Generator().manual_seed(self.seed)
        if self.layout in FORMATS:
            return ns.from_torch(_rows_of_lengths(shape, generator, self.layout == "CSC", self.seed).to(dtype), FORMATS[self.layout])
        full = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        if self.layout == "transposed" and full.ndim > 0:
            return full.permute(*reversed(range(full.ndim))).contiguous().permute(*reversed(range(full.ndim)))
        if self.layout == "expanded" and full.ndim > 0 and shape[0] > 0:
            return full[:1].expand(shape)
        if self.layout == "strided" and full.ndim > 0:
            return torch.stack((full, full), -1)[..., 0]
        return full

    def __str__(self) -> str:
        shared = f", the pattern of {self.shares}" if self.shares else ""
        return f"{self.name}: {self.shape or 'a number'} {self.layout}, seed {self.seed}{shared}"


def _rows_of_lengths(shape: Sequence[int], generator: torch.Generator, columns: bool, seed: int) -> Tensor:
    """A matrix with rows, or columns, of 0, 1, 15, 16, 17, 2 or all entries."""
    n, m = reversed(shape) if columns else shape
    draw, matrix = random.Random(seed), torch.zeros(n, m, dtype=torch.float64)
    for row in matrix:
        places = torch.randperm(m, generator=generator)[: draw.choice((*ROWS, 2, m))]
        row[places] = torch.randn(len(places), generator=generator, dtype=torch.float64)
    return matrix.T if columns else matrix


@dataclass(frozen=True)
class Program:
    """Statements, the extents of i, j, k and h, and operands; ``alias`` maps further names to the tensors of operands."""

    statements: tuple[ProgramStatement, ...]
    given: tuple[RandomOperand, ...]
    extents: Mapping[str, int]
    labels: tuple[str, ...]
    dtype: torch.dtype
    alias: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        labels = dict(zip("ijkh", self.labels, strict=True))
        return "; ".join(statement.shown(labels) for statement in self.statements)

    def operands(self) -> dict[str, Tensor | ns.SparseTensor]:
        """Operands read by the statements."""
        read = {access.text for statement in self.statements for access in statement.value.accesses()}
        tensors = {operand.name: operand.tensor(self.extents, self.dtype) for operand in self.given}
        for operand in self.given:
            if operand.shares:
                owner, generator = tensors[operand.shares], torch.Generator().manual_seed(operand.seed)
                tensors[operand.name] = owner.with_values(torch.randn(owner.values.shape, generator=generator, dtype=self.dtype))
        tensors |= {name: tensors[other] for name, other in self.alias.items()}
        return {name: value for name, value in tensors.items() if name in read}

    def __str__(self) -> str:
        operands = self.operands()
        lines = [f"  {operand}" for operand in self.given if operand.name in operands]
        lines += [f"  {name}: the same tensor as {other}" for name, other in self.alias.items() if name in operands]
        return "\n".join([self.text.replace("; ", "\n"), f"  {dict(self.extents)}, {self.dtype}", *lines])

    def smaller(self) -> Iterator[Program]:
        """Programs with one statement less, a smaller expression, smaller extents, or simpler operands."""
        for at, statement in enumerate(self.statements):
            rest = self.statements[:at], self.statements[at + 1 :]
            if rest[0] or rest[1]:
                yield replace(self, statements=(*rest[0], *rest[1]))
            for value in statement.value.smaller():
                yield replace(self, statements=(*rest[0], replace(statement, value=value), *rest[1]))
        for at, extent in self.extents.items():
            for less in sorted({1, 2, extent // 2, extent - 1}):
                if 0 < less < extent:
                    tied = "ij" if at in "ij" and self.extents["i"] == self.extents["j"] else at  # a tensor may be indexed by both
                    yield replace(self, extents={**self.extents, **dict.fromkeys(tied, less)})
        if self.alias:
            yield replace(self, alias={}, given=(*self.given, *(replace(self._named(o), name=n) for n, o in self.alias.items())))
        for at, operand in enumerate(self.given):
            if operand.layout in LAYOUTS[2:] or operand.layout == "COO":
                plain = replace(operand, layout="CSR" if operand.layout == "COO" else "plain")
                yield replace(self, given=(*self.given[:at], plain, *self.given[at + 1 :]))
        if self.labels != LABELS[0]:
            yield replace(self, labels=LABELS[0])

    def _named(self, name: str) -> RandomOperand:
        return next(operand for operand in self.given if operand.name == name)


class _Drawer:
    """Generator of a random program."""

    def __init__(self, seed: int, of_entries: bool):
        self.random = draw = random.Random(seed)
        self.names = draw.sample(NAMES, len(NAMES))
        self.has_heads = draw.random() < 0.25
        self.is_of_entries = of_entries  # as in attention: values per entry and per row
        height, columns = draw.choice(HEIGHTS), draw.choice(COLUMNS)
        self.is_square = draw.random() < 0.3
        heads = draw.choice(LEADING) if self.has_heads else 1
        self.extents = {"i": columns if self.is_square else height, "j": columns, "k": draw.choice(WIDTHS), "h": heads}
        if self.is_square:
            self.extents["i"] = self.extents["j"] = draw.choice((1, 3, 17))
        self.given: list[RandomOperand] = []
        self.statements: list[ProgramStatement] = []
        self.alias: dict[str, str] = {}
        self.sparse = [self._sparse() for _ in range(draw.choice((1, 1, 2)))]
        if draw.random() < 0.4:
            owner, first = self.given[0], self.sparse[0]
            self.given.append(RandomOperand(name := self.names.pop(), owner.shape, owner.layout, draw.randrange(10**6), owner.name))
            self.sparse.append(Node(name, (), first.indices))

    def program(self) -> Program:
        count = self.random.randint(2, 6)
        for at in range(count):
            self.statements.append(self._statement(at == count - 1))
        labels, dtype = self.random.choice(LABELS), self.random.choice((torch.float64, torch.float32))
        return Program(tuple(self.statements), tuple(self.given), self.extents, labels, dtype, self.alias)

    def _sparse(self) -> Node:
        """Access to a sparse operand; CSC is often accessed as the transpose."""
        layout = self.random.choice(("CSR", "CSR", "CSR", "CSR", "CSC", "COO"))
        indices = "ji" if layout == "CSC" and self.random.random() < 0.7 else "ij"
        return self._add(indices, indices, layout)

    def _add(self, shape: str, indices: str, layout: str) -> Node:
        name = self.names.pop()
        self.given.append(RandomOperand(name, shape, layout, self.random.randrange(10**6)))
        return Node(name, (), indices)

    def _statement(self, is_last: bool) -> ProgramStatement:
        draw = self.random
        leading = ("", "h") if self.has_heads else ("",)
        trailing = draw.choice(("i", "i", "ij", "ij", "ik", "ik", "ik", "j" if self.is_square else "i", ""))
        if self.is_of_entries:
            trailing = draw.choice(("i", "ik", "ij") if is_last else ("i", "ij", "ij", "ij"))
        indices = draw.choice(leading) + trailing
        if self.has_heads and draw.random() < 0.3 and "i" in indices and "h" not in indices:
            indices = indices.replace("i", "ih")
        op = draw.choice(OPS)
        if self.is_of_entries:
            op = draw.choice(("=", "=", "=", "+=", "stored max=" if "j" not in indices else "="))
        reduced = [at for at in "ijk" if at not in indices and draw.random() < self._share(at)]
        allowed = indices + "".join(reduced)
        value = self._value(allowed, indices)
        if self.is_of_entries and indices == "i" and not is_last and draw.random() < 0.6:  # as in a softmax
            op, value = "+=", Node("stored({}) * {}", (self.sparse[0], Node(draw.choice(ONE), (self._leaf("ij", must="ij"),))))
        if op == "=" and draw.random() < 0.3:
            value = Node(draw.choice(ONE[:6]), (value,))
            if indices and "j" not in indices and draw.random() < 0.5:
                value = Node("({} + {})", (value, self._leaf(indices)))
        return ProgramStatement(self.names.pop(), indices, op, value)

    def _share(self, index: str) -> float:
        """Probability that an index missing in the result is reduced."""
        if self.is_of_entries:
            return {"i": 0.02, "j": 0.9, "k": 0.2}[index]
        return {"i": 0.2, "j": 0.7, "k": 0.4}[index]

    def _value(self, allowed: str, indices: str) -> Node:
        """An expression with all indices of the result, usually a product with a sparse operand, that reads the previous statement."""
        value = self._tree(allowed, self.random.choice((0, 1, 1, 2, 2)))
        if "j" in allowed and "i" in allowed and self.random.random() < 0.93:
            value = Node("{} * {}", (self._pattern(allowed), value))
        missing = [at for at in allowed if not any(at in access.indices for access in value.accesses())]
        if missing:
            value = Node("{} * {}", (value, self._leaf(allowed, must=missing)))
        if self.statements and not any(access.text == self.statements[-1].name for access in value.accesses()):
            last = self.statements[-1]
            if set(last.indices) <= set(allowed):
                value = Node(self.random.choice(("{} * {}", "{} * {}", "{} / (abs({}) + 1)")), (value, Node(last.name, (), last.indices)))
        return value

    def _pattern(self, allowed: str) -> Node:
        sharing = [self.sparse[0], *(access for access in self.sparse if self._given(access.text).shares)]
        access = self.random.choice(sharing if self.is_of_entries else self.sparse)
        results = [s for s in self.statements if set("ij") <= set(s.indices) <= set(allowed)]
        if results and self.random.random() < 0.4:
            chosen = self.random.choice(results)
            return Node(chosen.name, (), chosen.indices)
        return Node("stored({})", (access,)) if self.random.random() < 0.35 else access

    def _given(self, name: str) -> RandomOperand:
        return next(operand for operand in self.given if operand.name == name)

    def _tree(self, allowed: str, depth: int) -> Node:
        if depth == 0:
            return self._leaf(allowed)
        if self.random.random() < 0.4:
            return Node(self.random.choice(ONE), (self._tree(allowed, depth - 1),))
        return Node(self.random.choice(TWO), (self._tree(allowed, depth - 1), self._tree(allowed, depth - 1)))

    def _leaf(self, allowed: str, must: Sequence[str] = ()) -> Node:
        """Access to an earlier result, an existing operand, or a new operand."""
        results = [s for s in self.statements if set(must) <= set(s.indices) <= set(allowed)]
        if results and self.random.random() < 0.6:
            statement = self.random.choice(results[-3:])
            return Node(statement.name, (), statement.indices)
        names = [at for at in allowed if at in must or self.random.random() < 0.5]
        while len(names) > 2 + ("h" in names):
            names.remove(self.random.choice([at for at in names if at not in must] or names))
        self.random.shuffle(names)
        if self.random.random() < 0.08 and not must:
            names = []
        return self._operand("".join(names))

    def _operand(self, indices: str) -> Node:
        shape = indices.replace("i", "j") if self.is_square else indices
        fitting = [operand for operand in self.given if operand.shape == shape and operand.layout not in FORMATS]
        if fitting and (self.random.random() < 0.6 or len(self.names) < 7):
            chosen = self.random.choice(fitting)
            if self.random.random() < 0.25 and len(self.names) > 7:
                self.alias[self.names[-1]] = chosen.name
                return Node(self.names.pop(), (), indices)
            return Node(chosen.name, (), indices)
        if len(self.names) < 7:
            return Node(self.given[0].name, (), self.sparse[0].indices)
        if indices and self.random.random() < 0.08:
            at = self.random.randrange(len(shape))
            shape = shape[:at] + "1" + shape[at + 1 :]
        return self._add(shape, indices, self.random.choice(LAYOUTS))


def draw_program(seed: int, of_entries: bool) -> Program:
    """The program of a seed; ``of_entries`` draws programs like attention, with values per entry and per row of a pattern."""
    return _Drawer(seed, of_entries).program()
