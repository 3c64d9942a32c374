"""Plans: einsums bound to operands of certain formats, data types and shapes."""

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
from numscorch import bound
from numscorch.compute import fitting
from numscorch.schedule import tuning

pytestmark = pytest.mark.usefixtures("plain")

DRAWN = torch.Generator().manual_seed(0)
D = torch.randn(6, 6, generator=DRAWN) * (torch.rand(6, 6, generator=DRAWN) < 0.5)
E = torch.randn(6, 6, generator=DRAWN) * (torch.rand(6, 6, generator=DRAWN) < 0.3)
X = torch.randn(6, 4, generator=DRAWN)
x = torch.randn(6, generator=DRAWN)
A, B, C = ns.from_torch(D, ns.CSR), ns.from_torch(E, ns.CSR), ns.from_torch(D, ns.CSC)
NATIVE = D.to_sparse_csr()


def full(result: Any) -> torch.Tensor:
    made: torch.Tensor = result if type(result) is torch.Tensor and result.layout is torch.strided else result.to_dense()
    return made


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A function after whose call nothing goes the way of einsum."""

    def refuse(*operands: Any, **options: Any) -> None:
        raise AssertionError("einsum was called")

    yield lambda: monkeypatch.setattr(bound, "einsum", refuse)


LARGE = ns.from_torch(torch.randn(200, 200, generator=DRAWN) * (torch.rand(200, 200, generator=DRAWN) < 0.05), ns.CSR)

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
    "pairs": ("ij,jk,kl->il", (LARGE, LARGE, torch.randn(200, 2, generator=DRAWN)), {}),
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
    wanted = ns.einsum(expr, *operands, **options)
    made = ns.plan(expr, *operands, **options)
    given = (A, X) if name == "sublists" else operands
    for _ in range(3):
        found = made(*given)
        assert type(found) is type(wanted)
        assert found.dtype == wanted.dtype
        assert getattr(found, "layout", None) == getattr(wanted, "layout", None)
        assert not isinstance(found, ns.SparseTensor) or found.format == wanted.format
        torch.testing.assert_close(full(found), full(wanted), equal_nan=True)
    assert made.result is not None
    assert made.result.shape == wanted.shape
    assert str(made.result.dtype).removeprefix("torch.") in repr(made)


ELSEWHERE = ("mean", "a diagonal's max", "no sparse operand", "two data types", "bool", "16 bits", "another format", "torch's CSR, kept")
ELSEWHERE += ("torch's uncoalesced COO", "a dense SparseTensor", "a parameter", "integers", "a transpose")


@pytest.mark.parametrize("name", [name for name in CASES if name not in ELSEWHERE])
@pytest.mark.filterwarnings("ignore:.* stores .* values for")
def test_warm_calls_run_the_kernel_at_once(name: str, alone: Callable[[], None]) -> None:
    expr, operands, options = CASES[name]
    made, given = ns.plan(expr, *operands, **options), (A, X) if name == "sublists" else operands
    wanted = made(*given)
    alone()
    torch.testing.assert_close(full(made(*given)), full(wanted), equal_nan=True)


def test_the_kernel_is_compiled_by_plan_and_nothing_is_computed(alone: Callable[[], None]) -> None:
    alone()
    made = ns.plan("ij,jk->ik", A, X)
    torch.testing.assert_close(made(A, X), D @ X)


def test_other_patterns_fit(alone: Callable[[], None]) -> None:
    made = ns.plan("ij,jk->ik", A, X)
    generator = torch.Generator().manual_seed(1)
    others = [torch.randn(6, 6, generator=generator) * (torch.rand(6, 6, generator=generator) < share) for share in (0, 0.1, 0.5, 0.9, 1)]
    tensors = [ns.from_torch(other, ns.CSR) for other in others]
    assert len({tensor.pattern.signature for tensor in tensors}) > 2
    for _ in range(2):
        for tensor, other in zip(tensors, others, strict=True):
            torch.testing.assert_close(made(tensor, X), other @ X)
        alone()


def test_patterns_that_are_the_same_and_others_have_plans_of_their_own(alone: Callable[[], None]) -> None:
    made, other = ns.plan("ij,ij->ij", A, A), A.with_values(2 * A.values)
    again = ns.SparseTensor(copy.copy(ns.from_torch(D, ns.CSR).pattern), A.values)
    assert again.pattern is not A.pattern
    for _ in range(2):
        torch.testing.assert_close(made(A, A).to_dense(), D * D)
        torch.testing.assert_close(made(A, other).to_dense(), 2 * D * D)
        torch.testing.assert_close(made(A, again).to_dense(), D * D)
        torch.testing.assert_close(made(A, B).to_dense(), D * E)
        alone()


def test_a_row_that_is_long_takes_a_plan_of_its_own(fresh_plans: pytest.MonkeyPatch) -> None:

    fresh_plans.setattr(tuning, "LONG_ROW_ENTRIES", 1 << 6)
    even, long = torch.zeros(200, 200), torch.zeros(200, 200)
    even[:, 0], long[3], long[5, 7] = 1, 2, 3
    operands = [ns.from_torch(own, ns.CSR) for own in (even, long)]
    assert [own.pattern.has_long_rows for own in operands] == [False, True]
    made, vector = ns.plan("ij,j->i", operands[0], torch.ones(200)), torch.rand(200)
    for _ in range(2):
        torch.testing.assert_close(made(operands[0], vector), even @ vector)
        torch.testing.assert_close(made(operands[1], vector), long @ vector)


def test_kinds_of_calls_take_turns(alone: Callable[[], None]) -> None:
    """Other strides, torch's own tensors, and inference mode: each is fast after its first call."""
    made, columns = ns.plan("ij,jk->ik", A, X), X.t().contiguous().t()
    for _ in range(3):
        for first in (A, NATIVE):
            torch.testing.assert_close(made(first, X), D @ X)
            torch.testing.assert_close(made(first, columns), D @ X)
        alone()


