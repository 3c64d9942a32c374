"""The sort of coordinates in compiled kernels, compared with NumPy's, which runs without JIT use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from routine_calls import compiled

from numscorch.codegen.routines import FEW, SCAN, SHORT, insertion_sort, ordered, sort

NUMBERS = np.random.default_rng(0)
LENGTHS = (0, 1, 2, 3, 7, SHORT - 1, SHORT, SHORT + 1, 2 * SHORT, 2 * SHORT + 1, 100, 257, 1000, 5000)


def killer(length: int) -> np.ndarray:
    """Worst case of quicksort with median of three, which splits off two values at a time (Musser 1997, section 2)."""
    half = length // 2
    values = np.arange(length)
    odd = np.arange(1, half + 1)
    values[:half] = np.where(odd % 2 == 1, odd, half + odd - (1 - half % 2))
    values[half : 2 * half] = 2 * odd
    return values


KINDS: dict[str, Callable[[int], np.ndarray]] = {
    "random": lambda n: NUMBERS.integers(0, 10 * n + 1, n),
    "a permutation": lambda n: NUMBERS.permutation(n),
    "sorted": np.arange,
    "reversed": lambda n: np.arange(n)[::-1],
    "equal": lambda n: np.full(n, 3),
    "two values": lambda n: NUMBERS.integers(0, 2, n),
    "few values": lambda n: NUMBERS.integers(0, 5, n),
    "up and down": lambda n: np.minimum(np.arange(n), np.arange(n)[::-1]),
    "down and up": lambda n: np.maximum(np.arange(n), np.arange(n)[::-1]),
    "sorted but for the last": lambda n: np.roll(np.arange(n), -1),
    "sorted but for the first": lambda n: np.roll(np.arange(n), 1),
    "evens, then odds": lambda n: np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)]),
    "a saw": lambda n: np.arange(n) % 17,
    "a median killer": killer,
    "the ends of the range": lambda n: NUMBERS.choice([np.iinfo(np.int32).min, -1, 0, np.iinfo(np.int32).max], n),
}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("kind", KINDS)
def test_sort(kind: str, dtype: type) -> None:
    for length in LENGTHS:
        values = KINDS[kind](length).astype(dtype)
        result = values.copy()
        compiled(sort)(result, None, 0, length)
        np.testing.assert_array_equal(result, np.sort(values), err_msg=f"{length} values")


@pytest.mark.parametrize("function", [sort, insertion_sort], ids=["sort", "insertion_sort"])
@pytest.mark.parametrize("kind", KINDS)
def test_only_the_given_range_is_sorted(kind: str, function: Callable[..., None]) -> None:
    for length in (2, SHORT, SHORT + 1, 500):
        values = KINDS[kind](length + 20).astype(np.int64)
        result = values.copy()
        compiled(function)(result, None, 9, 9 + length)
        expected = np.concatenate([values[:9], np.sort(values[9 : 9 + length]), values[9 + length :]])
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("size", [1, 2, SCAN, SCAN + 1, 40, 63, 64, 65, 128, 1000, 5000, 20_000])
def test_ordered(size: int) -> None:
    """Few coordinates are sorted, more are ordered by a bit set, and many are found by scanning marks."""
    shares = {0, 1, FEW, FEW + 1, size // 100, size // 20, size // SCAN - 1, size // SCAN, size // SCAN + 1, size // 2, size - 1, size}
    for count in sorted(n for n in shares if 0 <= n <= size):
        for coordinates in (NUMBERS.permutation(size)[:count], np.arange(size)[:count][::-1], np.arange(size)[size - count :]):
            mark = NUMBERS.integers(0, 7, size)  # marks of earlier rows
            mark[coordinates] = 7
            output = np.full(size, -1)
            output[:count] = coordinates
            compiled(ordered)(output, mark, 7, count, size)
            np.testing.assert_array_equal(output[:count], np.sort(coordinates), err_msg=f"{count} of {size}")


def test_ordered_of_nothing() -> None:
    compiled(ordered)(np.empty(0, np.int64), np.empty(0, np.int64), 1, 0, 0)


def test_a_routine_keeps_its_pipeline_when_it_is_pickled() -> None:
    """Numba caches dispatchers of this process by number; an unknown number rebuilds one."""
    if not numba.config.DISABLE_JIT:
        routine: Any = ordered
        rebuilt = type(routine)._rebuild("another number", routine.py_func, {}, {}, can_compile=True, sigs=[])
        assert rebuilt is not routine
        assert rebuilt._compiler.pipeline_class is routine._compiler.pipeline_class


def test_a_routine_cannot_be_called_from_python() -> None:
    """It has no compiled code, since kernels inline it."""
    if not numba.config.DISABLE_JIT:
        with pytest.raises(TypeError, match="ordered is a kernel routine and can't be called from Python"):
            ordered(np.empty(0, np.int64), np.empty(0, np.int64), 1, 0, 0)
