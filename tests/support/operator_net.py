"""Every operator on every format: cases, and the comparison of values and gradients with dense torch.

To run many cases: ``python tests/support/operator_net.py --cases 5000 --seed 1``; one case: ``--case "OperatorCase('S[0]', 'CSR', 3)"``.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from compositions import compositions
from coverage_rows import ROWS, WITHOUT_GRADIENT, Given
from dense_values import as_dense
from format_families import FORMATS, packed
from selections import selections

import numscorch as ns
from numscorch.runtime.plans import uncompiled
from numscorch.schedule import tuning
from numscorch.tensors.validate import validate

DTYPES = ("float64", "float64", "float64", "float32", "int64", "int8", "bool", "complex128", "bfloat16")
SHAPES = {1: [(7,)], 2: [(8, 7), (7, 8)], 3: [(3, 5, 4), (3, 4, 5)], 4: [(2, 3, 4, 3)]}  # of the operand; of restricted formats the last


@dataclass(frozen=True)
class OperatorCase:
    """An operator of ``ROWS`` or of ``selections``, the text of its operand's format, and the seed of the entries."""

    operator: str
    format: str
    seed: int
    dtype: str = "float64"


@cache
def formats() -> dict[int, list[str]]:
    """The text of all formats by order: named ones, every level in many places, blocks, diagonals, orders of dimensions."""
    texts = [text for of_order in FORMATS.values() for family in of_order.values() for text in family]
    every = dict.fromkeys(str(ns.Format(fmt)) if isinstance(fmt, str) else str(fmt) for fmt in [*compositions(), *texts])
    return {order: [text for text in every if ns.Format(text).order == order] for order in SHAPES}


table = cache(selections)


def cases(numbers: random.Random) -> Iterator[OperatorCase]:
    """Endless random cases."""
    while True:
        order = numbers.choice((1, 2, 2, 2, 2, 3, 3, 4))
        text, seed = numbers.choice(formats()[order]), numbers.randrange(1 << 30)
        if order == 2 and numbers.random() < 0.5:
            yield OperatorCase(numbers.choice(list(ROWS)), text, seed)
        else:
            yield OperatorCase(numbers.choice(list(table(SHAPES[order][0]))), text, seed, numbers.choice(DTYPES))


def operand(case: OperatorCase) -> ns.SparseTensor | None:
    """A tensor of the case's format, which holds a part of the diagonal if the format cannot store arbitrary entries; or None."""
    for shape in [(4, 6)] if case.operator in ROWS else SHAPES[ns.Format(case.format).order]:
        numbers = np.random.default_rng(case.seed)
        full = _values(numbers, shape, getattr(torch, case.dtype))
        with suppress(ns.FormatError):
            return packed(full, ns.Format(case.format), numbers)
        on_diagonal = torch.from_numpy(np.equal(*np.indices(shape)[[0, -1]]))
        with suppress(ns.FormatError):
            return ns.from_torch(torch.where(on_diagonal, full, 0), case.format)
    return None


def _values(numbers: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    values = torch.from_numpy(numbers.uniform(0.25, 2.0, shape) * numbers.choice((-1.0, 1.0), shape))
    if not (dtype.is_floating_point or dtype.is_complex):
        values = (values * 10).round()
    return (values * (1 + 0.5j) if dtype.is_complex else values).to(dtype)


def compare(case: OperatorCase) -> None:
    """Run a case.

    Raises:
        AssertionError: the result, its pattern or the gradient is wrong.
    """
    if (A := operand(case)) is None:
        return
    run = _of_row(case) if case.operator in ROWS else table(tuple(A.shape))[case.operator]
    has_gradient = A.dtype.is_floating_point or A.dtype.is_complex
    values, full = A.values.detach().clone().requires_grad_(has_gradient), A.to_dense().detach().clone().requires_grad_(has_gradient)
    try:
        expected = run(full)
    except (RuntimeError, TypeError, NotImplementedError, IndexError):
        with suppress(ns.NumscorchError, RuntimeError):  # numscorch may support more, and torch refuses data types of values
            run(A.with_values(values))
        return
    with suppress(ns.UnsupportedError if A.dtype.is_complex else ()):
        _compare(case, A, values, run(A.with_values(values)), full, expected)


def _compare(case: OperatorCase, A: ns.SparseTensor, values: torch.Tensor, result: Any, full: torch.Tensor, expected: Any) -> None:
    """Compare a result and the gradient of the stored values with dense torch."""
    if isinstance(result, ns.SparseTensor):
        validate(result.pattern)
    result = as_dense(result)
    if not isinstance(expected, torch.Tensor):
        assert result == expected
        return
    close: dict[str, Any] = {"atol": 0.05, "rtol": 0.05} if A.dtype is torch.bfloat16 else {}
    torch.testing.assert_close(result.detach(), expected.detach(), equal_nan=True, **close)
    if not expected.requires_grad or case.operator in WITHOUT_GRADIENT:
        return
    assert result.requires_grad, "the result has no gradient"
    upstream = torch.rand(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(expected.dtype)
    torch.autograd.backward([expected, result], [upstream, upstream])
    inside = A.with_values(torch.ones_like(A.values, dtype=torch.bool)).to_dense()
    gradient = A.with_values(torch.zeros_like(values) if values.grad is None else values.grad).to_dense()
    torch.testing.assert_close(gradient, torch.where(inside, full.grad, 0), equal_nan=True, **close)


def _of_row(case: OperatorCase) -> Callable[[Any], Any]:
    numbers = torch.Generator().manual_seed(case.seed)
    D, X, v, u = (torch.randn(shape, generator=numbers, dtype=torch.float64) for shape in ((4, 6), (6, 3), (6,), (4,)))
    given = Given(D, D, X, v, u)
    return lambda S: ROWS[case.operator](replace(given, S=S))


def failure(case: OperatorCase) -> str | None:
    """The failure of a case in one line, or None."""
    try:
        with uncompiled(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compare(case)
    except Exception as error:
        return f"{case}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return None


def main() -> None:
    """Run cases and print failures."""
    import argparse
    import time

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", help="run this case, as it was printed")
    parser.add_argument("--only", default="", help="a part of the format's text")
    parser.add_argument("--kernels", action="store_true", help="convert formats by kernels, as those of large tensors are")
    options = parser.parse_args()
    tuning.COMPILE_ENTRIES = 0 if options.kernels else 1 << 16
    if options.case:
        compare(eval(options.case))
        return
    source, start, count, failed = cases(random.Random(options.seed)), time.time(), 0, 0
    while count < options.cases:
        case = next(source)
        if options.only not in case.format:
            continue
        count += 1
        if (message := failure(case)) is not None:
            failed += 1
            print(message, flush=True)
    print(f"{failed} of {count} failed in {time.time() - start:.0f} s with numscorch of {ns.__file__}")


if __name__ == "__main__":
    main()
