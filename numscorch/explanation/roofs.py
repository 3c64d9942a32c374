"""The machine's roofs, measured with the kernels' own intrinsics: the bandwidth of a triad and the peak rate of multiply-adds."""

# mypy: ignore-errors

from __future__ import annotations

import timeit
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numba import njit, prange
from numpy import float32

from numscorch.codegen.intrinsics import fma, load, pointer, splat, store
from numscorch.machine.target import cache_sizes, host
from numscorch.machine.threads import prepare

LANES = host().vector_bytes // 4  # float32 per vector register
CHAINS = 12  # independent chains: they hide the latency of a multiply-add and fit in 16 registers
CACHES = sorted(set(cache_sizes())) or [host().cache]  # sizes in bytes
TIMES_THE_CACHE = 4  # size of the memory triad, as a multiple of the last cache
ROUNDS = 7  # timed runs; the fastest counts
LAST_CACHE, SECOND_CACHE = CACHES[-1], CACHES[-2] if len(CACHES) > 1 else CACHES[-1]  # bytes


def _triad(a_array: np.ndarray, b_array: np.ndarray, c_array: np.ndarray, size: int, workers: int) -> None:
    for worker in prange(workers):
        a = pointer(a_array)
        b = pointer(b_array)
        c = pointer(c_array)
        factor = splat(float32(3.0), LANES)
        for i in range(worker * size, (worker + 1) * size, LANES):
            store(a, i, fma(factor, load(b, i, LANES), load(c, i, LANES)))


def _multiply_add(out_array: np.ndarray, steps: int, workers: int) -> None:
    for worker in prange(workers):
        out = pointer(out_array)
        a, b = splat(float32(0.999), LANES), splat(float32(0.001), LANES)
        t0, t1, t2, t3 = splat(float32(0.0), LANES), splat(float32(1.0), LANES), splat(float32(2.0), LANES), splat(float32(3.0), LANES)
        t4, t5, t6, t7 = splat(float32(4.0), LANES), splat(float32(5.0), LANES), splat(float32(6.0), LANES), splat(float32(7.0), LANES)
        t8, t9, ta, tb = splat(float32(8.0), LANES), splat(float32(9.0), LANES), splat(float32(10.0), LANES), splat(float32(11.0), LANES)
        for _ in range(steps):
            t0, t1, t2, t3 = fma(t0, a, b), fma(t1, a, b), fma(t2, a, b), fma(t3, a, b)
            t4, t5, t6, t7 = fma(t4, a, b), fma(t5, a, b), fma(t6, a, b), fma(t7, a, b)
            t8, t9, ta, tb = fma(t8, a, b), fma(t9, a, b), fma(ta, a, b), fma(tb, a, b)
        u0, u1, u2 = fma(t0, t1, t2), fma(t3, t4, t5), fma(t6, t7, t8)
        store(out, worker * LANES, fma(fma(u0, u1, u2), t9, fma(ta, tb, tb)))


@cache
def _compiled(function: Callable[..., None], workers: int) -> Callable[..., None]:
    """The compiled function; single-threaded for one worker, like generated kernels."""
    prepare()
    return njit(parallel=workers > 1, nogil=True)(function)


@dataclass(frozen=True, slots=True)
class Roof:
    """A benchmark function, and the bytes or the operations of one call."""

    run: Callable[[], None]
    amount: int


def triad(size_in_bytes: int, workers: int) -> Roof:
    """The triad ``a[i] = 3 b[i] + c[i]`` over about ``size_in_bytes``, divided among the workers."""
    size = max(size_in_bytes // (12 * workers * LANES), 1) * LANES
    return Roof(_on_arrays(size, workers), 12 * size * workers)


def copies(size_in_bytes: int, count: int) -> Callable[[], None]:
    """A function that runs ``count`` triads in parallel, each on separate arrays of about ``size_in_bytes``."""
    return _on_arrays(max(size_in_bytes // (12 * LANES), 1) * LANES, count)


def _on_arrays(size: int, workers: int) -> Callable[[], None]:
    run = _compiled(_triad, workers)
    a, b, c = (np.full(size * workers, value, np.float32) for value in (0.0, 1.0, 2.0))
    return lambda: run(a, b, c, size, workers)


def multiply_add(workers: int, steps: int = 100_000) -> Roof:
    """A loop of ``steps`` multiply-adds in each lane of each chain, on each worker."""
    run = _compiled(_multiply_add, workers)
    out = np.zeros(LANES * workers, np.float32)
    return Roof(lambda: run(out, steps, workers), 2 * CHAINS * LANES * steps * workers)


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak rates: memory bandwidth, and float32 operations in registers."""

    bytes_per_second: float
    flops_per_second: float


@cache
def rates(workers: int) -> Rates:
    """The roofs of this machine for a number of threads, measured once per process.

    >>> rates(1).flops_per_second > rates(1).bytes_per_second > 1e8
    True
    """
    used = {1, workers}  # on a busy machine, one thread may be faster than several that wait for each other
    memory = [triad(TIMES_THE_CACHE * LAST_CACHE, threads) for threads in used]
    return Rates(max(map(_rate, memory)), max(_rate(multiply_add(threads)) for threads in used))


def _rate(roof: Roof) -> float:
    roof.run()
    return roof.amount / min(timeit.repeat(roof.run, number=1, repeat=ROUNDS))
