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
from numscorch.compute.dense_operands import DENSE_FUNCTIONS, value_of
from numscorch.ir.function_table import FUNCTIONS
from numscorch.ir.gradient import derivative
from numscorch.ir.notation import parse_expr

HUGE = {torch.float32: 1e30, torch.float64: 1e300}
TINY = {torch.float32: 1e-40, torch.float64: 5e-324}  # subnormal
TOLERANCES = {torch.float32: (2e-5, 1e-6), torch.float64: (1e-11, 1e-14)}
DTYPES = pytest.mark.parametrize("dtype", HUGE, ids=str)
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


@pytest.mark.parametrize("name", [name for name, function in FUNCTIONS.items() if function.whole is not None])
def test_whole_numbers(name: str, plain: None) -> None:
    """Integers have integer values; division by 0 is computed by torch."""
    integers = np.array([-7, -2, -1, 1, 2, 5])
    arguments = [torch.from_numpy(values.ravel()) for values in np.meshgrid(*[integers] * FUNCTIONS[name].arity)]
    text = f"R[i] = {name}({', '.join(f'{letter}[i]' for letter in 'ABC'[: len(arguments)])})"
    operands = {letter: ns.from_torch(values, ns.Format("s")) for letter, values in zip("ABC", arguments, strict=False)}
    result = ns.evaluate(text, format="dense", **operands)
    assert result.dtype == torch.int64
    assert torch.equal(result, DENSE_FUNCTIONS[name](*arguments))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sparse(name: str, plain: None) -> None:
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


@pytest.mark.usefixtures("plain")
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
