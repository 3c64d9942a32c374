"""Element-wise functions of SIMD registers equal the scalar functions in each lane."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from routine_calls import jitted, run

from numscorch.codegen.assembly import KernelBody
from numscorch.codegen.checked_intrinsics import TWINS
from numscorch.codegen.intrinsics import add, load, mul, pointer, store
from numscorch.codegen.register_functions import (
    div,
    eq,
    exponentials,
    ge,
    gt,
    hmax,
    hmin,
    larger,
    le,
    lt,
    magnitudes,
    ne,
    relus,
    roots,
    selected,
    sigmoids,
    smaller,
    sub,
)
from numscorch.codegen.source import MODULES, _imports
from numscorch.ir.functions import FUNCTIONS, INFIX, REGISTER_FUNCTIONS, REGISTER_REDUCTIONS
from numscorch.ir.loop import Assign, FunctionDef, Var, call

DTYPES = ("float32", "float64")
LANES = 8
NUMBERS = np.random.default_rng(0)
ROWS = (
    *("add", "sub", "mul", "div", "larger", "smaller", "relus", "magnitudes", "roots", "exponentials", "sigmoids"),
    *("selected", "lt", "le", "gt", "ge", "eq", "ne"),
)


def every_function(first: Any, second: Any, third: Any, values: Any, size: int) -> None:
    """values[row * size : (row + 1) * size] = the function of that row, applied to the arguments."""
    x, y, z, out = pointer(first), pointer(second), pointer(third), pointer(values)
    for i in range(0, size, LANES):
        a, b, c = load(x, i, LANES), load(y, i, LANES), load(z, i, LANES)
        store(out, i, add(a, b))
        store(out, i + size, sub(a, b))
        store(out, i + 2 * size, mul(a, b))
        store(out, i + 3 * size, div(a, b))
        store(out, i + 4 * size, larger(a, b))
        store(out, i + 5 * size, smaller(a, b))
        store(out, i + 6 * size, relus(a))
        store(out, i + 7 * size, magnitudes(a))
        store(out, i + 8 * size, roots(a))
        store(out, i + 9 * size, exponentials(a))
        store(out, i + 10 * size, sigmoids(a))
        store(out, i + 11 * size, selected(c, a, b))
        store(out, i + 12 * size, lt(a, b))
        store(out, i + 13 * size, le(a, b))
        store(out, i + 14 * size, gt(a, b))
        store(out, i + 15 * size, ge(a, b))
        store(out, i + 16 * size, eq(a, b))
        store(out, i + 17 * size, ne(a, b))


def lanes_joined(values: Any, extremes: Any) -> None:
    """Maximum and minimum of the first three, five and eight lanes."""
    x, out = pointer(values), pointer(extremes)
    three, five, eight = load(x, 0, 3), load(x, 0, 5), load(x, 0, 8)
    out[0] = hmax(three)
    out[1] = hmin(three)
    out[2] = hmax(five)
    out[3] = hmin(five)
    out[4] = hmax(eight)
    out[5] = hmin(eight)
    store(out, 6, exponentials(three))


def evaluated(first: np.ndarray, second: np.ndarray, third: np.ndarray, compiled: bool) -> dict[str, np.ndarray]:
    values = np.full((len(ROWS), first.size), -7, first.dtype)
    run(every_function, first, second, third, values.reshape(-1), first.size, compiled=compiled)
    return dict(zip(ROWS, values, strict=True))


def exponents(x: np.ndarray) -> np.ndarray:
    """Exponentials of any number of values."""
    padded = np.concatenate([x, np.zeros(-x.size % LANES, x.dtype)])
    return evaluated(padded, padded, padded, compiled=True)["exponentials"][: x.size]


def units(approximate: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The error in units of the last place of the exact number, in the data type of the approximation."""
    limits = np.finfo(approximate.dtype)
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.floor(np.log2(exact)), limits.minexp)
        return np.abs(approximate.astype(exact.dtype) - exact) / np.exp2(exponent - limits.nmant)


def pairs(dtype: str) -> tuple[np.ndarray, ...]:
    """All pairs of special values, and a condition for each pair."""
    small, large = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    special = np.array([0, -0.0, 1, -1, 0.5, -2.5, 30, -30, np.inf, -np.inf, np.nan, small, -small, large, -large, 3], dtype)
    first, second = (part.reshape(-1).copy() for part in np.meshgrid(special, special))
    return first, second, NUMBERS.choice(np.array([0, -0.0, 1, np.nan, small], dtype), first.size)


