"""Tiles: values of several SIMD registers, compiled and as Python; only the last register is masked."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from routine_calls import jitted, run

from numscorch.codegen.compress_store import appended, largest
from numscorch.codegen.intrinsics import (
    accumulate,
    add,
    dot,
    dots,
    fma,
    hsum,
    hsums,
    load,
    mul,
    pointer,
    splat,
    store,
)
from numscorch.codegen.register_functions import exponentials, larger, selected, sub

DTYPES = ("float32", "float64")
SIZE = 20  # five registers of four lanes


def whole_tiles(first: Any, second: Any, values: Any) -> None:
    """Rows of values: functions of tiles, of a tile and a register, and of a tile and a number."""
    a, b, out = pointer(first), pointer(second), pointer(values)
    x, y, one = load(a, 0, 4, 5), load(b, 0, 4, 5), load(b, 0, 4)
    store(out, 0, fma(x, y, splat(b[0], 4, 5)))
    store(out, 20, fma(b[1], x, y))
    store(out, 40, fma(one, x, y))
    store(out, 60, add(sub(x, one), mul(y, b[2])))
    store(out, 80, larger(x, mul(one, b[3])))
    store(out, 100, selected(larger(x, y), b[4], exponentials(x)))
    store(out, 120, splat(b[5], 4, 5))


def sums_of_tiles(first: Any, second: Any, values: Any) -> None:
    """Sums, each in a separate register of values."""
    a, b, out = pointer(first), pointer(second), pointer(values)
    x, y, one = load(a, 0, 4, 5), load(b, 0, 4, 5), load(b, 0, 4)
    store(out, 0, dot(x, y, one))
    store(out, 4, dot(b[1], y, one))
    store(out, 8, accumulate(one, x))
    out[12] = hsum(x)
    out[13] = hsum(load(b, 0, 4, 2))
    out[14] = hsum(one)


def sums_side_by_side(first: Any, second: Any, values: Any) -> None:
    """Products of one row with four other rows, in the lanes of a register."""
    a, b, out = pointer(first), pointer(second), pointer(values)
    x = load(a, 0, 4, 2)
    sums = dots(x, load(b, 0, 4, 2), load(b, 4, 4, 2), load(b, 8, 4, 2), load(b, 12, 4, 2), splat(a[0], 4, 4))
    store(out, 0, hsums(sums))
    store(out, 4, hsums(load(b, 0, 4), load(b, 4, 4), load(b, 8, 4), load(b, 12, 4)))


def masked_tiles(first: Any, values: Any, left: int) -> None:
    """Load and store tiles of three registers, the last of which has ``left`` valid lanes."""
    a, out = pointer(first), pointer(values)
    store(out, 0, load(a, 0, 4, 3, left))
    store(out, 12, splat(a[0], 4, 3), left)


def appended_tiles(first: Any, values: Any, coordinates: Any, counts: Any, left: int) -> None:
    """The positive lanes of two registers, then the maximum of each pair, then both again with ``left`` valid lanes in the second."""
    a, out, crd, ends = pointer(first), pointer(values), pointer(coordinates), pointer(counts)
    x = load(a, 0, 4, 2)
    at = appended(out, crd, 0, 100, x, larger(x, splat(a[8], 4)))
    ends[0] = at
    at = appended(out, crd, at, 0, x, largest(x, 1, 2))
    ends[1] = at
    at = appended(out, crd, at, 0, x, splat(a[9], 4), left)
    ends[2] = at
    ends[3] = appended(out, crd, at, 0, x, largest(x, 1, 2, left), left)


def inputs(dtype: str) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(-8, 9, SIZE).astype(dtype) for _ in range(2)]  # sums and products of these are exact


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "as Python"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_tiles_broadcast_registers_and_numbers(dtype: str, compiled: bool) -> None:
    a, b = inputs(dtype)
    results, register = np.full((7, SIZE), np.nan, dtype), np.tile(b[:4], 5)
    run(whole_tiles, a, b, results.reshape(-1), compiled=compiled)
    selection = np.where(np.maximum(a, b) != 0, b[4], np.exp(a))
    expected = [a * b + b[0], b[1] * a + b, register * a + b, a - register + b * b[2], np.maximum(a, register * b[3]), selection]
    np.testing.assert_allclose(results, [*expected, np.full(SIZE, b[5])], rtol=1e-6)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "as Python"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_tiles(dtype: str, compiled: bool) -> None:
    a, b = inputs(dtype)
    sums, one = np.full(15, np.nan, dtype), b[:4]
    run(sums_of_tiles, a, b, sums, compiled=compiled)
    by_lane = [one + (a * b).reshape(5, 4).sum(0), one + b[1] * b.reshape(5, 4).sum(0), one + a.reshape(5, 4).sum(0)]
    np.testing.assert_array_equal(sums, [*np.concatenate(by_lane), a.sum(), b[:8].sum(), one.sum()])


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "as Python"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_side_by_side(dtype: str, compiled: bool) -> None:
    a, b = inputs(dtype)
    sums = np.full(8, np.nan, dtype)
    run(sums_side_by_side, a, b, sums, compiled=compiled)
    np.testing.assert_array_equal(sums[:4], [4 * a[0] + a[:8] @ b[at : at + 8] for at in range(0, 16, 4)])
    np.testing.assert_array_equal(sums[4:], b[:16].reshape(4, 4).sum(1))


def test_registers_are_added_in_a_fixed_order() -> None:
    """Compiled kernels, Python, and kernels that add tiles register by register agree bitwise."""
    a, b = (np.random.default_rng(seed).normal(0, 1, SIZE) for seed in range(2))
    results = [np.empty(15) for _ in range(2)]
    for values, compiled in zip(results, (True, False), strict=True):
        run(sums_of_tiles, a, b, values, compiled=compiled)
    np.testing.assert_array_equal(results[0][8:12], results[1][8:12])
    one = b[:4]
    for register in a.reshape(5, 4):
        one = one + register
    np.testing.assert_array_equal(results[0][8:12], one)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "as Python"])
@pytest.mark.parametrize("left", [1, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_last_register_is_masked(dtype: str, left: int, compiled: bool) -> None:
    a = np.arange(1, 9 + left, dtype=dtype)  # the array ends after the valid lanes
    results = np.full(24, -1, dtype)
    run(masked_tiles, a, results, left, compiled=compiled)
    np.testing.assert_array_equal(results[:12], [*a, *np.zeros(4 - left)])
    np.testing.assert_array_equal(results[12:], [*np.ones(8 + left), *-np.ones(4 - left)])


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "as Python"])
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lanes_of_tiles_are_appended(dtype: str, index: str, compiled: bool) -> None:
    x = [3, -1, 0, 2, -5, 4, 1, -6]
    a = np.array([*x, 0, 1], dtype)
    values, coordinates, counts = np.zeros(40, dtype), np.zeros(40, index), np.zeros(4, np.int64)
    run(appended_tiles, a, values, coordinates, counts, 3, compiled=compiled)
    appended_lanes = [[0, 3, 5, 6], [0, 3, 4, 7], [*range(7)], [0, 3, 4, 6]]
    np.testing.assert_array_equal(counts, np.cumsum([len(lanes) for lanes in appended_lanes]))
    np.testing.assert_array_equal(values[: counts[-1]], [x[at] for lanes in appended_lanes for at in lanes])
    offsets = [100 * (number == 0) for number, lanes in enumerate(appended_lanes) for _ in lanes]
    positions = [at for lanes in appended_lanes for at in lanes]
    np.testing.assert_array_equal(coordinates[: counts[-1]], np.add(positions, offsets))


def summed_rows(matrix: Any, values: Any, rows: int) -> None:
    """The weighted sum of rows of 32 values, in a tile that is kept in registers."""
    a, out = pointer(matrix), pointer(values)
    t = splat(a[0], 8, 4)
    for row in range(rows):
        t = fma(a[row], load(a, 32 * row, 8, 4), t)
    store(out, 0, t)


def test_a_tile_stays_in_registers_while_a_loop_runs() -> None:
    a, total = np.ones(32 * 6, np.float32), np.empty(32, np.float32)
    run(summed_rows, a, total, 6, compiled=True)
    np.testing.assert_array_equal(total, np.full(32, 7))
    (llvm,) = jitted(summed_rows).inspect_llvm().values()
    body = llvm[llvm.index("define") :].split("\n}")[0]
    assert re.search(r"phi <8 x float>", body)
    assert not re.search(r"phi \[|alloca", body)
