"""Plans: einsums bound to formats, data types and shapes of operands."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import numscorch as ns
from numscorch.interface import bound
from numscorch.programs import fitting
from numscorch.schedule import tuning

pytestmark = pytest.mark.usefixtures("interpreted")

GENERATOR = torch.Generator().manual_seed(0)
D = torch.randn(6, 6, generator=GENERATOR) * (torch.rand(6, 6, generator=GENERATOR) < 0.5)
E = torch.randn(6, 6, generator=GENERATOR) * (torch.rand(6, 6, generator=GENERATOR) < 0.3)
X = torch.randn(6, 4, generator=GENERATOR)
x = torch.randn(6, generator=GENERATOR)
A, B, C = ns.from_torch(D, ns.CSR), ns.from_torch(E, ns.CSR), ns.from_torch(D, ns.CSC)
NATIVE = D.to_sparse_csr()


def as_dense(result: Any) -> torch.Tensor:
    dense: torch.Tensor = result if type(result) is torch.Tensor and result.layout is torch.strided else result.to_dense()
    return dense


@pytest.fixture
def without_einsum(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Function after whose call plans must not fall back to einsum."""

    def refuse(*operands: Any, **options: Any) -> None:
        raise AssertionError("einsum was called")

    yield lambda: monkeypatch.setattr(bound, "einsum", refuse)


LARGE = ns.from_torch(torch.randn(200, 200, generator=GENERATOR) * (torch.rand(200, 200, generator=GENERATOR) < 0.05), ns.CSR)

CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "SpMV": ("ij,j->i", (A, x), {}),
    "SpMM": ("ij,jk->ik", (A, X), {}),
    "CSC": ("ij,jk->ik", (C, X), {}),
    "COO": ("ij,jk->ik", (ns.from_torch(D, ns.COO(2)), X), {}),
    "blocks": ("ij,jk->ik", (ns.from_torch(D, ns.BCSR(2, 3)), X), {}),
    "a strided operand": ("ij,jk->ik", (A, X.t().contiguous().t()), {}),
    "an implicit result": ("ij,jk", (A, X), {}),
    "sublists": (A, ([0, 1], X, [1, 2], [0, 2]), {}),
    "one operand": ("ij->i", (A,), {}),
    "a transpose": ("ij->ji", (A,), {}),
    "a kept pattern": ("ij,ik,jk->ij", (A, X, X), {}),
    "a new pattern": ("ij,jk->ik", (A, B), {}),
    "one operand twice": ("ij,ij->ij", (A, A), {}),
    "a scalar": ("ij,ij->", (A, B), {}),
    "a chain": ("ij,jk,kl->il", (A, B, X), {}),
    "pairs": ("ij,jk,kl->il", (LARGE, LARGE, torch.randn(200, 2, generator=GENERATOR)), {}),
    "a dense format": ("ij,jk->ik", (A, B), {"format": "dense"}),
    "another format": ("ij,jk->ik", (A, B), {"format": ns.CSC}),
    "a format's text": ("ij,jk->ik", (A, B), {"format": "CSR"}),
    "max": ("ij,jk->ik", (A, X), {"reduce": "max"}),
    "mean": ("ij,jk->ik", (A, X), {"reduce": "mean"}),
    "a semiring": ("ij,jk->ik", (A, X), {"reduce": "min_plus"}),
    "a diagonal's max": ("ii->i", (A,), {"reduce": "max"}),
    "a mask": ("ij,kj->ik", (X, X), {"mask": A}),
    "an operand as mask": ("ij,jk->ik", (A, B), {"mask": A}),
    "torch's mask": ("ij,jk->ik", (A, B), {"mask": NATIVE}),
    "a full mask": ("ij,jk->ik", (A, D), {"mask": ns.from_torch(torch.ones(6, 6), ns.Format("dd"))}),
    "a schedule": ("ij,jk->ik", (A, X), {"schedule": "reorder(i, k, j)"}),
    "no sparse operand": ("ij,jk->ik", (D, X), {}),
    "two data types": ("ij,jk->ik", (A, X.double()), {}),
    "bool": ("ij,jk->ik", (A > 0, X > 0), {}),
    "integers": ("ij->i", (A.to(torch.int32),), {}),
    "16 bits": ("ij,jk->ik", (A.to(torch.bfloat16), X.bfloat16()), {}),
    "complex": ("ij,jk->ik", (A.to(torch.complex64), X.to(torch.complex64).conj()), {}),
    "a dense SparseTensor": ("ij,jk->ik", (A, ns.from_torch(X, ns.Format("dd"))), {}),
    "a parameter": ("ij,jk->ik", (ns.nn.Parameter(A, requires_grad=False), X), {}),
    "torch's CSR": ("ij,jk->ik", (NATIVE, X), {}),
    "torch's COO": ("ij,jk->ik", (D.to_sparse_coo(), X), {}),
    "torch's CSR, kept": ("ij,ij->ij", (NATIVE, D), {}),
    "torch's uncoalesced COO": ("ij,jk->ik", (torch.sparse_coo_tensor([[0, 0, 5], [1, 1, 2]], [1.0, 2.0, 3.0], (6, 6)), X), {}),
    "torch's BSR": ("ij,jk->ik", (D.to_sparse_bsr((2, 3)), X), {}),
    "a batch": ("bij,bjk->bik", (torch.stack([D, D]).to_sparse_csr(), torch.stack([X, X])), {}),
    "no entries": ("ij,jk->ik", (ns.from_torch(torch.zeros(6, 6), ns.CSR), X), {}),
    "no columns": ("ij,jk->ik", (A, X[:, :0]), {}),
    "a column": ("ij,jk->ik", (A, X[:, 1:2]), {}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:.* stores .* values for")
def test_results_are_einsums(name: str) -> None:
    expr, operands, options = CASES[name]
    expected = ns.einsum(expr, *operands, **options)
    plan = ns.plan(expr, *operands, **options)
    args = (A, X) if name == "sublists" else operands
    for _ in range(3):
        result = plan(*args)
        assert type(result) is type(expected)
        assert result.dtype == expected.dtype
        assert getattr(result, "layout", None) == getattr(expected, "layout", None)
        assert not isinstance(result, ns.SparseTensor) or result.format == expected.format
        torch.testing.assert_close(as_dense(result), as_dense(expected), equal_nan=True)
    assert plan.result is not None
    assert plan.result.shape == expected.shape
    assert str(plan.result.dtype).removeprefix("torch.") in repr(plan)


ELSEWHERE = ("mean", "a diagonal's max", "no sparse operand", "two data types", "bool", "16 bits", "another format", "torch's CSR, kept")
ELSEWHERE += ("torch's uncoalesced COO", "a dense SparseTensor", "a parameter", "integers", "a transpose")


@pytest.mark.parametrize("name", [name for name in CASES if name not in ELSEWHERE])
@pytest.mark.filterwarnings("ignore:.* stores .* values for")
def test_warm_calls_run_the_kernel_directly(name: str, without_einsum: Callable[[], None]) -> None:
    expr, operands, options = CASES[name]
    plan, args = ns.plan(expr, *operands, **options), (A, X) if name == "sublists" else operands
    expected = plan(*args)
    without_einsum()
    torch.testing.assert_close(as_dense(plan(*args)), as_dense(expected), equal_nan=True)


def test_the_kernel_is_compiled_by_plan_and_nothing_is_computed(without_einsum: Callable[[], None]) -> None:
    without_einsum()
    plan = ns.plan("ij,jk->ik", A, X)
    torch.testing.assert_close(plan(A, X), D @ X)


def test_other_patterns_fit(without_einsum: Callable[[], None]) -> None:
    plan = ns.plan("ij,jk->ik", A, X)
    generator = torch.Generator().manual_seed(1)
    dense = [torch.randn(6, 6, generator=generator) * (torch.rand(6, 6, generator=generator) < share) for share in (0, 0.1, 0.5, 0.9, 1)]
    tensors = [ns.from_torch(full, ns.CSR) for full in dense]
    assert len({tensor.pattern.signature for tensor in tensors}) > 2
    for _ in range(2):
        for tensor, full in zip(tensors, dense, strict=True):
            torch.testing.assert_close(plan(tensor, X), full @ X)
        without_einsum()


def test_shared_and_distinct_patterns_have_separate_plans(without_einsum: Callable[[], None]) -> None:
    plan, doubled = ns.plan("ij,ij->ij", A, A), A.with_values(2 * A.values)
    equal = ns.SparseTensor(copy.copy(ns.from_torch(D, ns.CSR).pattern), A.values)
    assert equal.pattern is not A.pattern
    for _ in range(2):
        torch.testing.assert_close(plan(A, A).to_dense(), D * D)
        torch.testing.assert_close(plan(A, doubled).to_dense(), 2 * D * D)
        torch.testing.assert_close(plan(A, equal).to_dense(), D * D)
        torch.testing.assert_close(plan(A, B).to_dense(), D * E)
        without_einsum()


def test_matrices_with_long_rows_have_a_separate_plan(fresh_plans: pytest.MonkeyPatch) -> None:

    fresh_plans.setattr(tuning, "LONG_ROW_ENTRIES", 1 << 6)
    even, long = torch.zeros(200, 200), torch.zeros(200, 200)
    even[:, 0], long[3], long[5, 7] = 1, 2, 3
    operands = [ns.from_torch(dense, ns.CSR) for dense in (even, long)]
    assert [dense.pattern.has_long_rows for dense in operands] == [False, True]
    plan, vector = ns.plan("ij,j->i", operands[0], torch.ones(200)), torch.rand(200)
    for _ in range(2):
        torch.testing.assert_close(plan(operands[0], vector), even @ vector)
        torch.testing.assert_close(plan(operands[1], vector), long @ vector)


def test_kinds_of_calls_take_turns(without_einsum: Callable[[], None]) -> None:
    """Calls with other strides, native tensors and inference mode are fast after their first call."""
    plan, columns = ns.plan("ij,jk->ik", A, X), X.t().contiguous().t()
    for _ in range(3):
        for first in (A, NATIVE):
            torch.testing.assert_close(plan(first, X), D @ X)
            torch.testing.assert_close(plan(first, columns), D @ X)
        without_einsum()


def test_calls_with_other_strides_share_a_fitting(without_einsum: Callable[[], None]) -> None:
    plan, wide = ns.plan("ij,jk->ik", A, X), torch.empty(6, 40)
    for _ in range(2):
        for step in range(1, 11):
            strided = wide[:, : 4 * step : step].copy_(X)
            torch.testing.assert_close(plan(A, strided), D @ X)
        without_einsum()
    assert len(plan._fittings.known) == 1


def test_the_number_of_cached_patterns_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MOST_PLANS", 2)
    plan = ns.plan("ij,j->i", A, x)
    for rows in range(7):
        dense = D.clone()
        dense[rows:] = 0
        torch.testing.assert_close(plan(ns.from_torch(dense, ns.CSR), x), dense @ x)
    assert len(plan._fittings.known[0].plans) == 2


def test_modes_of_torch(without_einsum: Callable[[], None]) -> None:
    plan = ns.plan("ij,jk->ik", A, X)
    weight = torch.nn.Parameter(X.clone())
    for _ in range(2):
        torch.testing.assert_close(plan(A, X), D @ X)
        with torch.no_grad():
            torch.testing.assert_close(plan(A, X), D @ X)
            torch.testing.assert_close(plan(A, weight), D @ X)
            torch.testing.assert_close(plan(A, weight[:]), D @ X)
        with torch.inference_mode():
            torch.testing.assert_close(plan(A, X), D @ X)
            torch.testing.assert_close(plan(A, X.clone()), D @ X)
        without_einsum()


def test_tensors_that_are_wrapped_at_each_call() -> None:
    uncoalesced, plan = CASES["torch's uncoalesced COO"][1][0], ns.plan("ij,jk->ik", *CASES["torch's uncoalesced COO"][1])
    with torch.inference_mode():
        inferred = D.to_sparse_csr()
        of_inferred = ns.plan("ij,jk->ik", inferred, X)
        for _ in range(3):
            torch.testing.assert_close(of_inferred(inferred, X), D @ X)
            torch.testing.assert_close(plan(uncoalesced, X), uncoalesced.to_dense() @ X)
    assert not plan._fittings.known
    assert not of_inferred._fittings.known


def test_autocast() -> None:
    plan = ns.plan("ij,jk->ik", A, X)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            result = plan(A, X)
            assert result.dtype == torch.bfloat16
            assert torch.equal(result, ns.einsum("ij,jk->ik", A, X))
    assert plan(A, X).dtype == torch.float32


def test_gradients() -> None:
    plan, values, weight = ns.plan("ij,jk->ik", A, X), A.values.clone().requires_grad_(), X.clone().requires_grad_()
    for _ in range(2):
        values.grad = weight.grad = None
        plan(A.with_values(values), weight).square().sum().backward()
        expected_values, expected_weight = A.values.clone().requires_grad_(), X.clone().requires_grad_()
        ns.einsum("ij,jk->ik", A.with_values(expected_values), expected_weight).square().sum().backward()
        assert torch.equal(values.grad, expected_values.grad)
        assert torch.equal(weight.grad, expected_weight.grad)
    assert not plan(A, X).requires_grad
    assert plan(A, weight).requires_grad
    with pytest.raises(ns.UnsupportedError, match="no_grad"):
        plan(A, weight, out=torch.empty(6, 4))


@pytest.mark.parametrize("of_values", [False, True])
@pytest.mark.parametrize("of_dense", [False, True])
def test_gradients_flow_after_calls_without_gradients(of_values: bool, of_dense: bool, without_einsum: Callable[[], None]) -> None:
    plan, first = ns.plan("ij,jk->ik", A, X), A.with_values(A.values.clone().requires_grad_(of_values))
    weights = [torch.nn.Parameter(X.clone()), X.clone().requires_grad_()] if of_dense else [X]
    for second in weights:
        for _ in range(2):
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    assert not plan(first, second).requires_grad
            assert plan(first, second).requires_grad == (of_values or of_dense)
    without_einsum()
    for second in weights:
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                torch.testing.assert_close(plan(first, second), D @ X)


def test_a_plan_of_operands_that_require_grad(without_einsum: Callable[[], None]) -> None:
    plan = ns.plan("ij,jk->ik", A.with_values(A.values.clone().requires_grad_()), X.clone().requires_grad_())
    assert plan(A, X.clone().requires_grad_()).requires_grad
    assert "2x" not in repr(plan)
    torch.testing.assert_close(plan(A, X), D @ X)
    without_einsum()
    torch.testing.assert_close(plan(A, X), D @ X)


def test_gradients_of_torchs_tensors() -> None:
    leaf = NATIVE.clone().requires_grad_()
    plan = ns.plan("ij,jk->ik", NATIVE, X)
    torch.testing.assert_close(plan(NATIVE, X), D @ X)
    plan(leaf, X).sum().backward()
    torch.testing.assert_close(leaf.grad.to_dense(), (torch.ones(6, 4) @ X.t()) * (D != 0))
    with torch.no_grad():
        assert not plan(leaf, X).requires_grad


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch uses torch.jit, which is deprecated
def test_tangents() -> None:
    plan = ns.plan("ij,jk->ik", A, X)
    plan(A, X)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(plan(A, forward_ad.make_dual(X, 2 * X))).tangent
    torch.testing.assert_close(tangent, 2 * D @ X)


def test_vmap_and_other_transforms() -> None:
    plan, batch = ns.plan("ij,j->i", A, x), torch.randn(3, 6)
    plan(A, x)
    torch.testing.assert_close(torch.vmap(lambda row: plan(A, row))(batch), batch @ D.t())
    values = torch.stack([A.values, 2 * A.values])
    torch.testing.assert_close(torch.vmap(lambda v: plan(A.with_values(v), x))(values), torch.stack([D, 2 * D]) @ x)
    torch.testing.assert_close(torch.vmap(lambda row: row + plan(A, x))(batch), batch + D @ x)
    torch.testing.assert_close(torch.func.grad(lambda row: plan(A, row).sum())(x), D.sum(0))
    torch.testing.assert_close(torch.vmap(lambda row: ns.plan("ij,j->i", A, row)(A, row))(batch), batch @ D.t())


def test_in_place_changes_of_operands_are_detected() -> None:
    plan, square = ns.plan("ij,jk->ik", A, D), torch.empty(6, 6).copy_(D)
    torch.testing.assert_close(plan(A, square), D @ D)
    torch.testing.assert_close(plan(A, square.t_()), D @ D.t())
    square.as_strided_((6, 3), (1, 6))
    with pytest.raises(ns.SizeError, match="6x3"):
        plan(A, square)
    operand = ns.from_torch(D, ns.CSR)
    operand.values = 2 * operand.values
    torch.testing.assert_close(plan(operand, D), 2 * D @ D)
    operand.values.requires_grad_()
    assert plan(operand, D).requires_grad
    operand.values = operand.values.detach().double()
    with pytest.raises(ns.OperandError, match="float64"):
        plan(operand, D)


def test_out(without_einsum: Callable[[], None]) -> None:
    plan, out = ns.plan("ij,jk->ik", A, X), torch.empty(6, 4)
    entrywise = ns.plan("ij,ij->ij", A, D)
    without_einsum()
    assert plan(A, X, out=out) is out
    torch.testing.assert_close(out, D @ X)
    target = A.with_values(torch.zeros_like(A.values))
    assert entrywise(A, D, out=target) is target
    torch.testing.assert_close(target.to_dense(), D * D)
    with pytest.raises(ns.SizeError, match=r"out has shape \(4, 6\)"):
        plan(A, X, out=torch.empty(4, 6))
    with pytest.raises(ns.UnsupportedError, match=r"but the result has torch\.float32"):
        plan(A, X, out=torch.empty(6, 4, dtype=torch.int32))


@pytest.mark.parametrize("name", ["max", "a semiring", "mean", "a mask", "pairs", "two data types", "no sparse operand"])
def test_out_of_other_requests(name: str) -> None:
    expr, operands, options = CASES[name]
    plan, expected = ns.plan(expr, *operands, **options), ns.einsum(expr, *operands, **options)
    for _ in range(2):
        out = torch.empty(expected.shape, dtype=expected.dtype)
        assert plan(*operands, out=out) is out
        torch.testing.assert_close(out, as_dense(expected), equal_nan=True)


BOTH = r"operand B .*\n  plan .*B: 6x4 \(dense, float32\)\n  given .*B: 6x3 .*ns.plan\('ij,jk->ik', A, B\)"
MISFITS: dict[str, tuple[tuple[Any, ...], type[Exception], str]] = {
    "shape": ((A, X[:, :3]), ns.SizeError, BOTH),
    "rank": ((A, x), ns.SizeError, r"B: 6 \(dense, float32\)"),
    "data type": ((A, X.double()), ns.OperandError, r"given .*float64.*\.to\(torch.float32\)"),
    "data type of values": ((A.to(torch.float64), X), ns.OperandError, r"operand A .*\n.*\n  given   A: 6x6 \(CSR, float64\)"),
    "format": ((C, X), ns.FormatError, r"operand A .*\n  plan    A: 6x6 \(CSR.*\n  given   A: 6x6 \(CSC.*\.to\(format\)"),
    "format of torch's": ((D.to_sparse_coo(), X), ns.FormatError, r"COO\(2\)"),
    "a dense one": ((D, X), ns.FormatError, r"given   A: 6x6 \(dense, float32\).*ns.from_torch\(A, format\)"),
    "a sparse one": ((A, ns.from_torch(X)), ns.FormatError, r"given .*B: 6x4 \(CSR, float32\).*\.to_dense\(\)"),
    "device": ((A, X.to("meta")), ns.OperandError, r"on meta.*\.cpu\(\)"),
    "order": ((X, A), ns.SizeError, "pass the operands in the order A, B"),
    "too few": ((A,), ns.ExpressionError, "takes 2 operands, not 1"),
    "none": ((), ns.ExpressionError, "takes 2 operands, not 0"),
    "too many": ((A, X, X), ns.ExpressionError, "takes 2 operands, not 3"),
    "no tensor": ((A, 2.0), ns.OperandError, "not float"),
    "None": ((A, None), ns.OperandError, "not NoneType"),
    "an array": ((A, X.numpy()), ns.OperandError, "from_numpy"),
}


@pytest.mark.parametrize("name", MISFITS)
@pytest.mark.parametrize("is_warm", [False, True])
def test_misfits_show_both(name: str, is_warm: bool) -> None:
    plan, (operands, error, message) = ns.plan("ij,jk->ik", A, X), MISFITS[name]
    if not is_warm:
        plan = pickle.loads(pickle.dumps(plan))
    with pytest.raises(error, match=re.compile(message, re.DOTALL)) as caught:
        plan(*operands)
    assert isinstance(caught.value, ns.NumscorchError)
    torch.testing.assert_close(plan(A, X), D @ X)


def test_more_operands_than_letters() -> None:
    plan = ns.plan("ij,jk->ik", A, X)
    with pytest.raises(ns.ExpressionError, match="not 40"):
        plan(*[A] * 40)


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "text": (lambda: ns.plan("ij,jk=>ik", A, X), ns.ExpressionError, "arrow"),
    "rank": (lambda: ns.plan("ij,jkl->ik", A, X), ns.ExpressionError, "jkl"),
    "number": (lambda: ns.plan("ij,jk->ik", A), ns.ExpressionError, "2 terms for 1"),
    "nothing": (lambda: ns.plan("ij,jk->ik"), ns.ExpressionError, "operands"),
    "sizes": (lambda: ns.plan("ij,jk->ik", A, torch.ones(5, 2)), ns.SizeError, "index j"),
    "sizes of dense operands": (lambda: ns.plan("ij,jk->ik", D, torch.ones(5, 2)), ns.SizeError, "index j"),
    "sizes of two data types": (lambda: ns.plan("ij,jk->ik", A, torch.ones(5, 2).double()), ns.SizeError, "index j"),
    "sizes of a chain": (lambda: ns.plan("ij,jk,kl->il", A, A, torch.ones(5, 2)), ns.SizeError, "index k"),
    "no tensor": (lambda: ns.plan("ij,j->i", A, 3), ns.OperandError, "int"),
    "a format": (lambda: ns.plan("ij,j->i", ns.CSR, x), ns.OperandError, "formats"),
    "reduction": (lambda: ns.plan("ij,j->i", A, x, reduce="median"), ns.ExpressionError, "median"),
    "mask": (lambda: ns.plan("ij,jk->ik", A, A, mask=ns.from_torch(X)), ns.SizeError, "mask"),
    "a dense mask": (lambda: ns.plan("ij,jk->ik", A, A, mask=D), ns.UnsupportedError, "sparse"),
    "schedule": (lambda: ns.plan("ij,j->i", A, x, schedule="parallelize(k)"), ns.ScheduleError, "k"),
    "result": (lambda: ns.plan("ij,jk->ik", A, A, format=ns.COO(3)), ns.FormatError, "3 dimensions"),
    "statement": (lambda: ns.plan("y[i] = A[i,j] * x[j]", A, x), ns.ExpressionError, "evaluate"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_plan_refuses_what_einsum_refuses(name: str) -> None:
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", [name for name in CASES if name != "sublists"])
@pytest.mark.filterwarnings("ignore:.* stores .* values for")
def test_pickles_and_copies(name: str) -> None:
    expr, operands, options = CASES[name]
    plan = ns.plan(expr, *operands, **options)
    expected = as_dense(plan(*operands))
    for duplicate in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan), copy.copy(plan)):
        assert repr(duplicate) == repr(plan)
        assert not duplicate._fittings.known
        for _ in range(2):
            torch.testing.assert_close(as_dense(duplicate(*operands)), expected, equal_nan=True)


