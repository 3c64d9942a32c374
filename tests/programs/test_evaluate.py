"""Random statements compared with NumPy, and an example of each construct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from dense_values import as_dense
from scale import scaled
from statements import Statement, random_statement

import numscorch as ns
from numscorch.codegen import kernel
from numscorch.frontend.statements import parse_program
from numscorch.runtime import plans
from numscorch.schedule import tuning
from numscorch.tensors.validate import validate


def check(case: Statement) -> None:
    """Check that the result equals NumPy's, is valid, and has the requested format."""
    result = ns.evaluate(case.text, format=case.format, **case.operands)
    if isinstance(result, ns.SparseTensor):
        validate(result.pattern)
        assert case.format is None or result.format == case.format, str(case)
    dense = as_dense(result)
    np.testing.assert_array_equal(np.asarray(dense), case.expected, err_msg=str(case))


@pytest.mark.parametrize("part", range(10))
def test_random_statements_unjitted(part: int, fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setattr(plans.PROCESS, "build", kernel.build_plain)
    count = scaled(500)
    for seed in range(part * count, (part + 1) * count):
        fresh_plans.setattr(tuning, "PARALLEL_STEPS", 0 if seed % 2 else 1 << 15)
        fresh_plans.setattr(tuning, "BLOCKS", 1 + seed % 5)
        check(random_statement(seed))


@pytest.mark.parametrize("part", range(4))
def test_random_statements_compiled(part: int, fresh_plans: pytest.MonkeyPatch) -> None:
    count = scaled(25)
    for seed in range(10**6 + part * count, 10**6 + (part + 1) * count):
        fresh_plans.setattr(tuning, "PARALLEL_STEPS", 0 if seed % 4 == 0 else 1 << 15)
        check(random_statement(seed))


def matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * (torch.rand(rows, columns, generator=generator) < 0.4)


a, b, c, d = matrix(6, 5, 0), matrix(5, 7, 1), matrix(6, 7, 2), matrix(6, 7, 3)
x = torch.linspace(-1, 1, 7)
Dense = Callable[[], torch.Tensor]
EXAMPLES: dict[str, tuple[Dense, str | None]] = {
    "R[i,j] = C[i,j] + D[i,j]": (lambda: c + d, "CSR"),
    "R[i,j] = C[i,j] - 2 * D[i,j]": (lambda: c - 2 * d, "CSR"),
    "R[i,j] = -C[i,j]": (lambda: -c, "CSR"),
    "R[i,j] = C[i,j] * D[i,j]": (lambda: c * d, "CSR"),
    "R[i,j] = A[i,k] * B[k,j] + C[i,j]": (lambda: a @ b + c, "CSR"),
    "R[i,j] = A[i,k] * B[k,j] + C[i,j] + x[j]": (lambda: a @ b + c + x, None),
    "R[i,j] = relu(A[i,k] * B[k,j])": (lambda: torch.relu(a @ b), "CSR"),
    "R[i,j] = tanh(C[i,j]) * x[j]": (lambda: torch.tanh(c) * x, "CSR"),
    "R[i,j] = gelu(C[i,j])": (lambda: torch.nn.functional.gelu(c), "CSR"),
    "R[i,j] = sqrt(abs(C[i,j]))": (lambda: c.abs().sqrt(), "CSR"),
    "R[i,j] = erf(C[i,j])": (lambda: torch.erf(c), "CSR"),
    "R[i,j] = exp(C[i,j])": (lambda: c.exp(), None),
    "R[i,j] = sigmoid(C[i,j])": (lambda: c.sigmoid(), None),
    "R[i,j] = log(abs(C[i,j]) + 1)": (lambda: (c.abs() + 1).log(), "CSR"),
    "R[i,j] = C[i,j] / (abs(D[i,j]) + 1)": (lambda: c / (d.abs() + 1), "CSR"),
    "R[i,j] = maximum(C[i,j], D[i,j])": (lambda: torch.maximum(c, d), "CSR"),
    "R[i,j] = minimum(C[i,j], x[j])": (lambda: torch.minimum(c, x), None),
    "R[i,j] = where(D[i,j] > 0, C[i,j], 0)": (lambda: torch.where(d > 0, c, 0.0), "CSR"),
    "R[i,j] = (C[i,j] <= 0)": (lambda: (c <= 0).float(), None),
    "R[i] = (C[i,j] + D[i,j]) * x[j]": (lambda: (c + d) @ x, None),
    "R[i] max= C[i,j]": (lambda: c.amax(1), None),
    "R[j] min= C[i,j]": (lambda: c.amin(0), "s"),
    "R[i] *= C[i,j] + 1": (lambda: (c + 1).prod(1), None),
    "R[i] += exp(C[i,j])": (lambda: c.exp().sum(1), None),
    "R = C[i,j] * C[i,j]": (lambda: (c * c).sum(), None),
    "R[i,j] = C[i,j] / C[i,k]": (lambda: c / c.sum(1, keepdim=True), "CSR"),
    "R[i,j] = (-1 < C[i,j]) * (C[i,j] < D[i,j])": (lambda: ((c > -1) & (c < d)).float(), "CSR"),
    "R[i,j] = (C[i,j] < D[i,j]) < x[j]": (lambda: ((c < d).float() < x).float(), None),
    "R[i,j] = -C[i,j] ** 2": (lambda: -(c**2), "CSR"),
    "R[i,j] = 2 ** -C[i,j]": (lambda: 2**-c, None),
    "R[i,j] = C[i,j] % 0.3 // 0.1": (lambda: c % 0.3 // 0.1, "CSR"),
    "R[i,j] = +C[i,j] + +D[i,j]": (lambda: c + d, "CSR"),
    "R[i] = C[i,k] ** 2": (lambda: c.sum(1) ** 2, None),
    "R[i,j] = C[i,j] % (D[i,j] + 3) + D[i,j]": (lambda: c % (d + 3) + d, "CSR"),
    "R[i,j] = D[i,j] + C[i,j] % D[i,j]": (lambda: d + torch.where(c == 0, 0, c % d), "CSR"),
}


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.Format("sd")], ids=lambda f: f.name)
@pytest.mark.parametrize("text", EXAMPLES)
def test_example(text: str, fmt: ns.Format, plain: pytest.MonkeyPatch) -> None:
    expected, format_name = EXAMPLES[text]
    named: dict[str, Any] = {"A": a, "B": b, "C": c, "D": d}
    operands: dict[str, Any] = {name: ns.from_torch(value).to(fmt) for name, value in named.items() if f"{name}[" in text}
    operands |= {"x": x} if "x[" in text else {}
    result = ns.evaluate(text, **operands)
    if fmt == ns.CSR:
        assert (result.format.name if isinstance(result, ns.SparseTensor) else None) == format_name
    dense = as_dense(result)
    torch.testing.assert_close(dense.nan_to_num(), expected().nan_to_num())


