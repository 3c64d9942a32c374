"""Sparse operands of 2^63 elements and more: results are those of a small tensor whose last rows and columns are empty."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from net_outcomes import attempt, outcome
from net_rows import Row
from net_samples import Setting, Value, sample
from op_sweep import GOOD, Outcome, leaves

import numscorch as ns

HUGE = {
    "2^63 elements": (2**31, 2**32),
    "2^64 elements": (2**31, 2**33),
    "2^66 elements": (2**33, 2**33),
    "2^62 rows": (2**62, 4),
    "2^62 columns": (4, 2**62),
}
COUNTED: dict[str, Callable[[float, float, int], Any]] = {  # functions of the sum, the sum of squares, and the number of elements
    "mean": lambda total, squares, count: total / count,
    "numel": lambda total, squares, count: count,
    "nelement": lambda total, squares, count: count,
    "var": lambda total, squares, count: squares / count,
    "std": lambda total, squares, count: (squares / count) ** 0.5,
}
PLACES = {
    "logsumexp",
    "argmax",
    "argmin",
    "nonzero",
    "argwhere",
    "take",
    "flip",
    "fliplr",
    "flipud",
    "rot90",
    "roll",
    "max",
    "min",
}  # results depend on sizes
OWN = {
    "to",
    "save",
    "to_torch",
    "to_scipy",
    "to_pydata",
    "to_edge_index",
    "explain",
    "indices",
    "nnz",
    "repr",
    "card",
    "grad",
    "len",
    "iter",
}
MEANS = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "std_mean", "var_mean"}


def run_huge(row: Row, call: Callable[..., Any], kind: str, seed: str) -> Outcome | None:
    """The outcome of a sample call with huge sizes; None if it does not apply. All stored entries have one sign."""
    outcomes = [_run(row, call, kind, random.Random(seed), sign) for sign in (1, -1)]
    return next((each for each in outcomes if each is not None and each.kind not in GOOD), outcomes[0])


def _run(row: Row, call: Callable[..., Any], kind: str, rng: random.Random, sign: int) -> Outcome | None:
    m, n = HUGE[kind]
    small = Setting(5 if m > 4 else 4, 7 if n > 4 else 4, torch.float64)
    sizes = {small.m: m, small.n: n, 2: 2, 3: 3}
    values = [_with_empty_ends(value, sizes, sign) for value in sample(row.tokens, small, kind)]
    has_dim = any(value.role == "dim" for value in values)
    if row.is_plain or row.name in PLACES | MEANS | OWN or (has_dim and min(m, n) > 4):
        return None
    if any(value.role not in ("sparse", "dim", "num", "list", "plain") for value in values):
        return None
    format = rng.choice((ns.COO, ns.CSF))
    args, kwargs = [_large(value, sizes, format) for value in values if not value.name], {v.name: v.value for v in values if v.name}
    ours, theirs = (
        attempt(call, *args, **kwargs),
        attempt(row.dense or call, *(value.argument(False) for value in values if not value.name), **kwargs),
    )
    if ours[1] is not None or theirs[1] is not None:
        return outcome(row.name, kind, ours, theirs)
    if row.name in COUNTED:
        return None if has_dim else _counted(row.name, ours[0], values[0].value, m * n)
    try:
        small_results = [_shrunk(one, other) for one, other in zip(leaves(ours[0]), leaves(theirs[0]), strict=True)]
    except IndexError as error:
        return Outcome("wrong", str(error))
    return outcome(row.name, kind, (small_results, None), (list(leaves(theirs[0])), None))


def _with_empty_ends(value: Value, sizes: dict[int, int], sign: int) -> Value:
    if value.role != "sparse":
        return Value(value.role, value.value, "", value.name, tuple(_with_empty_ends(part, sizes, sign) for part in value.parts))
    full = value.value if value.value.dtype is torch.bool else sign * value.value.abs()
    full = full.clone()
    for d, size in enumerate(full.shape):
        if sizes[size] > size:
            full.select(d, size - 1).zero_()
    return Value("sparse", full)


def _large(value: Value, sizes: dict[int, int], format: Callable[[int], ns.Format]) -> Any:
    if value.parts:
        return [_large(part, sizes, format) for part in value.parts]
    if value.role != "sparse":
        return value.value
    places = value.value.nonzero().T
    return ns.from_coo(places, value.value[tuple(places)], [sizes[size] for size in value.value.shape], format(value.value.ndim))


def _counted(name: str, result: Any, full: torch.Tensor, count: int) -> Outcome:
    expected = COUNTED[name](float(full.sum()), float(full.square().sum()), count)
    is_close = abs(float(result) - float(expected)) <= 1e-5 * abs(float(expected))
    return Outcome("same") if is_close else Outcome("wrong", f"{result}, not {expected}")


def _shrunk(result: Any, expected: torch.Tensor) -> Any:
    """A huge sparse result with the sizes of the small one; raises IndexError if an entry lies outside of it."""
    if not isinstance(result, ns.SparseTensor):
        return result
    entries = result.to(ns.COO(result.ndim))
    return torch.zeros(expected.shape, dtype=entries.dtype).index_put(tuple(entries.indices()), entries.values, accumulate=True)
