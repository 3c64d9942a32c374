"""explain shows all stages: the expression, formats, each pass with its reason, and the source in its file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from compositions import compositions

import numscorch as ns
from numscorch.explanation.explanation import assumed
from numscorch.ir.notation import parse_stmt
from numscorch.machine import kernel_cache
from numscorch.runtime import plans

pytestmark = pytest.mark.usefixtures("plain")
PASSES = ("order_loops", "insert_workspaces", "tile", "vectorize", "parallelize")


@pytest.fixture
def A() -> ns.SparseTensor:
    return ns.from_torch(torch.eye(40, 30).to_sparse_csr())


def line(text: str, start: str) -> str:
    """The only line that starts with a word."""
    (row,) = [text_line for text_line in text.splitlines() if text_line.startswith(start)]
    return row


def test_expression_with_shapes_and_formats(A: ns.SparseTensor) -> None:
    text = str(ns.explain("ij,jk->ik", A, torch.ones(30, 20)))
    assert text.splitlines()[0] == "einsum ij,jk->ik"
    assert "  A: 40x30 (CSR), float32" in text
    assert "  B: 30x20 (dense), float32" in text
    assert line(text, "index notation").endswith("C[i,k] = A[i,j] * B[j,k]")


@pytest.mark.parametrize(
    ("expr", "others", "format", "text"),
    [
        ("ij,jk->ik", [(30, 5)], None, "C: dense   (rule 2: a factor is dense)"),
        ("ij,ij->ij", [(40, 30)], None, "C: CSR   (rule 1: same index set as A[i,j], whose pattern it keeps)"),
        ("ij->i", [], None, "B: dense   (Algorithm 4: a dimension is sparse if its unstored coordinates give 0)"),
        ("ij,ij->ij", [(40, 30)], "dense", "C: dense   (requested; the default is CSR: rule 1"),
        ("ij,ij->ij", [(40, 30)], "ss", "then converted to DCSR)"),
    ],
)
def test_inferred_format_and_its_rule(A: ns.SparseTensor, expr: str, others: list[tuple[int, ...]], format: str | None, text: str) -> None:
    explanation = str(ns.explain(expr, A, *(torch.ones(shape) for shape in others), format=format))
    assert text in line(explanation, "infer_format")


def test_each_pass_with_its_statement_and_reason(A: ns.SparseTensor) -> None:
    explained = ns.explain("ij,jk->ik", A, torch.ones(30, 20))
    assert tuple(step.name for step in explained.steps) == PASSES
    text = str(explained)
    rows = text.splitlines()
    for step in explained.steps:
        at = rows.index(line(text, step.name))
        assert rows[at].split(maxsplit=1)[1] == str(step.stmt)
        assert rows[at + 1].strip() == step.why
        assert step.why
        assert str(parse_stmt(str(step.stmt))) == str(step.stmt)


def test_the_compared_costs_are_shown() -> None:
    reason = next(step.why for step in ns.explain("ij,jk->ik", ns.CSR, ns.Format("dd")).steps if step.name == "order_loops")
    compared = re.findall(r"([ijk]{3}): ([\d.e+]+)", reason)
    assert len(compared) >= 2
    costs = [float(cost) for _, cost in compared]
    assert costs == sorted(costs)
    assert len({order for order, _ in compared}) == len(compared)


def test_operands_stored_in_another_format_are_named() -> None:
    text = str(ns.explain("ij,jk->ik", ns.Format("dd"), ns.CSR))
    assert "B stored as CSC" in text


def test_source_is_the_file_that_runs(A: ns.SparseTensor) -> None:
    explained = ns.explain("ij,j->i", A, torch.ones(30))
    assert isinstance(explained.path, Path)
    assert explained.path.read_text(encoding="utf-8") == explained.source
    assert explained.path.parent == kernel_cache.folder()
    assert explained.source in str(explained)
    assert line(str(explained), "source").endswith(str(explained.path))
    assert "def kernel(" in explained.source
    ns.einsum("ij,j->i", A, torch.ones(30))
    assert explained.generated.name in plans.PROCESS.kernels


def test_nothing_is_compiled_or_run(A: ns.SparseTensor, plain: pytest.MonkeyPatch) -> None:
    def build(source: object) -> None:
        raise AssertionError("explain must not build a kernel")

    plain.setattr(plans.PROCESS, "build", build)
    assert ns.explain("ij,jk,kl->il", A, torch.ones(30, 4), torch.ones(4, 5)).source


@pytest.mark.parametrize(
    ("expr", "formats"),
    [
        ("ij,j->i", (ns.CSR, ns.Format("d"))),
        ("ij,j->i", (ns.COO(2), "d")),
        ("ij,jk->ik", ("ss", "dd")),
        ("ijk,kl->ijl", (ns.CSF(3), ns.Format("dd"))),
        ("ijk,jl,kl->il", (ns.COO(3), ns.Format("dd"), ns.Format("dd", (1, 0)))),
        ("i,i->", (ns.Format("s"), ns.Format("s"))),
        ("ij,->ij", (ns.CSC, ns.Format(""))),
        ("ij,jk->ik", (ns.Format("sd"), ns.Format("dd"))),
    ],
)
def test_formats_stand_for_operands(expr: str, formats: tuple[ns.Format | str, ...]) -> None:
    text = str(ns.explain(expr, *formats))
    for name, fmt in zip("ABC", formats, strict=False):
        parsed = ns.Format(fmt) if isinstance(fmt, str) else fmt
        assert f"({parsed.name}), float32" in line(text, f"  {name}:")


def test_names_of_formats_have_the_operands_order() -> None:
    assert str(ns.explain("ijk,kl->ijl", "coo", "dense")) == str(ns.explain("ijk,kl->ijl", ns.COO(3), ns.Format("dd")))
    assert str(ns.explain("y[i] = A[i,j] * x[j]", A="CSF", x="dense")) == str(ns.explain("y[i] = A[i,j] * x[j]", A=ns.DCSR, x="d"))
    with pytest.raises(ns.FormatError, match="or a name, for this operand of order 1: coo, csf, dense"):
        ns.explain("ij,j->i", ns.CSR, "full")


def test_formats_and_tensors_mix(A: ns.SparseTensor) -> None:
    text = str(ns.explain("ij,jk->ik", ns.CSR, torch.ones(1024, 8)))
    assert "A: 1024x1024 (CSR)" in text
    with pytest.raises(ns.SizeError, match="index j has size 1024 in A but 30 in B"):
        ns.explain("ij,jk->ik", ns.CSR, torch.ones(30, 8))


def test_assumed_counts() -> None:
    assert assumed(ns.CSR).counts == (1024, 16 * 1024)
    assert assumed(ns.COO(2)).counts == (1024, 1024)
    assert assumed(ns.Format("d")).strides == (1,)
    assert assumed(ns.Format("dd", (1, 0))).strides == (1, 1024)


def test_native_tensors_are_explained(A: ns.SparseTensor) -> None:
    assert "A: 40x30 (CSR), float32" in str(ns.explain("ij,j->i", A.to_torch(), torch.ones(30)))


def test_the_repr_is_the_text(A: ns.SparseTensor) -> None:
    explained = ns.explain("ij,j->i", A, torch.ones(30))
    assert repr(explained) == str(explained)


def test_the_call_forms_of_einsum_are_explained(A: ns.SparseTensor) -> None:
    """explain takes the call forms of einsum."""
    expected = str(ns.explain("ij,j->i", A, torch.ones(30)))
    assert str(ns.explain("ij,j->i", [A, torch.ones(30)])) == expected
    assert "index notation" in str(ns.explain(A, [0, 1], torch.ones(30), [1], [0]))


def test_requests_that_torch_computes_are_not_explained() -> None:
    with pytest.raises(ns.UnsupportedError, match=r"every operand of 'ij,jk->ik' is dense: einsum hands it to torch.einsum"):
        ns.explain("ij,jk->ik", torch.ones(3, 4), torch.ones(4, 5))


@pytest.mark.parametrize(("expr", "operands"), [("ij,jk->iz", (ns.CSR, "dd")), ("ij->i", (ns.CSR, "dd")), ("ij,j->i", (ns.CSR, "dz"))])
def test_errors_are_those_of_einsum(expr: str, operands: tuple[object, ...]) -> None:
    with pytest.raises((ns.ExpressionError, ns.FormatError)):
        ns.explain(expr, *operands)


def test_statements_are_explained_part_by_part(plain: pytest.MonkeyPatch) -> None:
    explanation = ns.explain("D[i,j] = relu(A[i,k] * B[k,j]) + C[i,j] * x[j]", A=ns.CSR, B=ns.CSR, C=ns.CSR, x="d")
    text = str(explanation)
    first, second, third = (
        text.index(part) for part in ("A[i,k] * B[k,j] over", "relu(A[i,j]) + B[i,j] * C[j] over", "A: result 1, 1024x1024 (CSR)")
    )
    assert first < second < third
    assert explanation.source in text
    assert "A: result 1, 1024 (dense)" in str(ns.explain("y[i] = tanh(A[i,j] * x[j]) * b[i]", A=ns.CSR, x="d", b="s"))
    with pytest.raises(ns.ExpressionError, match="operands: B missing"):
        ns.explain("D[i,j] = A[i,j] + B[i,j]", A=ns.CSR)
    with pytest.raises(ns.UnsupportedError, match="every operand is dense, so torch computes it"):
        ns.explain("D[i,j] = A[i,j] + 1", A=torch.ones(2, 2))


@pytest.mark.parametrize("fmt", [fmt for fmt in compositions() if not fmt.is_dense], ids=lambda fmt: fmt.name)
def test_every_composition_can_stand_for_an_operand(fmt: ns.Format) -> None:
    """Each format is contracted with a vector along its last dimension, and with itself."""
    names = "ijkl"[: fmt.order]
    for expr, other in ((f"{names},{names[-1]}->{names[:-1]}", ns.Format("d")), (f"{names},{names}->", fmt)):
        text = str(ns.explain(expr, fmt, other))
        assert f"{assumed(fmt).format.name}), float32" in line(text, "  A:")
        assert text.count("def kernel(") == 1


def test_split_dimensions_are_explained_by_loop_variables() -> None:
    text = str(ns.explain("ij,jk->ik", ns.BCSR(4, 2), torch.ones(1024, 32)))
    rows = text.splitlines()
    at = rows.index(line(text, "index notation"))
    assert rows[at].endswith("C[i_out,k,i_in] = A[i_out,j_out,i_in,j_in] * B[j_out,j_in,k]")
    assert [row.strip() for row in rows[at + 1 : at + 3]] == ["i = 4 * i_out + i_in", "j = 2 * j_out + j_in"]
    assert "i_in i_out" in text
    assert "j_i = j - i + 1023" in str(ns.explain("ij,j->i", ns.DIA, "d"))
    nested = ns.Format("(i, j) -> (i // 4: dense, i % 4 // 2: dense, j: compressed, i % 2: dense)")
    assert "i = 4 * i_out + 2 * i_in1 + i_in\n" in str(ns.explain("ij,j->i", nested, "d"))


def test_operands_read_in_another_format_are_named() -> None:
    text = str(ns.explain("ij,ij->", ns.BCSR(2, 2), ns.BCSR(4, 4)))
    assert line(text, "  A:") == "  A: 1024x1024 (BCSR(2, 2)), float32, read as CSR"
    assert line(text, "  B:") == "  B: 1024x1024 (BCSR(4, 4)), float32, read as CSR"


def test_a_schedule_is_explained() -> None:
    text = str(ns.explain("ij,jk->ik", ns.CSR, "dense", schedule="reorder(i, k, j) parallelize()"))
    assert "forall(i, forall(k, " in text
    assert "requested: serial" in text
    with pytest.raises(ns.UnsupportedError, match="is an option of einsum"):
        ns.explain("y[i] = A[i,j]", A=ns.CSR, schedule="parallelize()")
    with pytest.raises(ns.ExpressionError, match="A: operands of einsum are positional"):
        ns.explain("ij->i", A=ns.CSR)


def kernel_names(explanation: ns.explanation.Explanation) -> set[str]:
    """Names of all kernels of an explanation and of its earlier parts."""
    names = [kernel_names(part) for part in explanation.before if isinstance(part, ns.explanation.Explanation)]
    return {explanation.generated.name}.union(*names)


def random_matrix(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> ns.SparseTensor:
    A = ns.rand(rows, columns, density=0.2, format=ns.CSR)
    return A.with_values(A.values > 0.3 if dtype == torch.bool else (A.values * 9).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(
    ("expr", "options"),
    [
        ("ij,jk->ik", {}),
        ("ij,jk->ik", {"reduce": "max"}),
        ("ij,jk->ik", {"mask": (40, 20)}),
        ("ij,jk->ik", {"reduce": "any", "mask": (40, 20)}),
        ("ij,jk->ik", {"schedule": "reorder(i, j, k) workspace(hash)"}),
        ("ij,jk->ik", {"format": "dense"}),
        ("ij,jk,kl->il", {}),
        ("ij,jk,kl->il", {"reduce": "max"}),
        ("ij->i", {}),
        ("ij->ji", {}),
    ],
)
def test_einsum_runs_the_explained_kernels(expr: str, options: dict[str, object], dtype: torch.dtype) -> None:
    sizes = {"i": 40, "j": 30, "k": 20, "l": 10}
    operands = [random_matrix(*(sizes[name] for name in term), dtype=dtype) for term in expr.split("->")[0].split(",")]
    if "mask" in options:
        options = options | {"mask": random_matrix(40, 20)}
    names = kernel_names(ns.explain(expr, *operands, **options))
    with plans.uncompiled():
        ns.einsum(expr, *operands, **options)
        assert names <= set(plans._tables().kernels)


@pytest.mark.parametrize("text", ["C[i,k] = A[i,j] * B[j,k]", "C[i,k] max= A[i,j] * B[j,k]", "C[i,j] = A[i,j] * A[i,j]"])
def test_evaluate_runs_the_explained_kernels_of_booleans(text: str) -> None:
    operands = {"A": random_matrix(40, 30, torch.bool)} | ({"B": random_matrix(30, 20, torch.bool)} if "B" in text else {})
    names = kernel_names(ns.explain(text, **operands))
    with plans.uncompiled():
        ns.evaluate(text, **operands)
        assert names <= set(plans._tables().kernels)


def test_an_einsum_that_is_refused_is_not_explained() -> None:
    A, B = random_matrix(40, 30, torch.bool), random_matrix(30, 20, torch.bool)
    for call in (ns.einsum, ns.explain):
        with pytest.raises(ns.UnsupportedError, match="only products of bool operands"):
            call("ij,jk->ik", A, B, reduce="prod")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.nn.Linear(2, 2), r"not Linear: give one of its products, as in explain\('ni,oi->no', x, layer\.weight\)"),
        (lambda A: A, r"not function: call ns\.fuse\(function\)\.explain\(\*arguments\)"),
    ],
)
def test_modules_and_functions_are_no_expressions(value: Any, text: str) -> None:
    with pytest.raises(ns.OperandError, match=text):
        ns.explain(value)