REDUCTIONS: dict[str, Dense] = {
    "sum": lambda: c.sum(1),
    "mean": lambda: c.mean(1),
    "max": lambda: c.amax(1),
    "min": lambda: c.amin(1),
    "prod": lambda: c.prod(1),
    "any": lambda: (c != 0).any(1).float(),
    "all": lambda: (c != 0).all(1).float(),
}


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2)], ids=lambda f: f.name)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reduce(reduce: str, fmt: ns.Format, plain: pytest.MonkeyPatch) -> None:
    C = ns.from_torch(c).to(fmt)
    torch.testing.assert_close(ns.einsum("ij->i", C, reduce=reduce, format="dense"), REDUCTIONS[reduce]())
    torch.testing.assert_close(ns.einsum("ij->j", C.t().to(fmt), reduce=reduce, format="dense").shape, torch.Size([6]))


@pytest.mark.parametrize("second", [ns.CSR, ns.COO(2), None], ids=str)
@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.DCSR], ids=lambda f: f.name)
@pytest.mark.parametrize("name", ["min_plus", "max_plus", "or_and"])
def test_semirings(name: str, fmt: ns.Format, second: ns.Format | None, plain: pytest.MonkeyPatch) -> None:
    """The shortest path of two edges; an unstored edge is no path."""
    absent = {"min_plus": torch.inf, "max_plus": -torch.inf, "or_and": 0.0}[name]
    left = torch.where(a != 0, a, absent)
    right = b if second is None else torch.where(b != 0, b, absent)
    terms = left[:, :, None] + right[None]
    if name == "or_and":
        terms = ((a != 0)[:, :, None] & (b != 0)[None]).float()
    expected = terms.amin(1) if name == "min_plus" else terms.amax(1)
    A, B = ns.from_torch(a).to(fmt), b if second is None else ns.from_torch(b).to(second)
    torch.testing.assert_close(ns.einsum("ij,jk->ik", A, B, reduce=name, format="dense"), expected)
    stored = ns.einsum("ij,jk->ik", A, ns.from_torch(b, ns.CSR), reduce=name)
    if second is not None and isinstance(stored, ns.SparseTensor):
        stored_values = expected[tuple(stored.indices())]
        torch.testing.assert_close(stored.values, stored_values)


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR], ids=lambda f: f.name)
def test_mask(fmt: ns.Format, plain: pytest.MonkeyPatch) -> None:
    A, B, C = (ns.from_torch(value).to(fmt) for value in (a, b, c))
    result = ns.einsum("ij,jk->ik", A, B, mask=C)
    assert result.pattern is C.pattern
    torch.testing.assert_close(result.to_dense(), (a @ b) * (c != 0))
    torch.testing.assert_close(ns.einsum("ij,jk->ik", A, b, mask=C).to_dense(), (a @ b) * (c != 0))


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2)], ids=lambda f: f.name)
def test_diagonals(fmt: ns.Format, plain: pytest.MonkeyPatch) -> None:
    S = ns.from_torch(matrix(5, 5, 9)).to(fmt)
    diagonal, y = S.to_dense().diagonal(), torch.arange(5.0)
    torch.testing.assert_close(ns.evaluate("z[i] = S[i,i] + y[i]", S=S, y=y), diagonal + y)
    torch.testing.assert_close(ns.evaluate("z[i] = S[i,i] * y[i]", S=S, y=y), diagonal * y)


