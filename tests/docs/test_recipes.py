"""The recipes of CONTRIBUTING.md: a level, an operator, a pass and a format, defined outside of the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from choices import replaced
from corpus import TARGET, corpus, means

import numscorch as ns
from numscorch import operators, schedule
from numscorch.__main__ import main
from numscorch.errors import FormatError
from numscorch.ir import format as formats
from numscorch.ir.format_text import LEVELS
from numscorch.ir.hash_table import Hash
from numscorch.ir.index import Expr, Literal, Stmt, factors_of, map_rhs, product
from numscorch.ir.level import Arrays, Children, Entries, Level, Mode, Parents, ranges
from numscorch.ir.levels import Compressed
from numscorch.ir.loop import Expr as LoopExpr
from numscorch.ir.padded import Fixed
from numscorch.ir.verify import verify
from numscorch.operators import elementwise
from numscorch.schedule.facts import forget_answers
from numscorch.schedule.loop_order import order_loops
from numscorch.schedule.workspace import insert_workspaces

pytestmark = pytest.mark.usefixtures("known_levels")
D = torch.tensor([[0.0, 2.0, 0.0, -1.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 4.0, 0.0]])


@dataclass(frozen=True, slots=True)
class Near(Level):
    """A level that stores coordinates as one-byte distances from the first one below the parent."""

    reach: int = 255
    spelling: ClassVar[str] = "near"
    arrays: ClassVar[tuple[str, ...]] = ("pos", "origin", "delta")

    def check(self, shape: str) -> None:
        if not 0 <= self.reach < 256:
            raise FormatError(f"{self} does not fit a byte: a distance is at most 255")

    def bounds(self, mode: Mode) -> tuple[LoopExpr, LoopExpr]:
        return mode.pos[mode.parent.begin], mode.pos[mode.parent.begin + 1]

    def coordinate(self, mode: Mode, position: LoopExpr) -> LoopExpr:
        return mode.array("origin")[mode.parent.begin] + mode.array("delta")[position]

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        pos = np.concatenate([[0], np.cumsum(entries.children)])
        crd, parents = entries.coordinates[entries.first], entries.parents[entries.first]
        origin = np.zeros(entries.count, dtype=np.int64)
        origin[parents[::-1]] = crd[::-1]  # the first coordinate is written last
        delta = crd - origin[parents]
        if delta.max(initial=0) > self.reach:
            raise FormatError(f"cannot store coordinates {delta.max()} apart: use a compressed level")
        return self, (pos, origin, delta), np.cumsum(entries.first) - 1, len(crd)

    def count(self, arrays: Arrays, parents: int, size: int) -> int:
        return len(arrays[-1])

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        pos, origin, delta = arrays
        counts = pos[stored.parents + 1] - pos[stored.parents]
        positions = ranges(pos[stored.parents], counts)
        return Children(counts, np.repeat(origin[stored.parents], counts) + delta[positions].astype(np.int64), positions)

    def array_dtype(self, name: str) -> str | None:
        return "uint8" if name == "delta" else None


def test_a_custom_level() -> None:
    ns.register_level(Near(), most=250)
    fmt = ns.Format("(i, j) -> (i: dense, j: near)")
    A = ns.from_torch(D, fmt)
    assert str(A.format) == "(i, j) -> (i: dense, j: near)"
    assert [array.tolist() for array in A.pattern.arrays[1]] == [[0, 2, 2, 4], [1, 0, 0], [0, 2, 0, 2]]
    assert torch.equal(A.to(ns.CSC).to(fmt).to_dense(), D)
    assert torch.equal(ns.einsum("ij,jk->ik", A, torch.eye(4)), D)
    assert torch.equal(ns.evaluate("R[i,j] = A[i,j] + B[i,j]", A=A, B=ns.from_torch(D, ns.DCSR)).to_dense(), D + D)
    assert ns.einsum("ij,j->ij", A, torch.ones(4)).format == fmt
    assert "A2_origin[i] + A2_delta[pA2]" in ns.explain("ij,j->i", fmt, "d").source


def test_the_text_of_a_level_has_its_parameters() -> None:
    ns.register_level(Near(), check=False)
    narrow = ns.Format("(i, j) -> (i: dense, j: near(1))")
    assert narrow.levels[1] == Near(1)
    assert str(narrow) == "(i, j) -> (i: dense, j: near(1))"
    with pytest.raises(FormatError, match=r"level 2 \(near\(1\)\) .* cannot store coordinates 2 apart: use a compressed level"):
        ns.from_torch(D, narrow)
    with pytest.raises(FormatError, match=r"near\(300\) does not fit a byte"):
        ns.Format("(i, j) -> (i: dense, j: near(300))")


@dataclass(frozen=True, slots=True)
class Table(Hash):
    """The hash table of the package under another name, so that it is checked as a custom level."""

    spelling: ClassVar[str] = "table"


def test_an_unordered_custom_level() -> None:
    ns.register_level(Table(), most=250)
    wide = torch.zeros(2, 300)
    wide[0, [3, 70, 299]] = torch.tensor([1.0, 2.0, 3.0])
    A = ns.from_torch(wide, ns.Format("(i, j) -> (i: dense, j: table)"))
    pos, crd = (array.tolist() for array in A.pattern.arrays[1])
    assert pos == [0, 8, 8]
    assert sorted(crd) == [-1] * 5 + [3, 70, 299]
    assert torch.equal(ns.einsum("ij,j->i", A, torch.ones(300)), wide.sum(1))
    assert torch.equal(ns.evaluate("R[i,j] = A[i,j] * B[i,j]", A=A, B=ns.from_torch(wide, ns.CSR)).to_dense(), wide * wide)


@dataclass(frozen=True, slots=True)
class Shifted(Near):
    """A level whose second and later coordinates are wrong."""

    spelling: ClassVar[str] = "shifted"

    def coordinate(self, mode: Mode, position: LoopExpr) -> LoopExpr:
        return mode.array("origin")[mode.parent.begin] + mode.array("delta")[position] * 2


@dataclass(frozen=True, slots=True)
class Backwards(Level):
    """A level that is declared as ordered and stores coordinates in reverse order."""

    spelling: ClassVar[str] = "backwards"
    arrays: ClassVar[tuple[str, ...]] = ("from_", "last")

    def bounds(self, mode: Mode) -> tuple[LoopExpr, LoopExpr]:
        return mode.array("from_")[mode.parent.begin], mode.array("from_")[mode.parent.begin + 1]

    def coordinate(self, mode: Mode, position: LoopExpr) -> LoopExpr:
        return mode.array("last")[position]

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        _, (pos, crd), positions, count = Compressed().pack(entries)
        parents, children = entries.parents[entries.first], entries.children
        reversed_positions = pos[parents] + pos[parents + 1] - 1 - np.arange(len(crd))
        return self, (pos, crd[reversed_positions]), reversed_positions[positions], count if children.size else 0

    def count(self, arrays: Arrays, parents: int, size: int) -> int:
        return len(arrays[-1])

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        return Compressed().unpack(arrays, stored)


@dataclass(frozen=True, slots=True)
class Long(Near):
    """A level that reads one position beyond each row."""

    spelling: ClassVar[str] = "long"

    def bounds(self, mode: Mode) -> tuple[LoopExpr, LoopExpr]:
        return mode.pos[mode.parent.begin], mode.pos[mode.parent.begin + 1] + 1


@dataclass(frozen=True, slots=True)
class Unpadded(Fixed):
    """A level that pads short rows with zeros, but is declared as unpadded."""

    spelling: ClassVar[str] = "unpadded"
    padded: ClassVar[bool] = False


@pytest.mark.parametrize("level", [Shifted(), Backwards(), Long(), Unpadded()], ids=str)
def test_errors_of_broken_levels_show_the_expression(level: Level) -> None:
    with pytest.raises(FormatError, match=rf"(?s)^R.*= .*A.*{level.spelling}.*seed \d+: ."):
        ns.register_level(level, most=250)
    assert level.spelling not in LEVELS


def test_levels_that_store_nothing_or_reuse_a_name_are_refused() -> None:
    with pytest.raises(FormatError, match="none of the random entries could be stored"):
        ns.register_level(Never())
    with pytest.raises(FormatError, match="'compressed' is the name of another level"):
        ns.register_level(Usurper())


@dataclass(frozen=True, slots=True)
class Never(Compressed):
    """A level that cannot store entries."""

    spelling: ClassVar[str] = "never"

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        raise FormatError("stores nothing")


@dataclass(frozen=True, slots=True)
class Usurper(Near):
    """A level with the name of another level."""

    spelling: ClassVar[str] = "compressed"


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("dense", [D, torch.zeros(3, 0), torch.zeros(0, 2)], ids=["entries", "no columns", "no rows"])
def test_an_operator_is_a_form_with_the_name_of_torch(dense: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    A: Any = ns.from_torch(dense, ns.CSR)
    with pytest.raises(ns.UnsupportedError, match="torch's ldexp does not take a SparseTensor yet"):
        torch.ldexp(A, A)
    monkeypatch.setitem(elementwise.FORMS, "ldexp", lambda input, other: f"{input} * 2 ** {other}")
    monkeypatch.setitem(elementwise.NAMED, "ldexp", elementwise._pair("ldexp", "The product input * 2**other", "``input``", "[4.0, 0.5]"))
    for function, sparse_function in operators.entries_of({"ldexp": elementwise.NAMED["ldexp"]}).items():
        monkeypatch.setitem(operators.TORCH_FUNCTIONS, function, sparse_function)
    result: Any = torch.ldexp(A, A)
    assert result.format == ns.CSR
    torch.testing.assert_close(result.to_dense(), torch.ldexp(dense, dense))
    assert torch.equal(ns.ldexp(dense, dense), torch.ldexp(dense, dense))


def numbers_last(stmt: Stmt) -> tuple[Stmt, str]:
    """Move numbers behind the tensors of a product, so that loads of tensors start first.

    >>> from numscorch.ir.notation import parse_stmt
    >>> print(numbers_last(parse_stmt("forall(i, y[i] = 2 * x[i])"))[0])
    forall(i, y[i] = x[i] * 2)
    """

    def with_numbers_last(expr: Expr) -> Expr:
        factors = factors_of(expr)
        ordered = sorted(factors, key=lambda factor: isinstance(factor, Literal))
        return expr if ordered == factors else product(ordered)

    changed = map_rhs(stmt, with_numbers_last)
    return (stmt, "no number stands before a tensor") if changed == stmt else (changed, "numbers stand behind tensors")


def test_a_pass_does_not_change_what_statements_mean() -> None:
    for problem, arrays in corpus():
        nest, _ = order_loops(problem.stmt, problem.facts, TARGET)
        doubled = map_rhs(nest, lambda rhs: product([Literal(1.0, "float64"), *factors_of(rhs)]))
        for stmt in (nest, doubled):
            after, why = numbers_last(stmt)
            assert verify(after) is after
            assert why
            means(after, problem, arrays)
            assert (after is stmt) == (stmt is nest)


def test_a_pass_is_added_to_the_list_of_passes(plain: pytest.MonkeyPatch) -> None:
    def both(stmt: Stmt, facts: Any, target: Any, options: Any) -> tuple[Stmt, str]:
        stmt, why = numbers_last(stmt)
        nest, reason = insert_workspaces(stmt, facts, target, options)
        return nest, f"{why}; {reason}"

    A = ns.from_torch(D, ns.CSR)
    assert "B[i,j] = 2 * A[i,j]))" in str(ns.explain("R[i,j] = 2 * A[i,j]", A=A).steps[1])
    plain.setattr(schedule, "PASSES", replaced(insert_workspaces, both))
    forget_answers()
    explanation = ns.explain("R[i,j] = 2 * A[i,j]", A=A)
    assert "B[i,j] = A[i,j] * 2))" in str(explanation.steps[1])
    assert explanation.steps[1].why.startswith("numbers stand behind tensors; ")
    assert torch.equal(ns.evaluate("R[i,j] = 2 * A[i,j]", A=A).to_dense(), 2 * D)


def test_a_named_format(plain: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fmt, known = ns.Format("(i, j) -> (i: compressed, j: bitmap)"), formats.named_formats
    plain.setattr(formats, "named_formats", lambda order: known(order) | ({"BITROWS": fmt} if order == 2 else {}))
    assert fmt.name == "BITROWS"
    assert ns.Format("BITROWS") == fmt
    A = ns.from_torch(D, ns.CSR)
    assert "SparseTensor(BITROWS, shape=(3, 4)" in repr(A.to(fmt))
    assert torch.equal(A.to(fmt).to(ns.CSR).to_dense(), D)
    assert main(["explain", "ij,j->i", "BITROWS", "dense"]) in (None, 0)
    assert "A: 1024x1024 (BITROWS)" in capsys.readouterr().out
