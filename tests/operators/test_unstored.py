"""All rows of docs/OPERATORS.md: how operators and reductions treat unstored entries, compared with dense tensors."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from itertools import product
from math import inf, isnan, prod
from pathlib import Path
from types import ModuleType

import pytest
import torch
from dense_values import as_dense
from interpreter import value

import numscorch as ns
from numscorch.ir.functions import FUNCTIONS, REDUCTIONS
from numscorch.programs.reductions import JOINED_BY

DOCS = Path(__file__).parents[2] / "docs"
STATES = 6  # coordinates for each combination of operands that store an entry
pytestmark = pytest.mark.usefixtures("interpreted")


def from_docs(name: str) -> ModuleType:
    """Import a module of the folder docs, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


unstored = from_docs("unstored")
ROWS = {row[0]: row for arity in (1, 2, 3) for row in unstored.operator_rows(arity)}


def operands_of(text: str) -> dict[str, torch.Tensor]:
    """A row for each combination of operands that store entries; stored values are nonzero, so that 0 means unstored."""
    names = [name for name in "ABC" if name in text]
    numbers = torch.Generator().manual_seed(len(text))
    stored = torch.tensor(list(product((1.0, 0.0), repeat=len(names))), dtype=torch.float64)
    values = [torch.rand(len(stored), STATES, generator=numbers, dtype=torch.float64) + 0.25 for _ in names]
    signs = [1 if text.startswith(("log", "sqrt")) else (-1.0) ** torch.arange(STATES) for _ in names]
    return {name: values[at] * signs[at] * stored[:, at, None] + 0.0 for at, name in enumerate(names)}


def statement(text: str) -> str:
    """The expression as a statement on matrices."""
    return "R[i,j] = " + "".join(f"{char}[i,j]" if char in "ABC" else char for char in text)


@pytest.mark.parametrize(
    "fmt", ["ds", "ss", "oo", "(i, j) -> (i: dense, j: bitmap)", "(i, j) -> (j // 2: compressed, i: dense, j % 2: dense)"]
)
@pytest.mark.parametrize("text", ROWS)
def test_operators_equal_dense_tensors(text: str, fmt: str) -> None:
    dense = operands_of(text)
    output = ns.evaluate(statement(text), **{name: ns.from_torch(values, ns.Format(fmt)) for name, values in dense.items()})
    result = as_dense(output)
    expected = ns.evaluate(statement(text), **dense)
    is_quotient = text == "A / B" or (text.split("(")[0] in FUNCTIONS and FUNCTIONS[text.split("(")[0]].annihilates)
    compared = dense["A"] != 0 if is_quotient else torch.ones_like(result) != 0  # unstored / unstored is 0, but nan in dense tensors
    torch.testing.assert_close(result[compared], expected[compared], equal_nan=True)


@pytest.mark.parametrize("text", ROWS)
def test_operators_with_unstored_operands(text: str) -> None:
    """Each cell of a row, evaluated where its operands are unstored, equals the operator's value there."""
    dense, row = operands_of(text), ROWS[text]
    operands = {name: ns.from_torch(values, ns.CSR) for name, values in dense.items()}
    output = ns.evaluate(statement(text), **operands)
    result = as_dense(output)
    for absent, cell in zip(unstored.absences(len(dense)), row[1:-2], strict=True):
        (at,) = (r for r in range(len(result)) if all((dense[name][r, 0] == 0) == (name in absent) for name in dense))
        arrays = {name: values[at][None].numpy() for name, values in dense.items()}
        for column in range(STATES):
            i, j = unstored.INDICES
            expected = float(cell) if cell in ("-inf", "inf", "nan") else value(unstored.parsed(cell), arrays, {i: 0, j: column})
            assert expected == pytest.approx(float(result[at, column]), nan_ok=True), (absent, cell)


@pytest.mark.parametrize("text", ROWS)
def test_where_an_operator_is_computed_and_how_its_result_is_stored(text: str) -> None:
    dense, (visited, pattern) = operands_of(text), ROWS[text][-2:]
    operands = {name: ns.from_torch(values, ns.CSR) for name, values in dense.items()}
    result = ns.evaluate(statement(text), **operands)
    assert isinstance(result, ns.SparseTensor) == (pattern != "dense") == (visited != "all")
    if isinstance(result, ns.SparseTensor):
        assert result.format == ns.CSR
        assert (result.pattern is operands["A"].pattern) == (pattern == "pattern of A")
        alternatives = [[dense[name] != 0 for name in group.split(" and ")] for group in visited.split(" or ")]
        expected = torch.stack([torch.stack(group).all(0) for group in alternatives]).any(0)
        stored = ns.SparseTensor(result.pattern, torch.ones_like(result.values)).to_dense() != 0
        assert torch.equal(stored, expected)


