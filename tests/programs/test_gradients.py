"""Gradients, tangents and batches of random einsums and statements in all formats, compared with torch on dense operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import random_case
from dense_values import as_dense
from scale import scaled
from statements import random_statement
from torch.autograd import forward_ad
from torch.func import vmap

import numscorch as ns
from numscorch.runtime.plans import uncompiled
from numscorch.schedule import tuning

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns when it registers rules of forward-mode AD

Operands = dict[str, Any]


def leaves_of(operands: Operands) -> tuple[Operands, dict[str, torch.Tensor]]:
    """The operands in float64 with values that require grad, and these values."""
    converted, leaves = {}, {}
    for name, operand in operands.items():
        if isinstance(operand, int):  # the size of an index
            converted[name] = operand
        elif isinstance(operand, ns.SparseTensor):
            leaves[name] = operand.values.double().clone().requires_grad_()
            converted[name] = operand.with_values(leaves[name])
        else:
            leaves[name] = converted[name] = operand.double().clone().requires_grad_()
    return converted, leaves


def dense_of(operands: Operands) -> Operands:
    """The operands as dense float64 leaves."""
    dense = {name: as_dense(o) for name, o in operands.items()}
    return {name: o if isinstance(o, int) else o.double().clone().requires_grad_() for name, o in dense.items()}


def at_entries(A: ns.SparseTensor, full: torch.Tensor) -> torch.Tensor:
    """A dense gradient, with zeros where the tensor stores no entry."""
    stored = ns.from_coo(A.indices(), torch.ones(A.nnz, dtype=torch.float64), A.shape)
    return full * stored.to_dense()


def compare(call: Any, operands: Operands, format: ns.Format | None, description: str) -> None:
    """Check that gradients equal torch's at stored entries."""
    inputs, leaves = leaves_of(operands)
    full = dense_of(operands)
    output, expected = call(inputs, None), call(full, None)
    if isinstance(output, ns.SparseTensor):  # a strided result is converted to its nonzeros, so it is computed in the dense format first
        output = call(inputs, format)
    result = as_dense(output)
    np.testing.assert_allclose(result.detach(), expected.detach(), err_msg=description)
    if not expected.requires_grad:
        return
    upstream = torch.from_numpy(np.random.default_rng(1).integers(-3, 4, expected.shape).astype(np.float64))
    (expected * upstream).sum().backward()
    if result.requires_grad:
        (result * upstream).sum().backward()
    for name in leaves:
        operand = operands[name]
        expected_gradient = torch.zeros_like(full[name]) if full[name].grad is None else full[name].grad
        gradient = leaves[name].grad
        gradient = torch.zeros_like(leaves[name]) if gradient is None else gradient
        if isinstance(operand, ns.SparseTensor):
            gradient, expected_gradient = operand.with_values(gradient).to_dense(), at_entries(operand, expected_gradient)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-9, err_msg=f"{name} of {description}")
    compare_batches(call, operands, format if isinstance(output, ns.SparseTensor) else None, description)
    if "fmax" not in description:  # torch's tangents and gradients of fmax differ at ties
        compare_tangents(call, operands, format if isinstance(output, ns.SparseTensor) else None, description)


def compare_tangents(call: Any, operands: Operands, format: ns.Format | None, description: str) -> None:
    """Check that the tangent of the result equals torch's, for tangents of all operands at once."""
    numbers = np.random.default_rng(2)
    inputs, full = {}, {}
    with forward_ad.dual_level():
        for name, operand in operands.items():
            inputs[name] = full[name] = operand
            if isinstance(operand, int):  # the size of an index
                continue
            leaf = (operand.values if isinstance(operand, ns.SparseTensor) else operand).double().clone()
            leaf = forward_ad.make_dual(leaf, torch.from_numpy(numbers.integers(-3, 4, tuple(leaf.shape)).astype(np.float64)))
            inputs[name] = operand.with_values(leaf) if isinstance(operand, ns.SparseTensor) else leaf
            full[name] = as_dense(inputs[name])
        computed, expected = (forward_ad.unpack_dual(as_dense(call(*args))) for args in ((inputs, format), (full, None)))
    np.testing.assert_allclose(computed.primal, expected.primal, err_msg=description)
    tangents = (torch.zeros_like(dual.primal) if dual.tangent is None else dual.tangent for dual in (computed, expected))
    np.testing.assert_allclose(*tangents, rtol=1e-9, atol=1e-9, err_msg=f"tangent of {description}")


