"""fuse: functions of tensors as programs; values and gradients equal those of the functions on dense tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dense_values import as_dense
from random_tensors import normals

import numscorch as ns
from numscorch.errors import SizeError
from numscorch.programs.tracing import TRACERS

SCALE = 2.0


STORED = torch.rand(7, 9, generator=torch.Generator().manual_seed(3)) < 0.5
STORED[2] = False
MATRIX = normals(7, 9) * STORED
BIAS = normals(7)


def rows_softmax(scores: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Softmax of a dense tensor over the entries that MATRIX stores."""
    stored = STORED if scores.shape == STORED.shape else STORED.T
    return torch.softmax(scores.masked_fill(~stored, -inf), dim).nan_to_num()


def gcn(A: Any, X: Any, W: Any, b: Any) -> Any:
    return torch.relu(A @ (X @ W) + b)


def attention(mask: Any, Q: Any, K: Any, V: Any, softmax: Any = torch.softmax) -> Any:
    return softmax(mask * (Q @ K.T), -1) @ V


def scaled_attention(mask: Any, Q: Any, K: Any, V: Any, softmax: Any = torch.softmax) -> Any:
    return softmax((Q @ K.mT / sqrt(Q.shape[-1])) * mask, dim=1).matmul(V)


def scores(A: Any, x: Any, y: Any) -> Any:
    return (A * (x @ y.T)).sum(1)


def gat(A: Any, s: Any, d: Any, X: Any, softmax: Any = F.softmax) -> Any:
    return softmax(F.leaky_relu(A * (s[:, None] + d[None, :]), 0.2), 1) @ X


def column_softmax(A: Any, X: Any, softmax: Any = ns.softmax) -> Any:
    return softmax(A.t(), 1) @ X.unsqueeze(-1)


def normalized_gelu(A: Any, X: Any, b: Any) -> Any:
    activated = F.gelu(torch.mm(A, X) * SCALE - b)
    return activated / (activated.abs().sum(dim=1, keepdim=True) + 1)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "gcn": (gcn, (normals(9, 4), normals(4, 5), normals(5))),
    "attention": (attention, (normals(7, 4), normals(9, 4), normals(9, 3))),
    "scaled attention": (scaled_attention, (normals(7, 4), normals(9, 4), normals(9, 3))),
    "scores": (scores, (normals(7, 4), normals(9, 4))),
    "gat": (gat, (normals(7), normals(9), normals(9, 3))),
    "other way": (column_softmax, (normals(7),)),
    "gelu": (normalized_gelu, (normals(9, 4), normals(7, 1))),
    "exp": (lambda A, x: torch.exp(A @ x).sigmoid().tanh(), (normals(9),)),
    "table": (lambda A, x: torch.hypot(torch.arcsinh(A @ x), F.elu(torch.cos(A @ x))), (normals(9),)),
    "mean": (lambda A, x: ((A + x) * A).mean(0), (normals(9),)),
    "amax": (lambda A, x: torch.amax(torch.maximum(A, x), dim=-1) + torch.log(torch.sqrt(x.abs())).sum(), (normals(9),)),
    "where": (lambda A, x: torch.where(A > 0, x * A, 0.5 * A), (normals(9),)),
    "einsum": (lambda A, X: torch.einsum("ij,jk->ki", A, X).square(), (normals(9, 4),)),
    "numscorch's einsum": (lambda A, X: -(ns.einsum("ij,jk->ki", A, X) ** 2), (normals(9, 4),)),
    "linear": (lambda A, X, b: F.linear(X, A, b).relu(), (normals(3, 9), normals(7))),
    "mv": (lambda A, x, a: (1 - A.mv(x)) * a, (normals(9), torch.tensor(3.0))),
    "batches": (lambda A, X: (X @ A).amin((0, 2), keepdim=True), (normals(2, 4, 7),)),
    "all": (lambda A, x: (A * x).sum(), (normals(9),)),
    "one row": (lambda A, x: A * x, (normals(1, 9),)),
    "minus": (lambda A, X: X - (X - A), (normals(7, 9),)),
}


