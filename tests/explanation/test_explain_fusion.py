"""explain of programs shows the kernels that run: fused parts, reasons why parts are not fused, and kernels of gradients."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.frontend.statements import parse_program
from numscorch.nn.functional import program
from numscorch.programs import steps
from numscorch.programs.fusion import why_alone
from numscorch.runtime import plans

pytestmark = pytest.mark.usefixtures("plain")

GCN = "H[i,k] = X[i,j] * W[j,k]; R[i,k] = relu(A[i,j] * H[j,k] + b[k])"
ATTENTION = program(0).replace("* c", "* 0.5")


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


MATRIX = numbers(7, 9) * (torch.rand(7, 9, generator=torch.Generator().manual_seed(0)) < 0.5)
A = ns.from_torch(MATRIX, ns.CSR)
OPERANDS = {"X": numbers(9, 4), "W": numbers(4, 5), "b": numbers(5)}
HEADS = {"Q": numbers(7, 4), "K": numbers(9, 4), "V": numbers(9, 3)}


def kernels(text: str) -> set[str]:
    """Names of the kernels whose source is shown, or that compute a gradient."""
    return set(re.findall(r"kernel_[0-9a-f]{16}", text))


def run(function: Callable[[], Any]) -> set[str]:
    """Names of the kernels that a call runs."""
    before = set(plans._tables().kernels)
    function()
    return set(plans._tables().kernels) - before


def test_a_group_of_parts_is_one_explanation() -> None:
    explanation = ns.explain(ATTENTION, A=A, **HEADS)
    text = str(explanation)
    assert text.startswith("evaluate in one kernel:\n  S[i,j] = stored(A[i,j]) * (Q[i,k] * K[j,k]) * 0.5\n")
    assert text.count("def kernel(") == 1 and explanation.before == () and explanation.path.read_text() == explanation.source
    assert "B: Q, 7x4 (dense), float32" in text
    whys = {step.name: step.why for step in explanation.steps}
    assert whys["fuse"] == "6 statements share the loop over i"
    rows, numbers_kept = "a row of S_row, E_row and P_row, with the pattern of A", "the numbers m_value and l_value"
    assert whys["join_loops"] == f"intermediate results: {rows}; {numbers_kept}"
    assert "m_value: about 5.71 nonzeros per row" in whys["vectorize"] and whys["tile"].startswith("fused statements are not tiled")


def test_evaluate_runs_the_explained_kernels() -> None:
    for text, operands in ((ATTENTION, HEADS), (GCN, OPERANDS)):
        names = kernels(str(ns.explain(text, A=A, **operands)))
        with plans.uncompiled():
            assert run(lambda text=text, operands=operands: ns.evaluate(text, A=A, **operands)) == names


def test_gradients_run_the_explained_kernels() -> None:
    operands = {name: tensor.clone().requires_grad_() for name, tensor in HEADS.items()}
    text = str(ns.explain(ATTENTION, A=A, **operands))
    (line,) = [row for row in text.splitlines() if row.startswith("gradient")]
    assert re.fullmatch(
        r"gradient +fused: (kernel_\w+ for Q); (kernel_\w+ for K, by columns); (kernel_\w+ for V, by columns); "
        r"this kernel saves l_value, m_value for them",
        line,
    )
    with plans.uncompiled():
        assert run(lambda: ns.evaluate(ATTENTION, A=A, **operands).square().sum().backward()) == kernels(text)
    assert "gradient" not in str(ns.explain(ATTENTION, A=A, **HEADS))
    with torch.no_grad():
        assert "gradient" not in str(ns.explain(ATTENTION, A=A, **operands))


def test_gradients_part_by_part_say_why() -> None:
    text = str(ns.explain(GCN, A=A, **(OPERANDS | {"b": numbers(5).requires_grad_()})))
    assert "gradient          parts 2 to 3 run separately: storing an intermediate row is faster than recomputing it" in text
    assert "einsum hands" not in text and "in one kernel" not in text


def test_dense_parts_are_torchs() -> None:
    text = str(ns.explain(GCN, A=A, **OPERANDS))
    first, second = text.split("\n\n", 1)
    assert first == "H = A[i,j] * B[j,k] over ij,jk->ik: every operand is dense, so torch computes it"
    assert "result_1[i,k] = A[i,j] * H[j,k]" in second and "R[i,k] = relu(result_1[i,k] + b[k])" in second
    last = str(ns.explain("y[i] = A[i,j] * x[j]; z[i] = tanh(y[i]); D[i,k] = z[i] * W[k,j]", A=A, x=numbers(9), W=numbers(4, 5)))
    assert last.rstrip().endswith("every operand is dense, so torch computes it") and "def kernel(" in last


def test_an_unfused_part_has_a_reason() -> None:
    text = str(ns.explain("S[i,j] = A[i,j] * 2; D[i,j] = S[i,j] + B[i,j]", A=A, B=ns.from_torch(MATRIX.flip(1), ns.CSR)))
    assert "alone             not fused with the next part: D merges several sparse tensors" in text
    assert text.count("alone  ") == 1, "the last part has no next one"
    text_with_format = str(ns.explain("y[i] = A[i,j] * x[j]; z[i] = relu(y[i])", A=A, x=numbers(9), format=ns.Format("s")))
    assert "not fused with the next part: format=" in text_with_format and "is requested" in text_with_format


def test_operands_with_one_pattern_are_fused() -> None:
    text, B = "s[i] += A[i,j] * B[i,j]; D[i,j] = A[i,j] * (B[i,j] - s[i])", A.with_values(A.values.exp())
    assert "in one kernel" in str(ns.explain(text, A=A, B=B))
    assert "s merges several sparse tensors" in str(ns.explain(text, A=A, B=ns.from_torch(B.to_dense(), ns.CSR)))
    assert ns.evaluate(text, A=A, B=B).pattern is A.pattern


def test_fused_parts_have_no_reason_to_be_alone() -> None:
    parts = parse_program("y[i] = A[i,j] * x[j]; z[i] = relu(y[i]); s[k] = y[i] * B[i,k]")
    values = {"A": A, "x": numbers(9), "B": A}
    assert why_alone(parts, 0, values) == "y is read again later"
    assert why_alone(parts[:2], 0, values) is None and why_alone(parts[:2], 1, values) is None


def test_formats_stand_for_operands() -> None:
    text = str(ns.explain(ATTENTION, A=ns.CSR, Q="dense", K="dense", V="dense"))
    assert "evaluate in one kernel:" in text and "A: 1024x1024 (CSR), float32" in text
    alone = str(ns.explain(ATTENTION, A=ns.COO(2), Q="dense", K="dense", V="dense"))
    assert "in one kernel" not in alone and "A is stored as COO(2): fusion needs dense levels above a compressed one" in alone


def test_a_fused_function_is_explained_by_its_kernels() -> None:
    def gcn(A: Any, X: Any, W: Any, b: Any) -> Any:
        return torch.relu(A @ (X @ W) + b)

    fused = ns.fuse(gcn)
    text = str(fused.explain(A, *OPERANDS.values()))
    assert "gcn is this program:" in text and "evaluate in one kernel:" in text and "every operand is dense, so torch computes it" in text
    text_with_gradients = str(fused.explain(A, *(tensor.clone().requires_grad_() for tensor in OPERANDS.values())))
    assert "gradient          parts " in text_with_gradients


def test_values_passed_between_parts_are_explained() -> None:
    formats = {"A": ns.CSR, "X": "dense", "b": "dense"}
    text = str(ns.explain("D[i,k] = relu(A[i,j] * X[j,k] + b[k])", **formats))
    assert "2 statements share the loop over i" in text and "intermediate results: row_1 in registers" in text
    assert '"""D[i,k] = relu(A[i,j] * B[j,k] + C[k])\n' in text, "the header is the result's own assignment"
    text = str(ns.explain("T[i,k] = A[i,j] * X[j,k]; s[i] = T[i,k] * T[i,k]; D[i,k] = T[i,k] / s[i]", A=ns.CSR, X="dense"))
    assert "intermediate results: a row of T_row; the number s_value" in text
    header = text[text.index('"""') :].splitlines()
    assert header[:3] == [
        '"""C[i,k] = T_row[k] / s_value',
        "    where T_row[k] += A[i,j] * B[j,k]",
        "    where s_value += T_row[k] * T_row[k]",
    ]


