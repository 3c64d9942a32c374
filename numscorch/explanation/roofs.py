"""What the processor can do: a triad, which moves memory, and a chain of multiply-adds, in the style of the kernels."""

# mypy: ignore-errors

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numba import njit, prange
from numpy import float32

from numscorch.codegen.intrinsics import fma, load, pointer, splat, store
from numscorch.machine.target import cache_sizes, host
from numscorch.machine.threads import prepare

LANES = host().vector_bytes // 4
CHAINS = 12  # as many as hide the latency of a multiply-add, and fit in 16 registers
CACHES = sorted(set(cache_sizes())) or [host().cache]
TIMES_THE_CACHE = 4  # a triad over so much comes from memory
ROUNDS = 7  # of which the fastest counts: a roof is what can be reached
LAST_CACHE, SECOND_CACHE = CACHES[-1], CACHES[-2] if len(CACHES) > 1 else CACHES[-1]


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
    """Without threads for one worker, as our kernels are."""
    prepare()
    return njit(parallel=workers > 1, nogil=True)(function)


@dataclass(frozen=True, slots=True)
class Roof:
    """A function, and the bytes or the operations of one call."""

    run: Callable[[], None]
    amount: int

    def time_for(self, amount: float, seconds: float) -> float:
        """How long this much takes at the rate of calls that took these seconds."""
        return amount / self.amount * seconds


def triad(size_in_bytes: int, workers: int) -> Roof:
    """a[i] = 3 b[i] + c[i] over about so many bytes, cut among the workers."""
    size = max(size_in_bytes // (12 * workers * LANES), 1) * LANES
    return Roof(_on_arrays(size, workers), 12 * size * workers)


def copies(size_in_bytes: int, count: int) -> Callable[[], None]:
    """So many triads at once, each on arrays of its own and over about so many bytes."""
    return _on_arrays(max(size_in_bytes // (12 * LANES), 1) * LANES, count)


def _on_arrays(size: int, workers: int) -> Callable[[], None]:
    run = _compiled(_triad, workers)
    a, b, c = (np.full(size * workers, value, np.float32) for value in (0.0, 1.0, 2.0))
    return lambda: run(a, b, c, size, workers)


def multiply_add(workers: int, steps: int = 100_000) -> Roof:
    """So many multiply-adds in each lane of each of the chains of a worker."""
    run = _compiled(_multiply_add, workers)
    out = np.zeros(LANES * workers, np.float32)
    return Roof(lambda: run(out, steps, workers), 2 * CHAINS * LANES * steps * workers)


@dataclass(frozen=True, slots=True)
class Rates:
    """What so many threads reach at most: bytes from and to memory, and float32 operations in registers."""

    bytes_per_second: float
    flops_per_second: float


@cache
def rates(workers: int) -> Rates:
    """The roofs of this machine for so many threads, measured once in a process.

    >>> rates(1).flops_per_second > rates(1).bytes_per_second > 1e8
    True
    """
    used = {1, workers}  # where other programs run, one thread may be faster than several that wait for each other
    memory = [triad(TIMES_THE_CACHE * LAST_CACHE, threads) for threads in used]
    return Rates(max(map(_rate, memory)), max(_rate(multiply_add(threads)) for threads in used))


def _rate(roof: Roof) -> float:
    return roof.amount / _fastest(roof.run)


def _fastest(run: Callable[[], None]) -> float:
    run()

    def seconds() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return min(seconds() for _ in range(ROUNDS))