@pytest.mark.parametrize("fmt", [ns.CSR, ns.COO(2), ns.CSC], ids=lambda f: f.name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_fused_functions_equal_dense_functions(name: str, fmt: ns.Format, interpreted: None) -> None:
    function, operands = FUNCTIONS[name]
    operands = tuple(tensor.clone().requires_grad_() for tensor in operands)
    A, B = ns.from_torch(MATRIX, fmt), MATRIX.clone().requires_grad_()
    A.values.requires_grad_()
    fused = ns.fuse(function)
    text = fused.explain(A, *operands).text
    assert text
    result = fused(A, *operands)
    options = {"softmax": rows_softmax} if "softmax" in function.__code__.co_varnames else {}
    expected = function(B, *operands, **options)
    torch.testing.assert_close(as_dense(result), expected, msg=lambda message: f"{text}\n{message}")
    weights = normals(*expected.shape, seed=1)
    gradients = torch.autograd.grad((as_dense(result) * weights).sum(), [A.values, *operands])
    expected_gradients = torch.autograd.grad((expected * weights).sum(), [B, *operands])
    first = A.with_values(gradients[0]).to_dense()
    torch.testing.assert_close(first, expected_gradients[0] * STORED, msg=lambda message: f"{text}\n{message}")
    for gradient, expected_gradient in zip(gradients[1:], expected_gradients[1:], strict=True):
        torch.testing.assert_close(gradient, expected_gradient, msg=lambda message: f"{text}\n{message}")


@pytest.mark.parametrize("name", ["gcn", "attention", "gat", "scores", "all", "where"])
def test_fused_functions_equal_unfused_functions(name: str, interpreted: None) -> None:
    function, operands = FUNCTIONS[name]
    for fmt in (ns.CSR, ns.DCSR):
        A = ns.from_torch(MATRIX, fmt)
        result, unfused = ns.fuse(function)(A, *operands), function(A, *operands)
        assert type(result) is type(unfused)
        torch.testing.assert_close(as_dense(result), as_dense(unfused))


def text_of(function: Callable[..., Any], *operands: Any) -> list[str]:
    return ns.fuse(function).explain(*operands).text.splitlines()


A = ns.from_torch(MATRIX, ns.CSR)


def test_a_chain_of_products_is_not_reordered() -> None:
    assert text_of(gcn, A, *FUNCTIONS["gcn"][1]) == ["T[i,j] = X[i,k] * W[k,j]", "R[i,j] = relu(A[i,k] * T[k,j] + b[j])"]
    assert text_of(lambda A, X, W: (A @ X) @ W, A, normals(9, 4), normals(4, 5)) == [
        "T[i,j] = A[i,k] * X[k,j]",
        "R[i,j] = T[i,k] * W[k,j]",
    ]


def test_products_at_a_mask_are_computed_there_only() -> None:
    Q, K = normals(7, 4), normals(9, 4)
    assert text_of(lambda A, Q, K: A * (Q @ K.T), A, Q, K) == ["R[i,j] = A[i,j] * Q[i,k] * K[j,k]"]
    assert text_of(lambda A, Q, K: torch.exp(Q @ K.T) * A, A, Q, K) == [
        "T[i,j] = stored(A[i,j]) * Q[i,k] * K[j,k]",
        "R[i,j] = exp(T[i,j]) * A[i,j]",
    ]
    assert text_of(scores, A, Q, K) == ["T[i,j] = A[i,j] * x[i,k] * y[j,k]", "R[i] += T[i,j]"]


def test_repeated_values_are_computed_once() -> None:
    def twice(A: Any, x: Any) -> Any:
        y = A @ x
        return y * torch.exp(y) + y

    assert text_of(twice, A, normals(9)) == ["T[i] = A[i,j] * x[j]", "R[i] = T[i] * exp(T[i]) + T[i]"]


def test_unused_arguments_are_no_operands_of_the_program() -> None:
    x = normals(9)
    torch.testing.assert_close(ns.fuse(lambda A, x, y: torch.relu(A @ x))(A, x, x), torch.relu(MATRIX @ x))


def test_order_and_parentheses_are_kept() -> None:
    x = normals(9)
    assert text_of(lambda A, x: A * x - (x - 1) * A, A, x) == ["R[i,j] = A[i,j] * x[j] - (x[j] - 1.0) * A[i,j]"]
    assert text_of(lambda A, x: A / (x / 2) * 3, A, x) == ["R[i,j] = A[i,j] / (x[j] / 2.0) * 3.0"]


Stopping = dict[str, tuple[Callable[..., Any], str]]
STOPPING: Stopping = {
    "operator": (lambda A, x: torch.cumsum(A @ x, 0), "cumsum"),
    "method": (lambda A, x: (A @ x).flip(0), ".flip"),
    "decision": (lambda A, x: A @ x if (x > 9).any() else A @ (2 * x), ".any"),
    "comparison": (lambda A, x: A @ x if x.sum() > 0 else -(A @ x), "a decision that depends on values"),
    "several": (lambda A, x: (A @ x, x), "several results"),
    "constant": (lambda A, x: A @ x + BIAS, "a tensor that is not an argument"),
    "new tensor": (lambda A, x: A @ x + normals(7), "randn is called without operands"),
    "entries": (lambda A, x: (A @ x)[1:], "an index that selects a part"),
    "truth": (lambda A, x: A @ x > 0, "it returns a bool tensor"),
    "caught": (lambda A, x: caught(A, x), "cumsum"),
    "given back": (lambda A, x: x.t(), "it computes nothing"),
}


def caught(A: Any, x: Any) -> Any:
    try:
        return torch.cumsum(A @ x, 0)
    except Exception:
        return A @ x


@pytest.mark.parametrize("name", STOPPING)
def test_unsupported_functions_run_unfused(name: str) -> None:
    function, reason = STOPPING[name]
    x = normals(9)
    fused = ns.fuse(function)
    text = str(fused.explain(A, x))
    assert reason in text and "runs unfused" in text and not TRACERS
    for result, expected in zip(fused(A, x), function(A, x), strict=True):
        assert torch.equal(result, expected)


def test_the_explanation_shows_the_line_that_prevents_fusion() -> None:
    text = str(ns.fuse(caught).explain(A, normals(9)))
    assert "test_fuse.py" in text and "torch.cumsum(A @ x, 0)" in text


def test_other_operands_run_unfused() -> None:
    fused, others = ns.fuse(gcn), FUNCTIONS["gcn"][1]
    assert "every operand is dense" in str(fused.explain(MATRIX, *others))
    assert torch.equal(fused(MATRIX, *others), gcn(MATRIX, *others))
    mixed = (A.to(torch.float64), *others)
    assert "float32 and float64" in str(fused.explain(*mixed))
    integers = [tensor.to(torch.int32) for tensor in (A, *others)]
    assert "operands of data type int32" in str(fused.explain(*integers)) and fused(*integers).dtype == torch.int32
    with torch.autocast("cpu"):
        assert "autocast" in str(fused.explain(A, *others))


def test_16_bits(interpreted: None) -> None:
    half = [tensor.to(torch.bfloat16) for tensor in (A, *FUNCTIONS["gcn"][1])]
    result = ns.fuse(gcn)(*half)
    assert "in one kernel" in str(ns.fuse(gcn).explain(*half)) and result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), gcn(*(as_dense(tensor).float() for tensor in half)), rtol=0.05, atol=0.05)