def test_more_kinds_of_calls_than_are_kept() -> None:
    made, wide = ns.plan("ij,jk->ik", A, X), torch.empty(6, 40)
    for step in range(1, 11):
        strided = wide[:, : 4 * step : step].copy_(X)
        torch.testing.assert_close(made(A, strided), D @ X)
    assert len(made._fittings.known) == fitting.MOST_FITTINGS


def test_more_patterns_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MOST_PATTERNS", 2)
    made = ns.plan("ij,j->i", A, x)
    for rows in range(7):
        other = D.clone()
        other[rows:] = 0
        torch.testing.assert_close(made(ns.from_torch(other, ns.CSR), x), other @ x)
    assert len(made._fittings.known[0].plans) == 2


def test_modes_of_torch(alone: Callable[[], None]) -> None:
    made = ns.plan("ij,jk->ik", A, X)
    weight = torch.nn.Parameter(X.clone())
    for _ in range(2):
        torch.testing.assert_close(made(A, X), D @ X)
        with torch.no_grad():
            torch.testing.assert_close(made(A, X), D @ X)
            torch.testing.assert_close(made(A, weight), D @ X)
            torch.testing.assert_close(made(A, weight[:]), D @ X)
        with torch.inference_mode():
            torch.testing.assert_close(made(A, X), D @ X)
            torch.testing.assert_close(made(A, X.clone()), D @ X)
        alone()


def test_tensors_that_are_wrapped_anew_at_each_call() -> None:
    uncoalesced, made = CASES["torch's uncoalesced COO"][1][0], ns.plan("ij,jk->ik", *CASES["torch's uncoalesced COO"][1])
    with torch.inference_mode():
        inferred = D.to_sparse_csr()
        of_inferred = ns.plan("ij,jk->ik", inferred, X)
        for _ in range(3):
            torch.testing.assert_close(of_inferred(inferred, X), D @ X)
            torch.testing.assert_close(made(uncoalesced, X), uncoalesced.to_dense() @ X)
    assert not made._fittings.known
    assert not of_inferred._fittings.known


def test_autocast() -> None:
    made = ns.plan("ij,jk->ik", A, X)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            found = made(A, X)
            assert found.dtype == torch.bfloat16
            assert torch.equal(found, ns.einsum("ij,jk->ik", A, X))
    assert made(A, X).dtype == torch.float32


def test_gradients() -> None:
    made, values, weight = ns.plan("ij,jk->ik", A, X), A.values.clone().requires_grad_(), X.clone().requires_grad_()
    for _ in range(2):
        values.grad = weight.grad = None
        made(A.with_values(values), weight).square().sum().backward()
        other, dense = A.values.clone().requires_grad_(), X.clone().requires_grad_()
        ns.einsum("ij,jk->ik", A.with_values(other), dense).square().sum().backward()
        assert torch.equal(values.grad, other.grad)
        assert torch.equal(weight.grad, dense.grad)
    assert not made(A, X).requires_grad
    assert made(A, weight).requires_grad
    with pytest.raises(ns.UnsupportedError, match="no_grad"):
        made(A, weight, out=torch.empty(6, 4))


@pytest.mark.parametrize("of_values", [False, True])
@pytest.mark.parametrize("of_dense", [False, True])
def test_gradients_flow_after_calls_without(of_values: bool, of_dense: bool, alone: Callable[[], None]) -> None:
    made, first = ns.plan("ij,jk->ik", A, X), A.with_values(A.values.clone().requires_grad_(of_values))
    weights = [torch.nn.Parameter(X.clone()), X.clone().requires_grad_()] if of_dense else [X]
    for second in weights:
        for _ in range(2):
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    assert not made(first, second).requires_grad
            assert made(first, second).requires_grad == (of_values or of_dense)
    alone()
    for second in weights:
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                torch.testing.assert_close(made(first, second), D @ X)


