"""Programs for evaluate: statements that read results of earlier ones, and patterns as operands."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
import torch
from dense_values import as_dense
from random_tensors import normals

import numscorch as ns
from numscorch.errors import ExpressionError
from numscorch.frontend.statements import parse_program, tensor_names
from numscorch.ir.notation import parse_expr, parse_stmt

SOFTMAX = "m[i] stored max= S[i,j]; E[i,j] = stored(S[i,j]) * exp(S[i,j] - m[i]); l[i] = E[i,j]; P[i,j] = E[i,j] / l[i]"
ATTENTION = f"""
    S[i,j] = M[i,j] * Q[i,k] * K[j,k]
    {SOFTMAX}
    O[i,k] = P[i,j] * V[j,k]
"""


def stored_mask() -> torch.Tensor:
    """Mask of stored entries; row 2 has none."""
    mask = torch.rand(7, 9, generator=torch.Generator().manual_seed(3)) < 0.5
    mask[2] = False
    return mask


def stored_at(mask: torch.Tensor, fmt: ns.Format = ns.CSR, has_zero: bool = True) -> ns.SparseTensor:
    """Random numbers at the masked coordinates; the first is a stored 0 if ``has_zero``."""
    values = normals(int(mask.sum()))
    values[0] = 0.0 if has_zero else values[0]
    return ns.from_coo(mask.nonzero().T, values, tuple(mask.shape), format=fmt)


def dense_softmax(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores.masked_fill(~mask, -inf), -1).nan_to_num()


def test_parts_of_all_statements_come_in_order() -> None:
    parts = parse_program("T[i] = A[i,j] * x[j] + b[i]\ny[i] = relu(B[i,j] * T[j]) + T[i];")
    assert [(part.name, part.operands) for part in parts] == [
        ("1", ("A", "x")),
        ("T", ("1", "b")),
        ("2", ("B", "T")),
        ("y", ("2", "T")),
    ]
    assert all(part.request.form.in_order for part in parts[:-1]) and not parts[-1].request.form.in_order


def test_assigned_names_are_no_operands() -> None:
    assert tensor_names("T[i] = A[i,j] * x[j]\n\n y[i] = T[i] + b[i] ; ") == {"A", "x", "b"}
    assert tensor_names("A[i,j] = 2 * A[i,j]") == {"A"}


@pytest.mark.parametrize(
    "text, message",
    [
        ("T[i] = x[i]; T[i] = x[i] + 1; y[i] = T[i]", "T is assigned twice"),
        ("y[i] = T[i] + 1; T[i] = x[i]; z[i] = y[i]", "T is read before it is assigned"),
        ("T[i] = T[i] + x[i]; y[i] = T[i]", "T is read in the statement that assigns it"),
        ("T[i] = A[i,j] * x[j]; y[i] = T[i,j] * x[j]", "T is assigned with 1"),
    ],
)
def test_invalid_programs_are_refused(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message) as error:
        parse_program(text)
    assert text in str(error.value)


def test_operands_must_be_the_unassigned_names() -> None:
    x = torch.ones(2)
    with pytest.raises(ExpressionError, match="the text assigns T"):
        ns.evaluate("T[i] = x[i]; y[i] = T[i]", x=x, T=x)
    with pytest.raises(ExpressionError, match="x missing"):
        ns.evaluate("T[i] = x[i]; y[i] = T[i]")
    with pytest.raises(ExpressionError, match="U missing"):
        ns.evaluate("T[i] = x[i]; y[i] = U[i]", x=x)


def test_stored_and_stored_max_print_as_they_parse() -> None:
    for text in ("stored(A[i,j]) * exp(A[i,j] - x[i])", "stored(mask[i,j]) + 1"):
        assert str(parse_expr(text)) == text
    assert str(parse_stmt("m[i]  stored   max= A[i,j]")) == "m[i] stored max= A[i,j]"
    for text in ("stored(A[i] + B[i])", "stored(2)", "stored(A[i], B[i])"):
        with pytest.raises(ExpressionError, match="stored takes"):
            parse_expr(text)


def test_pattern_and_values_of_a_tensor_are_one_operand() -> None:
    (part,) = parse_program("E[i,j] = stored(S[i,j]) * exp(S[i,j])")
    assert part.operands == ("S",) and str(part.request.value) == "stored(A[i,j]) * exp(A[i,j])"
    assert "A2_pos" in (source := ns.explain("E[i,j] = stored(S[i,j]) * exp(S[i,j])", S=ns.CSR).source) and "B2_pos" not in source


FORMATS = [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.Format("sd"), ns.BCSR(2, 2), ns.ELL]
PATTERNS = {
    "R[i,j] = stored(S[i,j])": lambda s, p, q, x: p,
    "R[i,j] = stored(S[i,j]) + 1": lambda s, p, q, x: p + 1,
    "R[i,j] = exp(stored(S[i,j]) - 1)": lambda s, p, q, x: (p - 1).exp(),
    "R[i,j] = stored(S[i,j]) * exp(S[i,j] - x[j])": lambda s, p, q, x: p * (s - x).exp(),
    "R[i,j] = stored(M[i,j]) * S[i,j]": lambda s, p, q, x: q * s,
    "R[i,j] = stored(M[i,j]) * exp(S[i,j])": lambda s, p, q, x: q * s.exp(),
    "R[j,i] = stored(S[i,j]) * x[j]": lambda s, p, q, x: (p * x).T,
    "R[i] = stored(S[i,j]) * x[j]": lambda s, p, q, x: p @ x,
    "R[i,j] = where(stored(S[i,j]), x[j], 0)": lambda s, p, q, x: p * x,
    "R[i,j] = stored(S[i,j]) - stored(M[i,j])": lambda s, p, q, x: p - q,
    "R[i,j] = S[i,j] * stored(x[j])": lambda s, p, q, x: s,
    "R[i] max= stored(S[i,j]) * x[j]": lambda s, p, q, x: (p * x).amax(1),
}


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("text", PATTERNS)
def test_where_entries_are_stored(text: str, fmt: ns.Format, interpreted: None) -> None:
    S, M = stored_at(stored_mask(), fmt), stored_at(stored_mask().flip(0), fmt)
    p, q = (tensor.with_values(torch.ones_like(tensor.values)).to_dense() for tensor in (S, M))
    named: dict[str, Any] = {name: value for name, value in {"S": S, "M": M, "x": normals(9)}.items() if f"{name}[" in text}
    result = ns.evaluate(text, **named)
    dense = as_dense(result)
    torch.testing.assert_close(dense, PATTERNS[text](S.to_dense(), p, q, normals(9)))


def test_a_pattern_has_values_of_any_type(interpreted: None) -> None:
    M, S = stored_at(stored_mask()), stored_at(stored_mask())
    for dtype in (torch.int32, torch.bool, torch.float64):
        result = ns.evaluate("R[i,j] = stored(M[i,j]) * exp(S[i,j])", M=M.to(dtype), S=S)
        torch.testing.assert_close(result.values, S.values.exp())


def test_results_at_stored_entries_keep_the_pattern(interpreted: None) -> None:
    S = stored_at(stored_mask())
    assert ns.evaluate("E[i,j] = stored(S[i,j]) * exp(S[i,j])", S=S).pattern is S.pattern
    assert ns.evaluate("E[i,j] = stored(S[i,j]) * x[j]", S=S, x=normals(9)).pattern is S.pattern


@pytest.mark.parametrize("fmt", [*FORMATS[:5], ns.BCSR(2, 2)], ids=lambda f: f.name)
def test_largest_stored_entries_are_dense(fmt: ns.Format, interpreted: None) -> None:
    S = stored_at(stored_mask(), fmt, has_zero=False)
    stored = S.with_values(torch.ones_like(S.values)).to_dense() != 0
    maxima = ns.evaluate("m[i] stored max= S[i,j]", S=S)
    torch.testing.assert_close(maxima, S.to_dense().masked_fill(~stored, -inf).amax(1))
    torch.testing.assert_close(ns.evaluate("m[i] stored max= x[i,j]", x=normals(7, 9)), normals(7, 9).amax(1))


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR], ids=lambda f: f.name)
def test_softmax_is_over_stored_entries(fmt: ns.Format, interpreted: None) -> None:
    S = stored_at(stored_mask(), fmt)
    result = ns.evaluate(SOFTMAX, S=S)
    torch.testing.assert_close(result.to_dense(), dense_softmax(S.to_dense(), stored_mask()))
    torch.testing.assert_close(result.values, ns.softmax(S, 1).values)


@pytest.mark.parametrize("fmt", [ns.CSR, ns.COO(2)], ids=lambda f: f.name)
def test_gradients_flow_through_attention(fmt: ns.Format, interpreted: None) -> None:
    M = stored_at(stored_mask(), fmt)
    Q, K, V = (normals(size, 4).requires_grad_() for size in (7, 9, 9))
    M.values.requires_grad_()
    weights = normals(7, 4, seed=1)
    dense = M.to_dense().detach().requires_grad_()
    expected = dense_softmax(dense * (Q @ K.T), stored_mask()) @ V
    output = ns.evaluate(ATTENTION, M=M, Q=Q, K=K, V=V)
    torch.testing.assert_close(output, expected)
    gradients = torch.autograd.grad((output * weights).sum(), [M.values, Q, K, V])
    expected_gradients = torch.autograd.grad((expected * weights).sum(), [dense, Q, K, V])
    torch.testing.assert_close(M.with_values(gradients[0]).to_dense(), expected_gradients[0] * stored_mask())
    for gradient, expected_gradient in zip(gradients[1:], expected_gradients[1:], strict=True):
        torch.testing.assert_close(gradient, expected_gradient)


def test_no_gradient_flows_to_a_pattern(interpreted: None) -> None:
    S, M = stored_at(stored_mask()), stored_at(stored_mask())
    S.values.requires_grad_()
    M.values.requires_grad_()
    result = ns.evaluate("R[i,j] = stored(M[i,j]) * exp(S[i,j])", M=M, S=S)
    result.values.sum().backward()
    assert M.values.grad is None and torch.allclose(S.values.grad, S.values.exp())


def test_a_program_is_explained_part_by_part() -> None:
    text = str(ns.explain(f"{SOFTMAX}; O[i,k] = P[i,j] * V[j,k]", S=ns.CSR, V="dense", format=ns.Format("dd")))
    for fragment in ("max=", "stored(A[i,j]) * exp(A[i,j] - B[i])", "A[i,j] / B[i]", "B: V, 1024x1024 (dense)"):
        assert fragment in text


def test_attention_compiled() -> None:
    M, Q, K, V = stored_at(stored_mask()), normals(7, 4), normals(9, 4), normals(9, 4)
    torch.testing.assert_close(ns.evaluate(ATTENTION, M=M, Q=Q, K=K, V=V), dense_softmax(M.to_dense() * (Q @ K.T), stored_mask()) @ V)