def meanings() -> dict[str, Any]:
    """The scalar function for each function of registers, by name."""
    scalar = {**{name: function.evaluate for name, function in FUNCTIONS.items()}, **INFIX}
    functions = {register_name: scalar[name] for name, register_name in REGISTER_FUNCTIONS.items()}
    return functions | {"div": np.divide}  # the scalar operator treats -0 as 0


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "as Python"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_lane_equals_the_scalar_function(dtype: str, compiled: bool) -> None:
    a, b, c = pairs(dtype)
    arguments = {"selected": (c, a, b), **dict.fromkeys(("relus", "magnitudes", "roots", "exponentials", "sigmoids"), (a,))}
    results = evaluated(a, b, c, compiled)
    assert set(results) == set(meanings())
    for name, evaluate in meanings().items():
        lists = (argument.astype("float64").tolist() for argument in arguments.get(name, (a, b)))
        with np.errstate(all="ignore"):
            expected = np.array([evaluate(*numbers) for numbers in zip(*lists, strict=True)]).astype(dtype)
        tolerances = (4 * np.finfo(dtype).eps, np.finfo(dtype).tiny) if name in ("exponentials", "sigmoids") else (0, 0)
        np.testing.assert_allclose(results[name], expected, rtol=tolerances[0], atol=tolerances[1], err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_python_agrees_on_random_values(dtype: str) -> None:
    a, b = (NUMBERS.normal(0, 10, 160).astype(dtype) for _ in range(2))
    c = NUMBERS.integers(0, 2, 160).astype(dtype)
    compiled, plain = evaluated(a, b, c, True), evaluated(a, b, c, False)
    for name in ROWS:
        tolerance = 4 * float(np.finfo(dtype).eps) if name in ("exponentials", "sigmoids") else 0
        np.testing.assert_allclose(compiled[name], plain[name], rtol=tolerance, err_msg=name)


@pytest.mark.parametrize(("dtype", "wide", "least", "most"), [("float32", "float64", -105, 90), ("float64", "longdouble", -748, 711)])
def test_exponentials_are_within_two_units_of_the_last_place(dtype: str, wide: str, least: float, most: float) -> None:
    """Numbers of the whole range, numbers near 0, and numbers with denormal exponentials."""
    ranges = ((least, most), (-1, 1), (-1e-3, 1e-3), (least, least * 0.83))
    x = np.concatenate([NUMBERS.uniform(low, high, 30_000) for low, high in ranges]).astype(dtype)
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(wide))
    approximate = exponents(x)
    representable = exact <= np.finfo(dtype).max
    assert units(approximate[representable], exact[representable]).max() <= 2
    np.testing.assert_array_equal(approximate[~representable], np.inf)
    assert np.any((approximate > 0) & (approximate < np.finfo(dtype).tiny))


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_exponentials(dtype: str) -> None:
    limits = np.finfo(dtype)
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, limits.max, -limits.max, limits.smallest_subnormal, 1e30, -1e30], dtype)
    np.testing.assert_array_equal(exponents(x), np.array([1, 1, np.inf, 0, np.nan, np.inf, 0, 1, np.inf, 0], dtype))


@pytest.mark.parametrize(("dtype", "last"), [("float32", 88.72283172607422), ("float64", 709.782712893384)])
def test_exponentials_up_to_the_last_finite_one(dtype: str, last: float) -> None:
    finite = np.array(last, dtype)
    assert np.isfinite(exponents(np.stack([finite, np.nextafter(finite, np.array(np.inf, dtype))]))).tolist() == [True, False]


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "as Python"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_largest_and_smallest_lanes(dtype: str, compiled: bool) -> None:
    for number in range(40):
        values = NUMBERS.permutation(8).astype(dtype) - 4
        if number >= 20:
            values[number % 8] = np.nan if number % 2 else (-1) ** (number // 2) * np.inf
        joined = np.empty(9, dtype)
        run(lanes_joined, values, joined, compiled=compiled)
        expected = [extreme(values[:lanes]) for lanes in (3, 5, 8) for extreme in (np.max, np.min)]
        np.testing.assert_array_equal(joined[:6], expected, err_msg=str(values))
        np.testing.assert_allclose(joined[6:], np.exp(values[:3]), rtol=4 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_machine_code_has_no_calls(dtype: str) -> None:
    exponents(np.zeros(8, dtype))
    (text,) = (text for types, text in jitted(every_function).inspect_asm().items() if str(types[0].dtype) == dtype)
    body = text[text.index("every_function") : text.index("PyArg_UnpackTuple")].split(".Lfunc_end0")[0]
    assert "sqrt" in body
    assert re.findall(r"\bcall\w*\s.*|\bbl\s.*", body) == []


def test_each_function_of_registers_has_a_checked_version() -> None:
    registered = {*REGISTER_FUNCTIONS.values(), *REGISTER_REDUCTIONS.values()}
    assert registered <= set(TWINS)
    assert set(REGISTER_FUNCTIONS) <= {*FUNCTIONS, *INFIX}
    assert registered <= set(MODULES)


def test_generated_source_imports_functions_of_registers() -> None:
    """Each function is imported from its file."""
    for name in sorted({*REGISTER_FUNCTIONS.values(), *REGISTER_REDUCTIONS.values()}):
        body = (Assign(Var("y"), call(name, Var("x"))),)
        scope: dict[str, Any] = {}
        exec(_imports(KernelBody((FunctionDef("kernel", ("x",), body),), (), zeroed=False, parallel=False)), scope)
        assert name in scope
