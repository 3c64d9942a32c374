"""Functions of ``ir/function_table.py``: values in Python, compiled and of dense tensors, and derivatives, compared with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from routine_calls import compiled

import numscorch as ns
from numscorch.codegen import routines
from numscorch.ir.function_table import FUNCTIONS, routine_of
from numscorch.ir.gradient import derivative
from numscorch.ir.notation import parse_expr
from numscorch.programs.dense_requests import DENSE_FUNCTIONS, value_of

HUGE = {torch.float32: 1e30, torch.float64: 1e300}
TINY = {torch.float32: 1e-40, torch.float64: 5e-324}  # subnormal
TOLERANCES = {torch.float32: (2e-5, 1e-6), torch.float64: (1e-11, 1e-14)}
DTYPES = pytest.mark.parametrize("dtype", HUGE, ids=str)
INTEGERS = pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8], ids=str)
WHOLE_FUNCTIONS = [name for name, function in FUNCTIONS.items() if function.whole is not None]
Points = tuple[torch.Tensor, ...]
DEVIATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "fmod": lambda x, y: (y != 0) & (y.abs() < 1e-37),  # torch: nan for subnormal divisors
    "remainder": lambda x, y: (y != 0) & (y.abs() < 1e-37),
    "gelu": lambda x: x == torch.inf,  # torch: nan for float32, inf for float64
}
"""Arguments for which torch's values deviate from the mathematical values, or depend on the data type."""
SLOPE_DEVIATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "logit": lambda x: x == 0,  # torch: either infinity at -0.0
    "softsign": lambda x: x.isinf(),  # torch: nan, not 0
}


def grid(name: str, dtype: torch.dtype) -> Points:
    """All combinations of points at the edges of domains and between them, for all arguments."""
    arity, huge, tiny = FUNCTIONS[name].arity, HUGE[dtype], TINY[dtype]
    points = [-np.inf, -huge, -30, -2.5, -2, -1, -0.5, -tiny, -0.0, 0.0, tiny, 0.3, 0.5, 1, 1.5, 3, 7, huge, np.inf, np.nan]
    axes = [torch.tensor(points[:: 2 if arity > 2 else 1], dtype=dtype)] * arity
    return tuple(axis.ravel() for axis in torch.meshgrid(axes, indexing="ij"))


def values(function: Callable[..., Any], arguments: Points) -> torch.Tensor:
    arrays = [argument.numpy() for argument in arguments]
    with np.errstate(all="ignore"):
        return torch.tensor([float(function(*argument)) for argument in zip(*arrays, strict=True)], dtype=arguments[0].dtype)


@DTYPES
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str, dtype: torch.dtype) -> None:
    arguments = grid(name, dtype)
    compared = ~DEVIATIONS[name](*arguments) if name in DEVIATIONS else torch.ones(len(arguments[0]), dtype=torch.bool)
    expected = DENSE_FUNCTIONS[name](*arguments)[compared]
    rtol, atol = TOLERANCES[dtype]
    for function in (FUNCTIONS[name].evaluate, FUNCTIONS[name].value, compiled(getattr(routines, name)) if name != "abs" else abs):
        torch.testing.assert_close(values(function, arguments)[compared], expected, rtol=rtol, atol=atol, equal_nan=True)


@DTYPES
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name: str, dtype: torch.dtype) -> None:
    """Derivatives are NaN where torch's are; for several arguments, only finite derivatives at numbers are compared."""
    arguments = [argument.requires_grad_() for argument in grid(name, dtype)]
    result = DENSE_FUNCTIONS[name](*arguments)
    if not result.requires_grad:
        assert set(FUNCTIONS[name].slopes) == {"0"}
        return
    gradients = torch.autograd.grad(result.sum(), arguments, allow_unused=True)
    points = [a.detach() for a in arguments]
    compared = ~SLOPE_DEVIATIONS[name](*points) if name in SLOPE_DEVIATIONS else torch.ones(len(points[0]), dtype=torch.bool)
    call = parse_expr(f"{name}({', '.join('ABC'[: len(arguments)])})")
    for at, expected in enumerate(gradients):
        slope = value_of(derivative(call, "ABC"[at]), points, dtype).expand(result.shape)
        expected = torch.zeros_like(slope) if expected is None else expected
        mask = compared if len(points) == 1 else expected.isfinite() & ~torch.stack(points).isnan().any(0)
        torch.testing.assert_close(slope[mask], expected[mask], rtol=1e-4 if dtype is torch.float32 else 1e-7, atol=1e-6, equal_nan=True)


