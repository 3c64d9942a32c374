"""Programs computed by one kernel equal their parts computed one after the other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from dense_values import as_dense

import numscorch as ns
from numscorch.frontend.statements import parse_program
from numscorch.programs import steps
from numscorch.programs.fusion import NotFused, OperandKind, fused_request, group_from
from numscorch.runtime.plans import make_plan, uncompiled

SOFTMAX = """
    m[i] stored max= S[i,j]
    E[i,j] = stored(S[i,j]) * exp(S[i,j] - m[i])
    l[i] = E[i,j]
    P[i,j] = E[i,j] / l[i]
"""
HEADS = """
    m[h,i] stored max= stored(A[i,j]) * S[h,i,j]
    E[h,i,j] = stored(A[i,j]) * exp(S[h,i,j] - m[h,i])
    l[h,i] = stored(A[i,j]) * E[h,i,j]
    P[h,i,j] = stored(A[i,j]) * E[h,i,j] / l[h,i]
"""  # A has fewer indices than S, so S would be dense without stored(A[i,j])
PROGRAMS = {
    "a bias and an activation": "D[i,k] = relu(A[i,j] * X[j,k] + b[k])",
    "a chain": "T[i,k] = A[i,j] * X[j,k]; U[i,k] = T[i,k] * 0.5 + Z[i,k]; D[i,k] = sigmoid(U[i,k]) * maximum(U[i,k], b[k])",
    "a function without vector instructions": "D[i,k] = tanh(A[i,j] * X[j,k])",
    "rows of length 1": "T[i,k] = A[i,j] * X[j,k]; s[i] = T[i,k] * T[i,k]; D[i,k] = T[i,k] / sqrt(s[i] + 1)",
    "a vector": "y[i] = A[i,j] * x[j]; z[i] = exp(0 - y[i]) + w[i]",
    "rows of a sampled product": "S[i,j] = A[i,j] * (Z[i,k] * X[j,k]); y[i] = S[i,j]",
    "a maximum with what isn't stored": "S[i,j] = A[i,j] * (Z[i,k] * X[j,k]); y[i] max= S[i,j]; w2[i] = y[i] * y[i]",
    "softmax": SOFTMAX.replace("S[i,j]", "A[i,j]"),
    "graph attention": "S[i,j] = stored(A[i,j]) * maximum(w[i] + x[j], 0.2 * (w[i] + x[j]))" + SOFTMAX + "D[i,k] = P[i,j] * X[j,k]",
    "attention": "S[i,j] = A[i,j] * (Z[i,k] * X[j,k]) * 0.3" + SOFTMAX + "D[i,k] = P[i,j] * X[j,k]",
    "attention of heads": "S[h,i,j] = stored(A[i,j]) * (Q[h,i,k] * K[h,j,k])" + HEADS + "D[h,i,k] = stored(A[i,j]) * P[h,i,j] * K[h,j,k]",
}
SHAPES = ((5, 7, 3), (9, 4, 33), (1, 40, 17), (6, 1, 8))


def operands(n: int, m: int, k: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """A matrix with an empty row and a full row, and dense operands of the programs."""
    generator = torch.Generator().manual_seed(n * m + k)
    stored = torch.rand(n, m, generator=generator) < 0.4
    stored[0], stored[-1] = False, True
    tensors = {"A": torch.where(stored, torch.randn(n, m, generator=generator), 0)}
    shapes = {"X": (m, k), "Z": (n, k), "x": (m,), "w": (n,), "b": (k,), "Q": (2, n, k), "K": (2, m, k)}
    tensors |= {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def read(program: str, tensors: Mapping[str, torch.Tensor], format: ns.Format) -> dict[str, object]:
    """The operands of the program, with the matrix in the given format."""
    named = {name: tensors[name] for part in parse_program(program) for name in part.operands if name in tensors}
    return {name: ns.from_torch(tensor, format) if name == "A" else tensor for name, tensor in named.items()}


def check(program: str, shape: tuple[int, int, int], dtype: torch.dtype = torch.float32, format: ns.Format = ns.CSR) -> None:
    tensors = operands(*shape, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "group_from", lambda *_: None)
        expected = ns.evaluate(program, **read(program, tensors, format))
    fused = ns.evaluate(program, **read(program, tensors, format))
    assert type(fused) is type(expected)
    torch.testing.assert_close(as_dense(fused), as_dense(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_one_kernel_computes_the_whole_program(program: str) -> None:
    parts, values = parse_program(program), read(program, operands(5, 7, 3), ns.CSR)
    group = group_from(parts, 0, values)
    assert group is not None and group.parts == parts
    assert group_from(parts, 0, read(program, operands(5, 7, 3), ns.COO(2))) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_results_equal_those_of_the_parts(program: str, dtype: torch.dtype) -> None:
    with uncompiled():
        for shape in SHAPES:
            check(program, shape, dtype)


@pytest.mark.parametrize("name", ["a chain", "rows of length 1", "attention", "attention of heads", "softmax"])
def test_compiled(name: str) -> None:
    check(PROGRAMS[name], (9, 40, 33))


def test_columns_are_rows_of_the_transpose() -> None:
    program = "T[j,k] = A[i,j] * Z[i,k]; D[j,k] = relu(T[j,k])"
    with uncompiled():
        check(program, (5, 7, 3), format=ns.CSC)


def test_results_are_the_same_at_any_number_of_threads() -> None:
    program, tensors = PROGRAMS["attention of heads"], operands(300, 300, 32)
    values, threads, results = read(program, tensors, ns.CSR), torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(ns.evaluate(program, **values))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_attention_keeps_one_row_of_scores() -> None:
    program, values = PROGRAMS["attention"], read(PROGRAMS["attention"], operands(300, 300, 32), ns.CSR)
    group = group_from(parse_program(program), 0, values)
    assert group is not None
    plan = make_plan(group.request, [values[name] for name in group.operands], None)
    spaces = {param.name for param in plan.kernel.source.params if param.what == "space"}
    assert spaces == {"S_row_vals", "E_row_vals", "P_row_vals"}
    assert "A2_pos" in plan.kernel.source.text and "parallel_forall(i" in str(plan.steps[-1])


def test_a_matrix_without_entries() -> None:
    A = ns.from_coo([[], []], [], (4, 6), format=ns.CSR)
    result = ns.evaluate("D[i,k] = relu(A[i,j] * X[j,k] + b[k])", A=A, X=torch.ones(6, 3), b=torch.tensor([1.0, -1.0, 2.0]))
    assert torch.equal(result, torch.tensor([1.0, 0.0, 2.0]).expand(4, 3))


REFUSED = {
    "T[i,k] = A[i,j] * X[j,k]; s[k] = T[i,k]": "A is not read row by row",
    "y[i] = A[i,j] * x[j]; z[j] = w[i] * A[i,j]": "the parts share no loop",
    "S[h,i,j] = stored(A[i,j]) * v[h]; y[h,i] = S[h,i,j]": r"y would be dense",
    "S[h,i,j] = stored(A[i,j]) * v[h]; y[h,i] = stored(S[h,i,j])": "S is not sparse",
    "T[i,k] = A[i,j] * X[j,k]; D[i,o] = T[i,k] * W[k,o]": "D is a dense product",
    "S[i,j] = A[i,j] * 2; D[i,j] = S[i,j] + B[i,j]": "D merges several sparse tensors",
    "S[i,j] stored max= A[i,j] * w[k]; y[i] = S[i,j]": "y would be dense",  # unstored entries of S are -inf
    "S[i,j] = A[i,j] * 2; D[i,j] = exp(S[i,j])": "D is not 0 at unstored entries",
    "y[i] = A[i,j] * x[j]; p[i] *= A[i,j]": r"\*= cannot be fused",
    "T[i,j] = A[i,j] * w[i]; U[j,i] = T[i,j] * 2": "U would be sparse with a new pattern",
}


@pytest.mark.parametrize(("program", "why"), REFUSED.items())
def test_unfused_programs_have_a_reason(program: str, why: str) -> None:
    tensors = operands(5, 7, 3) | {"W": torch.ones(3, 2), "B": operands(5, 7, 3)["A"], "v": torch.ones(2)}
    values = read(program, tensors, ns.CSR) | ({"B": ns.from_torch(tensors["B"], ns.CSR)} if "B[" in program else {})
    with pytest.raises(NotFused, match=why):
        fused_request(parse_program(program), {name: OperandKind.of(value) for name, value in values.items()}, set())
    result = ns.evaluate(program, **values)
    expected = ns.evaluate(program, **{name: v.to(ns.COO(2)) if isinstance(v, ns.SparseTensor) else v for name, v in values.items()})
    torch.testing.assert_close(as_dense(result), as_dense(expected))


def test_values_that_are_read_later_are_stored() -> None:
    program = "T[i,k] = A[i,j] * X[j,k]; U[i,k] = relu(T[i,k]); s[k] = U[i,k]; D[i,k] = U[i,k] / s[k] + T[i,k]"
    check(program, (5, 7, 3))


def test_gradients_flow_through_the_parts() -> None:
    program, tensors = PROGRAMS["attention"], operands(6, 7, 3, torch.float64)
    stored = tensors["A"] != 0

    def fused(Z: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        return ns.evaluate(program, A=ns.from_torch(tensors["A"], ns.CSR), Z=Z, X=X)

    def dense_reference(Z: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        scores = (tensors["A"] * (Z @ X.T) * 0.3).masked_fill(~stored, -torch.inf)
        return torch.nan_to_num(scores.softmax(1)) @ X

    Z, X = tensors["Z"].requires_grad_(), tensors["X"].requires_grad_()
    gradients = torch.autograd.grad(fused(Z, X).square().sum(), (Z, X))
    expected = torch.autograd.grad(dense_reference(Z, X)[1:].square().sum(), (Z, X))  # the first row stores no entries
    torch.testing.assert_close(gradients, expected)


def test_rows_of_sums_run_in_registers() -> None:
    values = read(PROGRAMS["a chain"], operands(300, 300, 32), ns.CSR)
    explanation = ns.explain(PROGRAMS["a chain"], **values)
    assert "vector_forall" in str(explanation.steps[-1]) and "share the loop over i" in explanation.steps[0].why


def test_chains_that_read_each_value_twice_stay_small() -> None:
    def chain(length: int) -> str:
        return "T0[i,k] = A[i,j] * X[j,k]" + "".join(f"; T{n + 1}[i,k] = T{n}[i,k] * sigmoid(T{n}[i,k])" for n in range(length))

    with uncompiled():
        check(chain(4), (5, 7, 3))
    values = read(chain(4), operands(5, 7, 3), ns.CSR)
    assert len(ns.explain(chain(8), **values).source) < 2 * len(ns.explain(chain(4), **values).source)
    group = group_from(parse_program(chain(40)), 0, values)
    assert group is not None and 8 < len(group.parts) < 40


REGRESSIONS = (
    "T[i,k] = A[i,j] * X[j,k]; y[i] = T[i,k] * b[k]",
    "T[i,j] += A[i,j] * x[j]; y[i] = T[i,j] * x[j]",
    "T[i,k] += Z[i,k] * b[k]; D[i,k] = T[i,k] * A[i,j] * X[j,k]",
    "T[i,j] max= A[i,j] * x[j]; y[i] = T[i,j] * x[j]",
    "T[i,k] = A[i,j] * X[j,k]; D[i,k] = B[i,j] * X[j,k] * T[i,k]",
    "D[i,k] = relu(A[i,j] * X[j,k]) + relu(B[i,j] * X[j,k])",
    "D[t,u] = relu(A[t,j] * X[j,u] + B[t,j] * X[j,u] + b[u])",
    "S[t,j] = A[t,j] * (Z[t,u] * X[j,u]); y[t] = S[t,j] * x[j]",
)


@pytest.mark.parametrize("program", REGRESSIONS)
def test_rows_of_fused_parts_start_empty(program: str) -> None:
    for shape in ((5, 7, 1), (5, 7, 16), (5, 7, 17)):
        tensors = operands(*shape)
        values = read(program, tensors, ns.CSR) | ({"B": ns.from_torch(tensors["A"].flip(0), ns.CSR)} if "B[" in program else {})
        with uncompiled(), pytest.MonkeyPatch.context() as patch:
            fused = ns.evaluate(program, **values)
            patch.setattr(steps, "group_from", lambda *_: None)
            torch.testing.assert_close(as_dense(fused), as_dense(ns.evaluate(program, **values)))


def test_errors_of_sizes_do_not_name_internal_rows() -> None:
    A = ns.from_torch(torch.eye(3), ns.CSR)
    with pytest.raises(RuntimeError, match="size") as caught:
        ns.evaluate("T[i,k] = A[i,j] * X[j,k]; D[i,k] = relu(T[i,k] + b[k])", A=A, X=torch.ones(3, 4), b=torch.ones(3))
    assert "T_row" not in str(caught.value)
