"""Data types of statements: operators and functions promote their arguments as torch does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from dense_values import as_dense

import numscorch as ns
from numscorch.ir.function_table import FUNCTIONS
from numscorch.ir.notation import parse_expr
from numscorch.programs.dense_requests import DENSE_FUNCTIONS

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
NONZERO = torch.tensor([-7, -3, -2, -1, 1, 2, 3, 6, 7])
PAIRS = list(itertools.product((torch.bool, torch.int8, torch.int64, torch.float32), repeat=2))
FORMATS = pytest.mark.parametrize("fmt", [None, ns.Format("s")], ids=["dense", "sparse"])
pytestmark = pytest.mark.usefixtures("interpreted")


def operands_of(tensors: tuple[torch.Tensor, ...], fmt: ns.Format | None) -> dict[str, Any]:
    return {name: tensor if fmt is None else ns.from_torch(tensor, fmt) for name, tensor in zip("ABC", tensors, strict=False)}


def _size_or_error(text: str, operands: dict[str, Any]) -> int | str:
    """The size of the result of a statement, or the text of its error."""
    try:
        return len(as_dense(ns.evaluate(text, **operands)))
    except ns.NumscorchError:
        return "refused"
    except RuntimeError as error:
        return str(error)


@FORMATS
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_integers_have_the_values_and_data_types_of_torch(name: str, dtype: torch.dtype, fmt: ns.Format | None) -> None:
    """Functions that torch defines for integers are compared; comparisons give 1 or 0 in the data type of the argument."""
    points = NONZERO.abs() if dtype is torch.uint8 else NONZERO % 2 == 0 if dtype is torch.bool else NONZERO
    arguments = tuple(axis.ravel() for axis in torch.meshgrid([points.to(dtype)] * FUNCTIONS[name].arity, indexing="ij"))
    text = f"R[i] = {name}({', '.join(f'{letter}[i]' for letter in 'ABC'[: len(arguments)])})"
    allowed: list[int | str] = [len(arguments[0]), "refused"]
    try:
        expected = DENSE_FUNCTIONS[name](*arguments)
    except RuntimeError as error:  # most functions of bool, and elu of all integers
        expected = None
        allowed += [str(error), "ZeroDivisionError"] if fmt is None else []  # torch computes statements of dense tensors
    if expected is None or (dtype is torch.bool and FUNCTIONS[name].annihilates and fmt is not None):
        assert _size_or_error(text, operands_of(arguments, fmt)) in allowed
        return
    result = as_dense(ns.evaluate(text, **operands_of(arguments, fmt)))
    if name == "square" and dtype is torch.bool:
        expected = expected.bool()
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result, expected, equal_nan=True)


def test_functions_of_large_integers_are_exact() -> None:
    large = torch.tensor([2**60 + 1, -(2**60) - 1, 0])
    A = ns.from_torch(large, ns.Format("s"))
    for name in ("floor", "ceil", "trunc", "round"):
        assert torch.equal(as_dense(ns.evaluate(f"R[i] = {name}(A[i])", A=A)), large)
    assert as_dense(ns.evaluate("R[i] = A[i] ** 3", A=ns.from_torch(torch.tensor([2**20 + 1, 0]), ns.Format("s")))).tolist() == [
        (2**20 + 1) ** 3,
        0,
    ]


EXPRESSIONS = {
    "A[i] / 2": lambda a, b: a / 2,
    "A[i] / B[i]": lambda a, b: a / b,
    "sin(A[i]) * B[i]": lambda a, b: a.sin() * b,
    "A[i] + 0": lambda a, b: a + 0,
    "0 - A[i]": lambda a, b: 0 - a,
    "A[i] * (1 / 2)": lambda a, b: a * (1 / 2),
    "A[i] * (2 // 3 + 1)": lambda a, b: a * 1,
    "A[i] ** 2": lambda a, b: a**2,
    "A[i] ** 0.5": lambda a, b: a**0.5,
    "where(A[i] > 0, A[i], 0)": lambda a, b: torch.where(a > 0, a, 0),
    "maximum(A[i], 0.5)": lambda a, b: a.clamp(min=0.5),
    "A[i] * 2.0": lambda a, b: a * 2.0,
    "A[i] * 2.": lambda a, b: a * 2.0,
    "A[i] + 1e1": lambda a, b: a + 1e1,
    "A[i] * -1.0": lambda a, b: a * -1.0,
    "A[i] * (4 / 2)": lambda a, b: a * (4 / 2),
    "A[i] * (1.0 + 1)": lambda a, b: a * (1.0 + 1),
    "maximum(A[i], 0.0)": lambda a, b: a.clamp(min=0.0),
    "A[i] + -1": lambda a, b: a + -1,
    "A[i] * B[i] + A[i]": lambda a, b: a * b + a,
}
COMPARISONS = {"A[i] == 1": lambda a: a == 1, "A[i] < 2": lambda a: a < 2, "A[i] != 0": lambda a: a != 0, "1 >= A[i]": lambda a: a <= 1}


@FORMATS
@pytest.mark.parametrize("dtypes", PAIRS, ids=str)
def test_statements_promote_as_torchs_operators(dtypes: tuple[torch.dtype, torch.dtype], fmt: ns.Format | None) -> None:
    a, b = (torch.tensor(operandues).to(dtype) for operandues, dtype in zip(([1, 1, 3, 1], [3, 1, 1, 2]), dtypes, strict=True))
    for text, expected in EXPRESSIONS.items():
        named = {name: operandues for name, operandues in operands_of((a, b), fmt).items() if f"{name}[" in text}
        try:
            result = expected(a, b)
        except RuntimeError:  # torch refuses powers and negatives of booleans
            continue
        actual = as_dense(ns.evaluate(f"R[i] = {text}", **named))
        assert actual.dtype == result.dtype, text
        torch.testing.assert_close(actual, result, msg=text)
    for text, test in COMPARISONS.items():
        actual = as_dense(ns.evaluate(f"R[i] = {text}", A=operands_of((a,), fmt)["A"]))
        assert actual.dtype == a.dtype, text
        assert torch.equal(actual, test(a).to(a.dtype)), text


@FORMATS
def test_a_point_or_an_exponent_makes_a_number_fractional(fmt: ns.Format | None) -> None:
    """A call with an integer before it has a separate plan."""
    A = operands_of((torch.tensor([1, 0, 3]),), fmt)["A"]
    for number, dtype in {"2": torch.int64, "2.0": torch.float32, "2e0": torch.float32, "20": torch.int64}.items():
        assert ns.evaluate(f"R[i] = A[i] * {number}", A=A).dtype == dtype, number
        assert ns.evaluate(f"T[i] = A[i] * {number}; R[i] = T[i] + A[i]", A=A).dtype == dtype, number
        assert str(parse_expr(str(parse_expr(f"A[i] * {number}")))) == str(parse_expr(f"A[i] * {number}"))
        assert parse_expr(str(parse_expr(f"A[i] * {number}"))) == parse_expr(f"A[i] * {number}")
    assert [str(parse_expr(text)) for text in ("2", "2.0", "-2.", "1e3", "0.5", "1000000", "1e20")] == (
        ["2", "2.0", "-2.0", "1000.0", "0.5", "1000000", "1e+20"]
    )


@FORMATS
def test_booleans_are_compared_with_any_integer(fmt: ns.Format | None) -> None:
    A = operands_of((torch.tensor([True, False]),), fmt)["A"]
    for text, numbers, expected in (
        ("A[i] == 256", {}, [False, False]),
        ("A[i] < c", {"c": 1}, [False, True]),
        ("A[i] == 128 + 129", {}, [False, False]),
    ):
        result = as_dense(ns.evaluate(f"R[i] = {text}", A=A, **numbers))
        assert result.dtype == torch.bool
        assert result.tolist() == expected, text


@FORMATS
def test_folded_numbers_fit_the_data_type(fmt: ns.Format | None) -> None:
    A = operands_of((torch.tensor([1, 0], dtype=torch.int8),), fmt)["A"]
    for text in ("A[i] + 100 * 3", "A[i] + (100 + 100)", "maximum(A[i], abs(-150 + 1))"):
        with pytest.raises(ns.UnsupportedError, match=r"the number .* does not fit torch.int8"):
            ns.evaluate(f"R[i] = {text}", A=A)
    assert as_dense(ns.evaluate("R[i] = A[i] + 25 * 3", A=A)).tolist() == [76, 75]


SUMS = {
    "y[i] = A[i,j]": lambda a, x: a.sum(1),
    "y[i] += A[i,j]": lambda a, x: a.sum(1),
    "y = A[i,j]": lambda a, x: a.sum(),
    "y[i] = A[i,j] * 1": lambda a, x: (a * 1).sum(1),
    "y[i,k] = A[i,j] * x[k]": lambda a, x: a.sum(1)[:, None] * x,
    "y[i] = A[i,j] + A[i,j]": lambda a, x: a.sum(1) * 2,
    "y[i] = A[i,j] * x[j]": lambda a, x: (a.long() @ x.long()).to(a.dtype),
    "y[i] max= A[i,j]": lambda a, x: a.amax(1),
}


@pytest.mark.parametrize("fmt", [None, ns.CSR, ns.COO(2)], ids=str)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_sums_of_narrow_integers_are_int64(dtype: torch.dtype, fmt: ns.Format | None) -> None:
    """Sums of one factor are int64, as torch.sum; contractions keep the data type, as torch.einsum."""
    a, x = torch.full((3, 40), 100).to(dtype), torch.full((40,), 2).to(dtype)
    A = a if fmt is None else ns.from_torch(a, fmt)
    for text, expected in SUMS.items():
        result = as_dense(ns.evaluate(text, A=A, **({"x": x} if "x[" in text else {})))
        assert result.dtype == expected(a, x).dtype, text
        assert torch.equal(result, expected(a, x)), text
    for c in (True, 1):
        result = as_dense(ns.evaluate("y[i] = A[i,j] * c", A=A, c=c))
        assert result.dtype == torch.int64
        assert torch.equal(result, a.sum(1))


def test_parts_that_may_have_overflowed_are_not_converted() -> None:
    """A uint8 difference wraps before the sine, and a boolean sum saturates before it is counted."""
    a = torch.tensor([1, 0], dtype=torch.uint8)
    for dtype, texts in {
        torch.uint8: ("y[i] = sin(A[i] - B[i])", "y += A[i] - B[i]", "y[i] = (A[i] - B[i]) * x[i]", "y[i] = (A[i] + B[i]) / 2"),
        torch.bool: ("y += A[i] + B[i]", "y[i] = (A[i] + B[i]) * 2"),
    }.items():
        for operand in (a.to(dtype), ns.from_torch(a.to(dtype), ns.Format("s"))):
            for text in texts:
                with pytest.raises(ns.UnsupportedError, match=r"may have overflowed: .*\.to\(torch\.int16\)"):
                    ns.evaluate(text, A=operand, B=operand, **({"x": torch.ones(2)} if "x[" in text else {}))
    assert as_dense(ns.evaluate("y[i] = sin(A[i] * (A[i] > 1))", A=ns.from_torch(a, ns.Format("s")))).tolist() == [0.0, 0.0]


def test_explain_promotes_and_refuses_as_evaluate() -> None:
    A = ns.from_torch(torch.ones(3, 3, dtype=torch.uint8), ns.CSR)
    with pytest.raises(ns.UnsupportedError, match="may have overflowed"):
        ns.explain("R[i,j] = A[i,j] * A[i,j] // 3", A=A)
    with pytest.raises(ns.UnsupportedError, match="may have overflowed"):
        ns.explain("ij,ij->i", A, A, reduce="max")
    assert "int64" in ns.explain("y[i] = A[i,j]", A=A).source
    assert "float32" in ns.explain("R[i,j] = sin(A[i,j])", A=A).source
    assert "converted to float32" in str(ns.explain("R[i,j] = A[i,j] / 2", A=A.to(torch.int64)))
    assert "int64" in ns.explain("R[i,j] = A[i,j] + 0", A=A.to(torch.bool)).source


@pytest.fixture
def wide_default() -> Iterator[Callable[[], None]]:
    """Function that changes torch's default data type to float64 until the end of the test."""
    before = torch.get_default_dtype()
    yield lambda: torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(before)