def integer_grid(name: str, dtype: torch.dtype) -> Points:
    """All combinations of integers at the edges of a data type, around 0 and between them, for all arguments."""
    limits = torch.iinfo(dtype)
    points = [number for number in (limits.min, limits.max, -7, -2, -1, 0, 1, 2, 5) if number >= limits.min]
    axes = [torch.tensor(sorted(set(points)), dtype=dtype)] * FUNCTIONS[name].arity
    return tuple(axis.ravel() for axis in torch.meshgrid(axes, indexing="ij"))


def evaluated(name: str, arguments: Points, format: str | None) -> torch.Tensor:
    """The function as a statement on sparse operands that store every entry, or on dense operands."""
    text = f"R[i] = {name}({', '.join(f'{letter}[i]' for letter in 'ABC'[: len(arguments)])})"
    operands: dict[str, Any] = dict(zip("ABC", arguments, strict=False))
    if format is not None:
        places = torch.arange(len(arguments[0]))[None]
        operands = {letter: ns.from_coo(places, a, a.shape, ns.Format(format)) for letter, a in operands.items()}
    return ns.evaluate(text, format="dense", **operands)


@INTEGERS
@pytest.mark.parametrize("name", WHOLE_FUNCTIONS)
def test_whole_numbers(name: str, dtype: torch.dtype, interpreted: None) -> None:
    """Integers have torch's integer values: interpreted, un-jitted and compiled."""
    arguments = integer_grid(name, dtype)
    if FUNCTIONS[name].divides:
        arguments = tuple(argument[arguments[-1] != 0] for argument in arguments)
    try:
        expected = DENSE_FUNCTIONS[name](*arguments)
    except RuntimeError:  # hardtanh of unsigned integers
        assert (name, dtype) == ("hardtanh", torch.uint8)
        return
    for format in (None, "d", "s"):
        result = evaluated(name, arguments, format)
        assert result.dtype == dtype
        assert torch.equal(result, expected)
    if dtype is torch.uint8:  # computed in int16
        return
    text, arrays = str(dtype).removeprefix("torch."), [argument.numpy() for argument in arguments]
    routine = abs if name == "abs" else compiled(getattr(routines, routine_of(name, text)))
    for number, *points in zip(expected.tolist(), *arrays, strict=True):
        assert FUNCTIONS[name].value(*map(int, points), dtype=text) == number
        with np.errstate(all="ignore"):
            assert np.asarray(routine(*points)).astype(text) == number