def compare_batches(call: Any, operands: Operands, format: ns.Format | None, description: str) -> None:
    """Check that vmap computes what separate calls compute; every third operand is the same in all calls."""
    leaves = {name: leaf.detach() for name, leaf in leaves_of(operands)[1].items()}
    batched = {name: None if at % 3 == 2 else 0 for at, name in enumerate(leaves)}

    def result(row: dict[str, torch.Tensor]) -> torch.Tensor:
        named = {name: o.with_values(row[name]) if isinstance(o, ns.SparseTensor) else row.get(name, o) for name, o in operands.items()}
        return as_dense(call(named, format))

    rows = [{name: leaf if batched[name] is None else leaf * factor for name, leaf in leaves.items()} for factor in (1, -2)]
    batch = {name: leaf if batched[name] is None else torch.stack([row[name] for row in rows]) for name, leaf in leaves.items()}
    expected = torch.stack(list(map(result, rows)))
    np.testing.assert_allclose(vmap(result, (batched,))(batch), expected, rtol=1e-9, atol=1e-9, err_msg=f"batch of {description}")


@pytest.mark.parametrize("part", range(4))
def test_random_einsums(part: int) -> None:
    with uncompiled():
        for seed in range(part, scaled(2000), 4):
            case = random_case(seed)
            operands = dict(zip("ABCDEFG", case.operands(), strict=False))
            compare(lambda named, format, case=case: ns.einsum(case.expr, *named.values(), format=format), operands, case.result, str(case))


@pytest.mark.parametrize("part", range(4))
def test_random_statements(part: int) -> None:
    with uncompiled():
        for seed in range(part, scaled(2000), 4):
            statement = random_statement(seed)
            if "*=" in statement.text:
                continue  # products have no gradient yet
            compare(
                lambda named, format, statement=statement: ns.evaluate(statement.text, format=format, **named),
                statement.operands,
                statement.format,
                str(statement),
            )


def test_gradients_of_unordered_entries_that_kernels_number_in_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "COMPILE_ENTRIES", 1)  # as large tensors are converted
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(5, 6, dtype=torch.float64, generator=generator).relu()
    values = ns.from_torch(full).to("(i, j) -> (i: dense, j: compressed(ordered=False))")
    cubes = ns.from_torch(torch.randn(5, 6, 4, dtype=torch.float64, generator=generator).relu(), ns.CSF(3))
    assert values.pattern.index_dtype == "int32"
    with uncompiled():
        leaf = values.values.clone().requires_grad_()
        output = ns.evaluate("y[i] = A[i,j,k] * B[i,j]", A=cubes, B=values.with_values(leaf))
        output.sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(values.with_values(leaf.grad).to_dense(), cubes.to_dense().sum(2) * (full > 0))


@pytest.mark.parametrize("format", ["CSR", "dd"])
@pytest.mark.parametrize("is_parameter", [True, False])
def test_a_call_without_gradients_does_not_affect_later_calls(is_parameter: bool, format: str) -> None:
    """A plan of a call without gradients is not used for operands that require grad."""
    A, B = ns.from_torch(torch.eye(3), "CSR" if format == "CSR" else ns.Format(format)), torch.arange(6.0).reshape(3, 2)
    operand = ns.nn.Parameter(A) if is_parameter else A.with_values(A.values.requires_grad_())
    with torch.no_grad():
        ns.einsum("ij,jk->ik", operand, B)
    (gradient,) = torch.autograd.grad(ns.einsum("ij,jk->ik", operand, B).sum(), operand.values)
    torch.testing.assert_close(gradient, B.sum(1) if format == "CSR" else B.sum(1).repeat(3))