def test_a_plan_of_operands_that_require_grad(alone: Callable[[], None]) -> None:
    made = ns.plan("ij,jk->ik", A.with_values(A.values.clone().requires_grad_()), X.clone().requires_grad_())
    assert made(A, X.clone().requires_grad_()).requires_grad
    assert "2x" not in repr(made)
    torch.testing.assert_close(made(A, X), D @ X)
    alone()
    torch.testing.assert_close(made(A, X), D @ X)


def test_gradients_of_torchs_tensors() -> None:
    leaf = NATIVE.clone().requires_grad_()
    made = ns.plan("ij,jk->ik", NATIVE, X)
    torch.testing.assert_close(made(NATIVE, X), D @ X)
    made(leaf, X).sum().backward()
    torch.testing.assert_close(leaf.grad.to_dense(), (torch.ones(6, 4) @ X.t()) * (D != 0))
    with torch.no_grad():
        assert not made(leaf, X).requires_grad


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, which torch uses
def test_forward_mode_is_refused_as_by_einsum() -> None:
    made = ns.plan("ij,jk->ik", A, X)
    made(A, X)
    with forward_ad.dual_level(), pytest.raises(ns.UnsupportedError, match="tangent"):
        made(A, forward_ad.make_dual(X, X))


def test_vmap_and_other_transforms() -> None:
    made, batch = ns.plan("ij,j->i", A, x), torch.randn(3, 6)
    made(A, x)
    torch.testing.assert_close(torch.vmap(lambda row: made(A, row))(batch), batch @ D.t())
    values = torch.stack([A.values, 2 * A.values])
    torch.testing.assert_close(torch.vmap(lambda v: made(A.with_values(v), x))(values), torch.stack([D, 2 * D]) @ x)
    torch.testing.assert_close(torch.vmap(lambda row: row + made(A, x))(batch), batch + D @ x)
    torch.testing.assert_close(torch.func.grad(lambda row: made(A, row).sum())(x), D.sum(0))
    torch.testing.assert_close(torch.vmap(lambda row: ns.plan("ij,j->i", A, row)(A, row))(batch), batch @ D.t())


def test_what_is_changed_in_place_is_seen() -> None:
    made, square = ns.plan("ij,jk->ik", A, D), torch.empty(6, 6).copy_(D)
    torch.testing.assert_close(made(A, square), D @ D)
    torch.testing.assert_close(made(A, square.t_()), D @ D.t())
    square.as_strided_((6, 3), (1, 6))
    with pytest.raises(ns.SizeError, match="6x3"):
        made(A, square)
    operand = ns.from_torch(D, ns.CSR)
    operand.values = 2 * operand.values
    torch.testing.assert_close(made(operand, D), 2 * D @ D)
    operand.values.requires_grad_()
    assert made(operand, D).requires_grad
    operand.values = operand.values.detach().double()
    with pytest.raises(ns.OperandError, match="float64"):
        made(operand, D)


def test_out(alone: Callable[[], None]) -> None:
    made, out = ns.plan("ij,jk->ik", A, X), torch.empty(6, 4)
    kept = ns.plan("ij,ij->ij", A, D)
    alone()
    assert made(A, X, out=out) is out
    torch.testing.assert_close(out, D @ X)
    ours = A.with_values(torch.zeros_like(A.values))
    assert kept(A, D, out=ours) is ours
    torch.testing.assert_close(ours.to_dense(), D * D)
    with pytest.raises(ns.SizeError, match=r"out has shape \(4, 6\)"):
        made(A, X, out=torch.empty(4, 6))
    with pytest.raises(ns.UnsupportedError, match=r"but the result has torch\.float32"):
        made(A, X, out=torch.empty(6, 4, dtype=torch.int32))


@pytest.mark.parametrize("name", ["max", "a semiring", "mean", "a mask", "pairs", "two data types", "no sparse operand"])
def test_out_of_other_requests(name: str) -> None:
    expr, operands, options = CASES[name]
    made, wanted = ns.plan(expr, *operands, **options), ns.einsum(expr, *operands, **options)
    for _ in range(2):
        out = torch.empty(wanted.shape, dtype=wanted.dtype)
        assert made(*operands, out=out) is out
        torch.testing.assert_close(out, full(wanted), equal_nan=True)


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
    "an array": ((A, X.numpy()), ns.OperandError, "as_tensor"),
}