def test_a_plan_keeps_no_operand() -> None:
    import weakref

    values = A.values.clone()
    operand, dense = ns.SparseTensor(copy.deepcopy(ns.from_torch(D, ns.CSR)).pattern, values), X.clone()
    references = [weakref.ref(target) for target in (operand, dense, values)]
    plan = ns.plan("ij,jk->ik", operand, dense)
    plan(operand, dense)
    del operand, dense, values
    assert [ref() for ref in references] == [None, None, None]
    torch.testing.assert_close(plan(A, X), D @ X)


def test_threads() -> None:
    plan = pickle.loads(pickle.dumps(ns.plan("ij,jk->ik", A, X)))
    columns = X.t().contiguous().t()

    def run(at: int) -> torch.Tensor:
        first = (A, NATIVE, B, A.with_values(2 * A.values))[at % 4]
        with torch.inference_mode(at % 3 == 0):
            result: torch.Tensor = plan(first, X if at % 2 else columns)
        return result

    expected = (D @ X, D @ X, E @ X, 2 * D @ X)
    with ThreadPoolExecutor(8) as pool:
        for at, result in enumerate(pool.map(run, range(400))):
            torch.testing.assert_close(result.clone(), expected[at % 4])


def test_repr() -> None:
    assert repr(ns.plan("ij,j->i", A, x)) == "<plan ij,j->i:   A: 6x6 (CSR, float32)   B: 6 (dense, float32) -> 6 (dense, float32)>"
    masked = ns.plan("ij,kj->ik", X, X, mask=A, reduce="max", format=ns.CSC)
    assert repr(masked).startswith("<plan ij,kj->ik, format='CSC', reduce='max', mask=6x6 (CSR, float32):   A: 6x4 (dense")
    assert repr(masked).endswith("-> 6x6 (CSC, float32)>")
    chain = ns.plan(*CASES["pairs"][:1], *CASES["pairs"][1])
    assert repr(chain).endswith("-> unknown until the first call>")
    chain(*CASES["pairs"][1])
    assert repr(chain).endswith("-> 200x2 (dense, float32)>")