def test_shapes_that_do_not_fit_raise_the_error_of_the_function() -> None:
    fused = ns.fuse(lambda A, x: torch.relu(A @ x))
    with pytest.raises(SizeError):
        fused(A, normals(8))
    torch.testing.assert_close(fused(A, normals(9)), torch.relu(MATRIX @ normals(9)))
    assert fused.explain(A, normals(9)).text
    with pytest.raises(SizeError):
        fused(A, normals(8))


def test_celu_refuses_an_alpha_of_0_as_torch_does() -> None:
    with pytest.raises(RuntimeError, match="alpha cannot be 0"):
        ns.fuse(lambda A, x: F.celu(A @ x, alpha=0.0))(A, torch.ones(A.shape[1]))


def test_a_failed_comparison_does_not_prevent_fusion() -> None:
    function = ns.fuse(lambda A, x, y: A * torch.logical_and(x > 0, y > 0))
    A = ns.from_torch(torch.eye(3))
    with pytest.raises(RuntimeError, match="size"):
        function(A, torch.ones(3), torch.ones(4))
    assert "runs unfused" not in str(function.explain(A, torch.ones(3), torch.ones(3)))
    assert function(A, torch.ones(3), torch.ones(3)).to_dense().equal(torch.eye(3))


def test_a_function_that_reads_a_size_has_a_program_for_each_size() -> None:
    fused = ns.fuse(lambda A, X: A @ X / X.shape[1])
    for columns in (3, 4, 3):
        torch.testing.assert_close(fused(A, normals(9, columns)), MATRIX @ normals(9, columns) / columns)