def test_parts() -> None:
    """A reduction is computed in the smallest part that contains its index."""
    parts = {text: [str(part.request.value) for part in parse_program(text)] for text in PARTS}
    assert parts == PARTS


PARTS = {
    "y[i] = A[i,j] * x[j]": ["A[i,j] * B[j]"],
    "y[i] = A[i,j] * x[j] + b[i]": ["A[i,j] * B[j]", "A[i] + B[i]"],
    "y[i] = A[i,j] * relu(B[j,k] * x[k])": ["A[j,k] * B[k]", "A[i,j] * relu(B[j])"],
    "y[i] = relu(A[i,j] * x[j]) * z[i]": ["A[i,j] * B[j]", "relu(A[i]) * B[i]"],
    "y[i] = exp(A[i,j])": ["A[i,j]", "exp(A[i])"],
    "y[i] += exp(A[i,j])": ["exp(A[i,j])"],
    "y[i] += A[i,j] + b[i]": ["A[i,j] + B[i]"],
    "y[i] max= A[i,j] + B[i,j]": ["A[i,j] + B[i,j]"],
    "y[i] = A[i,i] + b[i]": ["A[i,i] + B[i]"],
    "s = maximum(a[i], b[i])": ["maximum(A[i], B[i])"],
}
ERRORS = {
    "R[i,j] = C[i,k]": "index j is on the left side only, so its extent is unknown: pass it as an argument, such as j=5",
    "R[i,0] = C[i,j]": "the left side cannot be a slice such as R[:,0]",
    "R[i] = C[i,0,j]": "C[:,0,:] has 3 indices, but C has 2 dimensions",
    "R[i] = C[i,0:n]": "the bounds of a window are whole numbers, not names: write the number into the text, as in f'A[i,0:{n}:2]'",
    "R[i] = C[i,n:4]": "the bounds of a window are whole numbers, not names",
    "R[i,j] = C[i,j(n:4)]": "the bounds of a window are whole numbers, not names",
    "R[i] min plus= C[i,j]": "statements do not support semirings: use einsum, as in einsum('ij,jk->ik', A, B, reduce='min_plus')",
    "R[i] = C[i,0:4:0]": "the step of a window is positive",
    "R[i] = C[i,1.5]": "an index is a name, a whole number such as 0",
    "R[i,i] = C[i,j]": "the left side repeats an index",
    "R[i] = C[i,j] +": "expected more, found the end",
    "R[i] = sine(C[i,j])": "unknown function sine: use one of abs, acos,",
    "R[i,j] = C[i,j] < C[i,j] < C[i,j]": "comparisons are not chained: write (A[i] < B[i]) * (B[i] < C[i])",
    "R[i,j] = C[i,j] + 1 == C[i,j] != 0": "comparisons are not chained",
    f"R[i,j] = {' + '.join(['C[i,j]'] * 1000)}": "more than 200 operators in a row, or nested",
    f"R[i,j] = {'(' * 200}C[i,j]{')' * 200}": "nest more than 100 deep",
    f"R[i,j] = {'abs(' * 200}C[i,j]{')' * 200}": "nest more than 100 deep",
    f"R[i,j] = {' ** '.join(['C[i,j]'] * 200)}": "nest more than 100 deep",
    f"R[i] += {' + '.join(f'C[i,j{at}]' for at in range(26))}": "26 operands, but a statement has at most 25",
    "R[i] = maximum(C[i,j])": "maximum takes 2 arguments, not 1",
    "R[i] = C[i]": "C[i] has 1 indices, but C has 2 dimensions",
    "R[i] = C[i,j] * y[j]": "operands: y missing",
    "R[i] = 2 * x[i]": "operands: x missing",
    "forall(i, R[i] = C[i,j])": "a scheduled statement can't be evaluated",
}