@FORMATS
def test_a_new_default_data_type_takes_effect(wide_default: Callable[[], None], fmt: ns.Format | None) -> None:
    """Parsed texts and plans of calls before the change are not reused."""
    a = torch.tensor([1, 0, 3])
    A = operands_of((a,), fmt)["A"]
    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "function": (lambda: ns.evaluate("y[i] = exp(A[i])", A=A), a.exp),
        "quotient": (lambda: ns.evaluate("y[i] = A[i] / 3", A=A), lambda: a / 3),
        "fraction": (lambda: ns.evaluate("y[i] = A[i] * 0.5", A=A), lambda: a * 0.5),
        "number": (lambda: ns.evaluate("y[i] = A[i] * c", A=A, c=0.5), lambda: a * 0.5),
        "complex": (lambda: ns.evaluate("y[i] = A[i] * 2j", A=A), lambda: a * 2j),
        "program": (lambda: ns.evaluate("t[i] = A[i] / 2; y[i] = t[i] * A[i]", A=A), lambda: a / 2 * a),
        "scalar": (lambda: A * 0.5, lambda: a * 0.5),
        "operator": (lambda: A / 3, lambda: a / 3),
    }
    if isinstance(A, ns.SparseTensor):
        calls["atan2"] = lambda: torch.atan2(A, A), lambda: torch.atan2(a, a)
        calls["sin"] = lambda: torch.sin(A), a.sin
    for name, (call, reference) in calls.items():
        assert call().dtype == reference().dtype, name
    wide_default()
    for name, (call, reference) in calls.items():
        expected = reference()
        result = as_dense(call())
        assert result.dtype == expected.dtype, name
        torch.testing.assert_close(result, expected, msg=name)