@INTEGERS
@pytest.mark.parametrize("name", [name for name in WHOLE_FUNCTIONS if FUNCTIONS[name].divides])
def test_integers_divided_by_0_raise(name: str, dtype: torch.dtype, interpreted: None) -> None:
    arguments = integer_grid(name, dtype)
    for format in (None, "d", "s"):
        with pytest.raises(ns.DivisionError, match=r"where\(B == 0, 1, B\)"):
            evaluated(name, arguments, format)
    if dtype is not torch.uint8:
        with pytest.raises(ZeroDivisionError):
            FUNCTIONS[name].value(1, 0, dtype=str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("rows", [10, 1000], ids=["one worker", "several workers"])
@pytest.mark.parametrize("name", [name for name in WHOLE_FUNCTIONS if FUNCTIONS[name].divides])
def test_compiled_integers_divided_by_0_raise(name: str, rows: int) -> None:
    """One of many divisors is 0. The kernel ends, raises, and runs with other operands."""
    divisors = torch.arange(rows * 300) % 1000 + 1
    A, B = (ns.from_torch(values.reshape(rows, 300), ns.CSR) for values in (torch.full_like(divisors, -(2**63)), divisors))
    zero_divisor = B.with_values(torch.where(torch.arange(rows * 300) == rows * 200, 0, divisors))
    text = f"R[i,j] = {name}(A[i,j], B[i,j])"
    for _ in range(2):
        with pytest.raises(ns.DivisionError, match="an integer is divided by 0"):
            ns.evaluate(text, A=A, B=zero_divisor)
        assert torch.equal(ns.evaluate(text, A=A, B=B).to_dense(), DENSE_FUNCTIONS[name](A.to_dense(), B.to_dense()))


@pytest.mark.usefixtures("interpreted")
def test_unstored_entries_are_no_numerators_but_divisors() -> None:
    """0 // 0 is not computed where the numerator is not stored. An unstored divisor is 0."""
    A = ns.from_torch(torch.tensor([[7, 0], [0, -9]]), ns.CSR)
    B = ns.from_coo(torch.tensor([[0, 0, 1], [0, 1, 1]]), torch.tensor([2, 0, -1]), (2, 2), ns.CSR)
    for text in ("A[i,j] // B[i,j]", "A[i,j] // B[i,j] + 0 * B[i,j]", "(A[i,j] + 0 * A[i,j]) // B[i,j]"):
        assert torch.equal(ns.evaluate(f"R[i,j] = {text}", A=A, B=B).to_dense(), torch.tensor([[3, 0], [0, 9]]))
    for text in ("B[i,j] // A[i,j]", "7 // A[i,j]", "A[i,j] % 0", "A[i,j] // B[i,j] + 1 // B[i,j]"):
        with pytest.raises(ns.DivisionError):
            ns.evaluate(f"R[i,j] = {text}", A=A, B=B) if "B" in text else ns.evaluate(f"R[i,j] = {text}", A=A)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sparse(name: str, interpreted: None) -> None:
    """Sparse operands with unstored entries, computed in registers or with scalars."""
    generator = torch.Generator().manual_seed(0)
    arity = FUNCTIONS[name].arity
    arguments = [torch.rand(5, 19, generator=generator) * (torch.rand(5, 19, generator=generator) < 0.5) for _ in range(arity)]
    text = f"R[i,j] = {name}({', '.join(f'{letter}[i,j]' for letter in 'ABC'[:arity])})"
    operands = {letter: ns.from_torch(values, ns.CSR) for letter, values in zip("ABC", arguments, strict=False)}
    expected = DENSE_FUNCTIONS[name](*arguments)
    if FUNCTIONS[name].annihilates:  # 0 / 0 is not computed for unstored entries
        expected = torch.where(arguments[0] == 0, 0, expected)
    torch.testing.assert_close(ns.evaluate(text, format="dense", **operands), expected, equal_nan=True)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_derivatives_of_maximum_and_minimum_at_nan_are_1(name: str) -> None:
    """The derivative by each argument is 1."""
    nan = float("nan")
    values, other = [nan, 1.0, nan, 2.0, 3.0, -1.0], torch.tensor([[1.0, nan, nan, 2.0, 2.0, 2.0]])
    x, y = torch.tensor([values], requires_grad=True), other.clone().requires_grad_()
    getattr(torch, name)(x, y).sum().backward()
    A, z = ns.from_torch(torch.tensor([values]), ns.CSR), other.clone().requires_grad_()
    A.values.requires_grad_()
    result = ns.evaluate(f"R[i,j] = {name}(A[i,j], z[i,j])", A=A, z=z)
    (result.values if isinstance(result, ns.SparseTensor) else result).sum().backward()
    assert x.grad is not None and y.grad is not None and z.grad is not None and A.values.grad is not None
    assert torch.equal(A.values.grad, x.grad[0])
    assert torch.equal(z.grad, y.grad)