@pytest.mark.parametrize("text", ERRORS)
def test_error(text: str) -> None:
    with pytest.raises(ns.ExpressionError) as error:
        ns.evaluate(text, C=ns.from_torch(c))
    assert ERRORS[text] in str(error.value)
    assert len(str(error.value).splitlines()) > 1


@pytest.mark.parametrize("fmt", [None, ns.CSR], ids=["dense", "CSR"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_errors_of_sizes_name_the_users_tensors(fmt: ns.Format | None, requires_grad: bool, plain: None) -> None:
    rows = c if fmt is None else ns.from_torch(c, fmt)
    tensors = {"left": rows, "vector": torch.ones(5, requires_grad=requires_grad), "bias": torch.ones(3)}
    for text, message in {
        "R[i] = left[i,j] * vector[j]": "index j has size 7 in left but 5 in vector\n  R[i] = left[i,j] * vector[j]     left: 6x7",
        "R[i] = left[i,j] * left[i,j] + bias[i]": "index i has size 6 in left[i,j] * left[i,j] but 3 in bias\n",
        "T[i] = left[i,j] * left[i,j]; R[i] = T[i] * bias[i]": "index i has size 6 in T but 3 in bias\n",
        "R[j,k] = left[i,j] * left[j,k]": "     did you mean left[k,j]?",
        "R[row] = left[row,col] * vector[col]": "index col has size 7 in left but 5 in vector\n",
        "R[row] = left[row,col] * left[row,col] + bias[row]": "index row has size 6 in left[row,col] * left[row,col] but 3 in bias\n",
        "R[c] = left[c,col] * vector[col]": "index col has size 7 in left but 5 in vector\n",
        "T[row] = left[row,col] * left[row,col]; R[row] = T[row] * bias[row]": "index row has size 6 in T but 3 in bias\n",
        "R[col,k] = left[row,col] * left[col,k]": "     did you mean left[k,col]?",
        "R[row] = left[row,row]": "index row takes the diagonal of left, whose sizes differ there: 6 and 7\n",
    }.items():
        named = {name: tensor for name, tensor in tensors.items() if f"{name}[" in text}
        with pytest.raises(ns.SizeError) as error:
            ns.evaluate(text, **named)
        assert message in str(error.value)
        if fmt is not None:
            with pytest.raises(ns.SizeError) as error:
                ns.explain(text, **named)
            assert message in str(error.value)


@pytest.mark.parametrize("fmt", [None, ns.CSR], ids=["dense", "CSR"])
def test_errors_of_dimensions_use_the_names_of_the_text(fmt: ns.Format | None, plain: None) -> None:
    left = c if fmt is None else ns.from_torch(c, fmt)
    with pytest.raises(ns.ExpressionError, match=r"left\[row,col,k\] has 3 indices, but left has 2 dimensions"):
        ns.evaluate("R[row] = left[row,col,k]", left=left)
    with pytest.raises(ns.ExpressionError, match=r"T\[row,col\] has 2 indices, but T is assigned with 1"):
        ns.evaluate("T[row] = left[row,col]; R[row] = T[row,col]", left=left)


def test_unknown_reduction() -> None:
    with pytest.raises(ns.ExpressionError, match="unknown reduction 'median': use one of sum, mean, max"):
        ns.einsum("ij->i", ns.from_torch(c), reduce="median")
    with pytest.raises(ns.UnsupportedError, match="mask must be sparse"):
        ns.einsum("ij,jk->ik", ns.from_torch(a), b, mask=c)


@pytest.mark.parametrize(
    ("text", "reduction"), [("y[i] max= maximum(A[i,j], x[j])", torch.amax), ("y[i] += maximum(A[i,j], x[j])", torch.sum)]
)
def test_terms_of_unstored_entries_count_if_they_are_not_0(text: str, reduction: Any) -> None:
    """Once, only stored entries of long rows were reduced."""
    full, x = torch.arange(420.0).sub(200).reshape(7, 60) * (torch.arange(60) % 3 == 0), torch.linspace(-1, 1, 60)
    A = ns.from_torch(full, ns.CSR)
    torch.testing.assert_close(ns.evaluate(text, A=A, x=x), reduction(torch.maximum(full, x), 1))


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2), None], ids=str)
def test_slices(fmt: ns.Format | None, plain: pytest.MonkeyPatch) -> None:
    C = c if fmt is None else ns.from_torch(c).to(fmt)
    expected = {
        "R[i] = C[i,0]": c[:, 0],
        "R[i] = C[i,-1] * C[i,1] + x[0]": c[:, -1] * c[:, 1] + x[0],
        "R[i,j] = C[i,j(1:)] - C[i,j(:-1)]": c.diff(dim=1),
        "R[i,j] = C[i(1:6:2),j]": c[1:6:2],
        "R[i] = C[i,1:7:3]": c[:, 1:7:3].sum(1),
        "R = C[2,3]": c[2, 3],
        "T[i,j] = C[i,j] * x[j]; R[i] = relu(T[i,0]) + T[i,1]": (c * x)[:, 0].relu() + (c * x)[:, 1],
        "R[row] max= C[row,column]": c.amax(1),
        "R[if] = C[if,pA2] * x[pA2]": c @ x,
    }
    for text, reference in expected.items():
        result = ns.evaluate(text, C=C, **({"x": x} if "x[" in text else {}))
        torch.testing.assert_close(as_dense(result), reference, msg=text)
    with pytest.raises(ns.RangeError, match=r"index 7 of C\[:,7\] is out of range along dim 1, whose size is 7"):
        ns.evaluate("R[i] = C[i,7]", C=C)


