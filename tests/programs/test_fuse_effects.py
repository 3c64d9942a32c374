"""fuse keeps effects: state that changes between calls, in-place assignments, and other threads; repeated values are computed once."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from functools import wraps
from random import random
from threading import Event, Lock, Thread
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.interface import fusing
from numscorch.programs.tracing import TRACERS

MATRIX = torch.tensor([[1.0, 0.0, 2.0], [0.0, -3.0, 0.0]])
A, X = ns.from_torch(MATRIX, ns.CSR), torch.tensor([1.0, 2.0, 3.0])
TABLE = {"by": 2.0}
from_table = TABLE.get


def check_fused(function: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    """Result of the fused function, after checking that it equals the function on dense tensors."""
    result = ns.fuse(function)(A, x.clone())
    torch.testing.assert_close(result, function(MATRIX, x.clone()))
    return result


def added(A: Any, x: Any) -> Any:
    h = A @ x
    g = h
    g += 1
    return h * g


def scaled_argument(A: Any, x: Any) -> Any:
    y = A @ x
    x *= 2
    return y + A @ x


IN_PLACE = ("add", "sub", "mul", "truediv", "matmul", "pow", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift")


@pytest.mark.parametrize("function", [added, scaled_argument], ids=lambda f: f.__name__)
def test_in_place_assignments_change_all_names_of_a_tensor(function: Callable[..., Any]) -> None:
    check_fused(function, X)
    assert "an assignment in place" in str(ns.fuse(function).explain(A, X))


def test_in_place_assignments_change_the_callers_tensor() -> None:
    x = X.clone()
    ns.fuse(scaled_argument)(A, x)
    assert torch.equal(x, 2 * X)


@pytest.mark.parametrize("name", IN_PLACE)
def test_all_in_place_operators_are_explained(name: str) -> None:
    fused = ns.fuse(lambda A, x: getattr(operator, f"i{name}")(A @ x, 2))
    assert "an assignment in place" in str(fused.explain(A, X))  # the line is named, since it is not the function's first


def locally_random(A: Any, x: Any) -> Any:
    from random import random

    return (A @ x) * random()


RANDOM: dict[str, Callable[..., Any]] = {
    "python's": lambda A, x: (A @ x) * random(),
    "imported within": locally_random,
    "torch's": lambda A, x: (A @ x) * torch.rand(1).item(),
    "torch's integers": lambda A, x: (A @ x) * int(torch.randint(10**6, (1,))),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_differ_between_calls(name: str) -> None:
    fused = ns.fuse(RANDOM[name])
    assert len({float(fused(A, X)[0]) for _ in range(4)}) > 1


def test_methods_of_objects_that_change_are_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = ns.fuse(lambda A, x: (A @ x) * from_table("by"))
    for by in (2.0, 5.0):
        monkeypatch.setitem(TABLE, "by", by)
        torch.testing.assert_close(fused(A, X), MATRIX @ X * by)


def test_functions_that_wrap_library_functions_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    @wraps(torch.relu)
    def relu(x: Any) -> Any:
        return x * TABLE["by"]

    fused = ns.fuse(lambda A, x: relu(A @ x))
    for by in (2.0, 5.0):
        monkeypatch.setitem(TABLE, "by", by)
        torch.testing.assert_close(fused(A, X), MATRIX @ X * by)


def test_defaults_that_change_are_read_again() -> None:
    def by_list(A: Any, x: Any, by: Any = [2.0]) -> Any:  # noqa: B006
        return (A @ x) * by[0]

    def by_number(A: Any, x: Any, *, by: float = 2.0) -> Any:
        return (A @ x) * by

    of_list, of_number = ns.fuse(by_list), ns.fuse(by_number)
    for by in (2.0, 5.0):
        by_list.__defaults__[0][0] = by  # type: ignore[index]
        by_number.__kwdefaults__ = {"by": by}
        torch.testing.assert_close(of_list(A, X), MATRIX @ X * by)
        torch.testing.assert_close(of_number(A, X), MATRIX @ X * by)
    assert len(of_number.programs) == 2 and not of_list.programs


def test_grad_mode_is_that_of_the_call() -> None:
    fused = ns.fuse(lambda A, x: (A @ x) * 2.0 if torch.is_grad_enabled() else (A @ x) * 3.0)
    torch.testing.assert_close(fused(A, X), MATRIX @ X * 2)
    with torch.no_grad():
        torch.testing.assert_close(fused(A, X), MATRIX @ X * 3)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=lambda mode: mode.__name__)
def test_a_mode_within_a_function_is_kept(mode: Callable[..., Any]) -> None:
    def without_gradient(A: Any, x: Any) -> Any:
        with mode():
            return A @ x

    assert not ns.fuse(without_gradient)(A, X.clone().requires_grad_()).requires_grad


def test_known_programs_are_not_traced_again() -> None:
    fused = ns.fuse(lambda A, x: torch.relu(A @ x) * min(2.0, 3.0))
    fused(A, X), fused(A, 2 * X)
    assert len(fused.programs) == 1


def test_a_lock_within_a_function_does_not_block_other_threads() -> None:
    lock, is_traced, is_held = Lock(), Event(), Event()
    results: list[Any] = []

    def locking(A: Any, x: Any) -> Any:
        is_traced.set()
        is_held.wait(5)
        with lock:
            return A @ x

    def holding() -> None:
        is_traced.wait(5)
        with lock:
            is_held.set()
            results.append((bool(TRACERS), ns.fuse(lambda A, x: 2 * (A @ x))(A, X)))

    threads = [Thread(target=lambda: results.append(ns.fuse(locking)(A, X)), daemon=True), Thread(target=holding, daemon=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(results) == 2
    assert results[0][0] is False
    torch.testing.assert_close(results[0][1], 2 * MATRIX @ X)
    torch.testing.assert_close(results[1], MATRIX @ X)


class Raced(dict[Any, Any]):
    """Programs, the oldest of which another thread drops during iteration."""

    def __iter__(self) -> Any:
        return iter(["dropped", *super().__iter__()])


def test_programs_may_be_dropped_in_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusing, "MOST_PROGRAMS", 1)
    fused = ns.fuse(lambda A, x, by: (A @ x) * by)
    fused.programs = Raced()
    for by in (2.0, 5.0):
        torch.testing.assert_close(fused(A, X, by), MATRIX @ X * by)


def test_repeated_contractions_are_computed_once() -> None:
    def text_of(function: Callable[..., Any], *operands: Any) -> list[str]:
        return ns.fuse(function).explain(*operands).text.splitlines()

    B, W = torch.ones(3, 2), torch.ones(2, 2)
    assert text_of(lambda A, B: torch.where(A @ B > 0, A @ B, 0.1 * (A @ B)), A, B) == [
        "T[i,j] = A[i,k] * B[k,j]",
        "R[i,j] = where(T[i,j] > 0.0, T[i,j], 0.1 * T[i,j])",
    ]
    assert text_of(lambda A, B, W: (A @ torch.exp(B @ W)).relu() - A @ torch.exp(B @ W), A, B, W) == [
        "T1[i,j] = exp(B[i,k] * W[k,j])",
        "T[i,j] = A[i,k] * T1[k,j]",
        "R[i,j] = relu(T[i,j]) - T[i,j]",
    ]


def test_a_repeated_product_at_a_mask_stays_at_its_entries() -> None:
    Q, K = torch.ones(2, 4), torch.ones(3, 4)
    text = ns.fuse(lambda A, Q, K: A * torch.exp(Q @ K.T) + A * (Q @ K.T)).explain(A, Q, K).text
    assert text.splitlines() == [
        "T[i,j] = stored(A[i,j]) * Q[i,k] * K[j,k]",
        "R[i,j] = A[i,j] * exp(T[i,j]) + A[i,j] * Q[i,l] * K[j,l]",
    ]


def test_repeated_elementwise_expressions_are_inlined() -> None:
    def gat(A: Any, s: Any, d: Any) -> Any:
        return torch.where(A * (s[:, None] + d) > 0, A * (s[:, None] + d), 0.1 * A * (s[:, None] + d))

    assert len(ns.fuse(gat).explain(A, torch.ones(2), torch.ones(3)).text.splitlines()) == 1


@ns.fuse
def activated(A: ns.SparseTensor, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(A @ x)


def test_fused_functions_are_pickled_copied_and_printed_as_functions() -> None:
    assert pickle.loads(pickle.dumps(activated)) is activated
    assert copy.deepcopy(activated) is copy.copy(activated) is activated
    assert repr(activated) == "<fused activated>"


def test_only_functions_are_fused() -> None:
    with pytest.raises(ns.UnsupportedError, match="fuse takes a function of tensors, not 3"):
        ns.fuse(3)


def test_numbers_have_exponents_of_either_case() -> None:
    A = ns.eye(2, format=ns.CSR)
    assert ns.evaluate("B[i,j] = 2.5E+1 * A[i,j] + .5E1 * A[i,j] + 1e0 * A[i,j]", A=A).values.tolist() == [31.0, 31.0]
