"""Element-wise operators in fused functions: each operator of the table, and random functions of them, compared with dense torch."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import pytest
import torch
from dense_values import as_dense
from random_functions import random_function
from random_tensors import normals
from scale import scaled

import numscorch as ns
from numscorch.frontend.operator_forms import FORMS, SYNONYMS
from numscorch.operators.naming import torchs

MATRIX = torch.where(torch.rand(6, 8, generator=torch.Generator().manual_seed(3)) < 0.5, normals(6, 8), 0)
OTHERS = (normals(6, 8, seed=1), normals(8))
Operator = Callable[..., Any]


def called(name: str, **options: Any) -> Operator:
    """A function of a matrix and two other tensors that calls an operator of the table."""
    function = torchs(name)
    parameters = signature(FORMS[SYNONYMS.get(name, name)]).parameters.values()
    tensors = [parameter.name for parameter in parameters if parameter.default is Parameter.empty]
    is_test = function(*(torch.ones(1, dtype=torch.bool if tensor == "condition" else None) for tensor in tensors)).dtype == torch.bool

    def call(A: Any, x: Any, y: Any) -> Any:
        operands = [A > 0 if tensors[0] == "condition" else A, x, y][: len(tensors)]
        result = function(*operands, **options)
        return torch.where(result, 3 * A, x) if is_test else result  # a boolean result chooses between two operands

    return call


def check(function: Operator) -> None:
    """Compare values and gradients of the fused function with those of dense tensors."""
    fused = ns.fuse(function)
    A, B = ns.from_torch(MATRIX, ns.CSR), MATRIX.clone().requires_grad_()
    A.values.requires_grad_()
    x, y = (tensor.clone().requires_grad_() for tensor in OTHERS)
    text = fused.explain(A, x, y).text
    assert text, fused.explain(A, x, y)
    result, expected = fused(A, x, y), function(B, x, y)
    torch.testing.assert_close(as_dense(result), expected, equal_nan=True, msg=lambda message: f"{text}\n{message}")
    if not expected.requires_grad:
        return
    gradients, expected_gradients = (
        torch.autograd.grad(as_dense(value).sum(), [tensor, x, y], allow_unused=True, materialize_grads=True)
        for value, tensor in ((result, A.values), (expected, B))
    )
    of_stored = A.with_values(torch.ones_like(A.values)).to_dense() != 0
    torch.testing.assert_close(gradients[0], expected_gradients[0][of_stored], equal_nan=True, msg=lambda message: f"{text}\n{message}")
    for gradient, expected_gradient in zip(gradients[1:], expected_gradients[1:], strict=True):
        torch.testing.assert_close(gradient, expected_gradient, equal_nan=True, msg=lambda message: f"{text}\n{message}")


@pytest.mark.parametrize("name", sorted({*FORMS, *SYNONYMS} - {"clamp", "clip", "isfinite", "isinf"}))
def test_each_operator_equals_torchs(name: str, plain: pytest.MonkeyPatch) -> None:
    check(called(name))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("add", {"alpha": 3}),
        ("addcmul", {"value": -0.5}),
        ("celu", {"alpha": 2.5}),
        ("leaky_relu", {"negative_slope": 0.3}),
        ("rsub", {"alpha": 2}),
        ("sub", {"alpha": 0.25}),
    ],
)
def test_options_of_the_expression_may_have_any_value(name: str, options: dict[str, Any], plain: pytest.MonkeyPatch) -> None:
    check(called(name, **options))


@pytest.mark.parametrize(
    "function",
    [
        lambda A, x, y: torch.clamp(A + x, -0.5, 0.25),
        lambda A, x, y: torch.clamp(A, y - 1, x),
        lambda A, x, y: (A * x).clip(min=y),
        lambda A, x, y: (A * x).clamp(max=0.1),
        lambda A, x, y: torch.log_softmax(A * y, 1),
        lambda A, x, y: ((x > y) ^ (A > 0)) * A,
    ],
)
def test_operators_without_a_form(function: Operator, plain: pytest.MonkeyPatch) -> None:
    if "log_softmax" not in function.__code__.co_names:
        check(function)
        return
    A = ns.from_torch(MATRIX, ns.CSR)
    assert "stored max=" in ns.fuse(function).explain(A, *OTHERS).text
    torch.testing.assert_close(ns.fuse(function)(A, *OTHERS).values, function(A, *OTHERS).values)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda A, x, y: torch.logit(A + x, 0.1), "logit with these arguments (eps=0.1)"),
        (lambda A, x, y: torch.round(A + x, decimals=1), "round with these arguments (decimals=1)"),
        (lambda A, x, y: torch.div(A, y, rounding_mode="floor"), "div with these arguments (rounding_mode='floor')"),
        (lambda A, x, y: torch.nn.functional.leaky_relu(A + x, inplace=True), "leaky_relu with these arguments (inplace=True)"),
        (lambda A, x, y: torch.add(A, x, y), "add with these arguments (too many positional arguments)"),
        (lambda A, x, y: (A > 0) + x, "+ of booleans"),
        (lambda A, x, y: 2 * (x < A), "* of booleans"),
        (lambda A, x, y: torch.where(x, A, x), "the condition is not a comparison"),
        (lambda A, x, y: torch.bitwise_and(A, x), "arguments other than comparisons"),
        (lambda A, x, y: torch.clamp(A + x), "clamp with these arguments"),
        (lambda A, x, y: torch.isfinite(A * x) * x, "isfinite: index notation cannot express it"),
        (lambda A, x, y: torch.where(x < A, A > 0, x > 0), "it returns a bool tensor"),
    ],
)
def test_other_calls_run_unfused(function: Operator, reason: str) -> None:
    assert reason in str(ns.fuse(function).explain(ns.from_torch(MATRIX, ns.CSR), *OTHERS))


def test_a_wrong_form_is_found(plain: pytest.MonkeyPatch) -> None:
    plain.setitem(FORMS, "rsub", lambda input, other, *, alpha=1: f"{input} - {other}")
    with pytest.raises(AssertionError):
        check(called("rsub"))


@pytest.mark.parametrize("seed", range(scaled(2500)))
def test_random_functions_equal_torch(seed: int, plain: pytest.MonkeyPatch) -> None:
    check(random_function(seed))