def test_slices_have_gradients(plain: pytest.MonkeyPatch) -> None:
    full = c.clone().requires_grad_()
    values = ns.from_torch(c, ns.CSR).values.requires_grad_()
    for C in (full, ns.from_torch(c, ns.CSR).with_values(values)):
        ns.evaluate("R[i,j] = C[i,0] * C[i,j(1:)]", C=C).to_dense().sum().backward()
    torch.testing.assert_close(ns.from_torch(c, ns.CSR).with_values(values.grad).to_dense(), full.grad * (c != 0))


def test_an_index_on_the_left_side_only_is_broadcast(plain: pytest.MonkeyPatch) -> None:
    b, C = torch.arange(6.0), ns.from_torch(c, ns.CSR)
    torch.testing.assert_close(ns.evaluate("R[i,j] = b[i]", b=b, j=4), b[:, None].expand(6, 4))
    torch.testing.assert_close(ns.evaluate("R[k,i] = C[i,j] + b[i]", C=C, b=b, k=2), (c.sum(1) + b).expand(2, 6))
    torch.testing.assert_close(ns.evaluate("R[i,j] = 2", i=2, j=3), torch.full((2, 3), 2.0))
    torch.testing.assert_close(ns.evaluate("R[i,wide] max= C[i,j]", C=C, wide=2), c.amax(1)[:, None].expand(6, 2))
    assert ns.evaluate("R[i,j] = C[i,k]", C=C.to(torch.int64), j=2).dtype == torch.int64
    for size in (2.5, -1, b):
        with pytest.raises(ns.ExpressionError, match="is its size, a whole number, not"):
            ns.evaluate("R[i,j] = b[i]", b=b, j=size)