class Scaled:
    """A factor that a method reads from its object."""

    def __init__(self, by: float):
        self.by = by

    @ns.fuse
    def times(self, A: Any, x: Any) -> Any:
        return torch.relu(A @ x) * self.by


def test_attributes_and_globals_are_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x, scaled, table = normals(9), Scaled(2.0), {"by": 3.0}
    expected = torch.relu(MATRIX @ x)
    torch.testing.assert_close(scaled.times(A, x), 2 * expected)
    scaled.by = 5.0
    torch.testing.assert_close(scaled.times(A, x), 5 * expected)
    assert "* 5.0" in scaled.times.explain(A, x).text
    with_table, with_global = ns.fuse(lambda A, x: torch.relu(A @ x) * table["by"]), ns.fuse(lambda A, x: torch.relu(A @ x) * SCALE)
    torch.testing.assert_close(with_table(A, x), 3 * expected)
    torch.testing.assert_close(with_global(A, x), 2 * expected)
    table["by"] = 7.0
    monkeypatch.setitem(globals(), "SCALE", 11.0)
    torch.testing.assert_close(with_table(A, x), 7 * expected)
    torch.testing.assert_close(with_global(A, x), 11 * expected)


def test_a_function_is_traced_once_for_operands_of_one_kind() -> None:
    runs = []
    counted = ns.fuse(lambda A, x, by=1.0: runs.append(1) or torch.relu(A @ x) * by)
    fused = ns.fuse(lambda A, x, by=1.0: torch.relu(A @ x) * by)
    for _ in range(2):
        counted(A, normals(9)), fused(A, normals(9)), fused(A, normals(9), by=2.0)
    assert len(runs) == 2  # the function reads a list, which may change
    assert len(fused.programs) == 2


def test_parameters_and_native_tensors_are_operands(interpreted: None) -> None:
    others = FUNCTIONS["gcn"][1]
    weight = ns.nn.Parameter(A)
    ns.fuse(gcn)(weight, *others).sum().backward()
    B = MATRIX.clone().requires_grad_()
    gcn(B, *others).sum().backward()
    torch.testing.assert_close(A.with_values(weight.values.grad).to_dense(), B.grad * STORED)
    torch.testing.assert_close(ns.fuse(gcn)(MATRIX.to_sparse_csr(), *others), gcn(MATRIX, *others))


def test_fused_functions_are_fused_within_another_one() -> None:
    inner = ns.fuse(lambda A, x: torch.relu(A @ x))
    assert text_of(lambda A, x: inner(A, x) + 1, A, normals(9)) == ["R[i] = relu(A[i,j] * x[j]) + 1.0"]


def test_explanations_show_the_program_and_every_part() -> None:
    text = str(ns.fuse(gat).explain(A, *FUNCTIONS["gat"][1]))
    for part in ("stored max=", "where(T1[i,j] > 0.0, T1[i,j], 0.2 * T1[i,j])", "def kernel("):
        assert part in text


def test_indices_are_renamed_when_letters_run_out() -> None:
    products = [f"s{n}[i] = P[i,k] * V{n}[k,j]" for n in range(24)]
    program = "\n".join(["P[i,j] = 2.0 * A[i,j]", *products, f"R[i] = {' + '.join(f's{n}[i]' for n in range(24))}"])
    V = {f"V{n}": normals(9, 3) for n in range(24)}
    expected = (2 * A.to_dense() @ sum(V.values())).sum(1)  # type: ignore[operator]
    torch.testing.assert_close(ns.evaluate(program, A=A, **V), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["attention", "gat"])
def test_a_product_after_softmax_is_part_of_the_kernel(name: str) -> None:
    """The trace names the indices of each statement anew, so the product reads the weights with other indices."""
    function, operands = FUNCTIONS[name]
    assert str(ns.fuse(function).explain(A, *operands)).count("def kernel(") == 1