@pytest.mark.parametrize("layout", ["csr", "coo", "csc"])
def test_native_sparse_tensors_are_fused_and_returned(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    native = {"csr": MATRIX.to_sparse_csr, "coo": MATRIX.to_sparse, "csc": MATRIX.t().to_sparse_csr().t}[layout]()
    softmax = "m[i] stored max= A[i,j]; E[i,j] = stored(A[i,j]) * exp(A[i,j] - m[i]); l[i] = E[i,j]; P[i,j] = E[i,j] / l[i]"
    if layout == "csc":
        softmax = softmax.replace("[i]", "[j]")
    text = str(ns.explain(softmax, A=native))
    assert "evaluate in one kernel:" in text and text.count("def kernel(") == 1
    fused = ns.evaluate(softmax, A=native)
    monkeypatch.setattr(steps, "group_from", lambda *_: None)
    unfused = ns.evaluate(softmax, A=native)
    assert type(fused) is torch.Tensor and fused.layout == unfused.layout == native.layout
    torch.testing.assert_close(fused.to_dense(), unfused.to_dense())


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_gradients_of_native_sparse_tensors_are_native(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ATTENTION.replace("S[i,j] = stored(A[i,j])", "S[i,j] = A[i,j]")
    gradients = []
    for _ in range(2):
        native = {"csr": MATRIX.to_sparse_csr, "coo": MATRIX.to_sparse}[layout]().requires_grad_()
        operands = {name: tensor.clone().requires_grad_() for name, tensor in HEADS.items()}
        ns.evaluate(text, A=native, **operands).square().sum().backward()
        assert native.grad.layout == native.layout
        gradients.append([native.grad.to_dense(), *(tensor.grad for tensor in operands.values())])
        monkeypatch.setattr(steps, "group_from", lambda *_: None)
    for fused, unfused in zip(*gradients, strict=True):
        torch.testing.assert_close(fused, unfused, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 0.02), (torch.bfloat16, 0.1)], ids=str)