def test_within_fused_functions() -> None:
    plan = ns.plan("ij,jk->ik", A, X)
    plan(A, X)
    fused = ns.fuse(lambda A, X: torch.relu(plan(A, X)))
    torch.testing.assert_close(fused(A, X), torch.relu(D @ X))


def test_the_ledger_names_the_users_line() -> None:
    plan, columns = ns.plan("ij,jk->ik", ns.from_torch(D, ns.COO(2)), X), ns.from_torch(E, ns.COO(2))
    with ns.ledger() as led:
        plan(columns, X)
    assert all("test_bound.py" in entry.line for entry in led)


class TestCompiled:
    """Plans within torch.compile."""

    pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # raised by torch's compiler

    @pytest.fixture(autouse=True)
    def reset_compiler(self) -> Iterator[None]:
        torch.compiler.reset()
        yield
        torch.compiler.reset()

    @pytest.mark.parametrize("is_whole", [False, True])
    def test_results(self, is_whole: bool) -> None:
        plan = ns.plan("ij,jk->ik", A, X)
        program = torch.compile(lambda X: torch.relu(plan(A, X)) + 1, fullgraph=is_whole, backend="aot_eager")
        for _ in range(2):
            torch.testing.assert_close(program(X), torch.relu(D @ X) + 1)
        weight = X.clone().requires_grad_()
        program(weight).sum().backward()
        torch.testing.assert_close(weight.grad, D.t() @ (D @ X > 0).float())

    @pytest.mark.parametrize("name", ["a new pattern", "max", "a mask", "torch's CSR"])
    def test_other_results(self, name: str) -> None:
        expr, operands, options = CASES[name]
        plan = ns.plan(expr, *operands, **options)
        program = torch.compile(lambda *operands: as_dense(plan(*operands)), backend="aot_eager")
        torch.testing.assert_close(program(*operands), as_dense(plan(*operands)))

    def test_misfits(self) -> None:
        plan = ns.plan("ij,jk->ik", A, X)
        program = torch.compile(lambda A, X: plan(A, X), backend="aot_eager")
        for operands in ((A, X[:, :3]), (C, X), (A, X.double())):
            with pytest.raises(ns.NumscorchError, match="does not match the plan"):
                program(*operands)

    def test_plans_inside_compiled_functions(self) -> None:
        program = torch.compile(lambda X: ns.plan("ij,jk->ik", A, X)(A, X), backend="aot_eager")
        torch.testing.assert_close(program(X), D @ X)