def reduced(op: str, A: ns.SparseTensor) -> list[torch.Tensor]:
    """The rows of a matrix, reduced by all equivalent calls."""
    results = [] if " " in op else [ns.evaluate(f"y[i] {op} A[i,j]", format="dense", A=A)]
    names = [name for name, symbol in JOINED_BY.items() if op == ("+=" if symbol == "=" else symbol)]
    return results + [ns.einsum("ij->i", A, reduce=name, format="dense") for name in names if name not in OTHERS]


OTHERS = ("any", "all", "or_and", "mean")  # reductions with separate tests
JOINED: dict[str, Callable[[Iterable[float]], float]] = {
    "+=": sum,
    "*=": prod,
    "max=": max,
    "min=": min,
    "stored max=": lambda terms: max(terms, default=-inf),
    "max plus=": lambda terms: max(terms, default=-inf),
    "min plus=": lambda terms: min(terms, default=inf),
}


@pytest.mark.parametrize("fmt", ["ds", "ss", "oo", "(i, j) -> (i: dense, j: hash)"])
@pytest.mark.parametrize("op", JOINED)
def test_reductions_over_unstored_entries(op: str, fmt: str) -> None:
    (row,) = (row for row in unstored.reduction_rows() if row[0] == unstored.spelled(op))
    rows = [[-2.0, -3.0, 0.0], [2.0, 3.0, 0.0], [-2.0, -3.0, -4.0], [0.0, 0.0, 0.0]]
    expected = [JOINED[op](x for x in entries if x or row[2] == "the term 0") for entries in rows]
    assert expected[-1] == float(row[3])
    for result in reduced(op, ns.from_torch(torch.tensor(rows), ns.Format(fmt))):
        assert result.tolist() == expected
    for result in reduced(op, ns.from_torch(torch.zeros(4, 0), ns.Format(fmt))):
        assert result.tolist() == [float(row[4])] * 4


def test_every_reduction_has_a_row_in_the_table() -> None:
    assert set(JOINED) == set(REDUCTIONS)


def test_softmax_subtracts_the_maximum_of_stored_entries() -> None:
    A = ns.from_torch(torch.tensor([[-2.0, 0.0, -2.0], [0.0, 0.0, 0.0]]), ns.CSR)
    assert ns.softmax(A, 1).to_dense().tolist() == [[0.5, 0.0, 0.5], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("name", ["any", "all", "or_and"])
def test_any_and_all_of_unstored_entries(name: str) -> None:
    dense = torch.tensor([[2.0, -3.0], [0.0, 5.0], [0.0, 0.0]])
    expected = (dense != 0).all(1) if name == "all" else (dense != 0).any(1)
    assert (ns.einsum("ij->i", ns.from_torch(dense, ns.CSR), reduce=name, format="dense") != 0).tolist() == expected.tolist()
    (row,) = (row for row in unstored.reduction_rows() if f'"{name}"' in row[0])
    assert float(expected[2]) == float(row[3])
    assert ns.einsum("ij->i", ns.from_torch(torch.zeros(2, 0), ns.CSR), reduce=name, format="dense").tolist() == [float(row[4])] * 2


def test_the_mean_counts_unstored_entries() -> None:
    A = ns.from_torch(torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), ns.CSR)
    assert ns.einsum("ij->i", A, reduce="mean", format="dense").tolist() == [1.0, 0.0]
    assert all(map(isnan, ns.einsum("ij->i", ns.from_torch(torch.zeros(2, 0), ns.CSR), reduce="mean", format="dense").tolist()))
    (row,) = (row for row in unstored.reduction_rows() if '"mean"' in row[0])
    assert row[3:] == ("0", "nan")


def test_an_unstored_entry_times_infinity_is_0() -> None:
    A, x = ns.from_torch(torch.tensor([[1.0, 0.0]]), ns.CSR), torch.tensor([[torch.inf, torch.nan]])
    assert ns.evaluate("R[i,j] = A[i,j] * x[i,j]", A=A, x=x).to_dense().tolist() == [[torch.inf, 0.0]]
    assert ns.evaluate("R[i,j] = A[i,j] / x[i,j]", A=A, x=x).to_dense().tolist() == [[0.0, 0.0]]


def test_the_tables_are_up_to_date() -> None:
    text = (DOCS / "OPERATORS.md").read_text(encoding="utf-8")
    for arity in (1, 2, 3):
        assert unstored.operators_of(arity) in text
    assert unstored.reductions() in text


@pytest.mark.parametrize("name", ["any", "all", "or_and"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool])
def test_any_and_all_without_terms(name: str, dtype: torch.dtype) -> None:
    A = ns.from_torch(torch.zeros(3, 0, dtype=dtype), ns.CSR)
    assert ns.einsum("ij->i", A, reduce=name).tolist() == [name == "all"] * 3
    assert ns.einsum("ij,jk->ik", A.to(torch.bool), torch.zeros(0, 2, dtype=torch.bool)).any().item() is False