def test_16_bits_are_fused_and_rounded_once(dtype: torch.dtype, tolerance: float) -> None:
    def gradients(dtype: torch.dtype) -> list[torch.Tensor]:
        operands = {name: tensor.to(torch.bfloat16).to(dtype).requires_grad_() for name, tensor in HEADS.items()}
        output = ns.evaluate(ATTENTION, A=A.to(dtype), **operands)
        output.float().square().sum().backward()
        assert output.dtype == dtype and all(tensor.grad.dtype == dtype for tensor in operands.values())
        return [output.detach().float(), *(tensor.grad.float() for tensor in operands.values())]

    assert "in one kernel" in str(ns.explain(ATTENTION, A=A, **{name: tensor.to(dtype) for name, tensor in HEADS.items()}))
    for gradient, reference in zip(gradients(dtype), gradients(torch.float32), strict=True):
        torch.testing.assert_close(gradient, reference, rtol=tolerance, atol=tolerance)


def test_a_boolean_pattern_is_fused_with_float_operands() -> None:
    operands = {name: tensor.clone().requires_grad_() for name, tensor in HEADS.items()}
    ones = A.with_values(torch.ones(A.nnz, dtype=torch.bool))
    assert "fused: kernel_" in str(ns.explain(ATTENTION, A=ones, **operands))
    torch.testing.assert_close(ns.evaluate(ATTENTION, A=ones, **operands), ns.evaluate(ATTENTION, A=A, **HEADS))