IMPLICIT = [
    "(i: dense, j: identity)",
    "(i: compressed, j: causal)",
    "(j: dense, i: band(1, 1))",
    "(i: dense, j: band(2, 0))",
    "(j: dense, i: identity)",
]
PAIRS = ["ij,ij->", "ji,ij->ij", "ij,jk->ik", "ik,ij->jk"]


@pytest.mark.parametrize("levels", IMPLICIT)
@pytest.mark.parametrize("expr", PAIRS)
def test_gradients_of_operands_with_implicit_levels(levels: str, expr: str) -> None:
    """The other operand is dense, sparse, or the same tensor."""
    diagonal = torch.diag(torch.arange(1.0, 5, dtype=torch.float64))
    A, D = ns.from_torch(diagonal, f"(i, j) -> {levels}"), torch.arange(16.0, dtype=torch.float64).reshape(4, 4)
    with uncompiled():
        for B in (D, ns.from_torch(D, ns.CSR), A):
            compare(lambda named, format: ns.einsum(expr, *named.values(), format=format), {"A": A, "B": B}, ns.COO(2), levels)


def test_the_gradient_of_a_causal_matrix_times_its_transpose() -> None:
    full = torch.arange(1.0, 17, dtype=torch.float64).reshape(4, 4).tril()
    A = ns.from_torch(full, "(i, j) -> (i: dense, j: causal)")
    with uncompiled():
        compare(lambda named, _: named["A"] @ named["A"].t(), {"A": A}, None, "A @ A.t()")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bool])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_gradients_of_a_dense_result_are_zero_outside_of_its_mask(reduce: str, dtype: torch.dtype) -> None:
    mask, generator = torch.eye(4, dtype=torch.bool), torch.Generator().manual_seed(0)
    x, y = (torch.randn(4, 4, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
    terms = 1 if reduce == "sum" else 4
    with uncompiled():
        ns.einsum("ik,kj->ij", x, y, mask=ns.from_torch(mask.to(dtype), ns.CSR), reduce=reduce, format="dense").sum().backward()
    torch.testing.assert_close(x.grad, (mask.double() / terms) @ y.detach().T)
    torch.testing.assert_close(y.grad, x.detach().T @ (mask.double() / terms))


def test_rows_of_a_band_beyond_the_last_column_are_empty() -> None:
    full = torch.eye(6, 2, dtype=torch.float64)
    A, B, C = (
        torch.ones(6, 6, dtype=torch.float64),
        torch.ones(6, 2, dtype=torch.float64),
        ns.from_torch(full, "(i, j) -> (i: dense, j: band(1, 1))"),
    )
    with uncompiled():
        output = ns.einsum("ij,ik,jk->ij", ns.from_torch(A, ns.COO(2)), B, C)
    torch.testing.assert_close(output.to_dense(), A * (B @ full.T))


@pytest.mark.parametrize("text", ["iii->i", "iii->", "iij->ij", "iji->ij"])
@pytest.mark.parametrize("fmt", ["dsd", "ssd", "sss", "ooo"])
def test_diagonals_of_three_dimensions_with_unstored_entries(text: str, fmt: str) -> None:
    full = torch.zeros(3, 3, 3)
    full[0, 0, 0], full[0, 0, 1], full[1, 1, 1], full[2, 1, 2] = 5.0, 2.0, 3.0, 4.0
    A, D = ns.from_torch(full, fmt), full.clone().requires_grad_()
    A.values.requires_grad_()
    result, expected = as_dense(ns.einsum(text, A)), torch.einsum(text, D)
    torch.testing.assert_close(result, expected)
    (gradient,) = torch.autograd.grad(result.square().sum(), A.values)
    (of_dense,) = torch.autograd.grad(expected.square().sum(), D)
    torch.testing.assert_close(
        A.detach().with_values(gradient).to_dense(), of_dense * (A.detach().with_values(torch.ones_like(gradient)).to_dense() != 0)
    )


def test_a_diagonal_of_a_rectangle_is_refused_for_operands_that_require_grad() -> None:
    D = torch.ones(3, 4, requires_grad=True)
    with pytest.raises(ns.SizeError, match="index i takes the diagonal of A, whose sizes differ there: 3 and 4"):
        ns.einsum("ii,ij->j", D, ns.eye(3, format=ns.CSR))