@pytest.mark.parametrize("name", MISFITS)
@pytest.mark.parametrize("is_warm", [False, True])
def test_misfits_show_both(name: str, is_warm: bool) -> None:
    made, (operands, error, told) = ns.plan("ij,jk->ik", A, X), MISFITS[name]
    if not is_warm:
        made = pickle.loads(pickle.dumps(made))
    with pytest.raises(error, match=re.compile(told, re.DOTALL)) as caught:
        made(*operands)
    assert isinstance(caught.value, ns.NumscorchError)
    torch.testing.assert_close(made(A, X), D @ X)


def test_more_operands_than_letters() -> None:
    made = ns.plan("ij,jk->ik", A, X)
    with pytest.raises(ns.ExpressionError, match="not 40"):
        made(*[A] * 40)


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
def test_what_einsum_refuses_plan_refuses(name: str) -> None:
    call, error, told = REFUSED[name]
    with pytest.raises(error, match=told):
        call()


@pytest.mark.parametrize("name", [name for name in CASES if name != "sublists"])
@pytest.mark.filterwarnings("ignore:.* stores .* values for")
def test_pickles_and_copies(name: str) -> None:
    expr, operands, options = CASES[name]
    made = ns.plan(expr, *operands, **options)
    wanted = full(made(*operands))
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made)):
        assert repr(again) == repr(made)
        assert not again._fittings.known
        for _ in range(2):
            torch.testing.assert_close(full(again(*operands)), wanted, equal_nan=True)


def test_a_plan_keeps_no_operand() -> None:
    import weakref

    values = A.values.clone()
    operand, dense = ns.SparseTensor(copy.deepcopy(ns.from_torch(D, ns.CSR)).pattern, values), X.clone()
    kept = [weakref.ref(own) for own in (operand, dense, values)]
    made = ns.plan("ij,jk->ik", operand, dense)
    made(operand, dense)
    del operand, dense, values
    assert [ref() for ref in kept] == [None, None, None]
    torch.testing.assert_close(made(A, X), D @ X)


def test_threads() -> None:
    made = pickle.loads(pickle.dumps(ns.plan("ij,jk->ik", A, X)))
    columns = X.t().contiguous().t()

    def run(at: int) -> torch.Tensor:
        first = (A, NATIVE, B, A.with_values(2 * A.values))[at % 4]
        with torch.inference_mode(at % 3 == 0):
            found: torch.Tensor = made(first, X if at % 2 else columns)
        return found

    wanted = (D @ X, D @ X, E @ X, 2 * D @ X)
    with ThreadPoolExecutor(8) as pool:
        for at, found in enumerate(pool.map(run, range(400))):
            torch.testing.assert_close(found.clone(), wanted[at % 4])


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
    made = ns.plan("ij,jk->ik", A, X)
    made(A, X)
    fused = ns.fuse(lambda A, X: torch.relu(made(A, X)))
    torch.testing.assert_close(fused(A, X), torch.relu(D @ X))


def test_the_ledger_names_the_users_line() -> None:
    made, columns = ns.plan("ij,jk->ik", ns.from_torch(D, ns.COO(2)), X), ns.from_torch(E, ns.COO(2))
    with ns.ledger() as led:
        made(columns, X)
    assert all("test_bound.py" in entry.line for entry in led)


class TestCompiled:
    """Plans within torch.compile."""

    pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler

    @pytest.fixture(autouse=True)
    def anew(self) -> Iterator[None]:
        torch.compiler.reset()
        yield
        torch.compiler.reset()

    @pytest.mark.parametrize("is_whole", [False, True])
    def test_results(self, is_whole: bool) -> None:
        made = ns.plan("ij,jk->ik", A, X)
        program = torch.compile(lambda X: torch.relu(made(A, X)) + 1, fullgraph=is_whole, backend="aot_eager")
        for _ in range(2):
            torch.testing.assert_close(program(X), torch.relu(D @ X) + 1)
        weight = X.clone().requires_grad_()
        program(weight).sum().backward()
        torch.testing.assert_close(weight.grad, D.t() @ (D @ X > 0).float())

    @pytest.mark.parametrize("name", ["a new pattern", "max", "a mask", "torch's CSR"])
    def test_other_results(self, name: str) -> None:
        expr, operands, options = CASES[name]
        made = ns.plan(expr, *operands, **options)
        program = torch.compile(lambda *operands: full(made(*operands)), backend="aot_eager")
        torch.testing.assert_close(program(*operands), full(made(*operands)))

    def test_misfits(self) -> None:
        made = ns.plan("ij,jk->ik", A, X)
        program = torch.compile(lambda A, X: made(A, X), backend="aot_eager")
        for operands in ((A, X[:, :3]), (C, X), (A, X.double())):
            with pytest.raises(ns.NumscorchError, match="what the plan was made for"):
                program(*operands)

    def test_plans_that_are_made_within(self) -> None:
        program = torch.compile(lambda X: ns.plan("ij,jk->ik", A, X)(A, X), backend="aot_eager")
        torch.testing.assert_close(program(X), D @ X)