def test_explanations_of_slices() -> None:
    assert "A: C[:,0], 6 (" in str(ns.explain("R[i] = C[i,0] * b[i]", C=ns.from_torch(c, ns.CSR), b=torch.ones(6)))
    with pytest.raises(ns.UnsupportedError, match="is a slice of C, and formats have no slices; got a Format: give a tensor as C"):
        ns.explain("R[i] = C[i,0]", C=ns.CSR)


DEEP = {"terms": " + ".join(["C[i,j]"] * 200), "calls": f"{'relu(' * 98}C[i,j]{')' * 98}", "powers": f"C[i,j]{' ** 1' * 98}"}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_expressions_up_to_the_limits_have_gradients(text: str, plain: pytest.MonkeyPatch) -> None:
    values = torch.rand(int((c != 0).sum()), requires_grad=True)
    C = ns.from_torch(c, ns.CSR).with_values(values)
    ns.evaluate(f"R[i] = ({text}) * x[j]", C=C, x=x).sum().backward()
    assert values.grad is not None
    assert torch.isfinite(values.grad).all()


@pytest.mark.usefixtures("plain")
def test_sizes_of_indices_are_integers_of_any_type() -> None:
    """Sizes may be integers of Python or NumPy, or tensors without dimensions; errors do not print whole tensors."""
    A = ns.from_torch(torch.tensor([[1.0, 0.0], [2.0, 3.0]]), ns.CSR)
    for size in (2, np.int64(2), torch.tensor(2)):
        assert ns.evaluate("y[i,j] = A[i,k]", A=A, j=size).tolist() == [[1.0, 1.0], [5.0, 5.0]]
    wrong = {"'3'": "3", "None": None, "True": True, "-1": -1, "2.0": 2.0, "a Tensor": torch.ones(1000), "a list": [3]}
    for description, size in wrong.items():
        with pytest.raises(ns.ExpressionError, match=f"j= is its size, a whole number, not {description}\n"):
            ns.evaluate("y[i,j] = A[i,k]", A=A, j=size)


@pytest.mark.parametrize("op", ["=", "+=", "max=", "min=", "*="])
@pytest.mark.parametrize("left", ["y", "y[i]", "y[j]", "y[i,j]"])
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0), (3, 4)], ids=str)
def test_dense_statements_without_elements_equal_sparse_ones(shape: tuple[int, int], left: str, op: str, plain: None) -> None:
    D, text = torch.ones(shape), f"{left} {op} A[i,j] * 2"
    dense, sparse = (ns.evaluate(text, A=A) for A in (D, ns.from_torch(D, "(i, j) -> (i: dense, j: dense)")))
    compressed = ns.evaluate(text, A=ns.from_torch(D, ns.CSR), format="dense") if op in ("=", "+=") else dense
    for result in (sparse, compressed):
        assert torch.equal(as_dense(result), dense)
    terms = D.sum() if left == "y" else D.sum(1) if left == "y[i]" else D.sum(0) if left == "y[j]" else D
    if op in ("=", "+="):
        assert torch.equal(dense, 2 * terms)


@pytest.mark.parametrize("numbers", [(0.0, -0.0), (-0.0, 0.0)])
@pytest.mark.parametrize("format", [None, ns.CSR], ids=str)
def test_the_sign_of_zero_is_part_of_a_number(format: ns.Format | None, numbers: tuple[float, float], plain: pytest.MonkeyPatch) -> None:
    D = torch.tensor([[0.0, 2.0], [-3.0, 0.0]])
    A = D if format is None else ns.from_torch(D, format)
    for number in numbers:
        result = ns.evaluate(f"R[i,j] = copysign(A[i,j], {number})", A=A)
        full = as_dense(result)
        assert torch.equal(full, torch.copysign(D, number))


@pytest.mark.parametrize("format", ["CSR", "DCSR"])
def test_a_sparse_vector_beside_rows_that_are_merged_without_branches(format: str, interpreted: None) -> None:
    """Whether the outer loop has an entry of the vector is a truth value, not a mask of bits."""
    full = torch.tensor([[0.5, 0.0, 0.3], [0.0, 0.7, 0.0]])
    A, r = ns.from_torch(full, format), ns.from_torch(torch.tensor([0.5, 0.7]), "s")
    T = A.with_values(torch.ones(3))
    assert ns.evaluate("y[i] = T[i,j] * (A[i,j] == r[i])", A=A, T=T, r=r, format="dense").tolist() == [1.0, 1.0]
